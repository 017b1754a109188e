"""Text to token ids: every domain tokenised once, into flat arrays on disk.

A folder of prepared data holds

    texts/<names, sizes and times of files>.txt, the identity of their content
    tokenizers/<identity>/tokenizer.json
    domains/<identity>/train.bin, valid.bin, info.json

each with checksums.json beside; whoever reads the files compares it.

An identity hashes what the content is made from: settings, and the content of files, which is only
read where a file's name, size or time is new. The `key`s inside hash the content itself; runs are
known by them, so a corpus that moved to another folder keeps its runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import tokenizers
from numpy.typing import NDArray

from benchmark.data import corpus, docstrings
from benchmark.data.documents import DataError, NotHere, Sample
from benchmark.data.tokenizer import (
    Ids,
    Special,
    TextTokenizer,
    Vocabulary,
    encode_documents,
    load_bpe,
    load_tokenizer,
    train_bpe,
)
from benchmark.files import (
    BEGUN,
    check_checksums,
    read_json,
    replace_folder,
    take_over,
    write_checksums,
    write_json,
)
from benchmark.locks import Lease
from benchmark.settings.base import digest
from benchmark.settings.suite import Data, RunConfig
from benchmark.settings.suite import Tokenizer as TokenizerConfig
from benchmark.settings.texts import Domain, WeightedText
from benchmark.store import Store

FORMAT = 1  # raised when the same text comes to mean other tokens
SAMPLED_FROM = 16  # a tokenizer's sample is drawn from this many times its size of text
REPORT_EVERY = 2**24  # bytes of text between two lines of progress
SUMMED = ("documents", "valid_documents", "valid_bytes")  # over the sources of a domain
BEYOND = "beyond max_valid_bytes or max_valid_tokens"  # why a document is left out
# of a domain: documents that were read, a hash of their text, and bytes of train.bin
NOTHING: dict[str, Any] = {"documents": 0, "sha256": "", "bytes": 0}
Say = Callable[[str], None]
Poll = Callable[[bool], None]  # told now and then whether another process is waited for; may raise


class DomainInfo(TypedDict, total=False):
    """The settings and files that a domain's tokens were made of; they go into records."""

    documents: int
    valid_documents: int  # of these
    valid_bytes: int  # of the validation text
    tokens: int
    sha256: str  # of all text that was read
    skipped: dict[str, int]  # by reason
    # validation documents most of which stand in its training text, in records: see data/leaks.py
    near_copies: int
    near_copies_in: dict[str, int]  # or in that of another domain
    versions: dict[str, str]  # by package
    source: dict[str, Any]
    parts: list[
        int
    ]  # training tokens of each source of a mixed domain, which come one after the other
    keys: dict[str, str]  # of these sources, as `Corpus.keys`
    unigram_perplexity: float


@dataclass(frozen=True)
class DomainTokens:
    """`train` and `valid` are 1-D memory-mapped ids (uint16 or uint32), each document followed by
    `</s>`.
    """

    name: str
    title: str
    key: str
    train: Ids
    valid: Ids
    info: DomainInfo
    folder: Path | None = None  # where they lie, if they do
    sources: tuple[
        WeightedText, ...
    ] = ()  # of a mixed domain; `info["parts"]` says where each one's tokens end

    def check(self) -> None:
        """Hold all ids against their checksums, once in a process. Raises DamagedFile."""
        if self.folder:
            check_checksums(self.folder, describe_cure(self.folder))


@dataclass(frozen=True)
class Corpus:
    """The domains of a stream as tokens. `tokenizer` takes special tokens in a text for ordinary
    text.
    """

    tokenizer: tokenizers.Tokenizer
    text_vocabulary: int
    domains: tuple[DomainTokens, ...]
    probes: tuple[DomainTokens, ...] = ()  # never trained on
    special: Special = field(default_factory=Special)

    @property
    def vocabulary(self) -> Vocabulary:
        """The layout for a model that has met all domains."""
        return Vocabulary(
            self.text_vocabulary, tuple(domain.name for domain in self.domains), self.special
        )

    @cached_property
    def keys(self) -> dict[str, str]:
        """By name, a hash for each domain, probe and source of a mixed one, of its tokens and the
        tokenizer's own.
        """
        texts = (*self.domains, *self.probes)
        of_sources = (each for text in texts for each in text.info.get("keys", {}).items())
        return {**{text.name: text.key for text in texts}, **dict(of_sources)}


class Unprepared(Exception):
    """Something is not there that would have to be made."""


@dataclass(frozen=True)
class Place:
    """A folder of prepared data, who is told of its making, who may end that, and whether anything
    is made.
    """

    folder: Path
    report: Say = lambda line: None
    makes: bool = True
    poll: Poll = lambda waits: None

    def make_once(self, kind: str, identity: str, make: Callable[[Path], None]) -> Path:
        """A folder, filled by `make` if it is not there: by one process while others wait, all of
        it or nothing.
        """
        folder = self.folder / kind / identity
        if folder.exists():
            return folder
        if not self.makes:
            raise Unprepared
        folder.parent.mkdir(parents=True, exist_ok=True)
        lease = Lease(folder.with_name(f"{folder.name}.lock"))
        say = lambda: self.report(f"waiting for {lease.name_owner()}, which prepares {folder}")  # noqa: E731
        lease.acquire(say, lambda: self.poll(True))
        try:
            if not folder.exists():
                with replace_folder(folder) as unfinished:
                    take_over(folder, unfinished)
                    make(unfinished)
                    write_checksums(unfinished)
                    lease.check()
        finally:
            lease.release()
        return folder


def describe_cure(folder: Path) -> str:
    return f"remove {folder}, and it is made from the text again"


def prepare(
    domains: Sequence[Domain],
    tokenizer: TokenizerConfig,
    data: Data,
    folder: Path,
    progress: Say = lambda line: None,
    probes: Sequence[Domain] = (),
    start: Path | None = None,
    *,
    poll: Poll = lambda waits: None,
    makes: bool = True,
) -> Corpus:
    """Tokenise what `folder` lacks and open it. Safe in several processes at once, and to kill.

    `start`: the folder of a model whose tokenizer is taken. Of ids that are there it reads the
    number, and no more: see `DomainTokens.check`. Raises DataError, DamagedFile, and what `poll`
    raises, after which another call goes on; Unprepared, with nothing made, if something is not
    there and `makes` is false.
    """
    into = Place(folder, progress, makes, poll)
    # before anything is found to be missing: text that is not there is said by a dry run, too
    notes = folder / "texts"
    sources = {
        text.name: corpus.identify(text, data.valid_share, notes, makes)
        for text in (*domains, *probes)
    }
    made_with = (
        load_tokenizer(start) if start else _make_tokenizer(domains, tokenizer, data, sources, into)
    )
    made_with.bpe.encode_special_tokens = True  # "<mask>" in a document is text
    tokenised = [
        _prepare_domain(domain, sources[domain.name], made_with, data, into)
        for domain in (*domains, *probes)
    ]
    split = tuple(tokenised[: len(domains)]), tuple(tokenised[len(domains) :])
    made = Corpus(made_with.bpe, made_with.vocabulary, *split, made_with.special)
    taken = [
        prompt
        for prompt in made.vocabulary.prompt_tokens
        if made.tokenizer.token_to_id(prompt) is not None
    ]
    if taken:
        raise DataError(
            f"the tokenizer's vocabulary already holds {', '.join(taken)}: rename the domain"
        )
    return made


# Tokenizers


def _make_tokenizer(
    domains: Sequence[Domain],
    config: TokenizerConfig,
    data: Data,
    sources: dict[str, str],
    into: Place,
) -> TextTokenizer:
    """The tokenizer of a suite; `sources` has the identity of each domain's text by its name."""
    if config.folder:
        return TextTokenizer.wrap(load_bpe(Path(os.path.expanduser(config.folder))))
    by_name = {domain.name: domain for domain in domains}
    sampled = [by_name[name] for name in config.domains or by_name]
    given = [sources[domain.name] for domain in sampled]
    identity = digest([FORMAT, config.vocabulary, config.sample_bytes, given])
    return _load_trained(
        into.make_once("tokenizers", identity, partial(_train, sampled, config, data, into))
    )


def _load_trained(folder: Path) -> TextTokenizer:
    check_checksums(folder, describe_cure(folder))
    return TextTokenizer.wrap(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))


def _train(
    sampled: Sequence[Domain], config: TokenizerConfig, data: Data, into: Place, folder: Path
) -> None:
    """Write tokenizer.json. What a killed process has sampled stays: of the Hub it may be hours of
    reading.
    """
    into.report(f"tokenizer: training on {', '.join(domain.name for domain in sampled)}")
    files = [folder / f"sample_{domain.name}.json" for domain in sampled]
    texts: list[str] = []
    for domain, file in zip(sampled, files, strict=True):
        if not file.exists():
            size = config.sample_bytes // len(domain.parts)
            sample = [
                text
                for part in domain.parts
                for text in _sample_texts(part, data.valid_share, size, into.poll)
            ]
            write_json(file, {"texts": sample})
            write_json(folder / BEGUN, {})
        texts += read_json(file, f"remove {folder}")["texts"]
    trained = train_bpe(texts, config.vocabulary)
    for file in files:
        file.unlink()
    if (size := trained.get_vocab_size()) < config.vocabulary:
        into.report(
            f"tokenizer: {size:,} of {config.vocabulary:,} entries, as the sample has no more "
            "pairs of tokens; "
            "give more text or raise tokenizer.sample_bytes"
        )
    trained.save(str(folder / "tokenizer.json"))


def _sample_texts(domain: Domain, valid_share: float, size: int, poll: Poll) -> list[str]:
    """About `size` bytes of training text, spread over the first `SAMPLED_FROM * size`."""
    sample: Sample[str] = Sample(size)
    seen = 0
    for document in corpus.read(domain, valid_share, Counter()):
        poll(False)
        if document.split == "train":
            text = document.text.encode()
            sample.add(document.text, len(text), zlib.crc32(text))
            seen += len(text)
            if seen >= SAMPLED_FROM * size:
                break
    return sample.list_items()


# Domains


def _prepare_domain(
    domain: Domain, source: str, made_with: TextTokenizer, data: Data, into: Place
) -> DomainTokens:
    limit = data.max_valid_tokens or ["bytes", data.max_valid_bytes]
    early = ["early"] if data.max_train_tokens and not domain.valid else []  # see `_write_ids`
    identity = digest([FORMAT, source, made_with.key, data.max_train_tokens, limit, *early])
    made = into.make_once("domains", identity, partial(_tokenise, domain, made_with, data, into))
    check_checksums(made, describe_cure(made), sizes_alone=("train.bin", "valid.bin"))
    info = json.loads((made / "info.json").read_text(encoding="utf-8"))
    paths = (made / f"{split}.bin" for split in ("train", "valid"))
    train, valid = (
        np.memmap(path, made_with.dtype, mode="r")
        if path.stat().st_size
        else np.empty(0, made_with.dtype)
        for path in paths  # an empty file cannot be mapped
    )
    for split, tokens in (("training", train), ("validation", valid)):
        if len(tokens) < data.text_length:
            raise DataError(
                f"domain {domain.name!r}: {len(tokens):,} {split} tokens, less than one row of "
                f"{data.text_length} "
                f"(documents: {info['documents']:,}, skipped: {info['skipped'] or 'none'}). Add "
                "text, "
                "or change data.sequence_length, data.valid_share or the domain's validation files"
            )
    return DomainTokens(
        domain.name, domain.label, info.pop("key"), train, valid, info, made, domain.sources
    )


def _tokenise(
    domain: Domain, made_with: TextTokenizer, data: Data, into: Place, folder: Path
) -> None:
    """Write train.bin, valid.bin and info.json."""
    into.report(f"{domain.name}: tokenising")
    write = _join_sources if domain.sources else _write_ids
    try:
        info = write(domain, made_with, data, into, folder)
    except DataError:
        if not domain.datasets:  # their text is wrong, and will be another
            (folder / BEGUN).unlink(missing_ok=True)
        raise
    train, train_hash = _count_and_hash(folder / "train.bin", made_with)
    valid, valid_hash = _count_and_hash(folder / "valid.bin", made_with)
    unigrams = np.log(
        (train + 1) / (train.sum() + len(train))
    )  # by their counts in training, plus one
    key = digest([made_with.key, train_hash, valid_hash, *info.get("parts", [])])
    info |= {
        "tokens": int(train.sum() + valid.sum()),
        "unigram_perplexity": float(np.exp(-(valid @ unigrams) / max(1, valid.sum()))),
        "versions": docstrings.read_versions(
            [name for part in domain.parts for name in part.packages]
        ),
        "source": domain.model_dump(
            mode="json", include={"packages", "train", "valid", "datasets", "sources"}
        ),
    }
    (folder / "info.json").write_text(json.dumps({"key": key, **info}), encoding="utf-8")


def _join_sources(
    domain: Domain, made_with: TextTokenizer, data: Data, into: Place, folder: Path
) -> DomainInfo:
    """Write the ids of the sources of a mixed domain one after the other, each tokenised by itself
    before.
    """
    notes = into.folder / "texts"
    parts = [
        _prepare_domain(
            source, corpus.identify(source, data.valid_share, notes), made_with, data, into
        )
        for source in domain.parts
    ]
    for name in ("train.bin", "valid.bin"):
        with (folder / name).open("wb") as file:
            for part in parts:
                with (cast(Path, part.folder) / name).open("rb") as source:
                    shutil.copyfileobj(source, file)
    infos: list[Any] = [part.info for part in parts]
    joined: Any = {name: sum(info[name] for info in infos) for name in SUMMED}
    joined |= {
        "sha256": digest([info["sha256"] for info in infos]),
        "skipped": dict(sum((Counter(info["skipped"]) for info in infos), Counter())),
        "parts": [len(part.train) for part in parts],
        "keys": {part.name: part.key for part in parts},
    }
    return cast(DomainInfo, joined)


def _write_ids(
    domain: Domain, made_with: TextTokenizer, data: Data, into: Place, folder: Path
) -> DomainInfo:
    """Write train.bin as the text comes, and valid.bin at the end; say what was read.

    What was begun is read again, but not tokenised; another text is begun anew. With
    `max_train_tokens` validation ends where some tokenizer could have so many, at a token a byte
    and two a document: it is the same for all tokenizers.
    """
    begun = (
        read_json(folder / BEGUN, describe_cure(folder)) if (folder / BEGUN).exists() else NOTHING
    )
    early_end = data.max_train_tokens or sys.maxsize
    room = early_end - begun["bytes"] // made_with.dtype.itemsize
    valid: Sample[tuple[Ids, int]] = Sample(data.max_valid_tokens or data.max_valid_bytes)
    skipped, text_hash = Counter[str](), hashlib.sha256()
    count = read = train_documents = train_bytes = 0
    with (folder / "train.bin").open("ab") as file:
        file.truncate(begun["bytes"])
        documents = corpus.read(domain, data.valid_share, skipped)
        for document, ids in encode_documents(made_with, documents, begun["documents"]):
            into.poll(False)
            if document.split == "train" and count >= begun["documents"] and not room:
                break
            count += 1
            text = document.text.encode()
            text_hash.update(b"%s %d\n" % (document.split.encode(), len(text)) + text)
            if (
                document.split == "valid"
                and not domain.valid
                and train_bytes + 2 * train_documents >= early_end
            ):
                skipped[BEYOND] += 1
            elif document.split == "valid":
                valid.add(
                    (ids, len(text)),
                    len(ids) if data.max_valid_tokens else len(text),
                    zlib.crc32(text),
                )
            else:
                train_documents += 1
                train_bytes += len(text)
                file.write(ids[:room].tobytes())  # none of a document that was written before
                room -= min(room, len(ids))
            if count == begun["documents"] and text_hash.hexdigest() != begun["sha256"]:
                break
            before, read = read, read + len(text)
            if before // REPORT_EVERY < read // REPORT_EVERY:
                if count > begun["documents"]:
                    file.flush()
                    os.fsync(file.fileno())  # all that is told of is on the disk
                    state = {
                        "documents": count,
                        "sha256": text_hash.hexdigest(),
                        "bytes": file.tell(),
                    }
                    write_json(folder / BEGUN, state)
                into.report(f"{domain.name}: {read / 1e6:,.0f} MB of text tokenised")
    if (
        count <= begun["documents"]
        and text_hash.hexdigest() != begun["sha256"]
        and begun["documents"]
    ):
        (folder / BEGUN).unlink()
        return _write_ids(domain, made_with, data, into, folder)
    skipped[BEYOND] += valid.dropped
    kept = valid.list_items()
    return {
        "documents": train_documents + len(kept),
        "valid_documents": len(kept),
        "valid_bytes": _write_valid(kept, made_with, data.max_valid_tokens, folder),
        "sha256": text_hash.hexdigest(),
        "skipped": dict(sorted((+skipped).items())),
    }


def _write_valid(
    kept: Sequence[tuple[Ids, int]], made_with: TextTokenizer, most: int | None, folder: Path
) -> int:
    """Write valid.bin, of at most so many tokens; return the bytes of its text."""
    valid_bytes, room = 0, most or sys.maxsize
    with (folder / "valid.bin").open("wb") as file:
        for ids, size in kept:
            part = ids[:room]
            room -= len(part)
            file.write(part.tobytes())
            if len(part) < len(ids):
                size = len(made_with.bpe.decode(part.tolist(), skip_special_tokens=False).encode())
            valid_bytes += size
    return valid_bytes


def _count_and_hash(path: Path, made_with: TextTokenizer) -> tuple[NDArray[np.int64], str]:
    """The counts of each id in a file, (vocabulary,), and a hash of the ids, the same for 16 and 32
    bits.

    The file is read in parts: pages of a mapped one would count as our memory.
    """
    counts, hashed = np.zeros(made_with.vocabulary, np.int64), hashlib.sha256()
    with path.open("rb") as file:
        while (part := np.fromfile(file, made_with.dtype, 2**20)).size:
            counts += np.bincount(part, minlength=made_with.vocabulary)
            hashed.update(part.astype("<u4").tobytes())
    return counts, hashed.hexdigest()


# The corpus of a run, as its settings say


def prepare_corpus(
    config: RunConfig,
    store: Store,
    progress: Say = lambda line: None,
    check: bool = True,
    makes: bool = True,
    poll: Poll = lambda waits: None,
) -> Corpus:
    """The run's corpus; missing texts are tokenised. Raises DataError, and Unprepared as `prepare`
    does.

    `check`: hold all ids against their checksums first, which raises DamagedFile. `poll`: see
    `prepare`.
    """
    start = Path(config.start.folder) if config.start else None
    given = (
        config.domains,
        config.tokenizer,
        config.data,
        store.data,
        progress,
        config.probes,
        start,
    )
    corpus = prepare(*given, poll=poll, makes=makes)
    for text in (*corpus.domains, *corpus.probes) if check else ():
        text.check()
    return corpus


def find_prepared_corpus(config: RunConfig, store: Store) -> Corpus | None:
    """The run's corpus if it needs no work; its ids are not read, and nothing is made."""
    try:
        return prepare_corpus(config, store, check=False, makes=False)
    except Unprepared:
        return None


def find_first_keys(config: RunConfig, store: Store) -> dict[str, str]:
    """By name the keys of the domains that are prepared, up to the first that is not, and of the
    replayed text.

    Empty where the tokenizer or the replayed text is not prepared: then no stage is known.
    """
    into = Place(store.data, makes=False)
    data = config.data
    keys: dict[str, str] = {}

    def identify(text: Domain) -> str:
        return corpus.identify(text, data.valid_share, store.data / "texts", makes=False)

    replayed = config.learned[len(config.domains) :]
    try:
        if config.start:
            made_with = load_tokenizer(Path(config.start.folder))
        else:
            names = config.tokenizer.domains or [domain.name for domain in config.domains]
            sources = {
                domain.name: identify(domain) for domain in config.domains if domain.name in names
            }
            made_with = _make_tokenizer(config.domains, config.tokenizer, data, sources, into)
        for text in (*replayed, *config.domains):
            keys[text.name] = _prepare_domain(text, identify(text), made_with, data, into).key
    except (Unprepared, NotHere):
        return keys if all(text.name in keys for text in replayed) else {}
    return keys


def find_prepared_keys(config: RunConfig, store: Store) -> dict[str, set[str]]:
    """The run's texts that are on this machine, by name, each with the keys that it is prepared
    under.

    It has a key for each tokenizer here. A source of a mixed text is a text, too. One of the Hub is
    here once prepared.
    """
    into, here = Place(store.data, makes=False), dict[str, set[str]]()
    try:
        if config.start:
            made = [load_tokenizer(Path(config.start.folder))]
        elif config.tokenizer.folder:
            made = [_make_tokenizer((), config.tokenizer, config.data, {}, into)]
        else:
            made = [
                _load_trained(file.parent)
                for file in sorted(store.data.glob("tokenizers/[!.]*/tokenizer.json"))
            ]
    except DataError:
        # without its tokenizer nobody can tell whether a text that is here is the one that was
        # trained on
        made = []
    whole = (*config.domains, *config.probes)
    for text in (
        *whole,
        *(source for domain in whole if domain.sources for source in domain.parts),
    ):
        with contextlib.suppress(NotHere):
            source, keys = (
                corpus.identify(text, config.data.valid_share, store.data / "texts", makes=False),
                set[str](),
            )
            for tokenizer in made:
                with contextlib.suppress(Unprepared):
                    keys.add(_prepare_domain(text, source, tokenizer, config.data, into).key)
            sets = [os.path.isdir(dataset.path) for dataset in text.datasets]
            if keys or (any(sets) if sets else not text.sources):
                here[text.name] = keys
    return here


def hash_data_settings(config: RunConfig) -> str:
    """A hash of what a corpus is made from."""
    return digest(
        config.model_dump(mode="json", include={"domains", "tokenizer", "data", "probes", "start"})
    )
