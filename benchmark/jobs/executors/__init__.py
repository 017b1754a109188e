"""Where jobs are done, one executor a file; the file's name is what `--executor` takes.

To add one, add a file with a class of the protocol below and `EXECUTOR = ThatClass`. No torch here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from benchmark.jobs.plan import Plan
    from benchmark.jobs.states import JobState
    from benchmark.settings.suite import RunConfig, Suite
    from benchmark.store import Store


class Executor(Protocol):
    """Does the jobs of one suite, and knows how they are."""

    def __init__(self, suite: Suite, store: Store) -> None: ...

    def gpus(self, runs: Iterable[RunConfig]) -> float:
        """How many GPUs train a stage that these runs share, for GPU-hours; 0 where they are not counted."""
        ...

    def describe(self, plan: Plan) -> list[str]:
        """Lines for --dry-run, saying what `execute` would do."""
        ...

    def execute(self, plan: Plan) -> int:
        """Do the jobs of a plan, or see to it that they are done. Returns an exit status, 0 for success.

        Two calls at once must not do a job twice.
        """
        ...

    def jobs(self) -> list[JobState]:
        """The suite's jobs that this executor has or had, in the order of submission."""
        ...

    @property
    def asks(self) -> bool:
        """Whether `jobs` asks something that many ask, as a cluster's queue, and should be called seldom."""
        ...

    def cancel(self, jobs: Sequence[JobState]) -> None:
        """End these jobs, which are under way."""
        ...


def names() -> list[str]:
    """The names of all executors, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> type[Executor]:
    """The class in `executors/NAME.py`."""
    executor: type[Executor] = importlib.import_module(f"{__name__}.{name}").EXECUTOR
    return executor


def of(suite: Suite, store: Store) -> list[Executor]:
    """Every executor, for one suite: whoever asks for states does not know where its jobs are."""
    return [find(name)(suite, store) for name in names()]
