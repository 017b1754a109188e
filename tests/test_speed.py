"""FLOPs of a step, budgets in FLOPs and in a machine's step times, and what methods cost compared
to Naive.
"""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

import methods
from benchmark.instruments import speed
from benchmark.instruments.conformance import ALONE, STEPS, TinyRuns
from benchmark.instruments.speed import Cost, MatrixProduct, format_table, measure
from benchmark.ledger.store import Store
from benchmark.models import load
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Budget, RunConfig
from benchmark.training import step_times
from benchmark.training.clock import count_flops
from benchmark.training.declaration import make_stage_keys
from benchmark.training.method import LifelongMethod, Phase
from benchmark.training.step import StageInputs, Stepper, make_stage
from benchmark.training.step_times import RowTimes, StageTimes, find_times, list_settings
from tests.support.record_lines import read_stage_lines

BACKENDS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")


def analytic_flops(config: RunConfig, vocabulary: int, rows: int) -> float:
    """FLOPs of a training step by hand: 2 per multiplication and addition, three times for forward
    and backward. A layer uses its 12 D^2 weights once for each of T columns (tokens), and each of
    its two products of attention has T^2 D multiplications. The head computes predicted positions
    only.
    """
    size, columns = config.model.ladder[0], config.data.text_length + 1
    masked = config.model.architecture != "gpt"
    predicted = round(0.15 * config.data.text_length) if masked else config.data.text_length
    d = size.hidden_size
    layers = size.layers * (12 * d * d + 2 * columns * d) * columns
    head = (d * vocabulary + (d * d if masked else 0)) * predicted
    return 6.0 * rows * (layers + head)


@pytest.mark.parametrize("architecture", ["bert", "bert_preln", "gpt"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_flops_of_a_naive_step(architecture: str, dropout: float, tiny_folder) -> None:
    """Oracle: the count by hand, within 1%, with fused (no dropout) and unfused attention."""
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    config = tiny.make_config(architecture)
    config = config.model_copy(
        update={"model": config.model.model_copy(update={"dropout": dropout})}
    )
    run = tiny.make_run(config, "run")
    stage = make_stage(config, 0, run.stream)
    model = stage.build(config.model.ladder[0])
    inputs = StageInputs(config, stage, run.stream, LifelongMethod(), model, ALONE)
    stepper = Stepper(inputs, Phase("adapt"), 0)
    expected = analytic_flops(config, run.corpus.vocabulary.text, config.training.batch_size)
    assert stepper.count_step_flops() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("backend", BACKENDS)
def test_flops_of_every_fused_attention(backend: str) -> None:
    """Oracle: two products of 2 B H T^2 (D/H) forward, four backward, whatever is recomputed."""
    query = torch.empty(2, 4, 8, 16, device="meta")
    normalizer, seed = (
        torch.empty(2, 4, 8, device="meta"),
        torch.empty((), dtype=torch.long, device="meta"),
    )
    forward = getattr(torch.ops.aten, f"_scaled_dot_product_{backend}")
    backward = getattr(torch.ops.aten, f"_scaled_dot_product_{backend}_backward")
    given = {
        "flash_attention": ((), (seed, seed, 8, 8, 0.0, False, seed, seed)),
        "efficient_attention": ((None, True), (seed, seed, 0.0, [True, True, True, False])),
        "cudnn_attention": ((None, True), (seed, seed, None, seed, seed, 8, 8, 0.0, False)),
        "flash_attention_for_cpu": ((), (0.0, False)),
    }[backend]
    bias = (None,) if backend == "efficient_attention" else ()
    product = 2 * 2 * 4 * 8 * 8 * 16
    assert count_flops(lambda: forward(query, query, query, *given[0])) == 2 * product
    grad = (query, query, query, query, *bias, query, normalizer)
    assert count_flops(lambda: backward(*grad, *given[1])) == 4 * product


@pytest.mark.parametrize(
    "name, first, second", [("er", 1.0, 1.0), ("agem", 1.0, 2.0), ("pnn", 1.0, None)]
)
def test_flops_see_all_that_a_method_does(
    name: str, first: float, second: float | None, tiny_folder
) -> None:
    """Oracle: in the second stage, ER's step costs as much as Naive's and A-GEM's twice as much.
    PNN's adds the first column's forward pass without its head, and at each level a D x D map with
    its weights' gradient.
    """
    tiny = TinyRuns(name, methods.build, tiny_folder)
    config = tiny.make_config("bert")
    run = tiny.make_run(config, "run")
    naive = analytic_flops(config, run.corpus.vocabulary.text, config.training.batch_size)
    stages = speed.prepare_stages(config, methods.build, run.stream, ALONE)
    flops = []
    for _ in range(2):
        _, work = next(stages)
        [phase] = work.inputs.method.phases(work.inputs.stage)
        flops.append(Stepper(work.inputs, phase, 0).count_step_flops())
    if second is None:
        d, columns, layers = 16, config.data.text_length + 1, 1
        frozen = 2 * layers * (12 * d * d + 2 * columns * d)
        laterals = (
            2 * 2 * (layers + 1) * d * d
        )  # forward and the weights' gradient, but no gradient for frozen columns
        second = 1 + (frozen + laterals) * columns * config.training.batch_size / naive
    assert flops == pytest.approx([first * naive, second * naive], rel=0.01)


def spent(run, stage: int) -> dict[str, float]:
    lines = read_stage_lines(run.store.stage_file(run.keys[stage]))
    return next(line for line in lines if line["kind"] == "done")["charged"]


def with_budget(config: RunConfig, **budget) -> RunConfig:
    return config.model_copy(update={"budget": Budget.model_validate(budget)})


@pytest.mark.parametrize("unit", ["tokens", "flops", "reference"])
def test_every_unit_is_steps_times_their_cost(unit: str, tiny_folder) -> None:
    """Oracle: a budget of ten steps' cost in any unit trains the same weights as a budget of ten
    steps, bit for bit: the stop and all learning rates are the same. Records have the cost in every
    unit, with exactly the FLOPs by hand.
    """
    tiny = TinyRuns("er", methods.build, tiny_folder)
    config = tiny.make_config()
    steps = tiny.make_run(config, "steps")
    steps.train(last_stage=1)
    costs = {
        "steps": 1,
        "tokens": config.training.batch_size * config.data.text_length,
        "flops": analytic_flops(config, steps.corpus.vocabulary.text, config.training.batch_size),
    }
    costs |= {"reference": 0.25} if unit == "reference" else {}
    budget = {"unit": unit, "amount": STEPS * costs[unit]}
    if unit == "reference":
        budget["reference"] = str(tiny_folder / "times.json")
        row = RowTimes("er", {}, list_settings(config), (StageTimes(0.0, {"adapt": 0.25}),) * 3)
        step_times.write(tiny_folder / "times.json", [row], ALONE.describe_hardware())
    run = tiny.make_run(with_budget(config, **budget), unit)
    run.train(last_stage=1)
    for stage in range(2):
        charged = spent(run, stage)
        assert charged["seconds"] > 0 and {name: charged[name] for name in costs} == {
            name: STEPS * cost for name, cost in costs.items()
        }
        expected = load(steps.store.stage_folder(steps.keys[stage]) / "model").state_dict()
        actual = load(run.store.stage_folder(run.keys[stage]) / "model").state_dict()
        assert all(torch.equal(tensor, actual[name]) for name, tensor in expected.items())


def test_set_up_is_charged_from_the_table(tiny_folder) -> None:
    """By hand: in the first stage 10 s are five steps of 2 s. In the second they are 4 s of growth
    and six steps of 1 s. If a stage's times change, so does its key.
    """
    tiny = TinyRuns("er", methods.build, tiny_folder)
    times = (
        StageTimes(0.0, {"adapt": 2.0}),
        StageTimes(4.0, {"adapt": 1.0}),
        StageTimes(0.0, {"adapt": 1.0}),
    )
    table = tiny_folder / "times.json"
    config = with_budget(tiny.make_config(), unit="reference", amount=10, reference=str(table))
    step_times.write(
        table, [RowTimes("er", {}, list_settings(config), times)], ALONE.describe_hardware()
    )
    run = tiny.make_run(config, "run")
    run.train(last_stage=1)
    assert [spent(run, stage)["steps"] for stage in range(2)] == [5, 6]
    assert [spent(run, stage)["reference"] for stage in range(2)] == [10.0, 10.0]
    before = run.keys
    times = (*times[:2], StageTimes(0.0, {"adapt": 3.0}))
    step_times.write(
        table, [RowTimes("er", {}, list_settings(config), times)], ALONE.describe_hardware()
    )
    stages = make_stage_keys(config, methods.build("er"), list(run.corpus.keys.values()))
    after = [stage.key for stage in stages]
    assert after[:2] == before[:2] and after[2] != before[2]  # another table is another result


def test_a_table_that_does_not_fit_is_refused(tiny_folder) -> None:
    """Oracle: the message names the file that is missing, and the cure."""
    path = tiny_folder / "times.json"
    config = with_budget(
        TinyRuns("er", methods.build, tiny_folder).make_config(),
        unit="reference",
        amount=1,
        reference=str(path),
    )
    with pytest.raises(ConfigError, match=r"times\.json .*run_all\.py speed SUITE --reference"):
        find_times(config)


def test_costs_of_a_suite(tiny_folder, monkeypatch) -> None:
    """Oracle: the FLOPs of the tests above. Times depend on the machine, so only this is tested:
    each phase of each stage has one, and rows that share a stage share its time. The large matrix
    product is not computed, because no assertion needs it.
    """
    monkeypatch.setattr(MatrixProduct, "measure_flops_per_second", lambda product: 1e9)
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    configs = [
        tiny.make_config().model_copy(update={"method": name, "row": name})
        for name in ("naive", "agem", "ewc")
    ]
    said: list[str] = []
    corpus = tiny.make_run(configs[0], "run").corpus
    costs, rows = measure(
        configs, methods.build, lambda config: corpus, ALONE, pairs=1, say=said.append
    )
    phases = [(cost.row, cost.stage, cost.phase) for cost in costs]
    assert phases[:6] == [(row, stage, "adapt") for row in ("naive", "agem") for stage in range(3)]
    assert phases[6:9] == [("ewc", 0, "adapt"), ("ewc", 1, "importance"), ("ewc", 1, "adapt")]
    assert len({cost.seconds for cost in costs if cost.stage == 0}) == 1  # measured once
    assert len(said) == 7
    assert [round(cost.predicted, 2) for cost in costs[:6]] == [1, 1, 1, 1, 2, 2]
    assert all(cost.over_naive > 0 for cost in costs)
    assert [set(times.phases) for times in rows[2].stages] == [
        {"adapt"},
        {"importance", "adapt"},
        {"importance", "adapt"},
    ]
    path = tiny_folder / "times.json"
    step_times.write(path, rows, ALONE.describe_hardware())
    assert json.loads(path.read_text())["machine"]["device"] == "CPU"
    budget = with_budget(configs[2], unit="reference", amount=1, reference=str(path))
    assert find_times(budget)[1] == rows[2].stages[1]


def test_a_machine_that_slows_down_changes_no_time(tiny_folder, monkeypatch) -> None:
    """By hand: each phase takes as long as two of Naive's steps. These slow down from 1 s to 2 s
    and so on. The first time counts, so each phase takes 2 s. Of two seeds only one is measured.
    """
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    configs = [
        tiny.make_config().model_copy(update={"method": name, "row": name})
        for name in ("er", "ewc")
    ]
    corpus = tiny.make_run(configs[0], "run").corpus
    paces = itertools.count(1)
    monkeypatch.setattr(
        speed, "_time_in_turns", lambda *_: [(2.0 * (pace := next(paces)), pace, 1.0)]
    )
    seeds = [config.model_copy(update={"seed": seed}) for config in configs for seed in (3, 4)]
    costs, rows = measure(seeds, methods.build, lambda config: corpus, ALONE, pairs=1)
    assert {(cost.seconds, cost.over_naive) for cost in costs} == {(2.0, 2.0)} and next(paces) == 8
    assert [row.method for row in rows] == ["er", "ewc"]


def cost(
    row: str, stage: int, phase: str, seconds: float, measured: float, predicted: float
) -> Cost:
    return Cost(
        row=row,
        stage=stage,
        phase=phase,
        seconds=seconds,
        over_naive=measured,
        predicted=predicted,
        tokens=2000,
        flops=3e9,
        peak=166e9,
        of_peak=0.45,
    )


def test_the_table_marks_what_costs_more_than_predicted() -> None:
    """Oracle: the numbers put in, and tokens and FLOPs divided by seconds. A cost of more than a
    tenth above the predicted one is marked, a lower one is not.
    """
    slow = cost("A-GEM", 1, "adapt", 0.04, 2.4, 2.0)
    fast = cost("PNN", 4, "adapt", 1.5, 1.8, 2.0)
    merge = cost("Merge", 1, "merge", 0.001, 0.02, 0.0)
    machine = msgspec.structs.replace(ALONE.describe_hardware(), cpu="Example CPU", threads=2)
    text = format_table([slow, fast, merge], "bf16", machine).splitlines()
    of_slow = [
        "A-GEM",
        "2",
        "adapt",
        "40.0",
        "50,000",
        "75",
        "166",
        "45%",
        "2.40",
        "2.00",
        "+20%",
        "!",
    ]
    assert text[1].split() == of_slow
    assert text[2].split() == [
        "PNN",
        "5",
        "adapt",
        "1,500.0",
        "1,333",
        "2",
        "166",
        "45%",
        "1.80",
        "2.00",
        "-10%",
    ]
    assert text[3].split()[8:] == ["0.02", "0.00", "-"]
    assert "bf16 on CPU (Example CPU, 2 threads" in text[4] and text[6].startswith(
        "! more than 10% "
    )


def make_row(method: str, config: RunConfig, seconds: float) -> RowTimes:
    return RowTimes(method, {}, list_settings(config), (StageTimes(0.0, {"adapt": seconds}),) * 3)


def test_a_table_keeps_its_rows_when_others_are_measured(tiny_folder) -> None:
    """By hand: the row that is measured again has its new time, the other keeps its old one, and a
    row of other settings is added. Another node of the same kind is the same machine.
    """
    path, machine = tiny_folder / "times.json", ALONE.describe_hardware()
    config = TinyRuns("er", methods.build, tiny_folder).make_config()
    batch = config.model_copy(
        update={"training": config.training.model_copy(update={"batch_size": 5})}
    )
    step_times.merge(path, [make_row("er", config, 1.0), make_row("naive", config, 2.0)], machine)
    elsewhere = msgspec.structs.replace(machine, node="another")
    step_times.merge(
        path, [make_row(*row) for row in (("naive", config, 3.0), ("er", batch, 4.0))], elsewhere
    )
    table = json.loads(path.read_text())
    kept = [
        (row["method"], row["settings"]["training.batch_size"], row["stages"][0]["phases"]["adapt"])
        for row in table["rows"]
    ]
    size = config.training.batch_size
    assert kept == [("er", size, 1.0), ("naive", size, 3.0), ("er", 5, 4.0)]


def test_a_table_of_another_machine_is_left_alone(tiny_folder, monkeypatch) -> None:
    """Oracle: the file stays the same byte for byte, and nothing is measured. The message names the
    file and its processor.
    """
    path = tiny_folder / "times.json"
    config = TinyRuns("er", methods.build, tiny_folder).make_config()
    machine = msgspec.structs.replace(ALONE.describe_hardware(), cpu="Abacus")
    step_times.write(path, [make_row("naive", config, 1.0)], machine)
    before = path.read_bytes()
    monkeypatch.setattr(speed, "measure", lambda *_: pytest.fail("it measured"))
    with pytest.raises(ConfigError, match=r"times\.json .*'Abacus'"):
        speed.print_speed([config], methods.build, Store(tiny_folder / "runs"), 1, path)
    assert path.read_bytes() == before


def test_a_row_beside_others_is_a_multiple_of_their_naive(tiny_folder, monkeypatch) -> None:
    """By hand: a step takes as long as two of Naive's. Naive's takes 9 s now and 1.5 s in the
    table, so the step counts as 3 s. If Naive is measured again too, it counts as 18 s.
    """
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    config = tiny.make_config()
    corpus = tiny.make_run(config, "run").corpus
    monkeypatch.setattr(speed, "_time_in_turns", lambda *_: [(18.0, 9.0, 1.0)])
    for names, seconds in ((["er"], 3.0), (["naive", "er"], 18.0)):
        runs = [config.model_copy(update={"method": name, "row": name}) for name in names]
        table = [make_row("naive", config, 1.5)]
        _, rows = measure(runs, methods.build, lambda config: corpus, ALONE, pairs=1, table=table)
        assert [times.phases for times in rows[-1].stages] == [{"adapt": seconds}] * 3


def test_the_product_slows_no_step_that_counts(monkeypatch) -> None:
    """By hand: a step takes 1 s, or 2 s right after the product, which empties the caches. A row
    that does what Naive does must still take as long as Naive.
    """
    caches = {"empty": False}

    class Product:
        def measure_flops_per_second(self) -> float:
            caches["empty"] = True
            return 1.0

    def time_step(stepper: Any, step: int) -> float:
        seconds = 2.0 if caches["empty"] else 1.0
        caches["empty"] = False
        return seconds

    monkeypatch.setattr(speed, "_time_step", time_step)
    steppers: Any = (SimpleNamespace(), SimpleNamespace())
    product: Any = Product()
    turns = speed._time_in_turns(steppers[0], steppers[1], product, 3)
    assert turns == [(1.0, 1.0, 1.0)] * 3
