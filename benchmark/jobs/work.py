"""Units of work: what a worker does, on this machine or in a job of a cluster.

Any process may do a unit, at any time, also twice. If the unit is finished already, that costs only
a look at the store. If an earlier stage is missing, the unit trains that stage first. So the order
of waves only saves work. A unit imports torch only when it begins, because plans consist of units
and must not wait for torch.
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
    """The processes that do a unit together.

    If another process has what the unit needs, they wait, or raise Taken if `waits` is false.
    """

    world: World
    waits: bool = True


@dataclass(frozen=True)
class Unit:
    """Work on one run, or on several at once, the first of which is `config`.

    A unit that `polls` checks now and then whether it should stop, and then raises Stopped. Other
    units may be interrupted at any time.
    """

    runs: Path
    config: RunConfig
    key: str  # of what it makes: units of one kind with equal keys do the same work
    # the end of its name, after suite and kind. If empty, the label of the run
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
        """A list of what is saved of the unit's work, which changes whenever more is saved.

        It lists tokenised domains and parts of domains, evaluations, steps from which training was
        resumed, and the sizes of files of scores and measures.
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
            files += [store.scores_file(key), store.similarity_file(key)]
        for path in files:
            if path.exists():
                progress.append(f"{path.name} {path.stat().st_size}")
        return sorted(progress)

    def find_owning_job(self) -> str:
        """The job that trains this unit's next stage, or makes text if no next stage is known.

        Empty if no job does.
        """
        store = self.store
        missing = []
        for key in store.read_stage_keys(self.config):
            if not store.is_stage_done(key):
                missing.append(key)
        if missing:
            locks = [store.stage_folder(missing[0]) / "lock"]
        else:
            # a lock NAME.lock has files NAME.lock.1, NAME.lock.2, ...
            locks = [path.with_suffix("") for path in sorted(store.data.glob("*/*.lock.*"))]
        for lock in locks:
            lease = Lease(lock)
            if lease.is_taken():
                return lease.read_job()
        return ""


@dataclass(frozen=True)
class StartCounter:
    """Counts, in a file of a job, how many starts in a row have added nothing to its units."""

    path: Path
    units: Sequence[Unit]

    def begin(self) -> None:
        """Note the units' progress when the job first begins."""
        if not self.path.exists():
            self._write(0)

    def count_in_vain(self) -> int:
        """At the end of a start, note the progress, and count the starts in a row without any."""
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
    """Read the suite's tasks, and score the baselines that need no pre-training."""

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

    Raises Stopped, after a checkpoint, if asked to stop. Raises Taken if another process trains a
    stage and the worker does not wait. Any other error is recorded and raised. Another call
    continues.
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
        # only the first process prints
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
            # once there is a run, it records its failure itself
            if not run and world.leads and not isinstance(error, LeaseLost):
                # if recording fails too, as on a full disk, the first error says more
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

    The model is fine-tuned on the suite's own tasks. lm-evaluation-harness scores it on
    `suite.evaluate.tasks`.
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
    """Compute the measures of a run's models that tables need."""

    measures: tuple[Measure, ...]
    kind = "measure"

    def __call__(self, worker: Worker) -> None:
        for measure in self.measures:
            measure(self.config, self.store)


@dataclass(frozen=True)
class Report(Unit):
    """Render tables and figures from the records that there are.

    `render` is passed in, because this package must not import those that make tables.
    """

    suite: Suite
    configs: tuple[RunConfig, ...]
    render: RenderReport
    out: Path
    kind = "report"

    def __call__(self, worker: Worker) -> None:
        self.render([(self.suite, self.configs)], self.runs, self.out)
