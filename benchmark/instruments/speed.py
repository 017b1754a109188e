"""What a step of each method costs, over a step of Naive: measured, and beside it what its FLOPs predict.

A machine is never quiet for long, so the two steps are timed in turns and the ratio is the median over the pairs.
Nothing is trained: the learning rate is 0, and each stage starts from what `start_stage` makes of an untrained model.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmark.data.tokens import Corpus
from benchmark.models import LanguageModel
from benchmark.settings.config import Budget, RunConfig
from benchmark.training.flops import count_flops
from benchmark.training.learner import Learner
from benchmark.training.loader import Loader
from benchmark.training.method import LifelongMethod, Phase, Stage
from benchmark.training.optimization import new_optimizer
from benchmark.training.processes import World
from benchmark.training.run import Build, stage_keys, stage_of, stream_of
from benchmark.training.stage import get_state, set_state
from benchmark.training.step_times import RowTimes, StageTimes, settings_of
from benchmark.training.stream import Stream

TOLERANCE = 0.1  # a method may be this much slower than its FLOPs say
WARM_UP = 2  # steps


@dataclass(frozen=True)
class Cost:
    """Of a step of one phase: seconds, and how many of Naive's steps in the same stage that is."""

    row: str
    stage: int
    domain: str
    phase: str
    seconds: float
    measured: float  # median over pairs
    predicted: float  # by FLOPs

    @property
    def off(self) -> float:
        """How much more it costs than predicted, as a share; NaN for a phase without matrix products."""
        return self.measured / self.predicted - 1 if self.predicted else math.nan


class Stepper:
    """Takes steps of a phase as the loop does, at a learning rate of 0."""

    def __init__(
        self,
        config: RunConfig,
        stage: Stage,
        stream: Stream,
        method: LifelongMethod,
        model: LanguageModel,
        phase: Phase,
        phase_index: int,
        world: World,
    ) -> None:
        training = config.training
        self.method, self.model, self.training, self.world = method, model, training, world
        self.learner = Learner(model, method.loss, training, world)
        self.optimizer = new_optimizer(self.learner.parameters, training) if phase.trains else None
        self.loader = Loader(stream, stage, phase, phase_index, training, world, method)
        self.taken = 0

    def step(self) -> float:
        """Its seconds, the slowest process's."""
        self.world.synchronize()
        began = time.perf_counter()
        torch.manual_seed(self.loader.seed(self.taken))
        batches, memory = self.loader.get(self.taken)
        if self.optimizer:
            self.learner.accumulate(batches)
            self.method.adjust_gradients(self.learner, memory)
            if self.training.clip:
                torch.nn.utils.clip_grad_norm_(self.learner.parameters, self.training.clip)
            self.optimizer.step()
        else:
            self.method.observe(self.learner, batches)
        self.world.synchronize()
        self.taken += 1
        return self.world.maximum(time.perf_counter() - began)[0]

    def flops(self) -> float:
        """Of one step of this process, uncompiled."""
        compiled, self.training = self.learner, self.training.model_copy(update={"compile": False})
        self.learner = Learner(self.model, self.method.loss, self.training, self.world)
        flops = count_flops(self.step)
        self.learner = compiled
        return flops


def measure(
    configs: Sequence[RunConfig],
    build: Build,
    corpus_of: Callable[[RunConfig], Corpus],
    world: World,
    pairs: int = 7,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[list[Cost], list[RowTimes]]:
    """The cost of each phase of each stage of each run, and the rows of a table of step times.

    Stages that runs share are measured once. `pairs` of steps are timed for each phase, after a warm-up.
    """
    costs: list[Cost] = []
    rows: list[RowTimes] = []
    known: dict[str, tuple[list[Cost], StageTimes]] = {}
    for config in configs:
        stream = stream_of(config, corpus_of(config))
        times = []
        for key, one in stages(config, build, stream, world):
            if key not in known:
                say(f"{config.row}, stage {one.stage.index + 1} of {len(config.domains)}")
                known[key] = one.measure(pairs)
            shared, measured = known[key]
            costs += [replace(cost, row=config.row) for cost in shared]
            times.append(measured)
        rows.append(RowTimes(config.method, config.options, settings_of(config), tuple(times)))
    return costs, rows


@dataclass
class Prepared:
    """A stage as a run would begin it, and Naive's model beside it."""

    config: RunConfig
    stage: Stage
    stream: Stream
    method: LifelongMethod
    model: LanguageModel
    naive: LanguageModel
    set_up: float
    world: World

    def measure(self, pairs: int) -> tuple[list[Cost], StageTimes]:
        common = (self.config, self.stage, self.stream)
        naive = Stepper(*common, LifelongMethod(), self.naive, Phase("adapt"), 0, self.world)
        costs = []
        for number, phase in enumerate(self.method.phases(self.stage)):
            torch.compiler.reset()  # past a number of graphs, those of earlier rows, the rest would not be compiled
            one = Stepper(*common, self.method, self.model, phase, number, self.world)
            predicted = one.flops() / naive.flops()
            for _ in range(WARM_UP):
                one.step()
                before = naive.step()
            seconds, ratios = [], []
            for _ in range(pairs):  # each step of the method stands between two of Naive's
                mine, after = one.step(), naive.step()
                seconds.append(mine)
                ratios.append(2 * mine / (before + after))
                before = after
            costs.append(
                Cost(
                    row=self.config.row,
                    stage=self.stage.index,
                    domain=self.stage.domains[self.stage.index],
                    phase=phase.name,
                    seconds=statistics.median(seconds),
                    measured=statistics.median(ratios),
                    predicted=predicted,
                )
            )
        return costs, StageTimes(self.set_up, {cost.phase: cost.seconds for cost in costs})


def stages(config: RunConfig, build: Build, stream: Stream, world: World) -> Iterator[tuple[str, Prepared]]:
    """Each stage of a run with its key; the next begins from what this one leaves."""
    method = build(config.method, config.options)
    steps = config.model_copy(update={"budget": Budget(unit="steps", amount=config.budget.amount, reference=None)})
    keys = stage_keys(steps, method, stream.corpus.key)  # steps: a table need not be there yet
    first = stage_of(config, 0, stream)
    torch.manual_seed(first.seed)
    model = first.build(first.ladder[0])
    naive = copy.deepcopy(model).to(world.device).train()
    for index, key in enumerate(keys):
        stage = stage_of(config, index, stream)
        method, state = build(config.method, config.options), get_state(method)
        set_state(method, state)
        torch.manual_seed(stage.seed)
        model.to(world.device).train()
        world.synchronize()
        began = time.perf_counter()
        model = method.start_stage(model, stage).to(world.device).train()
        world.synchronize()
        set_up = world.maximum(time.perf_counter() - began)[0]
        yield key, Prepared(config, stage, stream, method, model, naive, set_up, world)


def table(costs: Sequence[Cost], machine: dict[str, Any]) -> str:
    """A line a phase; the ones that cost over a tenth more than predicted are marked."""
    width = max([len("row"), *(len(cost.row) for cost in costs)])
    names = max([len("phase"), *(len(cost.phase) for cost in costs)])
    lines = [
        f"{'row':{width}}  stage  {'phase':{names}}  {'ms a step':>10}  {'of Naive':>8}  {'by FLOPs':>8}  {'off':>6}"
    ]
    for cost in costs:
        off = f"{cost.off:+6.0%}" if cost.predicted else f"{'-':>6}"
        mark = " !" if cost.off > TOLERANCE else ""
        lines.append(
            f"{cost.row:{width}}  {cost.stage + 1:5}  {cost.phase:{names}}  {1000 * cost.seconds:10,.1f}  "
            f"{cost.measured:8.2f}  {cost.predicted:8.2f}  {off}{mark}"
        )
    lines.append(
        f"on {machine['device']} ({machine['cpu']}, {machine['threads']} threads, {machine['count']} processes)"
    )
    if any(cost.off > TOLERANCE for cost in costs):
        lines.append(f"! more than {TOLERANCE:.0%} slower than its FLOPs predict")
    return "\n".join(lines)
