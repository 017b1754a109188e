"""The examples of a downstream task: from files, a Hugging Face dataset, or the docs that a domain holds out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from benchmark.data import corpus, files
from benchmark.data.documents import DataError, naming_source
from benchmark.downstream import docstring_task
from benchmark.downstream.tasks import RawExample, TaskData, check, domain_of
from benchmark.files import expanded, seal, unique, unseal, write_json
from benchmark.settings.base import digest
from benchmark.settings.suite import Domain
from benchmark.settings.tasks import SPLITS, HubTask, Split, Task

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
        return _kept(task, source, folder, lambda: docstring_task.examples(task.name, docstrings, domain))
    if dataset is not None:
        source = [dataset.model_dump(mode="json")]
        return _kept(task, source, folder, lambda: {s: _hub(task.name, dataset, getattr(dataset, s)) for s in SPLITS})
    return check(task.name, {s: read_file(task.name, expanded(getattr(task, s))) for s in SPLITS})


def _kept(
    task: Task, source: list[Any], folder: Path, find: Callable[[], dict[Split, Sequence[RawExample]]]
) -> TaskData:
    """Examples as they were found the first time; what is wrong is not kept."""
    path = folder / "tasks" / f"{digest([FORMAT, *source])}.json"
    if not path.exists():
        examples = find()
        data = check(task.name, examples)
        write_json(path, seal({split: [asdict(row) for row in rows] for split, rows in examples.items()}))
        return data
    content = unseal(path, "remove it, and the examples are found again")
    return check(task.name, {split: [RawExample(**row) for row in content[split]] for split in SPLITS})


def check_first_lines(tasks: Sequence[Task]) -> None:
    """Read the first lines of tasks' files, as a dry run does. Raises DataError as `read_file` does."""
    for task in tasks:
        for path in filter(None, (getattr(task, split) for split in SPLITS)):
            read_file(task.name, expanded(path), most=1)


def read_file(task: str, path: Path, most: int | None = None) -> list[RawExample]:
    """JSON Lines of `text`, `label` and perhaps `text_pair`, plain or gzip; blank lines count but say nothing.

    `most`: so many lines alone. Raises DataError with file and line for what is no such line, and for a file that is
    missing or damaged.
    """
    found = []
    try:
        for number, line in enumerate(islice(files.lines(path), most), start=1):
            if line.strip():
                found.append(_parse(f"{path}:{number}", line))
    except FileNotFoundError:
        raise DataError(f"task {task!r}: no file {path} (from {Path.cwd()}): correct the path") from None
    except OSError as error:
        raise DataError(f"task {task!r}: {path}: {error.strerror}: correct the path") from None
    except DataError as error:
        raise DataError(f"task {task!r}, {error}") from None
    return found


def _parse(place: str, line: bytes) -> RawExample:
    try:
        row = json.loads(line.decode("utf-8-sig"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not UTF-8 ({error.reason}): convert the file") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}): each line must be one object with text and label") from None
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
