"""Budgets in reference seconds for rows that were not measured: Naive's measured seconds per step,
times the row's FLOPs over Naive's.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import structs

import methods
from analysis.notes import collect_notes
from benchmark.instruments import speed
from benchmark.instruments.conformance import ALONE, TinyRuns
from benchmark.ledger.records import StageLine
from benchmark.settings.base import ConfigError, Settings
from benchmark.settings.load import load_suite
from benchmark.settings.suite import Budget, Data, Model, RunConfig, Tokenizer, Training
from benchmark.training import step_times
from benchmark.training.declaration import find_stage_times, make_stage_keys
from benchmark.training.step import Stepper
from benchmark.training.step_times import RowTimes, StageTimes, find_times, list_settings
from tests.support import synthetic
from tests.support.record_lines import read_stage_lines

SECONDS = 0.5  # per step of Naive
# settings that do not change the time of a step
NO_TIME = {
    "model": {"init"},
    "tokenizer": {"domains", "sample_bytes"},
    "data": {
        "valid_share",
        "max_train_tokens",
        "near_copies",
        "max_valid_bytes",
        "max_valid_tokens",
        "memory_seed",
    },
    "training": {"learning_rate", "warmup", "schedule", "betas", "epsilon", "weight_decay"}
    | {"checkpoint_seconds", "evaluations", "decay", "rate_scaling", "rate_width"},
}
STEPS = 12  # of Naive in each stage


def set_budget(config: RunConfig, table: Path) -> RunConfig:
    budget = Budget(unit="reference", amount=STEPS * SECONDS, reference=str(table))
    return config.model_copy(update={"budget": budget})


def write_table_of_naive(config: RunConfig, table: Path, stages: int = 3) -> None:
    times = (StageTimes(0.0, {"adapt": SECONDS}),) * stages
    step_times.write(
        table, [RowTimes("naive", {}, list_settings(config), times)], ALONE.describe_hardware()
    )


def train(name: str, folder: Path) -> tuple[list[str], list[dict[str, dict]]]:
    """Train two stages of a method with a table that has only Naive's times.

    Returns the run's keys, and the lines of each stage by kind.
    """
    tiny = TinyRuns(name, methods.build, folder / name)
    config = tiny.make_config()
    write_table_of_naive(config, folder / "times.json")
    run = tiny.make_run(set_budget(config, folder / "times.json"), name)
    run.train(last_stage=1)
    lines = [read_stage_lines(run.store.stage_file(key)) for key in run.keys[:2]]
    return run.keys, [{line["kind"]: line for line in stage} for stage in lines]


def count_step_flops(name: str, folder: Path) -> list[float]:
    """The FLOPs per step in the first phase of two stages, which `speed` prepares."""
    tiny = TinyRuns(name, methods.build, folder / name / "flops")
    config = tiny.make_config()
    run = tiny.make_run(config, "flops")
    flops = []
    for _, (_, prepared) in zip(
        range(2), speed.prepare_stages(config, methods.build, run.stream, ALONE), strict=False
    ):
        [phase, *_] = prepared.inputs.method.phases(prepared.inputs.stage)
        flops.append(Stepper(prepared.inputs, phase, 0).count_step_flops())
    return flops


@pytest.mark.parametrize("name", ["agem", "pnn"])
def test_a_row_that_was_not_measured_is_charged_by_its_flops(name: str, tmp_path: Path) -> None:
    """Oracle: by hand: a step is charged Naive's seconds times the ratio of FLOPs, and the stage
    ends with the first step that spends the budget. The first stage is Naive's, so not estimated.
    """
    flops, naive = count_step_flops(name, tmp_path), count_step_flops("naive", tmp_path)
    keys, stages = train(name, tmp_path)
    charged, steps = (stages[1]["done"]["charged"][unit] for unit in ("reference", "steps"))
    step = SECONDS * flops[1] / naive[1]
    assert charged == pytest.approx(steps * step, rel=0.02)  # start_stage adds FLOPs
    assert STEPS * SECONDS <= charged < STEPS * SECONDS + step
    assert stages[0]["done"]["charged"]["steps"] == STEPS
    assert [stage["stage"]["budget"].get("estimated", False) for stage in stages] == [False, True]
    assert keys[0] == train("naive", tmp_path)[0][0] and flops[1] > 1.1 * naive[1]


def test_an_estimate_changes_no_other_row_s_key(tmp_path: Path) -> None:
    """Oracle: the keys if the table has other seconds of Naive: a measured row keeps its keys, and
    an estimated row gets other keys for all stages.
    """
    table = tmp_path / "times.json"
    config = TinyRuns("er", methods.build, tmp_path).make_config()
    texts = ["0", "1", "2"]

    def make_keys(method: str, naive: float) -> list[str]:
        rows = [
            RowTimes(name, {}, list_settings(config), (StageTimes(0.0, {"adapt": seconds}),) * 3)
            for name, seconds in (("naive", naive), ("er", 0.7))
        ]
        step_times.write(table, rows, ALONE.describe_hardware())
        asked = set_budget(config, table).model_copy(update={"method": method})
        return [stage.key for stage in make_stage_keys(asked, methods.build(method), texts)]

    measured, estimated = make_keys("er", 0.5), make_keys("agem", 0.5)
    assert measured == make_keys("er", 0.6) and not {*estimated} & {*make_keys("agem", 0.6)}
    assert make_keys("agem", 0.5) == estimated


def test_naive_s_times_are_found_for_what_does_not_change_its_step(tmp_path: Path) -> None:
    """Oracle: the rule of `find_times`: Naive has no memory and keeps the first size, so neither
    setting changes its times. Stages beyond the table's last one take its times.
    """
    table = tmp_path / "times.json"
    config = TinyRuns("er", methods.build, tmp_path).make_config()
    write_table_of_naive(config, table, stages=2)
    asked = set_budget(config, table)
    size = asked.model.ladder[-1].model_copy(update={"layers": 9})
    grown = asked.model.model_copy(update={"ladder": (*asked.model.ladder[:-1], size)})
    for update in (
        {},
        {"data": asked.data.model_copy(update={"memory_tokens": 7})},
        {"model": grown},
    ):
        times = find_times(asked.model_copy(update=update))
        assert [*times] == [StageTimes(0.0, {"adapt": SECONDS}, estimated=True)] * 3


def test_naive_s_times_are_those_of_the_nearest_settings(tmp_path: Path) -> None:
    """Oracle: by hand: times grow with parameters (12 L D^2 + V D) times tokens. Of two rows in the
    table, the one with the same precision is nearest, because fewer settings differ. Then Naive's
    own times are estimates, too, and equal those of ER, whose first stage does what Naive does.
    """
    table = tmp_path / "times.json"
    config = TinyRuns("er", methods.build, tmp_path).make_config()
    write_table_of_naive(config, table)
    [row] = step_times.read_for_machine(table, ALONE.describe_hardware())
    other = {**row.settings, "training.precision": "bf16", "training.batch_size": 7}
    far = RowTimes("naive", {}, other, (StageTimes(0.0, {"adapt": 77.0}),) * 3)
    step_times.write(table, [far, row], ALONE.describe_hardware())
    asked = set_budget(config, table)
    measured = asked.model.ladder[0]
    size = measured.model_copy(update={"layers": 9})
    batch = config.training.batch_size
    vocabulary = config.tokenizer.vocabulary * measured.hidden_size
    ratio = (12 * 9 * size.hidden_size**2 + vocabulary) / (
        12 * measured.layers * measured.hidden_size**2 + vocabulary
    )
    training = asked.training.model_copy(update={"batch_size": 3 * batch})
    model = asked.model.model_copy(update={"ladder": (size,) * 3})
    for update, scale in (({"training": training}, 3), ({"model": model}, ratio)):
        for method in ("naive", "er"):
            run = asked.model_copy(update={**update, "method": method})
            times = find_stage_times(run, methods.build(method))
            assert [stage.estimated for stage in times] == [True] * 3
            seconds = [stage.phases["adapt"] for stage in times]
            assert seconds == pytest.approx([scale * SECONDS] * 3)


def test_a_row_without_times_stops_no_other(tmp_path: Path) -> None:
    """Oracle: the rule of `find_times`: if Naive is in no row of a table, another method's first
    stage stands in for it. Measured times stay as measured. A table without rows is refused.
    """
    table = tmp_path / "times.json"
    config = set_budget(TinyRuns("er", methods.build, tmp_path).make_config(), table)
    stages = tuple(StageTimes(0.0, {"adapt": seconds}) for seconds in (SECONDS, 0.7, 0.8))
    measured = RowTimes("er", {}, list_settings(config), stages)
    step_times.write(table, [measured], ALONE.describe_hardware())
    assert find_times(config) == stages
    times = find_times(config.model_copy(update={"method": "agem"}))
    assert times == [StageTimes(0.0, {"adapt": SECONDS}, estimated=True)] * 3
    step_times.write(table, [], ALONE.describe_hardware())
    with pytest.raises(ConfigError, match=re.escape(str(table))):
        find_times(config)


def test_a_row_that_cannot_be_used_stops_no_other(tmp_path: Path) -> None:
    """Oracle: the rule of `find_times`: a row without today's phases was measured before they
    existed, and only serves for estimates. The table has only such a row of ELLE, with one phase:
    ELLE and Naive are charged that phase's seconds, as estimates.
    """
    table = tmp_path / "times.json"
    for name in ("elle", "naive"):
        tiny = TinyRuns(name, methods.build, tmp_path / name)
        config = tiny.make_config()
        old = RowTimes(
            "elle",
            methods.build("elle").options(),
            list_settings(config),
            (StageTimes(0.0, {"old": SECONDS}),) * 3,
        )
        step_times.write(table, [old], ALONE.describe_hardware())
        times = find_stage_times(set_budget(config, table), methods.build(name))
        assert times == [StageTimes(0.0, {"adapt": SECONDS}, estimated=True)] * 3


def test_one_note_names_the_rows_that_are_estimated(tmp_path: Path) -> None:
    """Oracle: by hand: the note names the row that was marked as estimated, and not the other."""
    study = synthetic.study(tmp_path, rows=[("Naive", "naive", {}), ("Mine", "er", {})], stages=2)
    assert not [note for note in collect_notes(study) if "estimated" in note]
    for run in study.runs:
        for stage in run.stages[1:] if run.row == "Mine" else ():  # the first is shared
            head = next(line for line in stage if isinstance(line, StageLine))
            head.budget = structs.replace(head.budget, estimated=True)
    [note] = [note for note in collect_notes(study) if "estimated" in note]
    assert "Mine." in note and "Naive," not in note


def test_whatever_changes_a_step_s_time_is_asked_of_the_table() -> None:
    """Oracle: the settings' fields: each is compared with the table, or is in NO_TIME.
    `deterministic` chooses other kernels, so it is compared. A table without this setting counts
    for its default.
    """
    config = methods.list_runs(load_suite("demo"), ("naive",))[0]
    asked = list_settings(config)
    kinds: dict[str, type[Settings]] = {
        "model": Model,
        "tokenizer": Tokenizer,
        "data": Data,
        "training": Training,
    }
    for room, kind in kinds.items():
        fields = {key.partition(".")[2] for key in asked if key.startswith(f"{room}.")}
        timeless = {*kind.model_fields} - fields
        assert timeless == NO_TIME[room]
    assert find_times(config)[0].phases and asked["training.deterministic"] is False
    assert not find_times(config)[0].estimated
    strict = methods.list_runs(load_suite("demo", {"training.deterministic": True}), ("naive",))[0]
    assert find_times(strict)[0].estimated
