"""Units of work: what a worker does, on this machine or in a job of a cluster.

Anybody may do one, at any time, twice: a finished one costs a look at the store, and a missing stage before it is
trained first. So the order of waves only saves work. A unit imports what it works with when it begins: plans are made
of units, and must not wait for torch.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from benchmark import records
from benchmark.downstream.zero_shot import missing_tasks
from benchmark.files import BEGUN
from benchmark.locks import Lease, LeaseLost
from benchmark.records import FailedLine
from benchmark.settings.base import digest
from benchmark.settings.suite import RunConfig, Suite, Suites
from benchmark.store import Store
from benchmark.training.method import Build

if TYPE_CHECKING:
    from benchmark.training.processes import World

Kind = Literal["prepare", "stages", "train", "score", "measure", "report"]
TRAINS = ("stages", "train")
PASSES = re.compile(r"\..*\.[0-9a-f]{32}|.*\.lock\.\d+")  # the name of an unfinished file, or of a lock
RenderReport = Callable[[Suites, Path, Path], None]  # suites, runs, out


class Measure(Protocol):
    """Records the measures that a run's finished stages lack."""

    def __call__(self, config: RunConfig, store: Store) -> None: ...

    def done(self, store: Store, stage: str) -> bool:
        """Whether the model of a stage is measured."""
        ...


@dataclass(frozen=True)
class Worker:
    """Who does a unit: its processes, whether it is to stop, whether it waits for what somebody else has."""

    world: World
    asked_to_stop: Callable[[], bool] = lambda: False
    waits: bool = True
    refresh: Callable[[], None] = lambda: None  # called now and then, while nothing is charged


@dataclass(frozen=True)
class Unit:
    """Work on a run, or once for several of which it is the first.

    One that `polls` asks now and then whether it is to stop, and raises Stopped; the others may be ended at any time.
    """

    runs: Path
    config: RunConfig
    key: str  # of what it makes: units of a kind with equal keys do the same
    kind: ClassVar[Kind]
    polls: ClassVar[bool] = False

    def __call__(self, worker: Worker) -> None:
        raise NotImplementedError

    @property
    def store(self) -> Store:
        return Store(self.runs)

    @property
    def id(self) -> str:
        """What tells it from all others of its suite."""
        return f"{self.kind}-{self.key}"

    @property
    def name(self) -> str:
        """What it is called where people read it."""
        return f"{self.config.suite}:{self.kind}-{self.config.label}"

    def hash_kept(self) -> str:
        """What changes with each step, domain or score of its work that is kept, and with what was begun of a text."""
        store, kept = self.store, list[str]()
        texts = os.walk(store.data) if self.kind in ("prepare", *TRAINS) else ()  # others make none
        paths = [Path(folder, name) for folder, _, names in texts for name in names]
        for key in store.recorded_stages(self.config):
            paths += [*store.stage(key).glob("*.pt"), store.scores_file(key), store.measures_file(key)]
        for path in [*paths, store.scores_file("baselines")]:
            with contextlib.suppress(FileNotFoundError):  # others write there
                if not any(map(PASSES.fullmatch, path.parts)):
                    kept.append(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}")
                elif (path.parent / BEGUN).exists():
                    kept.append(path.read_text() if path.name == BEGUN else path.name)
        return digest(sorted(kept))

    def find_owning_job(self) -> str:
        """The job that trains its next stage, or makes text before it has stages; empty where none does."""
        store = self.store
        keys = [key for key in store.recorded_stages(self.config) if not store.stage_done(key)]
        texts = [path.with_suffix("") for path in sorted(store.data.glob("*/*.lock.*"))]
        leases = map(Lease, [store.stage(keys[0]) / "lock"] if keys else texts)
        return next((lease.read_job() for lease in leases if lease.is_taken()), "")


@dataclass(frozen=True)
class Prepare(Unit):
    """Tokenise the text of a run."""

    kind = "prepare"

    def __call__(self, worker: Worker) -> None:
        from benchmark.data.tokens import corpus_of
        from benchmark.training.processes import polled

        say = lambda text: print(text, file=sys.stderr)  # noqa: E731
        corpus_of(self.config, self.store, say, poll=polled(worker.asked_to_stop, worker.waits))


@dataclass(frozen=True)
class PrepareTasks(Unit):
    """Read the suite's tasks, and score what needs no pre-training."""

    suite: Suite
    kind = "prepare"

    @property
    def name(self) -> str:
        return f"{self.suite.name}:{self.id}"

    def __call__(self, worker: Worker) -> None:
        from benchmark.downstream.tasks import load_tasks, record_baselines

        record_baselines(load_tasks(self.suite, self.store), self.store.scores_file("baselines"))


@dataclass(frozen=True)
class Train(Unit):
    """Train the missing stages of a run, or those up to `last_stage`.

    Raises Stopped after a checkpoint when asked to stop, Taken where another process trains a stage and the worker does
    not wait, and whatever went wrong, which is in the run's records; another call goes on.
    """

    build: Build
    last_stage: int | None = None
    polls: ClassVar[bool] = True

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        return "train" if self.last_stage is None else "stages"

    @property
    def id(self) -> str:
        return self.key if self.last_stage is None else super().id

    @property
    def name(self) -> str:
        if self.last_stage is None:
            return f"{self.config.suite}:{self.config.label}"
        domains = "+".join(domain.name for domain in self.config.domains[: self.last_stage + 1])
        return f"{self.config.suite}:{domains}-of-{self.config.label}"

    def __call__(self, worker: Worker) -> None:
        from benchmark.training.processes import Stopped, Taken
        from benchmark.training.progress import ProgressLine
        from benchmark.training.run import Run

        config, store, world, run = self.config, self.store, worker.world, None
        name = f"{config.suite}: {config.row}, seed {config.seed}"
        leads = world.leads  # the first speaks for all
        line = ProgressLine(name, store.heartbeat(config), refresh=worker.refresh) if leads else None
        say = line.finish if line else lambda text, is_news=True: None
        try:
            method = lambda: self.build(config.method, config.options)  # noqa: E731
            run = Run(config, method, store, world, line, worker.asked_to_stop, worker.waits)
            run.train(self.last_stage)
        except Taken:
            raise
        except Stopped:
            say("stopped; goes on from what it has kept")
            raise
        except Exception as error:
            if not run and world.leads and not isinstance(error, LeaseLost):  # else it has said so itself, if it may
                failed = FailedLine(stage=0, error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
                with contextlib.suppress(OSError):  # of a full disk, say: the error raised says more
                    records.append(store.run_file(config), failed)
            say(f"failed: {error}")
            raise
        say(f"done{run.outcome()}" if self.last_stage is None else "shared stages done", is_news=False)


@dataclass(frozen=True)
class Score(Unit):
    """Score the model after a stage: fine-tune it on the suite's tasks, and ask lm-evaluation-harness about others."""

    suite: Suite
    stage: int
    kind = "score"
    polls = True

    @property
    def name(self) -> str:
        return f"{self.suite.name}:score-{self.config.label}-{self.config.domains[self.stage].name}"

    def asks_harness(self) -> bool:
        """Whether tasks of lm-evaluation-harness are missing, which may not be installed where none are."""
        lines = records.read(self.store.scores_file(self.id), records.SCORES)
        return bool(missing_tasks(self.suite.evaluate, self.id, lines))

    def __call__(self, worker: Worker) -> None:
        from benchmark.downstream.finetune import NotScored, score_stage
        from benchmark.downstream.tasks import load_tasks, tasks_after
        from benchmark.training.progress import ProgressLine

        line = ProgressLine(f"{self.suite.name}: {self.config.row}, seed {self.config.seed}")
        given, final = (self.suite, self.config, self.stage), self.stage == len(self.config.domains) - 1

        def fine_tune() -> str:
            tasks = load_tasks(self.suite, self.store)
            return score_stage(*given, tasks, self.store, line.passing, worker.asked_to_stop)

        def ask_harness() -> str:
            from benchmark.downstream.harness import evaluate_stage  # it imports lm_eval

            return evaluate_stage(*given, self.store, worker.asked_to_stop)

        lost = []
        parts = [fine_tune] * bool(tasks_after(self.suite, final)) + [ask_harness] * self.asks_harness()
        for part in parts:
            try:
                line.finish(part(), is_news=False)
            except NotScored as error:
                line.finish(f"not all scored after {self.config.domains[self.stage].name}: {error}")
                lost.append(error)
        if lost:
            raise lost[0]


@dataclass(frozen=True)
class MeasureModels(Unit):
    """Measure what tables need of the models that a run has."""

    measures: tuple[Measure, ...]
    kind = "measure"

    def __call__(self, worker: Worker) -> None:
        for measure in self.measures:
            measure(self.config, self.store)


@dataclass(frozen=True)
class Report(Unit):
    """Render tables and figures from the records that there are; `render` is handed in by who may import it."""

    suite: Suite
    configs: tuple[RunConfig, ...]
    render: RenderReport
    out: Path
    kind = "report"

    def __call__(self, worker: Worker) -> None:
        self.render([(self.suite, self.configs)], self.runs, self.out)
