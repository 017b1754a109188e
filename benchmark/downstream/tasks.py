"""Downstream tasks: where their examples come from, what can be wrong with them, and how predictions are scored.

No torch here: a table of hyper-parameters and a plan of what is still to be scored must be quick.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmark import records
from benchmark.data import corpus
from benchmark.data.documents import (
    TORN,
    DataError,
    Document,
    NotHere,
    fingerprint,
    naming_source,
    parse_line,
    read_lines,
)
from benchmark.files import read_json, write_json
from benchmark.locks import Lease
from benchmark.records import BaselineLine, ScoreLine, UnscoredLine
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.suite import Domain, RunConfig, Suite
from benchmark.settings.tasks import SPLITS, Docstrings, Finetuning, HubTask, Prompt, Split, Task
from benchmark.store import Store

FORMAT = 1  # raised when the same settings come to mean another computation
EXAMPLES_FORMAT = 1  # raised when the same documents come to give other examples


@dataclass(frozen=True)
class Example:
    text: str
    text_pair: str | None
    label: int  # index into TaskData.labels
    place: str  # file and row, for messages


def _fingerprints(example: Example) -> tuple[int, int]:
    return fingerprint(example.text), fingerprint(example.text_pair or "")


@dataclass(frozen=True)
class TaskData:
    """The examples of a task. `labels` are the classes of train, sorted."""

    labels: tuple[str, ...]
    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]

    @cached_property
    def key(self) -> str:
        """A hash of all texts and labels, the same wherever the files lie."""
        rows = [[[e.text, e.text_pair, e.label] for e in getattr(self, split)] for split in SPLITS]
        return digest([self.labels, rows])

    @cached_property
    def leaked(self) -> tuple[bool, ...]:
        """Whether a copy of the text (and pair) of each example of test stands in train, whatever its label."""
        known = set(map(_fingerprints, self.train))
        return tuple(_fingerprints(example) in known for example in self.test)

    def targets(self, split: Split) -> list[int]:
        return [example.label for example in getattr(self, split)]


@dataclass(frozen=True)
class RawExample:
    """An example as it was found, before its label is known to be one of train's."""

    text: Any
    text_pair: Any
    label: Any
    place: str


def check(task: str, raw: Mapping[Split, Sequence[RawExample]]) -> TaskData:
    """Examples with labels as numbers.

    Raises DataError for an empty split, a text that is missing, empty or no string, a pair in some rows only, a
    missing label, a class with one example in train, a single class, and a label of dev or test unknown in train.
    """
    for split in SPLITS:
        if not raw[split]:
            raise DataError(f"task {task!r}: {split} is empty; every split needs examples")
    paired = raw["train"][0].text_pair is not None
    for split in SPLITS:
        for row in raw[split]:
            _check_row(task, row, paired)
    counts = Counter(_label(row) for row in raw["train"])
    labels = tuple(sorted(counts))
    if len(labels) < 2:
        raise DataError(f"task {task!r}: all of train has the label {labels[0]!r:.80}; there must be two classes")
    number = {label: index for index, label in enumerate(labels)}
    splits: dict[str, tuple[Example, ...]] = {}
    for split in SPLITS:
        for row in raw[split]:
            label = _label(row)
            if counts[label] == 0:
                known = ", ".join(f"{name!r:.80}" for name in labels[:SHOWN])
                raise DataError(
                    f"task {task!r}, {row.place}: unknown label {label!r:.80}; train has {known}"
                    f"{', ...' * (len(labels) > SHOWN)}: correct it, or leave the row out"
                )
            if counts[label] == 1:
                raise DataError(
                    f"task {task!r}, {row.place}: the only example of the class {label!r:.80} in train; add some, or "
                    "leave the class out"
                )
        splits[split] = tuple(Example(r.text, r.text_pair, number[_label(r)], r.place) for r in raw[split])
    return TaskData(labels, **splits)


def _check_row(task: str, row: RawExample, paired: bool) -> None:
    place = f"task {task!r}, {row.place}"
    if (row.text_pair is not None) != paired:
        raise DataError(f"{place}: either all rows have a 'text_pair', or none")
    for field, value in (("text", row.text), *[("text_pair", row.text_pair)] * paired):
        if not isinstance(value, str) or not value.strip() or TORN.search(value):
            raise DataError(f"{place}: {field!r} must be a text that is whole and not empty, not {value!r:.80}")
    if not isinstance(row.label, (str, int)) or TORN.search(str(row.label)):
        raise DataError(f"{place}: 'label' must be a string or an integer, not {row.label!r:.80}")


def _label(row: RawExample) -> str:
    return str(row.label).lower() if isinstance(row.label, bool) else str(row.label)


def load_tasks(suite: Suite, store: Store) -> list[tuple[Task, TaskData]]:
    """The suite's tasks with their examples; their baselines are recorded. Raises DataError, ConfigError."""
    tasks = [(task, load_examples(task, suite.domains, store.data)) for task in suite.tasks]
    record_baselines(tasks, store.scores_file("baselines"))
    return tasks


def load_examples(task: Task, domains: Sequence[Domain], folder: Path, makes: bool = True) -> TaskData:
    """The task's examples. `domains` are the stream's.

    `folder` keeps those cut from docs, which take long to find, and those of the Hub, which is looked at once: where
    a task is scored there may be no network. Raises DataError (see also `check`), NotHere for those that it would have
    to make, where it `makes` none.
    """
    docstrings, dataset = task.docstrings, task.dataset
    if docstrings is not None:
        domain = next(domain for domain in domains if domain.name == task.domain)
        source = [docstrings.model_dump(mode="json"), corpus.identity(domain, 0.0, folder / "texts", makes)]
        return _keep_examples(task, source, folder, lambda: load_docstrings(task.name, docstrings, domain), makes)
    if dataset is not None:
        source = [dataset.model_dump(mode="json")]
        hub = lambda: {s: _hub(task.name, dataset, getattr(dataset, s)) for s in SPLITS}  # noqa: E731
        return _keep_examples(task, source, folder, hub, makes)
    return check(task.name, {s: read_file(task.name, Path(os.path.expanduser(getattr(task, s)))) for s in SPLITS})


def _keep_examples(
    task: Task,
    source: list[Any],
    folder: Path,
    find: Callable[[], Mapping[Split, Sequence[RawExample]]],
    makes: bool,
) -> TaskData:
    """Examples as they were found the first time; what is wrong is not kept."""
    path = folder / "tasks" / f"{digest([EXAMPLES_FORMAT, *source])}.json"
    if not (makes or path.exists()):
        raise NotHere(f"task {task.name!r}: its examples were not looked for yet")
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
        raise NotHere(f"task {task!r}: no file {path} (from {Path.cwd()}): correct the path")
    try:
        numbered = enumerate(read_lines(path), start=1)
        return [_example(f"{path}:{number}", line) for number, line in numbered if line.strip()]
    except DataError as error:
        raise DataError(f"task {task!r}, {error}") from None


def _example(place: str, line: bytes) -> RawExample:
    row = parse_line(line, place, '{"text": ..., "label": ...}')
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
        given = {"revision": dataset.revision} if dataset.revision else {}
        rows = load_dataset(dataset.path, dataset.name, split=split, **given)
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


def metric(name: str, targets: Sequence[int], predictions: Sequence[int]) -> float:
    """The score in 0..1, by scikit-learn: macro-F1 is the mean over the classes that are there or predicted; micro-F1
    over all classes of a single-label task equals accuracy."""
    from sklearn.metrics import accuracy_score, f1_score

    if name == "accuracy":
        return float(accuracy_score(targets, predictions))
    return float(f1_score(targets, predictions, average=name.removesuffix("_f1"), zero_division=0.0))


def score_without_leaks(name: str, data: TaskData, predictions: Sequence[int]) -> float | None:
    """The test score over the rows that no row of train is a copy of; None where none or all of them do."""
    clean = [i for i, leaked in enumerate(data.leaked) if not leaked]
    if len(clean) in (0, len(data.test)):
        return None
    targets = data.targets("test")
    return metric(name, [targets[i] for i in clean], [predictions[i] for i in clean])


SHOWN = 10  # labels in a message
BASELINES = ("majority", "bag of words")


def baselines(task: Task, data: TaskData) -> list[BaselineLine]:
    """Records of what needs no pre-training: the majority class, and logistic regression on word counts.

    The latter sees whole texts, a model only what fits into its rows; its strength C is the best on dev of 0.01 to 10.
    """
    majority = Counter(data.targets("train")).most_common(1)[0][0]
    predictions = dict(zip(BASELINES, ([majority] * len(data.test), _bag_of_words(task, data)), strict=True))
    return [
        BaselineLine(
            task=task.name,
            domain=task.domain,
            task_key=data.key,
            name=name,
            metric=task.metric,
            test=metric(task.metric, data.targets("test"), predicted),
            test_without_leaks=score_without_leaks(task.metric, data, predicted),
            leaks=sum(data.leaked),
        )
        for name, predicted in predictions.items()
    ]


def record_baselines(tasks: Sequence[tuple[Task, TaskData]], path: Path) -> None:
    """Append the records of baselines that `path` lacks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Lease(path.with_suffix(".lock")):
        lines = records.read(path, records.BASELINES)
        known = {(line.task, line.metric, line.task_key, line.name) for line in lines}
        for task, data in tasks:
            lacks = [name for name in BASELINES if (task.name, task.metric, data.key, name) not in known]
            for record in baselines(task, data) if lacks else ():
                if record.name in lacks:  # a kill may have come between two of them
                    records.append(path, record)


def _bag_of_words(task: Task, data: TaskData) -> list[int]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler

    texts = {split: [f"{e.text}\n{e.text_pair or ''}" for e in getattr(data, split)] for split in SPLITS}
    best, predictions = -1.0, [0]
    for strength in (0.01, 0.1, 1.0, 10.0):
        # a pattern that keeps words of one character, so that no text is without words
        words = CountVectorizer(token_pattern=r"\w+|[^\w\s]", max_features=20_000)
        model = make_pipeline(words, MaxAbsScaler(), LogisticRegression(C=strength, max_iter=300))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # nearly converged is good enough for a baseline
            model.fit(texts["train"], data.targets("train"))
        dev = metric(task.metric, data.targets("dev"), model.predict(texts["dev"]))
        if dev > best:
            best, predictions = dev, model.predict(texts["test"]).tolist()
    return predictions


def score_key(stage_key: str, task: Task, data_key: str, settings: Finetuning, prompt: Prompt, seed: int) -> str:
    """Names a score by all that it depends on, so that it is computed once however many tables show it."""
    return digest(
        {
            "format": FORMAT,
            "stage": stage_key,
            "data": data_key,
            "task": task.model_dump(mode="json", exclude={"title", "seeds", *SPLITS, "dataset", "docstrings"}),
            "patience": settings.patience,
            "precision": settings.precision,
            "prompt": prompt,
            "seed": seed,
        }
    )


def examples_here(suite: Suite, store: Store) -> dict[str, str]:
    """The key of each task's examples, where they are here, and not in an archive: see Identities."""
    keys = {}
    for task in () if store.is_archive else suite.tasks:
        with contextlib.suppress(NotHere):
            keys[task.name] = load_examples(task, suite.domains, store.data, makes=False).key
    return keys


def scores_of(
    suite: Suite, stage_key: str, lines: Iterable[ScoreLine | UnscoredLine], examples: Mapping[str, str]
) -> list[ScoreLine]:
    """The scores of a model that are of the suite's tasks, with the settings of fine-tuning and examples of now.

    `examples`: see `examples_here`; where they are not, those that were scored last are believed to be the task's.
    """
    tasks, settings = {task.name: task for task in suite.tasks}, suite.finetuning
    known: dict[str, list[ScoreLine]] = {}
    for line in lines:
        task = tasks.get(line.task)
        if not (task and isinstance(line, ScoreLine) and line.seed in settings.seeds_of(task)):
            continue
        if line.key == score_key(stage_key, task, line.task_key, settings, line.prompt, line.seed):
            known.setdefault(line.task, []).append(line)
    scores = {
        (name, line.prompt, line.seed): line
        for name, of_task in known.items()
        for line in of_task
        if line.task_key == examples.get(name, of_task[-1].task_key)
    }
    return list(scores.values())


def scored_stages(suite: Suite, config: RunConfig) -> range:
    """After which stages of a run its model is scored."""
    count = len(config.domains)
    if not suite.tasks:
        return range(0)
    return range(count) if suite.finetuning.stages == "every" else range(count - 1, count)


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
