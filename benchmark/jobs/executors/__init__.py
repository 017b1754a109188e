"""Where units of work are done, one executor a file or folder here.

Its name is what `--executor` takes, and the section of a suite that it reads. To add one, add a
file with `EXECUTOR = Executor(...)`, here or outside of the project in a folder that is appended to
`benchmark.settings.names.EXECUTOR_FOLDERS`. No torch here.
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
    """Units that an executor does later, or has begun; of what has ended, only what was not done.

    An `interrupted` job was ended by the cluster or by a user; one that is `unknown` is under way
    as far as anybody knows. `detail` says why it waits or how it ended.
    """

    id: str
    kind: str  # of its units
    units: tuple[str, ...]  # by their ids
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

    Two calls at once do no unit twice at a time. `list_jobs` tells the jobs of a suite, the last of
    each unit. It is asked where the folder `find_notes` is there.
    """

    describe: Callable[[Plan], list[str]]  # lines for --dry-run: what `execute` would do
    execute: Callable[[Plan], int]  # returns an exit status
    settings: type[Settings] | None = None  # of its section of a suite, where it reads one
    of_all_rows: tuple[str, ...] = ()  # keys of that section that no row can set
    count_gpus: Callable[[Suite, RunConfig], float] = lambda suite, run: 0.0  # that train a run
    list_jobs: Callable[[Suite, Store], list[Job]] = lambda suite, store: []
    # ends all jobs, and returns their ids
    cancel: Callable[[Suite, Store], list[str]] = lambda suite, store: []
    # of a small model, before one is trained; 0: not known
    guess_flops_per_second: Callable[[], float] = lambda: 0.0
    # what `doctor` prints: lines that begin with `ok`, or with `wrong` and name a cure
    examine: Callable[[Suite, Sequence[RunConfig], Path], Iterable[str]] = (
        lambda suite, runs, folder: ()
    )


def find(name: str) -> Executor:
    """The record in `executors/NAME`. Raises UserError where there is none."""
    names = list_executor_names()
    if name not in names:
        raise UserError(f"no executor {name!r}: there are {', '.join(names)}")
    executor: Executor = importlib.import_module(f"{__name__}.{name}").EXECUTOR
    return executor


def check_sections(suite: Suite, runs: Sequence[RunConfig]) -> None:
    """Hold what a suite and its rows ask of executors against the settings of these.

    Raises ConfigError.
    """
    from benchmark.settings.base import ConfigError, Settings, validate
    from benchmark.settings.load import SITE

    place = f"suite {suite.name!r}" + f" with {SITE}" * SITE.exists()
    rows = {f", row {run.row!r}": run.sections for run in runs}
    for row, sections in {"": suite.sections, **rows}.items():
        for name, section in sections.items():
            executor = find(name)
            validate(executor.settings or Settings, section, f"{place}{row}: [{name}]")
            for key in executor.of_all_rows:
                if section.get(key) != suite.sections.get(name, {}).get(key):
                    raise ConfigError(
                        f"{place}{row}: '{name}.{key}' is the same for all rows: do not set it"
                    )


def find_notes(suite: Suite, store: Store) -> Path:
    """The folder of what executors note of a suite's jobs, each in a folder with its name."""
    return store.root.absolute() / "suites" / suite.name / "jobs"


def list_used(suite: Suite, store: Store) -> list[Executor]:
    """The executors that have noted jobs of a suite.

    Whoever asks for states does not know where its jobs are.
    """
    folders = sorted(find_notes(suite, store).glob("*"))
    return [find(folder.name) for folder in folders]


def doctor(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> int:
    """Print what executors find in their places.

    It tells whether this machine, or the cluster behind it, is fit for a suite. Returns an exit
    status: 1 where something is wrong. Nothing of it stays.
    """
    has_failed = False
    for name in list_executor_names():
        for line in find(name).examine(suite, configs, runs):
            print(line, flush=True)
            has_failed |= line.startswith("wrong")
    return int(has_failed)
