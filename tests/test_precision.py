"""The arithmetic of forward passes is decided once a run, and recorded wherever it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import methods
from benchmark.downstream.classifier import SavedModel
from benchmark.downstream.finetune import score
from benchmark.instruments.conformance import TinyRuns, tiny_config
from benchmark.models import devices
from benchmark.settings.suite import RunConfig
from benchmark.settings.tasks import Finetuning
from benchmark.training.processes import Stopped
from benchmark.training.run import Run
from benchmark.training.step import Stepper
from tests.support.record_lines import read_lines
from tests.support.toy_task import TASK, data_of, save

MACHINES = ("fp32", "bf16")  # by what "auto" is there
OTHER = {"fp32": "bf16", "bf16": "fp32"}


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch):
    """Goes on on the machine whose "auto" is that."""
    return lambda auto: monkeypatch.setattr(devices, "computes_in_bf16", lambda device: auto == "bf16")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRuns:
    return TinyRuns("naive", methods.build, tmp_path_factory.mktemp("tiny"))


def lines_of(run: Run, stage: int, kind: str) -> list[Any]:
    return [line for line in read_lines(run.store.stage(run.keys[stage]) / "records.jsonl") if line["kind"] == kind]


def weights_of(run: Run) -> list[str]:
    return [lines_of(run, stage, "done")[0]["weights"] for stage in range(2)]


def precisions(run: Run) -> list[str]:
    return [lines_of(run, stage, "stage")[0]["provenance"]["precision"] for stage in range(2)]


@pytest.mark.parametrize("began", MACHINES)
def test_a_run_goes_on_in_the_precision_that_it_began_with(began: str, tiny: TinyRuns, move) -> None:
    """Oracle: the weights of a run that asks for that precision outright, bit for bit; the rest of the first stage and
    all of the second are trained on a machine that would have chosen the other one."""
    asked = tiny.run(tiny.config(precision=began), f"asked-{began}")
    asked.train(last_stage=1)
    config, calls = tiny.config(precision="auto"), iter(range(100))
    move(began)
    with pytest.raises(Stopped):
        tiny.run(config, began, lambda: next(calls) == 3).train()
    move(OTHER[began])
    run = tiny.run(config, began)
    run.train(last_stage=1)
    assert weights_of(run) == weights_of(asked) and precisions(run) == [began, began]
    [resumed] = lines_of(run, 0, "resumed")
    assert resumed["step"] == 4


def test_a_shared_first_stage_decides_for_all_that_go_on_from_it(tiny: TinyRuns, move) -> None:
    """Oracle: what the records say of the stage that another run has trained, elsewhere; a first stage of its own is
    decided here."""
    move("fp32")
    tiny.run(tiny.config(precision="auto"), "shared").train(last_stage=0)
    move("bf16")
    run = tiny.run(tiny_config("er", precision="auto"), "shared")
    run.train(last_stage=1)
    assert precisions(run) == ["fp32", "fp32"]
    other = tiny.run(seeded(tiny_config("er", precision="auto"), 4), "shared")
    other.train(last_stage=1)
    assert precisions(other) == ["bf16", "bf16"]


def seeded(config: RunConfig, seed: int) -> RunConfig:
    return config.model_copy(update={"seed": seed})


@pytest.mark.parametrize("architecture", ["bert", "gpt"])
def test_what_is_kept_is_fp32_under_bf16(architecture: str, tiny: TinyRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the type of all parameters, gradients and moments of Adam after each step, of linear layers that give
    bf16."""
    given: set[torch.dtype] = set()
    kept: dict[str, set[torch.dtype]] = {"parameters": set(), "gradients": set(), "moments": set()}
    plain = Stepper.step

    def step(stepper: Stepper, *arguments: Any) -> torch.Tensor:
        hook = nn.modules.module.register_module_forward_hook(look)  # gone again when the loop looks for hooks
        try:
            loss = plain(stepper, *arguments)
        finally:
            hook.remove()
        if stepper.optimizer is not None:
            for parameter, state in stepper.optimizer.state.items():
                kept["parameters"].add(parameter.dtype)
                kept["gradients"].add(parameter.grad.dtype)
                kept["moments"] |= {state["exp_avg"].dtype, state["exp_avg_sq"].dtype}
        kept["parameters"] |= {parameter.dtype for parameter in stepper.inputs.model.parameters()}
        return loss

    def look(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(module, nn.Linear | Conv1D):
            given.add(output.dtype)

    monkeypatch.setattr(Stepper, "step", step)
    tiny.run(tiny.config(architecture, precision="bf16"), f"kept-{architecture}").train(last_stage=1)
    assert given == {torch.bfloat16}
    assert kept == {what: {torch.float32} for what in kept}


@pytest.mark.parametrize("auto", MACHINES)
def test_a_score_says_in_what_it_was_computed(auto: str, tmp_path: Path, move) -> None:
    """Oracle: the type of what linear layers give in forward passes."""
    move(auto)
    seen: set[torch.dtype] = set()

    def look(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(module, nn.Linear):
            seen.add(output.dtype)

    hook = nn.modules.module.register_module_forward_hook(look)
    try:
        task = TASK.model_copy(update={"max_epochs": 1})
        line = score(SavedModel(save(tmp_path / "bert", "bert")), task, data_of(8, 8), "none", 0, Finetuning())
    finally:
        hook.remove()
    assert seen == {{"fp32": torch.float32, "bf16": torch.bfloat16}[auto]}
    assert line.precision == auto
