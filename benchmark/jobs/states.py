"""What is known of runs and of the jobs that train them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmark.record_lines import DoneLine, StageLine
from benchmark.settings.config import RunConfig


@dataclass(frozen=True)
class History:
    """When and where a job was; times are in seconds since 1970."""

    log: str  # the file with its output
    submitted: float
    nodes: tuple[str, ...] = ()  # where it started, once for each start
    ended: float | None = None

    @property
    def node(self) -> str:
        return self.nodes[-1] if self.nodes else ""


@dataclass(frozen=True)
class JobState:
    """One job, as its executor knows it. An interrupted one was ended by the cluster or by a user.

    `key` says what the job does, see `benchmark.jobs.plan.PlannedJob`; `run` is the id of the run that it trains to
    its end, if it does; `detail` says why it waits or how it ended.
    """

    id: str
    key: str
    name: str
    run: str | None
    state: Literal["waiting", "running", "done", "failed", "interrupted"]
    detail: str
    history: History

    @property
    def under_way(self) -> bool:
        return self.state in ("waiting", "running")


@dataclass(frozen=True)
class Trained:
    """What of a run is trained."""

    keys: tuple[str, ...]  # of its stages, as far as they are known
    stages: int  # how many of them are done
    seconds: float  # of train time, shared stages included
    prepared: bool  # whether its text is tokenised


@dataclass(frozen=True)
class RecordedStage:
    """What a wall time of a stage depends on."""

    begun: StageLine
    done: DoneLine | None


@dataclass(frozen=True)
class RunState:
    """Where a run stands. A run in state `todo` was never started; `interrupted` ones go on with the next `run`."""

    config: RunConfig
    state: Literal["todo", "waiting", "running", "done", "failed", "interrupted"]
    detail: str
    trained: Trained
    job: JobState | None = None  # the last one
    stages: tuple[RecordedStage, ...] = ()  # under a budget of wall time those that its records name
    restarts: int = 0  # how often it was preempted, stopped or lost and then went on
