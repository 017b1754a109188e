"""The speed of each method's step: tokens and FLOPs per second, and its time relative to Naive's.

A machine's speed changes over time, so the method's step, Naive's step and a large matrix product
are timed in turns, and ratios are medians over the turns. Nothing is trained: the learning rate is
0, and each stage starts from what `start_stage` makes of an untrained model.
"""

from __future__ import annotations

import copy
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby
from pathlib import Path

import pandas
import torch

from benchmark.data.prepared import prepare_corpus
from benchmark.data.tokens import Corpus
from benchmark.devices import HALF, choose_precision
from benchmark.ledger.records import Hardware
from benchmark.ledger.store import Store
from benchmark.models import LanguageModel
from benchmark.settings.base import digest
from benchmark.settings.suite import Budget, RunConfig
from benchmark.training import step_times
from benchmark.training.declaration import make_stage_keys
from benchmark.training.method import (
    Build,
    LifelongMethod,
    Phase,
    get_state,
    list_phases,
    set_state,
)
from benchmark.training.processes import World, join
from benchmark.training.run import make_stream
from benchmark.training.step import StageInputs, Stepper, make_stage, set_training
from benchmark.training.step_times import RowTimes, StageTimes, estimate_naive, list_settings
from benchmark.training.stream import Stream

TOLERANCE = 0.1  # a method may be this much slower than its FLOPs say
WARM_UP = 2  # steps


@dataclass(frozen=True)
class Cost:
    """The costs of a step of one phase. Tokens and FLOPs are those of all processes."""

    row: str
    stage: int
    phase: str
    seconds: float
    over_naive: float  # its time over that of Naive's step in the same stage, median over turns
    predicted: float  # the same ratio by FLOPs
    tokens: int  # of text
    flops: float
    # FLOPs per second of a large matrix product in the same precision, median over turns
    peak: float
    of_peak: float  # the share of `peak` that the step reaches, median over turns

    @property
    def off(self) -> float:
        """How much more the step costs than predicted, as a share of the prediction.

        NaN for a phase without matrix products.
        """
        if self.predicted:
            return self.over_naive / self.predicted - 1
        return math.nan


def measure(
    configs: Sequence[RunConfig],
    build: Build,
    prepare_corpus: Callable[[RunConfig], Corpus],
    world: World,
    pairs: int,
    say: Callable[[str], None] = lambda text: None,
    table: Sequence[RowTimes] = (),
) -> tuple[list[Cost], list[RowTimes]]:
    """The cost of each phase of each stage of each row, and the rows of a table of step times.

    Stages that rows share are measured once. Each phase is timed in `pairs` turns, after a warm-up.
    If Naive is not among `configs`, seconds are multiples of Naive's step times in `table`, if it
    has them, so that the rows can stand beside those of the table.
    """
    naive_rows = () if any(config.method == "naive" for config in configs) else table
    costs: list[Cost] = []
    rows: list[RowTimes] = []
    stages: dict[str, tuple[list[Cost], StageTimes]] = {}  # by key
    paces: dict[str, float] = {}
    for _, [config, *_] in groupby(configs, lambda config: config.row):  # seeds take the same time
        stream = make_stream(config, prepare_corpus(config))
        times = []
        for key, prepared in prepare_stages(config, build, stream, world):
            if key not in stages:
                number = prepared.inputs.stage.index + 1
                say(f"{config.row}, stage {number} of {len(config.domains)}")
                of_naive = estimate_naive(naive_rows, config)
                measured = [times for times in of_naive if not times.estimated]
                stages[key] = prepared.measure(pairs, paces, measured)
            stage_costs, stage_times = stages[key]
            for cost in stage_costs:
                costs.append(replace(cost, row=config.row))
            times.append(stage_times)
        rows.append(RowTimes(config.method, config.options, list_settings(config), tuple(times)))
    return costs, rows


@dataclass
class Prepared:
    """A stage as a run would begin it, the seconds that its begin took, and Naive's model."""

    inputs: StageInputs
    set_up: float
    naive: LanguageModel

    def measure(
        self, pairs: int, paces: dict[str, float], of_naive: Sequence[StageTimes] = ()
    ) -> tuple[list[Cost], StageTimes]:
        """Time the steps of the stage's phases.

        Each phase's seconds are a multiple of one fixed time of Naive's step, because a machine is
        faster at one time than at another. That time is of the first stage in `of_naive`, Naive's
        times in a table, if given. Otherwise it is the first one measured, which `paces` keeps by a
        hash of the settings that it depends on.
        """
        inputs = self.inputs
        settings = {
            **list_settings(inputs.config),
            "model.ladder": str(inputs.config.model.ladder[0]),
        }
        naive_inputs = replace(inputs, method=LifelongMethod(), model=self.naive)
        naive = Stepper(naive_inputs, Phase("adapt"), 0)
        product = MatrixProduct(inputs.config.training.precision, inputs.world)
        costs = []
        for number, phase in enumerate(list_phases(inputs.method, inputs.stage)):
            # forget the graphs of earlier rows: past a number of graphs, torch compiles no more
            torch.compiler.reset()
            stepper = Stepper(inputs, phase, number)
            flops = stepper.count_step_flops()
            turns = _time_in_turns(stepper, naive, product, pairs)
            over_naive = statistics.median(seconds / naive_step for seconds, naive_step, _ in turns)
            naive_now = statistics.median(naive_step for _, naive_step, _ in turns)
            fixed_naive = paces.setdefault(digest(settings), naive_now)
            if of_naive:
                fixed_naive = of_naive[0].phases["adapt"]
            peak = statistics.median(peak for _, _, peak in turns)
            of_peak = statistics.median(flops / seconds / peak for seconds, _, peak in turns)
            cost = Cost(
                row=inputs.config.row,
                stage=inputs.stage.index,
                phase=phase.name,
                seconds=over_naive * fixed_naive,
                over_naive=over_naive,
                predicted=flops / naive.count_step_flops(),
                tokens=stepper.loader.tokens,
                flops=flops,
                peak=peak,
                of_peak=of_peak,
            )
            costs.append(cost)
            stepper.close()
        naive.close()
        return costs, StageTimes(self.set_up, {cost.phase: cost.seconds for cost in costs})


class MatrixProduct:
    """A product of two large square matrices, which shows the device's best speed."""

    def __init__(self, precision: str, world: World) -> None:
        size = 2048 if world.device.type == "cpu" else 8192
        kind = HALF.get(precision, torch.float32)
        self._world = world
        self._flops = 2.0 * size**3 * world.size
        self._factor = torch.ones(size, size, dtype=kind, device=world.device)
        self._out = torch.ones(size, size, dtype=kind, device=world.device)

    def measure_flops_per_second(self) -> float:
        """Measure the FLOPs per second of all processes together, by the slowest one's time."""
        self._world.synchronize()
        began = time.perf_counter()
        torch.mm(self._factor, self._factor, out=self._out)
        self._world.synchronize()
        return self._flops / self._world.find_maximum(time.perf_counter() - began)[0]


def _time_in_turns(
    stepper: Stepper, naive: Stepper, product: MatrixProduct, pairs: int
) -> list[tuple[float, float, float]]:
    """The seconds of a step and of Naive's step, and the product's FLOPs per second, in each turn.

    Naive's seconds are the mean of its steps before and after the step. The product empties the
    caches, so Naive's step right after it does not count.
    """
    numbers = count()
    for step in range(WARM_UP):
        _time_step(stepper, step)
    turns = []
    for step in range(WARM_UP, WARM_UP + pairs):
        peak = product.measure_flops_per_second()
        _time_step(naive, next(numbers))
        naive_before = _time_step(naive, next(numbers))
        seconds = _time_step(stepper, step)
        naive_after = _time_step(naive, next(numbers))
        turns.append((seconds, (naive_before + naive_after) / 2, peak))
    return turns


def _time_step(stepper: Stepper, step: int) -> float:
    """The seconds of a step at a learning rate of 0, in the slowest process."""
    world = stepper.inputs.world
    world.synchronize()
    began = time.perf_counter()
    stepper.step(step)
    world.synchronize()
    return world.find_maximum(time.perf_counter() - began)[0]


def prepare_stages(
    config: RunConfig, build: Build, stream: Stream, world: World
) -> Iterator[tuple[str, Prepared]]:
    """Each stage of a run with its key, begun from what the stage before has left."""
    method = build(config.method, config.options)
    budget = Budget(unit="steps", amount=config.budget.amount, reference=None)
    steps = config.model_copy(update={"budget": budget})
    texts = [stream.corpus.keys[text.name] for text in config.learned]
    # keys for a budget of steps, because a table of step times need not be there yet
    keys = [stage.key for stage in make_stage_keys(steps, method, texts)]
    width = config.model.ladder[-1].hidden_size
    precision = choose_precision(config.training.precision, world.device, width)
    config = set_training(config, precision=precision)
    first = make_stage(config, 0, stream)
    torch.manual_seed(first.seed)
    model = first.build(first.ladder[0])
    naive = copy.deepcopy(model).to(world.device).train()
    evaluated: LanguageModel | None = None
    for index, key in enumerate(keys):
        state = get_state(method)
        method = build(config.method, config.options)
        set_state(method, state)
        previous = partial(copy.deepcopy, evaluated) if evaluated else None
        stage = make_stage(config, index, stream, previous)
        inputs = StageInputs(config, stage, stream, method, model, world)
        torch.manual_seed(inputs.stage.seed)
        model.to(world.device)
        world.synchronize()
        began = time.perf_counter()
        inputs.begin()
        world.synchronize()
        set_up = world.find_maximum(time.perf_counter() - began)[0]
        model = inputs.model
        evaluated = inputs.eval_model
        yield key, Prepared(inputs, set_up, naive)


def format_table(costs: Sequence[Cost], precision: str, machine: Hardware) -> str:
    """One line per phase. The ones that cost over a tenth more than predicted are marked."""
    lines = [
        {
            "row": cost.row,
            "stage": str(cost.stage + 1),
            "phase": cost.phase,
            "ms per step": f"{1000 * cost.seconds:,.1f}",
            "tokens/s": f"{cost.tokens / cost.seconds:,.0f}",
            "GFLOP/s": f"{cost.flops / cost.seconds / 1e9:,.0f}",
            "peak": f"{cost.peak / 1e9:,.0f}",
            "of peak": f"{cost.of_peak:.0%}",
            "of Naive": f"{cost.over_naive:.2f}",
            "by FLOPs": f"{cost.predicted:.2f}",
            "off": f"{cost.off:+.0%}" if cost.predicted else "-",
            "": "!" if cost.off > TOLERANCE else "",
        }
        for cost in costs
    ]
    processor = f"{machine.cpu}, {machine.threads} threads, {machine.count} processes"
    return f"""{pandas.DataFrame(lines).to_string(index=False)}
{precision} on {machine.device} ({processor})
peak: the GFLOP/s of a large matrix product, in turns with the step
! more than {TOLERANCE:.0%} slower than its FLOPs predict"""


def print_speed(
    configs: Sequence[RunConfig], build: Build, store: Store, pairs: int, table_file: Path | None
) -> int:
    """Measure, print the table, and merge the rows into the step times in `table_file`, if any.

    Raises ConfigError, before anything is measured, if the file has times of another machine.
    """
    say = partial(print, file=sys.stderr)

    def read(config: RunConfig) -> Corpus:
        return prepare_corpus(config, store, say)

    with join() as world:
        machine = world.describe_hardware()
        table = step_times.read_for_machine(table_file, machine) if table_file else ()
        costs, rows = measure(configs, build, read, world, pairs, say, table)
        width = configs[0].model.ladder[-1].hidden_size
        precision = choose_precision(configs[0].training.precision, world.device, width)
        print(format_table(costs, precision, machine))
        if table_file:
            step_times.merge(table_file, rows, machine)
            say(
                f'wrote {table_file}; [budget] unit = "reference" and '
                f'reference = "{table_file}" in a suite use it'
            )
    return 0
