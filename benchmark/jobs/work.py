"""Units of work: what a worker does, on this machine or in a job of a cluster.

Anybody may do a unit, at any time, twice. A finished unit costs a look at the store, and a missing
stage before it is trained first. So the order of waves only saves work. A unit imports what it
works with when it begins, because plans are made of units, and must not wait for torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from benchmark.cancel import Stopped, Taken
from benchmark.files import BEGUN, write_json
from benchmark.ledger.store import Store
from benchmark.locks import Lease, LeaseLost
from benchmark.settings.suite import RunConfig, Suite, Suites
from benchmark.training.method import Build

if TYPE_CHECKING:
    from benchmark.training.processes import World

Kind = Literal["prepare", "stages", "train", "score", "measure", "report"]
TRAINS = ("stages", "train")
RenderReport = Callable[[Suites, Path, Path], None]  # suites, runs, out


class Measure(Protocol):
    """Records the measures that a run's finished stages lack."""

    def __call__(self, config: RunConfig, store: Store) -> None: ...

    def is_done(self, config: RunConfig, store: Store, stage: str) -> bool:
        """Whether the model of a run's stage is measured on the run's text."""
        ...


@dataclass(frozen=True)
class Worker:
    """Who does a unit.

    It has its processes, and waits for what somebody else has, or leaves it.
    """

    world: World
    waits: bool = True


@dataclass(frozen=True)
class Unit:
    """Work on a run, or on several at once, of which `config` is the first.

    A unit that `polls` asks now and then whether it is to stop, and raises Stopped. A unit that
    does not may be ended at any time.
    """

    runs: Path
    config: RunConfig
    key: str  # of what it makes: units of a kind with equal keys do the same
    # what it is called beside the suite and the kind; the run's, if empty
    label: str = field(default="", kw_only=True)
    kind: ClassVar[Kind]
    polls: ClassVar[bool] = False

    def __call__(self, worker: Worker) -> None:
        raise NotImplementedError

    @property
    def store(self) -> Store:
        return Store(self.runs)

    @property
    def id(self) -> str:
        """A name that no other unit of its suite has."""
        return f"{self.kind}-{self.key}"

    @property
    def name(self) -> str:
        """A name for people."""
        return f"{self.config.suite}:{self.kind}-{self.label or self.config.label}"

    def describe_progress(self) -> list[str]:
        """What its records say is kept of it: other words whenever there is more.

        A score counts, a domain or a part of one, an evaluation, and a step from which training
        went on.
        """
        store = self.store
        progress: list[str] = []
        if self.kind in ("prepare", *TRAINS):  # the only kinds that make texts
            for path in store.data.glob("*/[!.]*"):
                if path.is_dir():
                    progress.append(path.name)
            for path in store.data.glob(f"*/.*/{BEGUN}"):
                with contextlib.suppress(FileNotFoundError):  # others write there
                    progress.append(f"{path.read_text()} {len(os.listdir(path.parent))}")
        files = [store.scores_file("baselines")]
        for key in store.read_stage_keys(self.config):
            for line in store.read_stage(key):
                place = getattr(line, "phase", ""), getattr(line, "step", 0)
                progress.append(f"{key} {type(line).__name__} {place}")
            files += [store.scores_file(key), store.measures_file(key)]
        for path in files:
            if path.exists():
                progress.append(f"{path.name} {path.stat().st_size}")
        return sorted(progress)

    def find_owning_job(self) -> str:
        """The job that trains its next stage, or makes text before it has stages.

        Empty where no job does.
        """
        store = self.store
        keys = []
        for key in store.read_stage_keys(self.config):
            if not store.is_stage_done(key):
                keys.append(key)
        locks = [path.with_suffix("") for path in sorted(store.data.glob("*/*.lock.*"))]
        if keys:
            locks = [store.stage_folder(keys[0]) / "lock"]
        for lock in locks:
            lease = Lease(lock)
            if lease.is_taken():
                return lease.read_job()
        return ""


@dataclass(frozen=True)
class Starts:
    """How many starts in a row of a job have added nothing to its units, in a file of the job."""

    path: Path
    units: Sequence[Unit]

    def begin(self) -> None:
        """Note what there is when the job first begins."""
        if not self.path.exists():
            self._write(0)

    def count_in_vain(self) -> int:
        """Count a start that ends, and note what there is now."""
        note = json.loads(self.path.read_text())
        is_in_vain = note["progress"] == self._describe_progress()
        count = note["in_vain"] + 1 if is_in_vain else 0
        self._write(count)
        return count

    def _write(self, count: int) -> None:
        write_json(self.path, {"progress": self._describe_progress(), "in_vain": count})

    def _describe_progress(self) -> list[list[str]]:
        return [unit.describe_progress() for unit in self.units]


@dataclass(frozen=True)
class Prepare(Unit):
    """Tokenise the text of a run."""

    kind = "prepare"

    def __call__(self, worker: Worker) -> None:
        from benchmark.data.prepared import prepare_corpus

        say = lambda text: print(text, file=sys.stderr)  # noqa: E731
        prepare_corpus(self.config, self.store, say, waits=worker.waits)


@dataclass(frozen=True)
class PrepareTasks(Unit):
    """Read the suite's tasks, and score what needs no pre-training."""

    suite: Suite
    kind = "prepare"

    def __call__(self, worker: Worker) -> None:
        from benchmark.downstream.tasks import decontaminate_tasks, load_tasks, record_baselines

        tasks = load_tasks(self.suite, self.store)
        tasks = decontaminate_tasks(tasks, self.config, self.store)
        record_baselines(tasks, self.store.scores_file("baselines"))


@dataclass(frozen=True)
class Train(Unit):
    """Train the missing stages of a run, or those up to `last_stage`.

    Raises Stopped after a checkpoint when asked to stop, Taken where another process trains a stage
    and the worker does not wait, and whatever went wrong, which is in the run's records. Another
    call goes on.
    """

    build: Build
    last_stage: int | None = None
    kind: ClassVar[Kind] = "train"
    polls = True

    def __call__(self, worker: Worker) -> None:
        from benchmark.training.progress import ProgressLine
        from benchmark.training.run import Run, record_failure

        config = self.config
        store = self.store
        world = worker.world
        name = f"{config.suite}: {config.row}, seed {config.seed}"
        # the first process speaks for all
        line = ProgressLine(name, store.heartbeat_file(config)) if world.leads else None
        say = line.say if line else lambda text: None
        method = lambda: self.build(config.method, config.options)  # noqa: E731
        run = None
        try:
            run = Run(config, method, store, world, line, worker.waits)
            run.train(self.last_stage)
        except Taken:
            raise
        except Stopped:
            say("stopped; the next `run` continues from its checkpoint")
            raise
        except Exception as error:
            # a run that has begun has recorded it itself, if it may
            if not run and world.leads and not isinstance(error, LeaseLost):
                # an error of a full disk, say, says less than the one that is raised
                with contextlib.suppress(OSError):
                    record_failure(config, store, 0, error)
            say(f"failed: {error}")
            raise
        say("done" if self.last_stage is None else "shared stages done")


@dataclass(frozen=True)
class TrainShared(Train):
    """Train the stages that several runs begin with."""

    kind = "stages"


@dataclass(frozen=True)
class Score(Unit):
    """Score the model after a stage.

    It is fine-tuned on the suite's tasks, and lm-evaluation-harness scores it on others.
    """

    suite: Suite
    stage: int
    kind = "score"
    polls = True

    def __call__(self, worker: Worker) -> None:
        from benchmark.downstream.finetune import NotScored, score_stage
        from benchmark.downstream.tasks import load_tasks, select_tasks
        from benchmark.training.progress import ProgressLine

        suite = self.suite
        config = self.config
        store = self.store
        line = ProgressLine(f"{suite.name}: {config.row}, seed {config.seed}")
        final = self.stage == len(config.domains) - 1
        failure = None
        if select_tasks(suite, final):
            tasks = load_tasks(suite, store)
            try:
                scores = score_stage(suite, config, self.stage, tasks, store, line.say_briefly)
                line.say(scores)
            except NotScored as error:
                failure = error
        if suite.evaluate.tasks:
            from benchmark.downstream.harness import evaluate_stage  # it imports lm_eval

            scores = evaluate_stage(suite, config, self.stage, store)
            line.say(scores)
        if failure:
            raise failure


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
    """Render tables and figures from the records that there are.

    `render` is handed in by who may import it.
    """

    suite: Suite
    configs: tuple[RunConfig, ...]
    render: RenderReport
    out: Path
    kind = "report"

    def __call__(self, worker: Worker) -> None:
        self.render([(self.suite, self.configs)], self.runs, self.out)
