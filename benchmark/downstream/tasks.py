"""Downstream tasks: their examples, what can be wrong with them, and how predictions are scored.

No torch here: a table of hyper-parameters and a plan of what is still to be scored must be quick.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmark import records
from benchmark.data.documents import TORN, DataError
from benchmark.locks import Lease
from benchmark.records import BaselineLine
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.suite import Domain, RunConfig, Suite
from benchmark.settings.tasks import SPLITS, Finetuning, Prompt, Split, Task

FORMAT = 1  # raised when the same settings come to mean another computation


@dataclass(frozen=True)
class Example:
    text: str
    text_pair: str | None
    label: int  # index into TaskData.labels
    place: str  # file and row, for messages


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
        """Whether the text (and pair) of each example of test stands verbatim in train, whatever its label."""
        known = {(example.text, example.text_pair) for example in self.train}
        return tuple((example.text, example.text_pair) in known for example in self.test)

    def targets(self, split: Split) -> list[int]:
        return [example.label for example in getattr(self, split)]


@dataclass(frozen=True)
class RawExample:
    """An example as it was found, before its label is known to be one of train's."""

    text: Any
    text_pair: Any
    label: Any
    place: str


def check(task: str, raw: dict[Split, Sequence[RawExample]]) -> TaskData:
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


def metric(name: str, targets: Sequence[int], predictions: Sequence[int]) -> float:
    """The score in 0..1, by scikit-learn: macro-F1 is the mean over the classes that are there or predicted; micro-F1
    over all classes of a single-label task equals accuracy."""
    from sklearn.metrics import accuracy_score, f1_score

    if name == "accuracy":
        return float(accuracy_score(targets, predictions))
    return float(f1_score(targets, predictions, average=name.removesuffix("_f1"), zero_division=0.0))


def without_leaks(name: str, data: TaskData, predictions: Sequence[int]) -> float | None:
    """The test score over the rows that do not stand verbatim in train; None where none or all of them do."""
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
            test_without_leaks=without_leaks(task.metric, data, predicted),
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


def domain_of(task: Task, domains: Sequence[Domain]) -> Domain:
    """The task's domain. Raises ConfigError when the stream has none of that name."""
    for domain in domains:
        if domain.name == task.domain:
            return domain
    names = ", ".join(domain.name for domain in domains)
    raise ConfigError(f"task {task.name!r}: no domain {task.domain!r}; there are {names}")


def scored_stages(suite: Suite, config: RunConfig) -> range:
    """After which stages of a run its model is scored."""
    count = len(config.domains)
    if not suite.tasks:
        return range(0)
    return range(count) if suite.finetuning.stages == "every" else range(count - 1, count)
