"""What jobs do: callables that are the same in this process and in a Slurm job, where they arrive pickled.

What a job works with is imported when it begins: plans are made of payloads, and must not wait for torch.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from benchmark import records
from benchmark.data.tokens import corpus_of
from benchmark.locks import LeaseLost
from benchmark.records import FailedLine
from benchmark.settings.suite import RunConfig, Suite, Suites
from benchmark.store import Store
from benchmark.training.method import Build

if TYPE_CHECKING:
    from benchmark.training.processes import World

RenderReport = Callable[[Suites, Path, Path], None]  # suites, runs, out


class Measure(Protocol):
    """Records what is still to be measured of a run's finished stages; `module` is where that is written."""

    @property
    def module(self) -> str: ...

    def __call__(self, config: RunConfig, store: Store) -> None: ...


class Payload(Protocol):
    """What a job does. If it `polls`, it calls `asked_to_stop` every now and then, and raises Stopped if so."""

    polls: ClassVar[bool]

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None: ...


@dataclass(frozen=True)
class TrainRun:
    """Train what is missing of a run, or of its stages up to `last_stage`.

    Raises Stopped after a checkpoint when asked to stop, and whatever went wrong; both can be continued by another
    call. Errors are in the run's records. `scratch`: read copies of tokens there, see `benchmark.jobs.slurm.staging`.
    One that does not wait raises Taken where another process trains a stage.
    """

    config: RunConfig
    build: Build
    runs: Path
    last_stage: int | None = None
    scratch: str | None = None
    waits: bool = True
    polls: ClassVar[bool] = True

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        from benchmark.training.processes import Stopped, Taken, polled
        from benchmark.training.progress import ProgressLine, Silent
        from benchmark.training.run import Run

        config, store = self.config, Store(self.runs)
        name, run = f"{config.suite}: {config.row}, seed {config.seed}", None
        line = ProgressLine(name, store.heartbeat(config)) if world.leads else Silent()
        try:
            if self.scratch:
                from benchmark.jobs.slurm.staging import staged

                store = staged(config, store, self.scratch, world.barrier, polled(asked_to_stop, self.waits))
            method = lambda: self.build(config.method, config.options)  # noqa: E731
            run = Run(config, method, store, world, line, asked_to_stop, self.waits)
            [done] = world.maximum(world.leads and run.done())  # the first process decides: it writes the records
            if done:
                line.finish(f"done before{run.outcome()}")
                return
            run.train(self.last_stage)
        except Taken:
            raise
        except Stopped:
            line.finish("stopped; goes on from what it has kept")
            raise
        except Exception as error:
            if not run and world.leads and not isinstance(error, LeaseLost):  # else it has said so itself, if it may
                why = FailedLine(stage=0, error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
                with contextlib.suppress(OSError):  # of a full disk, say: what is raised is why it failed
                    records.append(store.run_file(config), why)
            line.finish(f"failed: {error}")
            raise
        crowded = f"; something ran beside it: {', '.join(found)}" if (found := run.crowded()) else ""
        line.finish((f"done{run.outcome()}" if self.last_stage is None else "shared stages done") + crowded)


@dataclass(frozen=True)
class PrepareData:
    """Tokenise the text of a run's domains."""

    config: RunConfig
    runs: Path
    polls: ClassVar[bool] = False

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        corpus_of(self.config, Store(self.runs), lambda text: print(text, file=sys.stderr))


@dataclass(frozen=True)
class ScoreModel:
    """Fine-tune and score the model that a run has after a stage."""

    suite: Suite
    config: RunConfig
    stage: int
    runs: Path
    polls: ClassVar[bool] = False

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        from benchmark.downstream.scoring import load_tasks, name_of, score_stage
        from benchmark.training.progress import ProgressLine

        store, line = Store(self.runs), ProgressLine(name_of(self.suite, self.config))
        tasks = load_tasks(self.suite, store)
        line.finish(score_stage(self.suite, self.config, self.stage, tasks, store, line.passing))


@dataclass(frozen=True)
class MeasureModels:
    """Measure what tables need of the models that a run has."""

    measures: tuple[Measure, ...]
    config: RunConfig
    runs: Path
    polls: ClassVar[bool] = False

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        for measure in self.measures:
            measure(self.config, Store(self.runs))


@dataclass(frozen=True)
class WriteReport:
    """Render tables and figures from the records that there are; `render` is handed in by who may import it."""

    render: RenderReport
    suite: Suite
    configs: tuple[RunConfig, ...]
    runs: Path
    out: Path
    polls: ClassVar[bool] = False

    @property
    def page(self) -> Path:
        """What is written last, by `report` of the suite with the same --out too."""
        return self.out / self.suite.name / "index.html"

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        self.render([(self.suite, self.configs)], self.runs, self.out)


@dataclass(frozen=True)
class Wait:
    """Do nothing: others wait for this job in the place of all those that it waits for."""

    polls: ClassVar[bool] = False

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        pass
