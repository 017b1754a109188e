"""What is known of runs and of the jobs that train them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmark.settings.suite import RunConfig

FAILED, UNKNOWN = 1, 3  # exit statuses of commands by the states of runs and jobs
StateName = Literal["waiting", "running", "unknown", "held", "done", "failed", "interrupted"]  # of a job


@dataclass(frozen=True)
class History:
    """When and where a job was; times are in seconds since 1970."""

    log: str  # the file with its output
    submitted: float
    nodes: tuple[str, ...] = ()  # where it started, once for each start
    ended: float | None = None
    started: float | None = None  # the last time; of one that failed before it could say, not before this
    called: str = ""  # the suite, by the command line that submitted it
    # "elsewhere": on another cluster, or of another user and not shown, so that nobody here can ask
    whose: Literal["mine", "another user's", "elsewhere"] = "mine"

    @property
    def elsewhere(self) -> bool:
        """Whether nobody here can ask about it."""
        return self.whose == "elsewhere"

    @property
    def last_seen(self) -> float:
        """When it was last heard of: one that was killed has not said when."""
        return self.ended or self.started or self.submitted

    @property
    def node(self) -> str:
        return self.nodes[-1] if self.nodes else ""


@dataclass(frozen=True)
class JobState:
    """One job, as its executor knows it.

    An interrupted one was ended by the cluster or by a user; one whose state is unknown is under way as far as anybody
    knows; one that is held starts by itself never: a submission that died, a user or the cluster left it so.

    `key` says what the job does, see `benchmark.jobs.plan.PlannedJob`; `detail` says why it waits or how it ended;
    `serves` are the ids of the runs that it is for, `waits_for` those of the jobs that it was submitted after.
    """

    id: str
    key: str
    name: str
    state: StateName
    detail: str
    history: History
    serves: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()

    @property
    def run(self) -> str | None:
        """The id of the run that it trains to its end, if it does."""
        return self.key if self.key in self.serves else None

    @property
    def is_report(self) -> bool:
        """Whether it renders tables; a row may be called `report`."""
        return self.key.partition("-")[0] == "report" and not self.run

    @property
    def under_way(self) -> bool:
        """Whether nobody else may do what it does."""
        return self.state in ("waiting", "running", "unknown", "held")


@dataclass(frozen=True)
class FinishedStage:
    """What a stage came to, and what it took."""

    ap: float  # over the domains so far
    seconds: float  # of train time
    wall: float  # from where it was last started to its end, evaluations included
    share: float = 1.0  # of its budget, that its phases were given
    before: float = 0.0  # seconds of train time before it was last started


@dataclass(frozen=True)
class Scored:
    """How far a model's fine-tuning on the suite's tasks is."""

    model: str  # the key of its stage, or a name as long as that is not known
    missing: int  # scores that are still to come
    ran: tuple[tuple[float, float], ...] = ()  # of each that is there: when it was recorded, and its seconds
    failed: str = ""  # why the last of those that failed, and are still to come, did


@dataclass(frozen=True)
class Trained:
    """What of a run is trained."""

    keys: tuple[str, ...]  # of its stages, as far as they are known
    stages: int  # how many of them are done
    seconds: float  # of train time, shared stages included
    prepared: bool  # whether its text is tokenised
    finished: tuple[FinishedStage, ...] = ()  # those of `stages` that evaluated something
    fraction: float = 0.0  # of the budget of the stage in progress
    scored: tuple[Scored, ...] = ()  # of a suite with tasks: each model that they are for


@dataclass(frozen=True)
class RecordedStage:
    """What a wall time of a stage depends on, and whether memory held its rows."""

    domain: str
    machine: str  # those that it had to itself, in words
    crowded: str = ""  # the share of its cores that other programs left it, where it lacked some
    jumped: float = 0.0  # seconds by which the time of day was set meanwhile, or the machine slept
    micro_batch_size: int | None = None  # rows of a forward pass, where memory did not hold those that were asked for


@dataclass(frozen=True)
class RunState:
    """Where a run stands. A run in state `todo` was never started; `interrupted` ones go on with the next `run`."""

    config: RunConfig
    state: Literal["todo"] | StateName
    detail: str
    trained: Trained
    job: JobState | None = None  # the last one
    stages: tuple[RecordedStage, ...] = ()  # that `status` may have a note on: see Survey
    restarts: int = 0  # how often it was preempted, stopped or lost and then went on
    short_of_memory: bool = False  # whether its processes go on with fewer rows at once where they begin again
