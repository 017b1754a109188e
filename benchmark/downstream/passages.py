"""A classification task out of a domain's own documentation: which part of the package is a passage from?

The domain holds documents out of pre-training for it (`Domain.hold_out`); the texts come from those alone. The names
of all classes are masked in all texts, so that the label cannot be read off. Classes are balanced, and no document
gives passages to two splits.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from benchmark.data import corpus
from benchmark.data.documents import DataError, Document
from benchmark.settings.base import ConfigError
from benchmark.settings.tasks import SPLITS, Docstrings, Split
from benchmark.settings.texts import Domain

MASK = "___"
PASSAGES = 3  # of a document at most, so that no class is one long docstring
DIVIDED = 1 / 2  # a part with more than this share of the documents is divided into its own parts
FEWEST = 2  # passages of a class in a split
SHARES: dict[Split, float] = {"train": 0.5, "dev": 0.2, "test": 0.3}


@dataclass(frozen=True)
class RawExample:
    """An example as it was found, before its label is known to be one of train's."""

    text: Any
    text_pair: Any
    label: Any
    place: str


def load_docstrings(task: str, options: Docstrings, domain: Domain) -> dict[Split, Sequence[RawExample]]:
    """Balanced splits of passages; the label is the dotted name of the part.

    Raises ConfigError when the domain is not made of packages or holds nothing out, DataError when it holds out too
    little for the classes asked for.
    """
    if not domain.packages or not domain.hold_out:
        raise ConfigError(
            f"task {task!r}: its texts are docstrings that domain {domain.name!r} holds out of pre-training, but the "
            f"domain has packages = {list(domain.packages)} and hold_out = {domain.hold_out}; set both, e.g. 0.2"
        )
    least = (1 - domain.hold_out) * 2**64  # of the hashes that pre-training never sees: see `corpus.read`
    everything = corpus.drop_repeats(domain, Counter())
    documents = [document for document in everything if document.decides >= least and _is_public(document)]
    return balanced(task, options, domain.packages, documents)


def balanced(
    task: str, options: Docstrings, packages: Sequence[str], documents: Iterable[Document]
) -> dict[Split, Sequence[RawExample]]:
    """The largest classes of `documents`, each with the same number of passages in each split. Raises DataError."""
    ordered = sorted(documents, key=lambda document: _hash(document.text))
    by_part: dict[str, list[Document]] = {}
    for document, part in zip(ordered, parts([document.source for document in ordered], packages), strict=True):
        by_part.setdefault(part, []).append(document)
    size = {part: sum(min(PASSAGES, len(d.text) // options.characters) for d in by_part[part]) for part in by_part}
    chosen = sorted(by_part, key=lambda part: (-size[part], part))[: options.classes]
    names = masked_names(chosen)
    known: set[str] = set()
    passages = {part: _passages(by_part[part], part, names, options, known) for part in chosen}
    splits: dict[Split, Sequence[RawExample]] = {}
    for split, share in SHARES.items():
        available = [len(passages[part][split]) for part in chosen]
        count = min([round(share * options.examples), *available])
        if len(chosen) < options.classes or count < FEWEST:
            counts = ", ".join(f"{part} {n}" for part, n in zip(chosen, available, strict=True))
            raise DataError(
                f"task {task!r}: the held-out documents do not give {options.classes} classes with {FEWEST} passages "
                f"each in {split} (they give {counts or 'none'}); raise the domain's hold_out, or ask for fewer "
                "classes or fewer characters"
            )
        splits[split] = [row for part in chosen for row in passages[part][split][:count]]
    return splits


def parts(sources: Sequence[str], packages: Sequence[str]) -> list[str]:
    """Name the part of its package that each source is from: "pandas.core" for "pandas.core.frame:DataFrame.join".

    The second level of a package, or the first of Python's library, which has no name of its own. A part with more
    than half of all is divided further ("pandas.core.arrays").
    """
    modules = [source.partition(":")[0].split(".") for source in sources]
    depth = 2
    labels = [".".join(module[: depth if module[0] in packages else 1]) for module in modules]
    while True:
        depth += 1
        large = {label for label, n in Counter(labels).items() if n > DIVIDED * len(labels)}
        divided = [
            ".".join(module[:depth]) if label in large else label for label, module in zip(labels, modules, strict=True)
        ]
        if divided == labels:
            return labels
        labels = divided


def masked_names(labels: Sequence[str]) -> re.Pattern[str]:
    """Matches every component of the labels, but the packages' names, in prose and in code: "linear_model" and
    "Linear model", but not "linear" alone nor "nn" in "cnn"."""
    components = {name for label in labels for name in (label.split(".")[1:] or [label])}
    words = [r"[\W_]?".join(map(re.escape, name.strip("_").split("_"))) for name in components]
    alternatives = "|".join(sorted(words, key=lambda word: (-len(word), word)))
    return re.compile(rf"(?<![a-z])(?:{alternatives})(?![a-z])", re.IGNORECASE)


def _passages(
    documents: Sequence[Document], part: str, names: re.Pattern[str], options: Docstrings, known: set[str]
) -> dict[Split, list[RawExample]]:
    """The passages of each split, from documents of its own; none twice, none under half the length."""
    splits: dict[Split, list[RawExample]] = {split: [] for split in SPLITS}
    ends = list(accumulate(SHARES.values()))
    for number, document in enumerate(documents):
        split = SPLITS[bisect(ends, (number + 0.5) / len(documents))]
        text = " ".join(names.sub(MASK, document.text).split())
        for passage in _cut(text, options.characters)[:PASSAGES]:
            if 2 * len(passage) >= options.characters and passage not in known:
                known.add(passage)
                splits[split].append(RawExample(passage, None, part, document.source))
    return splits


def _cut(text: str, characters: int) -> list[str]:
    """`text` in pieces of at most so many characters, between words where there is a space."""
    pieces = []
    while len(text) > characters:
        end = text.rfind(" ", 0, characters + 1)
        end = end if end > 0 else characters
        pieces.append(text[:end])
        text = text[end:].lstrip()
    return [*pieces, text]


def _is_public(document: Document) -> bool:
    module = document.source.partition(":")[0].split(".")
    return not any(name.startswith("_") for name in module[:2])


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
