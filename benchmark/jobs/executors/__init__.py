"""Executors, which do units of work: one per file or folder here.

The name of the file is what `--executor` takes, and the section of a suite that the executor reads.
To add one, add a file with `EXECUTOR = Executor(...)`, here or outside of the project in a folder
that is appended to `benchmark.settings.names.EXECUTOR_FOLDERS`. No torch here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmark.errors import UserError
from benchmark.settings.names import EXECUTOR_FOLDERS, list_executor_names

if TYPE_CHECKING:
    from benchmark.jobs.waves import Plan
    from benchmark.ledger.store import Store
    from benchmark.settings.base import Settings
    from benchmark.settings.suite import RunConfig, Suite

__path__ = EXECUTOR_FOLDERS


@dataclass(frozen=True)
class Job:
    """Units that an executor will do or has begun, or that were not done when their job ended.

    An `interrupted` job was ended by the cluster or by a user. An `unknown` one counts as under
    way, because its executor cannot find out its state. `detail` says why a job waits or how it
    ended.
    """

    id: str
    kind: str  # of its units
    units: tuple[str, ...]  # ids of its units
    state: Literal["waiting", "running", "unknown", "failed", "interrupted"]
    detail: str
    submitted: float  # seconds since 1970
    log: str
    node: str = ""
    restarts: int = 0  # how often it was started again

    @property
    def is_under_way(self) -> bool:
        return self.state in ("waiting", "running", "unknown")


@dataclass(frozen=True)
class Executor:
    """Does the waves of a plan, or sees to it that they are done.

    Two calls of `execute` at once never do the same unit at the same time. `list_jobs` returns the
    last job of each unit of a suite. It is called only if the executor has a folder in
    `find_notes_folder`.
    """

    describe: Callable[[Plan], list[str]]  # lines for --dry-run: what `execute` would do
    execute: Callable[[Plan], int]  # returns an exit status
    settings: type[Settings] | None = None  # of its section of a suite, if it reads one
    of_all_rows: tuple[str, ...] = ()  # keys of that section that no row can set
    # number of GPUs that train a run
    count_gpus: Callable[[Suite, RunConfig], float] = lambda suite, run: 0.0
    list_jobs: Callable[[Suite, Store], list[Job]] = lambda suite, store: []
    # ends all jobs of a suite, and returns their ids
    cancel: Callable[[Suite, Store], list[str]] = lambda suite, store: []
    # that a small model will reach, 0 if not known
    guess_flops_per_second: Callable[[], float] = lambda: 0.0
    # what `doctor` prints: lines that begin with `ok`, `none` or `wrong`, the last with a cure
    examine: Callable[[Suite, Sequence[RunConfig], Path], Iterable[str]] = (
        lambda suite, runs, folder: ()
    )


def find(name: str) -> Executor:
    """The executor that `executors/NAME` defines. Raises UserError if there is none."""
    names = list_executor_names()
    if name not in names:
        raise UserError(f"no executor {name!r}: there are {', '.join(names)}")
    executor: Executor = importlib.import_module(f"{__name__}.{name}").EXECUTOR
    return executor


def check_sections(suite: Suite, runs: Sequence[RunConfig]) -> None:
    """Check what a suite and its rows ask of executors against the executors' settings.

    Raises ConfigError.
    """
    from benchmark.settings.base import ConfigError, Settings, validate
    from benchmark.settings.load import SITE

    suite_place = f"suite {suite.name!r}"
    if SITE.exists():
        suite_place += f" with {SITE}"
    # by the place that messages name
    sections_by_place = {suite_place: suite.sections}
    for run in runs:
        sections_by_place[f"{suite_place}, row {run.row!r}"] = run.sections
    for place, sections in sections_by_place.items():
        for name, section in sections.items():
            executor = find(name)
            validate(executor.settings or Settings, section, f"{place}: [{name}]")
            for key in executor.of_all_rows:
                if section.get(key) != suite.sections.get(name, {}).get(key):
                    raise ConfigError(
                        f"{place}: '{name}.{key}' is the same for all rows: do not set it"
                    )


def find_notes_folder(suite: Suite, store: Store) -> Path:
    """The folder of executors' notes on a suite's jobs, with a folder for each executor."""
    return store.root.absolute() / "suites" / suite.name / "jobs"


def list_used(suite: Suite, store: Store) -> list[Executor]:
    """The executors that have notes on jobs of a suite.

    A command that asks for states does not know which executors have jobs.
    """
    folders = sorted(find_notes_folder(suite, store).glob("*"))
    return [find(folder.name) for folder in folders]


def doctor(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> int:
    """Print what each executor finds: whether this machine or its cluster is fit for a suite.

    Returns an exit status, 1 if something is wrong. Leaves no files behind.
    """
    has_failed = False
    for name in list_executor_names():
        for line in find(name).examine(suite, configs, runs):
            print(line, flush=True)
            has_failed |= line.startswith("wrong")
    return int(has_failed)
