"""Downstream tasks: where examples come from, what can be wrong with them, and how they are scored.

No torch here: a table of hyper-parameters and a plan of scores must be quick.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmark.data import corpus
from benchmark.data.documents import (
    TORN,
    BrokenText,
    DataError,
    NotHere,
    make_fingerprint,
    name_source_in_errors,
    open_unpacked,
    parse_line,
)
from benchmark.data.leaks import LONE, Text, find_leaks, list_training_texts
from benchmark.data.prepared import find_prepared_corpus, prepare_corpus
from benchmark.data.tokenizer import EOS, Ids, encode_texts, train_bpe
from benchmark.data.tokens import Corpus, DataCache, Unprepared
from benchmark.downstream.passages import Example, Splits, load_docstrings, load_domains
from benchmark.files import read_json, write_json
from benchmark.ledger import records
from benchmark.ledger.records import BaselineLine, LineOfScores, ScoreLine
from benchmark.ledger.store import Store
from benchmark.locks import Lease
from benchmark.settings.base import digest
from benchmark.settings.decides import Purpose, describe
from benchmark.settings.suite import RunConfig, Suite
from benchmark.settings.tasks import SPLITS, Finetuning, HubTask, Prompt, Protocol, Split, Task
from benchmark.settings.texts import Domain, HubDataset


class NotRead(NotHere):
    """Examples that were not read yet."""


FORMAT = 2  # increased when a change makes the same settings compute something else
EXAMPLES_FORMAT = 1  # increased when a change makes other examples from the same documents


def _hash_texts(example: Example) -> tuple[int, int]:
    return make_fingerprint(example.text), make_fingerprint(example.text_pair or "")


@dataclass(frozen=True)
class TaskData:
    """A task and its examples. `labels` are the classes of train, sorted."""

    task: Task
    labels: tuple[str, ...]
    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]
    # numbers of examples of test that nearly stand in train, or in training text of the stream
    in_train: frozenset[int] = field(default=frozenset(), kw_only=True)
    in_stream: frozenset[int] = field(default=frozenset(), kw_only=True)
    left_out: int = field(default=0, kw_only=True)  # examples of test, because they stood in either

    @cached_property
    def key(self) -> str:
        """A hash of all texts and labels, the same wherever the files lie."""
        rows = []
        for split in SPLITS:
            examples: Sequence[Example] = getattr(self, split)
            rows.append([[row.text, row.text_pair, row.label] for row in examples])
        return digest([self.labels, rows])

    @cached_property
    def leaked(self) -> tuple[bool, ...]:
        """Whether train has a copy, or near copy, of each example of test, with any label."""
        train_hashes = {_hash_texts(example) for example in self.train}
        return tuple(
            _hash_texts(example) in train_hashes or number in self.in_train
            for number, example in enumerate(self.test)
        )

    def list_leaks(self) -> set[int]:
        """The numbers of the examples of test that stand in train or in the stream."""
        return {number for number, leaked in enumerate(self.leaked) if leaked} | self.in_stream

    def leave_out_leaks(self) -> TaskData:
        """The task without the examples of test that stand in train or in the stream.

        Raises DataError if no example is left.
        """
        leaks = self.list_leaks()
        test = []
        for number, example in enumerate(self.test):
            if number not in leaks:
                test.append(example)
        if not test:
            raise DataError(
                f"task {self.task.name!r}: all examples of test stand in training text: give "
                'others, or set data.near_copies = "keep" for published splits'
            )
        if not leaks:
            return self
        return replace(
            self,
            test=tuple(test),
            in_train=frozenset(),
            in_stream=frozenset(),
            left_out=len(leaks),
        )

    def list_targets(self, split: Split) -> list[int]:
        return [example.label for example in getattr(self, split)]


def check_examples(task: Task, raw: Mapping[Split, Sequence[Example]]) -> TaskData:
    """The task with its examples, their labels as numbers.

    Raises DataError for an empty split, a text that is missing, empty or no string, a pair in some
    rows only, a missing label, a single class, and a label of dev or test unknown in train.
    """
    paired = bool(raw["train"]) and raw["train"][0].text_pair is not None
    number_of_label: dict[str, int] = {}
    splits: dict[Split, tuple[Example, ...]] = {}
    for split in SPLITS:
        rows = raw[split]
        if not rows:
            raise DataError(f"task {task.name!r}: {split} is empty; every split needs examples")
        for row in rows:
            _check_row(task.name, row, paired)
        if split == "train":
            labels = sorted({_read_label(row) for row in rows})
            number_of_label = {label: number for number, label in enumerate(labels)}
            if len(labels) < 2:
                raise DataError(
                    f"task {task.name!r}: all of train has the label {labels[0]!r:.80}; there must "
                    "be two classes"
                )
        examples = []
        for row in rows:
            label = _read_label(row)
            if label not in number_of_label:
                raise DataError(
                    f"task {task.name!r}, {row.place}: no row of train has the label "
                    f"{label!r:.80}: correct it, or leave the row out"
                )
            examples.append(replace(row, label=number_of_label[label]))
        splits[split] = tuple(examples)
    return TaskData(task, tuple(number_of_label), splits["train"], splits["dev"], splits["test"])


def _check_row(task: str, row: Example, paired: bool) -> None:
    place = f"task {task!r}, {row.place}"
    if (row.text_pair is not None) != paired:
        raise DataError(f"{place}: either all rows have a 'text_pair', or none")
    texts = {"text": row.text}
    if paired:
        texts["text_pair"] = row.text_pair
    for name, value in texts.items():
        if not isinstance(value, str) or not value.strip() or TORN.search(value):
            raise DataError(
                f"{place}: {name!r} must be a text that is whole and not empty, not {value!r:.80}"
            )
    if not isinstance(row.label, (str, int)) or TORN.search(str(row.label)):
        raise DataError(f"{place}: 'label' must be a string or an integer, not {row.label!r:.80}")


def _read_label(row: Example) -> str:
    label = str(row.label)
    if isinstance(row.label, bool):
        return label.lower()
    return label


def load_tasks(suite: Suite, store: Store) -> list[TaskData]:
    """The suite's tasks with their examples.

    Examples of test with a near copy in train are marked. Raises DataError, ConfigError.
    """
    share = suite.data.valid_share
    tasks = [
        load_examples(task, suite.domains, store.data, valid_share=share) for task in suite.tasks
    ]
    return [mark_in_train(data, DataCache(store.data)) for data in tasks]


def mark_in_train(data: TaskData, cache: DataCache) -> TaskData:
    """The task with marks for the examples of test with a near copy in train.

    The search is made once.
    """
    letters = train_bpe([], 0)  # single bytes, because how words are cut does not count
    test = partial(_encode_examples, letters, EOS, data.test)
    train = partial(_encode_examples, letters, EOS, data.train)
    suspects = {"test": (data.key, test)}
    texts = {"train": (data.key, train)}
    copies = find_leaks(letters, EOS, suspects, texts, cache)
    return replace(data, in_train=frozenset(copies["train"]["test"]))


def _encode_examples(bpe: Tokenizer, eos: int, rows: Sequence[Example]) -> Ids:
    """The ids of examples, each followed by `eos`."""
    parts = [np.empty(0, np.int64)]
    for start in range(0, len(rows), 1000):  # the library takes a hundred times the text's memory
        batch = rows[start : start + 1000]
        for ids in encode_texts(bpe, [_join_texts(row) for row in batch]):
            parts.append(np.array([*ids, eos], np.int64))
    return np.concatenate(parts)


def _join_texts(example: Example) -> str:
    return f"{example.text}\n{example.text_pair or ''}"


def mark_in_stream(tasks: Sequence[TaskData], corpus: Corpus, cache: DataCache) -> list[TaskData]:
    """The tasks with marks for examples of test with a near copy in the stream's training text."""
    bpe = corpus.tokenizer
    eos = corpus.special.eos
    suspects: dict[str, Text] = {}
    for data in tasks:
        read = partial(_encode_examples, bpe, eos, data.test)
        suspects[data.task.name] = (data.key, read)
    copies = find_leaks(bpe, eos, suspects, list_training_texts(corpus), cache)
    marked = []
    for data in tasks:
        numbers: set[int] = set()
        for copies_in_text in copies.values():
            numbers.update(copies_in_text[data.task.name])
        marked.append(replace(data, in_stream=frozenset(numbers)))
    return marked


def decontaminate_tasks(
    tasks: Sequence[TaskData], config: RunConfig, store: Store
) -> list[TaskData]:
    """The tasks of `load_tasks`, ready to score the models of a run's suite.

    Examples of test with a near copy in train or in training text of the stream are left out, or
    only marked if `data.near_copies` keeps them. Raises DataError.
    """
    marked = mark_in_stream(tasks, prepare_corpus(config, store), DataCache(store.data))
    if config.data.near_copies == "keep":
        return marked
    return [data.leave_out_leaks() for data in marked]


def load_examples(
    task: Task,
    domains: Sequence[Domain],
    folder: Path,
    makes: bool = True,
    valid_share: float = 0.0,
) -> TaskData:
    """The task's examples.

    `domains` are the stream's, and `valid_share` is their share of validation text. `folder` keeps
    examples from documents, which take long to find, and from the Hub, because there may be no
    network where a task is scored. Raises DataError, as `check_examples` does. Raises NotRead if
    `makes` is false and `folder` lacks such examples.
    """
    notes = folder / "texts"
    dataset = task.dataset
    source: list[Any]
    find: Callable[[], Splits]
    splits: Splits = {}
    if task.docstrings is not None:
        domain = next(domain for domain in domains if domain.name == task.domain)
        identity = corpus.identify(domain, 0.0, notes, makes)
        source = [describe(task.docstrings, "text"), identity]
        find = partial(load_docstrings, task.name, task.docstrings, domain)
    elif task.which_domain:
        identities = []
        for domain in domains:
            identity = corpus.identify(domain, valid_share, notes, makes)
            identities.append((domain.name, identity))
        source = ["which domain", identities]
        find = partial(load_domains, task.name, domains, valid_share)
    elif dataset is not None:
        source = [describe(dataset, "text")]
        if os.path.isdir(dataset.path):  # not on the Hub: its files count, too
            files = Domain(name="local", datasets=(HubDataset(path=dataset.path),))
            source.append(corpus.identify(files, 0.0, notes, makes))
        find = partial(_read_hub, task.name, dataset)
    else:
        for split in SPLITS:
            path = Path(os.path.expanduser(getattr(task, split)))
            splits[split] = read_file(task.name, path)
        return check_examples(task, splits)
    path = folder / "tasks" / f"{digest([EXAMPLES_FORMAT, *source])}.json"
    if not path.exists():
        if not makes:
            raise NotRead(f"task {task.name!r}: its examples were not looked for yet")
        examples = find()
        check_examples(task, examples)  # wrong ones are not kept
        fields = {}
        for split, rows in examples.items():
            fields[split] = [asdict(row) for row in rows]
        write_json(path, fields)
    content = read_json(path, "remove it, and the examples are found again")
    for split in SPLITS:
        splits[split] = [Example(**row) for row in content[split]]
    return check_examples(task, splits)


def read_file(task: str, path: Path) -> list[Example]:
    """The examples in a file of JSON Lines of `text`, `label` and perhaps `text_pair`.

    The file may be packed. Blank lines are skipped, but count as lines. Raises DataError with file
    and line for any other line, and for a file that is missing or damaged.
    """
    if not path.is_file():
        raise NotHere(f"task {task!r}: no file {path} (from {Path.cwd()}): correct the path")
    examples = []
    try:
        with open_unpacked(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    examples.append(_parse_example(f"{path}:{number}", line))
    except DataError as error:
        raise DataError(f"task {task!r}, {error}") from None
    return examples


def _parse_example(place: str, line: bytes) -> Example:
    row = parse_line(line, place, '{"text": ..., "label": ...}')
    if not isinstance(row, dict):
        raise DataError(
            f"{place}: a {type(row).__name__}, not an object with text and label: write one on "
            "each line"
        )
    return Example(row.get("text"), row.get("text_pair"), row.get("label"), place)


def _read_hub(task: str, dataset: HubTask) -> Splits:
    """The examples of a dataset of the Hub.

    Raises DataError if a CSV file has a row of too many or too few fields: see `read_csv_splits`.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"task {task!r}: to read Hugging Face datasets, `pip install -e .[hf]`"
        ) from None
    source = f"task {task!r}: dataset {dataset.path!r}"
    with name_source_in_errors(source):
        # only to check them: `datasets`, which reads them below, shifts columns without an error
        tables = corpus.read_csv_splits(dataset.path, dataset.name, dataset.revision)
        for _, row in chain.from_iterable(tables.values()):
            if isinstance(row, BrokenText):
                raise DataError(f"task {task!r}: {row}")
    options = {"revision": dataset.revision} if dataset.revision else {}
    splits: Splits = {}
    for split in SPLITS:
        part = getattr(dataset, split)
        with name_source_in_errors(f"{source}, split {part!r}"):
            rows = load_dataset(dataset.path, dataset.name, split=part, **options)
            splits[split] = _parse_rows(rows, dataset, f"{dataset.path} {part}")
    return splits


def _parse_rows(rows: Any, dataset: HubTask, place: str) -> list[Example]:
    """The examples of a split of a dataset, whose rows the library `datasets` has read."""
    # of the classes, if they are stored as numbers
    names = getattr(rows.features.get(dataset.label_field), "names", None)
    examples = []
    for number, row in enumerate(rows):
        pair = row[dataset.pair_field] if dataset.pair_field else None
        label = row[dataset.label_field]
        if names and label in range(len(names)):
            label = names[label]
        examples.append(Example(row[dataset.text_field], pair, label, f"{place}:{number}"))
    return examples


def compute_metric(name: str, targets: Sequence[int], predictions: Sequence[int]) -> float:
    """The score in 0..1, by scikit-learn.

    Macro-F1 is the mean over the classes that occur in targets or predictions. Micro-F1 over all
    classes of a single-label task equals accuracy.
    """
    from sklearn.metrics import accuracy_score, f1_score

    if name == "accuracy":
        return float(accuracy_score(targets, predictions))
    average = name.removesuffix("_f1")
    return float(f1_score(targets, predictions, average=average, zero_division=0.0))


MAJORITY = "majority"
BASELINES = (MAJORITY, "bag of words")
IN_WINDOW = "bag of words, model's window"
_LONE = "".join(f"{chr(first)}-{chr(last)}" for first, last in LONE)
# A letter of a script without blanks between words, a word, or a symbol. Words of one character
# count, so that no text is without words.
WORD = rf"[{_LONE}]|[^\W{_LONE}]+|[^\w\s]"


def score_predictions(data: TaskData, predictions: Sequence[int]) -> dict[str, Any]:
    """The fields of a record of predictions of test, the same for models and baselines."""
    metric = data.task.metric
    return {
        "task": data.task.name,
        "domain": data.task.domain,
        "task_key": data.key,
        "metric": metric,
        "test": compute_metric(metric, data.list_targets("test"), predictions),
        "leaks": len(data.list_leaks()),
        "in_stream": len(data.in_stream),
    }


def find_missing_baselines(task: Task, key: str | None, path: Path, window: str = "") -> list[str]:
    """The names of a task's baselines that the records in `path` lack.

    `key` is the key of the task's examples. `window` is a hash of the part of each text that a
    model reads. With it, only the baseline on these parts, IN_WINDOW, is looked for.
    """
    names = (IN_WINDOW,) if window else BASELINES
    fields = (task.name, task.metric, key, window)
    recorded = set()
    for line in records.read(path, records.BASELINES):
        if (line.task, line.metric, line.task_key, line.window) == fields:
            recorded.add(line.name)
    return [name for name in names if name not in recorded]


def record_baselines(
    tasks: Sequence[TaskData], path: Path, cut: Callable[[TaskData], TaskData] | None = None
) -> None:
    """Append to `path` the records that it lacks of classifiers without pre-training.

    They are the majority class, and logistic regression on word counts of whole texts. With `cut`,
    only logistic regression is recorded, on the part of each text that a model reads, which `cut`
    returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with Lease(path.with_suffix(".lock")):
        for data in tasks:
            read_data = data
            window = ""
            if cut:
                read_data = cut(data)
                window = read_data.key
            for name in find_missing_baselines(data.task, data.key, path, window):
                if name == MAJORITY:
                    counts = Counter(data.list_targets("train"))
                    [(majority, _)] = counts.most_common(1)
                    predictions = [majority] * len(data.test)
                else:
                    predictions = _predict_by_words(read_data)
                fields = score_predictions(data, predictions)
                records.append(path, BaselineLine(name=name, window=window, **fields))


def _predict_by_words(data: TaskData) -> list[int]:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.preprocessing import MaxAbsScaler

    texts: dict[Split, list[str]] = {}
    for split in SPLITS:
        texts[split] = [_join_texts(example) for example in getattr(data, split)]
    words = CountVectorizer(token_pattern=WORD, max_features=20_000)
    _, predictions = fit_linear(data, texts, words, MaxAbsScaler())
    return predictions


def fit_linear(data: TaskData, inputs: Mapping[Split, Any], *steps: Any) -> tuple[float, list[int]]:
    """Logistic regression after scikit-learn's `steps`.

    Its C, the inverse of the regularisation's strength, is the best of 0.01, 0.1, 1 and 10 on dev.
    `inputs` has for each split what the first step takes. Returns the score on dev, and the
    predictions on test.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    best = -1.0
    predictions = [0]
    for strength in (0.01, 0.1, 1.0, 10.0):
        model = make_pipeline(*steps, LogisticRegression(C=strength, max_iter=300))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # nearly converged is good enough
            model.fit(inputs["train"], data.list_targets("train"))
        dev_predictions = model.predict(inputs["dev"])
        dev = compute_metric(data.task.metric, data.list_targets("dev"), dev_predictions)
        if dev > best:
            best = dev
            predictions = model.predict(inputs["test"]).tolist()
    return best, predictions


def list_wanted(
    task: Task, settings: Finetuning, has_prompts: bool, final: bool
) -> list[tuple[Protocol, Prompt, int]]:
    """The protocols, prompts and seeds that a model is scored with on a task.

    A model that was trained without prompts is scored without one. Before the last stage only the
    right prompt is used. Other prompts are of interest for final models (the paper's table:table5),
    and would multiply the cost of each stage.
    """
    prompts: Sequence[Prompt] = ("none",)
    if has_prompts:
        prompts = [prompt for prompt in settings.prompts if final or prompt == "right"]
    trials = settings.list_trials(task)
    return [(protocol, prompt, seed) for prompt in prompts for protocol, seed in trials]


def make_score_key(
    stage_key: str,
    task: Task,
    data_key: str,
    settings: Finetuning,
    prompt: Prompt,
    seed: int,
    protocol: Protocol = "finetune",
) -> str:
    """A hash of all that a score depends on.

    So a score is computed once, even if many tables show it.
    """
    purposes: tuple[Purpose, ...] = ("score",)
    if protocol == "finetune":
        purposes = ("score", "fine-tuning")
    return digest(
        {
            "format": FORMAT,
            "stage": stage_key,
            "data": data_key,
            "protocol": protocol,
            "prompt": prompt,
            "seed": seed,
            "task": describe(task, *purposes),
            "settings": describe(settings, *purposes),
        }
    )


def find_example_keys(suite: Suite, configs: Sequence[RunConfig], store: Store) -> dict[str, str]:
    """The key of each task's examples, by the task's name, as after `decontaminate_tasks`.

    `configs` are the suite's runs. In an archive, keys are those that it has recorded: see Ledger.

    A key is "", so that no score counts, if examples of some task were read here, but not these, or
    if these were not searched for leaks yet. A task has no key if its examples are not on this
    machine. Unless `data.near_copies` keeps near copies, it also has none if the stream, in which
    its test may stand, is not prepared here.
    """
    if store.is_archive:
        file = store.examples_file(suite.name)
        if file.exists():
            return dict(read_json(file, "restore the archive"))
        return {}
    share = suite.data.valid_share
    keys = {}
    tasks = []
    for task in suite.tasks:
        try:
            data = load_examples(task, suite.domains, store.data, makes=False, valid_share=share)
            tasks.append(data)
        except NotRead:
            if (store.data / "tasks").exists():
                keys[task.name] = ""
        except NotHere:
            pass
    if suite.data.near_copies == "keep":
        return keys | {data.task.name: data.key for data in tasks}
    if tasks and configs:
        keys |= _find_clean_keys(tasks, configs[0], store)
    return keys


def _find_clean_keys(tasks: Sequence[TaskData], config: RunConfig, store: Store) -> dict[str, str]:
    """The keys of tasks after examples of test that stand in training text are left out.

    Keys are "" if the search was not made yet. There are no keys if the stream is not prepared.
    """
    cache = DataCache(store.data, makes=False)
    try:
        prepared = find_prepared_corpus(config, store)
    except NotHere:
        prepared = None
    if not prepared:
        return {}
    try:
        marked = mark_in_stream([mark_in_train(data, cache) for data in tasks], prepared, cache)
        return {data.task.name: data.leave_out_leaks().key for data in marked}
    except Unprepared:
        return {data.task.name: "" for data in tasks}


def select_scores(
    suite: Suite, stage_key: str, lines: Iterable[LineOfScores], examples: Mapping[str, str]
) -> list[ScoreLine]:
    """The scores of a model on the suite's tasks, with the current settings and examples.

    The settings are those of fine-tuning. `examples`: see `find_example_keys`. If it lacks a task,
    the examples of the task's last score count.
    """
    tasks = {task.name: task for task in suite.tasks}
    settings = suite.finetuning
    lines_by_task: dict[str, list[ScoreLine]] = {}
    for line in lines:
        task = tasks.get(line.task)
        if task is None or not isinstance(line, ScoreLine):
            continue
        if (line.protocol, line.seed) not in settings.list_trials(task):
            continue
        key = make_score_key(
            stage_key, task, line.task_key, settings, line.prompt, line.seed, line.protocol
        )
        if line.key == key:
            lines_by_task.setdefault(line.task, []).append(line)
    scores = {}
    for name, task_lines in lines_by_task.items():
        examples_key = examples.get(name, task_lines[-1].task_key)
        for line in task_lines:
            if line.task_key == examples_key:
                scores[name, line.protocol, line.prompt, line.seed] = line
    return list(scores.values())


def select_tasks(suite: Suite, final: bool) -> tuple[Task, ...]:
    """The tasks that a model is fine-tuned on: all, or none if only final models are."""
    if final or suite.finetuning.stages == "every":
        return suite.tasks
    return ()


def list_scored_stages(suite: Suite, config: RunConfig) -> list[int]:
    """The stages of a run after which its model is scored."""
    stages = range(len(config.domains))
    return [
        stage
        for stage in stages
        if suite.evaluate.tasks or select_tasks(suite, final=stage == stages[-1])
    ]
