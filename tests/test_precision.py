"""The precision of forward passes is chosen once per run, and recorded wherever it is used."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import methods
from benchmark import cancel, devices
from benchmark.downstream.classifier import SavedModel
from benchmark.downstream.finetune import score
from benchmark.instruments.conformance import ALONE, STEPS, TinyRuns, make_tiny_config
from benchmark.models import load
from benchmark.settings.schedules import find_schedule
from benchmark.settings.suite import RunConfig
from benchmark.settings.tasks import Finetuning
from benchmark.training.learner import measure_elapsed
from benchmark.training.method import LifelongMethod, Phase
from benchmark.training.run import Run
from benchmark.training.step import Loader, StageInputs, make_stage
from tests.support.record_lines import read_lines
from tests.support.toy_task import TASK, data_of, save

MACHINES = ("fp32", "bf16", "fp16")  # machines by what "auto" chooses there
MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam
OTHER = {"fp32": "bf16", "bf16": "fp16", "fp16": "fp32"}
STEEP: dict[str, Any] = {
    "init_scale": 2.0**24,
    "growth_interval": 2,
}  # a scaler whose scale is too large at first, and again after it has grown


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch):
    """Makes this process act as if on a machine where "auto" chooses the given precision."""

    def go(auto: str) -> None:
        monkeypatch.setattr(devices, "computes_in_bf16", lambda device, width: auto == "bf16")
        monkeypatch.setattr(devices, "gains_from_fp16", lambda device: auto == "fp16")

    return go


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRuns:
    return TinyRuns("naive", methods.build, tmp_path_factory.mktemp("tiny"))


def lines_of(run: Run, stage: int, kind: str) -> list[Any]:
    return [
        line for line in read_lines(run.store.stage_file(run.keys[stage])) if line["kind"] == kind
    ]


def weights_of(run: Run) -> list[str]:
    return [lines_of(run, stage, "done")[0]["weights"] for stage in range(2)]


def precisions(run: Run) -> list[str]:
    return [lines_of(run, stage, "stage")[0]["provenance"]["precision"] for stage in range(2)]


@pytest.mark.parametrize("began", MACHINES)
def test_a_run_goes_on_in_the_precision_that_it_began_with(
    began: str, tiny: TinyRuns, move
) -> None:
    """Oracle: the weights, bit for bit, of a run that sets this precision. A run with "auto" is
    stopped in its first stage, and continues on a machine where "auto" chooses another precision.
    """
    asked = tiny.make_run(tiny.make_config(precision=began), f"asked-{began}")
    asked.train(last_stage=1)
    config, calls = tiny.make_config(precision="auto"), iter(range(100))
    move(began)
    with pytest.raises(cancel.Stopped), cancel.heed(lambda: next(calls) == 3):
        tiny.make_run(config, began).train()
    move(OTHER[began])
    run = tiny.make_run(config, began)
    run.train(last_stage=1)
    assert weights_of(run) == weights_of(asked) and precisions(run) == [began, began]
    [resumed] = lines_of(run, 0, "resumed")
    assert resumed["step"] == 4


def test_a_shared_first_stage_decides_for_all_that_go_on_from_it(tiny: TinyRuns, move) -> None:
    """Oracle: by hand: a run takes the precision of its first stage, which another run trained and
    recorded on another machine. A run that trains its own first stage chooses on this machine.
    """
    move("fp32")
    tiny.make_run(tiny.make_config(precision="auto"), "shared").train(last_stage=0)
    move("bf16")
    run = tiny.make_run(make_tiny_config("er", precision="auto"), "shared")
    run.train(last_stage=1)
    assert precisions(run) == ["fp32", "fp32"]
    other = tiny.make_run(seeded(make_tiny_config("er", precision="auto"), 4), "shared")
    other.train(last_stage=1)
    assert precisions(other) == ["bf16", "bf16"]


def seeded(config: RunConfig, seed: int) -> RunConfig:
    return config.model_copy(update={"seed": seed})


@pytest.mark.parametrize("architecture", ["bert", "gpt"])
def test_what_is_kept_is_fp32_under_bf16(architecture: str, tiny: TinyRuns) -> None:
    """Oracle: the types of tensors in a checkpoint: the weights and the moments of Adam."""
    config = tiny.make_config(architecture, precision="bf16", checkpoint_seconds=1e-9)
    run = tiny.make_run(config, f"kept-{architecture}")
    calls = iter(range(100))
    with pytest.raises(cancel.Stopped), cancel.heed(lambda: next(calls) == 3):
        run.train(last_stage=0)
    path = run.store.stage_folder(run.keys[0]) / "checkpoint.pt"
    saved = torch.load(path, weights_only=True)
    moments = [state[name] for state in saved["optimizer"].values() for name in MOMENTS]
    types = {tensor.dtype for tensor in [*saved["model"].values(), *moments]}
    assert types == {torch.float32}


@pytest.mark.parametrize("auto", MACHINES)
def test_a_score_says_in_what_it_was_computed(auto: str, tmp_path: Path, move) -> None:
    """Oracle: the type of what linear layers return in forward passes."""
    move(auto)
    seen: set[torch.dtype] = set()

    def look(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(module, nn.Linear):
            seen.add(output.dtype)

    hook = nn.modules.module.register_module_forward_hook(look)
    try:
        task = TASK.model_copy(update={"max_epochs": 1})
        line = score(
            SavedModel(save(tmp_path / "bert", "bert")),
            data_of(8, 8, task=task),
            "none",
            0,
            Finetuning(),
        )
    finally:
        hook.remove()
    assert seen == {devices.HALF.get(auto, torch.float32)}
    assert line.precision == auto


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 0), "fp16"), ((7, 5), "fp16"), ((6, 1), "fp32")]
)
def test_a_gpu_without_bf16_computes_in_fp16(
    capability: tuple[int, int], expected: str, move, monkeypatch
) -> None:
    """Oracle: NVIDIA's compute capabilities: V100 7.0, T4 7.5, and GTX 1080 (slow in fp16) 6.1."""
    monkeypatch.setattr(devices, "computes_in_bf16", lambda device, width: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert devices.choose_precision("auto", torch.device("cuda", 0)) == expected


def in_fp16(tiny: TinyRuns, name: str) -> Run:
    config = tiny.make_config(
        precision="fp16", max_grad_norm=0.5, micro_batch_size=5, evaluations=1
    )
    return tiny.make_run(config, name)


def by_hand(run: Run) -> tuple[dict[str, torch.Tensor], int]:
    """The weights of the first stage, and how many steps were skipped, by torch's own recipe."""
    stage = make_stage(run.config, 0, run.stream)
    torch.manual_seed(stage.seed)
    inputs = StageInputs(
        run.config, stage, run.stream, LifelongMethod(), stage.build(stage.ladder[0]), ALONE
    )
    model, loader, skipped = inputs.model, Loader(inputs, Phase("adapt"), 0), 0
    inputs.begin()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=True
    )
    scaler = torch.amp.GradScaler("cpu", **STEEP)
    for step in range(STEPS):
        optimizer.zero_grad()
        for batch in loader.get(step)[0]:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model.compute_mean_loss(
                    batch.tokens, batch.domains, batch.positions, batch.targets
                )
            scaler.scale(loss * (len(batch.tokens) / batch.global_size)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        over = measure_elapsed(step, 1.0, (0.0, STEPS), (0.0, STEPS), (0.0, STEPS))
        optimizer.param_groups[0]["lr"] = stage.learning_rate * find_schedule("linear", 0.08).at(
            over.phase
        )
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    loader.close()
    return model.state_dict(), skipped


def test_fp16_is_torchs_recipe_and_goes_on_after_a_kill(
    tiny: TinyRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: a loop with torch's GradScaler as in its manual: the same weights, bit for bit, and
    as many skipped steps. All ten steps are charged. A stop between two steps changes nothing,
    because the scale and its age are restored.
    """
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, **STEEP))
    run = in_fp16(tiny, "fp16")
    expected, skipped = by_hand(run)
    calls = iter(range(100))
    with pytest.raises(cancel.Stopped), cancel.heed(lambda: next(calls) == STEPS - 3):
        in_fp16(tiny, "fp16-stopped").train(last_stage=0)
    assert 2 < skipped < STEPS - 2, skipped
    for each in (run, in_fp16(tiny, "fp16-stopped")):
        each.train(last_stage=0)
        actual = load(each.store.stage_folder(each.keys[0]) / "model").state_dict()
        assert all(torch.equal(tensor, actual[name]) for name, tensor in expected.items())
        assert lines_of(each, 0, "metrics")[-1]["values"] == {"skipped_steps": skipped}
        assert lines_of(each, 0, "done")[0]["charged"]["steps"] == STEPS


@pytest.mark.parametrize("name", ["agem", "ewc", "das"])
def test_what_overflows_in_fp16_spoils_no_state(
    name: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: by hand: methods that use gradients keep only finite state, although some steps
    overflow and are skipped. Phases that only measure are in fp32 and skip no step.
    """
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, **STEEP))
    tiny = TinyRuns(name, methods.build, tiny_folder)
    run = in_fp16(tiny, "fp16")
    run.train(last_stage=1)
    skipped = {
        line["phase"]: line["values"]["skipped_steps"] for line in lines_of(run, 1, "metrics")
    }
    assert list(skipped) == ["adapt"] and skipped["adapt"]
    state = torch.load(run.store.stage_folder(run.keys[1]) / "method.pt", weights_only=True)
    tensors = [
        tensor
        for value in state.values()
        for tensor in value or []
        if isinstance(tensor, torch.Tensor)
    ]
    assert all(tensor.isfinite().all() for tensor in tensors) and (tensors or name == "agem")


def test_auto_is_of_the_width_that_the_run_ends_with(tiny: TinyRuns, monkeypatch) -> None:
    """Oracle: the last width of the ladder, although the first stage is narrower."""
    widths = []

    def choose(precision: str, device: torch.device, width: int) -> str:
        widths.append(width)
        return "fp32"

    monkeypatch.setattr("benchmark.training.run.choose_precision", choose)
    run = tiny.make_run(tiny.make_config(precision="auto"), "width")
    run.train(last_stage=0)
    assert set(widths) == {run.config.model.ladder[-1].hidden_size}
