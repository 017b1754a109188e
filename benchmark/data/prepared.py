"""The corpus of a run by its settings, and what is known of its texts without preparing any."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmark.data import corpus
from benchmark.data.decontamination import decontaminate
from benchmark.data.documents import DataError, NotHere
from benchmark.data.tokenizer import TextTokenizer, load_tokenizer
from benchmark.data.tokens import (
    Corpus,
    DataCache,
    Say,
    Unprepared,
    choose_mask_number,
    load_trained,
    make_tokenizer,
    make_validation_key,
    prepare,
    prepare_domain,
)
from benchmark.ledger.store import Store
from benchmark.ledger.texts import TextFinder, Texts
from benchmark.settings.base import digest
from benchmark.settings.decides import describe
from benchmark.settings.suite import RunConfig
from benchmark.settings.texts import Domain

Found = TypeVar("Found")  # what is known of texts


def prepare_corpus(
    config: RunConfig,
    store: Store,
    progress: Say = lambda line: None,
    check: bool = True,
    makes: bool = True,
    waits: bool = True,
) -> Corpus:
    """The run's corpus, after missing texts were tokenised.

    Its validation text lacks near copies of training text, see `decontaminate`. `check`: first
    compare all ids with their checksums, which can raise DamagedFile. Also raises what `prepare`
    raises.
    """
    if is_start_gone(config):
        raise NotHere(f"model.start {config.model.start!r} is gone: restore it from a copy")
    cache = DataCache(store.data, progress, makes, waits)
    prepared = prepare(config, cache)
    if check:
        for text in (*prepared.domains, *prepared.probes):
            text.check()
    return decontaminate(prepared, config.data, cache)


def is_start_gone(config: RunConfig) -> bool:
    return config.start is not None and not os.path.isdir(config.start.folder)


def find_prepared_corpus(config: RunConfig, store: Store) -> Corpus | None:
    """The run's corpus if all of it is prepared, else None.

    Training ids are not read, and nothing is made.
    """
    try:
        return prepare_corpus(config, store, check=False, makes=False)
    except Unprepared:
        return None


def find_texts(config: RunConfig, store: Store) -> Texts:
    """The keys and sizes of a run's texts if all are tokenised, else none.

    If text is missing on this machine, `problem` says which.
    """
    try:
        prepared = find_prepared_corpus(config, store)
    except NotHere as error:
        return Texts(problem=error)
    if not prepared:
        return Texts()
    texts = (*prepared.domains, *prepared.probes)
    return Texts(
        keys=prepared.keys,
        validation=list_validation_keys(prepared, config),
        sizes=tuple(domain.info["tokens"] for domain in prepared.domains),
        valid_tokens=sum(len(text.valid) for text in texts),
    )


def find_first_keys(config: RunConfig, store: Store) -> dict[str, str]:
    """The keys, by name, of the domains that are prepared, up to the first that is not.

    The replayed text's key is included. If the tokenizer or the replayed text is not prepared, the
    result is empty, because then no stage's key is known.
    """
    cache = DataCache(store.data, makes=False)
    data = config.data
    keys: dict[str, str] = {}

    def identify(text: Domain) -> str:
        return corpus.identify(text, data.valid_share, store.data / "texts", makes=False)

    replayed = config.learned[len(config.domains) :]
    try:
        if config.start:
            tokenizer = load_tokenizer(Path(config.start.folder))
        else:
            names = config.tokenizer.domains or [domain.name for domain in config.domains]
            identities = {
                domain.name: identify(domain) for domain in config.domains if domain.name in names
            }
            tokenizer = make_tokenizer(config.domains, config.tokenizer, data, identities, cache)
        for text in (*replayed, *config.domains):
            tokens = prepare_domain(text, identify(text), tokenizer, data, cache)
            keys[text.name] = tokens.key
    except (Unprepared, NotHere):
        has_replayed = all(text.name in keys for text in replayed)
        return keys if has_replayed else {}
    return keys


def find_prepared_keys(config: RunConfig, store: Store) -> dict[str, set[str]]:
    """The run's texts that are on this machine, by name, each with its keys.

    A text has one key per tokenizer here with which it is prepared. A source of a mixed text is a
    text, too. A mixed text, or one of the Hub, is here only if it is prepared.
    """
    if is_start_gone(config):  # so is its tokenizer: nothing can be known of any text
        return {}
    cache = DataCache(store.data, makes=False)
    text_tokenizers = _find_tokenizers(config, store, cache)
    texts = [*config.domains, *config.probes]
    for domain in (*config.domains, *config.probes):
        if domain.sources:
            texts += domain.parts
    text_keys: dict[str, set[str]] = {}
    for text in texts:
        with contextlib.suppress(NotHere):
            identity = corpus.identify(
                text, config.data.valid_share, store.data / "texts", makes=False
            )
            keys = set[str]()
            for tokenizer in text_tokenizers:
                with contextlib.suppress(Unprepared):
                    tokens = prepare_domain(text, identity, tokenizer, config.data, cache)
                    keys.add(tokens.key)
            is_here = not text.sources
            if text.datasets:
                is_here = any(os.path.isdir(dataset.path) for dataset in text.datasets)
            if keys or is_here:
                text_keys[text.name] = keys
    return text_keys


def _find_tokenizers(config: RunConfig, store: Store, cache: DataCache) -> list[TextTokenizer]:
    """The tokenizers that the run's texts may be prepared with."""
    try:
        if config.start:
            return [load_tokenizer(Path(config.start.folder))]
        if config.tokenizer.folder:
            return [make_tokenizer((), config.tokenizer, config.data, {}, cache)]
        files = sorted(store.data.glob("tokenizers/[!.]*/tokenizer.json"))
        return [load_trained(file.parent) for file in files]
    except DataError:
        # without the tokenizer, a text here cannot be compared with the one that was trained on
        return []


def hash_texts(config: RunConfig) -> str:
    """A hash of the settings that decide a corpus, and of where its files lie."""
    names = [text.name for text in (*config.domains, *config.probes)]
    return digest([names, describe(config, "text", "place")])


def plan_text_keys(config: RunConfig) -> list[str]:
    """A stand-in for the key of each text that is learned, before it is tokenised.

    Texts with equal settings have equal stand-ins, as they will have equal keys.
    """
    tokenizer = describe(config.tokenizer, "text", "place")
    data = describe(config.data, "text")
    return [
        digest([text.name, describe(text, "text", "place"), tokenizer, data])
        for text in config.learned
    ]


def list_validation_keys(prepared: Corpus, config: RunConfig) -> dict[str, set[str]]:
    """By domain and probe, the keys of its validation text for causal and for masked models."""
    places = config.places or range(len(config.domains))
    keys = {}
    for index, text in enumerate((*prepared.domains, *prepared.probes)):
        numbers = (None, choose_mask_number(text.name, index, places))
        separates = config.data.document_mask
        keys[text.name] = {make_validation_key(text, number, separates) for number in numbers}
    return keys


def make_text_finder(store: Store) -> TextFinder:
    """The finder of what is known of runs' texts, in one folder of `--runs`."""
    return TextFinder(
        find=_look_once(find_texts, store),
        find_first_keys=_look_once(find_first_keys, store),
        find_prepared_keys=_look_once(find_prepared_keys, store),
    )


def _look_once(
    find: Callable[[RunConfig, Store], Found], store: Store
) -> Callable[[RunConfig], Found]:
    """`find` with its store and a cache, so that runs of equal texts are looked up once."""
    answers: dict[str, Found] = {}  # by what the texts are made from

    def look(config: RunConfig) -> Found:
        key = hash_texts(config)
        if key not in answers:
            answers[key] = find(config, store)
        return answers[key]

    return look
