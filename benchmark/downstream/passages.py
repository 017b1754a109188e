"""Classification tasks out of documents that no model was trained on: where is a passage from?

A class is a part of a package, in documentation that a domain holds out (`Domain.hold_out`), or a
domain of the stream, in validation text. The names of all classes are masked in all texts, so that
the label cannot be read in the text. Classes are balanced, and no document is in two splits.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from benchmark.data import corpus
from benchmark.data.documents import DataError, Document
from benchmark.settings.base import ConfigError
from benchmark.settings.tasks import SPLITS, Docstrings, Split
from benchmark.settings.texts import Domain

NAME_PLACEHOLDER = "___"
PASSAGES = 3  # per docstring at most, so that no class is one long docstring
PASSAGES_OF_DOMAIN = 20  # per validation document at most: a domain may have few
OF_DOMAINS = Docstrings(examples=1000)  # per domain
DIVIDED = 1 / 2  # a part with more than this share of the documents is divided into its own parts
FEWEST = 2  # passages per class and split
SHARES: dict[Split, float] = {"train": 0.5, "dev": 0.2, "test": 0.3}


@dataclass(frozen=True)
class Example:
    """One example, whose label is as it was read until `tasks.check_examples` makes it a number."""

    text: Any
    text_pair: Any
    label: Any
    place: str  # file and row, for messages


Splits = dict[Split, Sequence[Example]]


def load_docstrings(task: str, options: Docstrings, domain: Domain) -> Splits:
    """Balanced splits of passages, each with the dotted name of its part as label.

    Raises ConfigError if the domain is not made of packages or holds nothing out, DataError if it
    holds out too little for the classes asked for.
    """
    if not domain.packages or not domain.hold_out:
        raise ConfigError(
            f"task {task!r}: its texts are docstrings that domain {domain.name!r} holds out of "
            f"pre-training, but the domain has packages = {list(domain.packages)} and "
            f"hold_out = {domain.hold_out}; set both, e.g. 0.2"
        )
    # fingerprints from here on are kept from pre-training: see `corpus.read`
    held_out_from = (1 - domain.hold_out) * 2**64
    documents = []
    for document in corpus.drop_repeats(domain, Counter()):
        if document.split_fingerprint >= held_out_from and _is_public(document):
            documents.append(document)
    return draw_balanced_splits(task, options, domain.packages, documents)


def draw_balanced_splits(
    task: str, options: Docstrings, packages: Sequence[str], documents: Iterable[Document]
) -> Splits:
    """The largest classes of `documents`, each with the same number of passages in each split.

    Raises DataError.
    """
    ordered = sorted(documents, key=_hash_text)
    parts = name_parts([document.source for document in ordered], packages)
    by_part: dict[str, list[Document]] = {}
    sizes = Counter[str]()  # in passages
    for document, part in zip(ordered, parts, strict=True):
        by_part.setdefault(part, []).append(document)
        passages = len(document.text) // options.characters
        sizes[part] += min(PASSAGES, passages)
    largest_first = sorted(by_part, key=lambda part: (-sizes[part], part))
    labels = largest_first[: options.classes]
    by_label = {label: by_part[label] for label in labels}
    names = compile_name_pattern(labels)
    return _draw(task, options, by_label, names, options.classes, PASSAGES)


def load_domains(task: str, domains: Sequence[Domain], valid_share: float) -> Splits:
    """Balanced splits of passages of validation text, each with the name of its domain as label.

    Raises DataError.
    """
    by_domain = {}
    packages: list[str] = []
    for domain in domains:
        texts: list[Document] = []
        part_examples = -(-OF_DOMAINS.examples // len(domain.parts))
        for part in domain.parts:
            documents = corpus.read(part, valid_share, Counter())
            valid = (document for document in documents if document.split == "valid")
            texts += islice(valid, part_examples)
            packages += part.packages
        by_domain[domain.name] = sorted(texts, key=_hash_text)
    names = compile_name_pattern([*by_domain, *packages])
    return _draw(task, OF_DOMAINS, by_domain, names, len(domains), PASSAGES_OF_DOMAIN)


def _draw(
    task: str,
    options: Docstrings,
    by_class: Mapping[str, Sequence[Document]],
    names: re.Pattern[str],
    classes: int,
    limit: int,
) -> Splits:
    """The same number of passages of each class in each split, at most `limit` per document.

    Raises DataError.
    """
    seen: set[str] = set()
    passages = {
        label: _cut_passages(documents, label, names, options, seen, limit)
        for label, documents in by_class.items()
    }
    splits: Splits = {}
    for split, share in SHARES.items():
        counts = {label: len(passages[label][split]) for label in passages}
        wish = round(share * options.examples)
        count = min([wish, *counts.values()])
        if len(passages) < classes or count < FEWEST:
            listing = ", ".join(f"{label} {number}" for label, number in counts.items())
            raise DataError(
                f"task {task!r}: the held-out documents do not give {classes} classes with "
                f"{FEWEST} passages each in {split} (they give {listing or 'none'}); hold out more "
                "(the domain's hold_out, or data.valid_share), or ask for fewer classes or fewer "
                "characters"
            )
        rows: list[Example] = []
        for label in passages:
            rows += passages[label][split][:count]
        splits[split] = rows
    return splits


def name_parts(sources: Sequence[str], packages: Sequence[str]) -> list[str]:
    """The part of its package that each source is from.

    For "pandas.core.frame:DataFrame.join" it is "pandas.core", the first two levels of the module.
    For modules of Python's library, which have no package name, it is the first level. A part with
    more than half of all sources is divided further ("pandas.core.arrays").
    """
    modules = [_split_module(source) for source in sources]
    depth = 2
    labels = []
    for module in modules:
        levels = depth if module[0] in packages else 1
        labels.append(".".join(module[:levels]))
    while True:
        depth += 1
        counts = Counter(labels)
        limit = DIVIDED * len(labels)
        large = {label for label, count in counts.items() if count > limit}
        divided = [
            ".".join(module[:depth]) if label in large else label
            for label, module in zip(labels, modules, strict=True)
        ]
        if divided == labels:
            return labels
        labels = divided


def compile_name_pattern(labels: Sequence[str]) -> re.Pattern[str]:
    """A pattern of the components of labels, without the packages' names.

    It matches "linear_model" and "Linear model", but not "linear" alone, and not "nn" in "cnn".
    """
    components = set()
    for label in labels:
        _, *names = label.split(".")
        components.update(names or [label])
    patterns = []
    for component in components:
        words = component.strip("_").split("_")
        patterns.append(r"[\W_]?".join(map(re.escape, words)))
    longest_first = sorted(patterns, key=lambda pattern: (-len(pattern), pattern))
    alternatives = "|".join(longest_first)
    return re.compile(rf"(?<![a-z])(?:{alternatives})(?![a-z])", re.IGNORECASE)


def _cut_passages(
    documents: Sequence[Document],
    label: str,
    names: re.Pattern[str],
    options: Docstrings,
    seen: set[str],
    limit: int,
) -> dict[Split, list[Example]]:
    """The passages of each split, from documents of its own.

    `seen` has all passages so far, so that none comes twice, and gets the new ones. Passages with
    less than half of `options.characters` are left out, and each document gives at most `limit`.
    """
    splits: dict[Split, list[Example]] = {split: [] for split in SPLITS}
    ends = list(accumulate(SHARES.values()))
    for number, document in enumerate(documents):
        position = (number + 0.5) / len(documents)
        split = SPLITS[bisect(ends, position)]
        text = " ".join(names.sub(NAME_PLACEHOLDER, document.text).split())
        for passage in _cut_text(text, options.characters)[:limit]:
            if 2 * len(passage) >= options.characters and passage not in seen:
                seen.add(passage)
                splits[split].append(Example(passage, None, label, document.source))
    return splits


def _cut_text(text: str, characters: int) -> list[str]:
    """`text` in pieces of at most `characters`, cut between words if there is a space."""
    pieces = []
    while len(text) > characters:
        end = text.rfind(" ", 0, characters + 1)
        if end <= 0:
            end = characters
        pieces.append(text[:end])
        text = text[end:].lstrip()
    return [*pieces, text]


def _is_public(document: Document) -> bool:
    names = _split_module(document.source)
    return not any(name.startswith("_") for name in names[:2])


def _split_module(source: str) -> list[str]:
    """The names in the module of a source, which is "MODULE:OBJECT"."""
    module, _, _ = source.partition(":")
    return module.split(".")


def _hash_text(document: Document) -> int:
    content = hashlib.sha256(document.text.encode()).digest()
    return int.from_bytes(content[:8], "big")
