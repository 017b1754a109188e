"""The examples of a downstream task: from files, a Hugging Face dataset, or the docs that a domain holds out."""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmark.data import corpus, text_files
from benchmark.data.documents import DataError, Document, naming_source
from benchmark.downstream.tasks import RawExample, TaskData, check, domain_of
from benchmark.files import read_json, write_json
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.suite import Domain
from benchmark.settings.tasks import SPLITS, Docstrings, HubTask, Split, Task

FORMAT = 1  # raised when the same documents come to give other examples


def load(task: Task, domains: Sequence[Domain], folder: Path) -> TaskData:
    """The task's examples. `domains` are the stream's.

    `folder` keeps those cut from docs, which take long to find, and those of the Hub, which is looked at once: where
    a task is scored there may be no network. Raises DataError (see also `benchmark.downstream.tasks.check`), and
    ConfigError when the task's domain is not in the stream.
    """
    domain, docstrings, dataset = domain_of(task, domains), task.docstrings, task.dataset
    if docstrings is not None:
        source = [docstrings.model_dump(mode="json"), corpus.identity(domain, 0.0)]
        return _kept(task, source, folder, lambda: from_docstrings(task.name, docstrings, domain))
    if dataset is not None:
        source = [dataset.model_dump(mode="json")]
        return _kept(task, source, folder, lambda: {s: _hub(task.name, dataset, getattr(dataset, s)) for s in SPLITS})
    return check(task.name, {s: read_file(task.name, Path(os.path.expanduser(getattr(task, s)))) for s in SPLITS})


def _kept(
    task: Task, source: list[Any], folder: Path, find: Callable[[], dict[Split, Sequence[RawExample]]]
) -> TaskData:
    """Examples as they were found the first time; what is wrong is not kept."""
    path = folder / "tasks" / f"{digest([FORMAT, *source])}.json"
    if not path.exists():
        examples = find()
        data = check(task.name, examples)
        write_json(path, {split: [asdict(row) for row in rows] for split, rows in examples.items()})
        return data
    content = read_json(path, "remove it, and the examples are found again")
    return check(task.name, {split: [RawExample(**row) for row in content[split]] for split in SPLITS})


def read_file(task: str, path: Path) -> list[RawExample]:
    """JSON Lines of `text`, `label` and perhaps `text_pair`, plain or gzip; blank lines count but say nothing.

    Raises DataError with file and line for what is no such line, and for a file that is missing or damaged.
    """
    if not path.is_file():
        raise DataError(f"task {task!r}: no file {path} (from {Path.cwd()}): correct the path")
    try:
        numbered = enumerate(text_files.lines(path), start=1)
        return [_example(f"{path}:{number}", line) for number, line in numbered if line.strip()]
    except DataError as error:
        raise DataError(f"task {task!r}, {error}") from None


def _example(place: str, line: bytes) -> RawExample:
    row = text_files.parsed(line, place, '{"text": ..., "label": ...}')
    if not isinstance(row, dict):
        raise DataError(f"{place}: a {type(row).__name__}, not an object with text and label: write one on each line")
    for field in ("text", "label"):
        if field not in row:
            raise DataError(f"{place}: no field {field!r}; there are {', '.join(row) or 'none'}")
    return RawExample(row["text"], row.get("text_pair"), row["label"], place)


def _hub(task: str, dataset: HubTask, split: str) -> list[RawExample]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(f"task {task!r}: to read Hugging Face datasets, `pip install -e .[hf]`") from None
    examples = []
    with naming_source(f"task {task!r}: dataset {dataset.path!r}, split {split!r}"):
        rows = load_dataset(dataset.path, dataset.name, split=split)
        names = getattr(rows.features.get(dataset.label_field), "names", None)  # of classes that are stored as numbers
        for number, row in enumerate(rows):
            place = f"{dataset.path} {split}:{number}"
            for field in filter(None, (dataset.text_field, dataset.pair_field, dataset.label_field)):
                if field not in row:
                    raise DataError(f"task {task!r}, {place}: no field {field!r}; there are {', '.join(row)}")
            pair = row[dataset.pair_field] if dataset.pair_field else None
            examples.append(RawExample(row[dataset.text_field], pair, _name(row[dataset.label_field], names), place))
    return examples


def _name(label: Any, names: Sequence[str] | None) -> Any:
    return names[label] if names and isinstance(label, int) and 0 <= label < len(names) else label


# A classification task out of a domain's own documentation: which part of the package is a passage from?
#
# The domain holds documents out of pre-training for it (`Domain.hold_out`); the texts come from those alone. The names
# of all classes are masked in all texts, so that the label cannot be read off. Classes are balanced, and no document
# gives passages to two splits.

MASK = "___"
PASSAGES = 3  # of a document at most, so that no class is one long docstring
DIVIDED = 1 / 2  # a part with more than this share of the documents is divided into its own parts
FEWEST = 2  # passages of a class in a split
SHARES: dict[Split, float] = {"train": 0.5, "dev": 0.2, "test": 0.3}


def from_docstrings(task: str, options: Docstrings, domain: Domain) -> dict[Split, Sequence[RawExample]]:
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
    everything = corpus.each_once(domain, Counter())
    documents = [document for document, hashed in everything if hashed >= least and _is_public(document)]
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
            found = ", ".join(f"{part} {n}" for part, n in zip(chosen, available, strict=True))
            raise DataError(
                f"task {task!r}: the held-out documents do not give {options.classes} classes with {FEWEST} passages "
                f"each in {split} (they give {found or 'none'}); raise the domain's hold_out, or ask for fewer "
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
