"""The project on a device other than the CPU: the one of tests/support/other_device.py."""

from __future__ import annotations

import ast
import multiprocessing
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from msgspec import structs
from torch.utils._pytree import keystr, tree_leaves_with_path

import methods
from analysis import model_similarity
from benchmark import devices
from benchmark.downstream.classifier import SavedModel, fit_discriminator
from benchmark.downstream.finetune import score
from benchmark.instruments.checkpoints import evaluate_text
from benchmark.instruments.conformance import TinyRuns
from benchmark.instruments.export import export_model
from benchmark.ledger.store import Store
from benchmark.models import load
from benchmark.models.transformer import read_tokenizer
from benchmark.settings.suite import Budget
from benchmark.training.processes import World, start_fork_server
from benchmark.training.run import Run
from benchmark.training.step import Stepper
from tests.support.other_device import COUNTS, NAME, register
from tests.support.record_lines import read_lines
from tests.support.source_tree import TREES
from tests.support.thorough import these_of
from tests.support.toy_task import SETTINGS, TASK, data_of

WAITS = ("scalars", "out", "waits")  # what a program waits for
Waited = dict[str, int]  # for what, how often


# methods whose steps, networks, weights or optimizers differ from all others'
OWN_STEP = {"naive", "agem", "pnn", "elle", "ewc"}
OPTIONS = {"ewc": {"share": 0.75}}  # so that the phase which trains nothing has several steps
CLIP = {"naive": 0.5}
TRIED = these_of(OWN_STEP, methods.list_names())


def trained(
    name: str, folder: Path, world: World
) -> tuple[list[dict[str, torch.Tensor]], list[Waited]]:
    """The weights of each stage of a tiny run, and what each of its steps waited for."""
    tiny = TinyRuns(name, methods.build, folder)
    budget = Budget(unit="steps", amount=4, reference=None)
    config = tiny.make_config(evaluations=1, max_grad_norm=CLIP.get(name)).model_copy(
        update={"budget": budget, "options": OPTIONS.get(name, {})}
    )
    run = tiny.make_run(config, f"{name}-{world.device.type}")
    run = Run(run.config, run.make_method, run.store, world)
    waited: list[Waited] = []
    plain = Stepper.step

    def step(stepper: Stepper, number: int, *more: Any) -> torch.Tensor:
        before = counted(*WAITS)
        loss = plain(stepper, number, *more)
        waited.append(dict(counted(*WAITS) - before))
        return loss

    with patch.object(Stepper, "step", step):
        run.train(last_stage=1)
    return [
        load(run.store.stage_folder(key) / "model").state_dict() for key in run.keys[:2]
    ], waited


def counted(*what: str) -> Counter[str]:
    """How often this thread has done each of `what` so far."""
    thread = threading.current_thread().name
    return Counter({name: COUNTS[thread, name] for name in what})


def elsewhere(folder: Path) -> dict[str, list[Waited]]:
    """Return what each method's steps waited for. Raises AssertionError if a weight differs from
    the CPU's.
    """
    torch.set_num_threads(1)
    torch.set_default_dtype(
        torch.float64
    )  # Adam amplifies rounding where gradients are tiny, as right after growth
    cpu = {name: trained(name, folder, World(0, 1, devices.CPU))[0] for name in TRIED}
    waited = {}
    world = World(0, 1, register())
    assert devices.choose_device() == world.device and devices.name_device(world.device) == NAME
    for name, expected in cpu.items():
        actual, waited[name] = trained(name, folder, world)
        for mine, theirs in zip(expected, actual, strict=True):
            for part, tensor in mine.items():
                assert torch.allclose(tensor, theirs[part], atol=1e-6), f"{name}: {part}"
    return waited


def called_apart(act: Callable[[Path], Any], folder: Path) -> Any:
    """Call `act` in a process of its own, because a device cannot be unregistered."""
    start_fork_server()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as process:
        return process.submit(act, folder).result()


def test_methods_on_another_device(tiny_folder: Path) -> None:
    """Oracle: the CPU's weights. No operator mixes tensors of main memory and of the device. No
    step waits for the device, except in A-GEM, which must know whether it projects, and
    Lifelong-MoE, which must know how many tokens each expert gets.
    """
    steps_of = called_apart(elsewhere, tiny_folder)
    assert list(steps_of) == TRIED
    for name, steps in steps_of.items():
        may = {"scalars"} if name in ("agem", "lifelong_moe") else set()
        assert steps and all(set(waited) <= may for waited in steps), f"{name}: {steps}"


def used(run: Run, folder: Path) -> dict[str, Any]:
    """The results, on this process's device, of everything except training that is done with a
    run's models.
    """
    store = Store(folder / "store")
    shutil.copytree(run.store.root, store.root, symlinks=True)
    stage = store.stage_folder(run.keys[1])
    model = stage / "model"
    results: dict[str, Any] = {}
    loaded = load(model).to(devices.choose_device())
    loaded.save(folder / "saved", read_tokenizer(model, loaded.vocabulary))
    export_model(stage, folder / "exported")
    for name in ("saved", "exported"):
        results[name] = {path.name: path.read_bytes() for path in (folder / name).iterdir()}
    (folder / "text.txt").write_text(
        "the model grows, and the text with it. " * 50, encoding="utf-8"
    )
    results["evaluate"] = evaluate_text(model, folder / "text.txt")
    task = TASK.model_copy(update={"domain": run.config.domains[0].name, "max_epochs": 1})
    for prompt in ("right", "picked"):
        checkpoint = SavedModel(model)
        checkpoint.pick = fit_discriminator(model, run.stream, 2)
        scored = score(checkpoint, data_of(16, 16, task=task), prompt, 0, SETTINGS)
        results[f"score {prompt}"] = structs.asdict(structs.replace(scored, seconds=0.0))
    for measure in (model_similarity.measure_similarity, model_similarity.measure_attention):
        measure(run.config, store)
    paths = sorted((store.root / "similarity").glob("*.jsonl"))
    results["measures"] = [{**line, "time": 0} for path in paths for line in read_lines(path)]
    return results


def used_on_both(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of `used` on the CPU and on the registered device."""
    torch.set_num_threads(1)
    tiny = TinyRuns("elle", methods.build, folder)
    run = tiny.make_run(tiny.make_config("bert", evaluations=1), "run")
    run.train(last_stage=1)
    cpu = used(run, folder / "cpu")
    device = register()
    assert devices.choose_device() == device
    elsewhere = used(run, folder / "device")
    assert counted("in").total() > 100  # models and rows were copied to the device
    return cpu, elsewhere


def test_what_is_done_with_models_on_another_device(tiny_folder: Path) -> None:
    """Oracle: the CPU's results for the same models. Saved and exported files are the same bytes.
    Perplexity, scores of fine-tuned models and measures for figures are the same numbers.
    """
    cpu, elsewhere = called_apart(used_on_both, tiny_folder)
    assert {line["kind"] for line in cpu["measures"]} == {"similarity", "attention"}
    assert cpu["measures"] and all(line["reason"] is None for line in cpu["measures"])
    expected, actual = (
        {keystr(path): value for path, value in tree_leaves_with_path(results)}
        for results in (cpu, elsewhere)
    )
    assert expected.keys() == actual.keys()
    for place, value in expected.items():
        close = 1 if "maps" in place else 1e-5  # maps are in rounded thousandths
        is_number = isinstance(value, float | int)
        assert actual[place] == (
            pytest.approx(value, rel=1e-4, abs=close) if is_number else value
        ), place


@pytest.mark.parametrize(
    ("able", "allowed", "gain", "precision"),
    [
        ({}, True, 2.0, "fp32"),
        ({"avx512_bf16": True}, True, 2.0, "bf16"),
        ({"avx512_bf16": True}, True, 0.65, "fp32"),
        ({"amx_bf16": True}, True, 1.2, "bf16"),
        ({"avx512_bf16": True}, False, 2.0, "fp32"),
    ],
)
def test_auto_is_what_the_machine_computes_in(
    able: dict[str, bool], allowed: bool, gain: float, precision: str, monkeypatch
) -> None:
    """Oracle: the rule: "auto" is bf16 if the CPU reports instructions for it, oneDNN may use them
    (ONEDNN_MAX_CPU_ISA), and they are faster. A precision that a suite names is used everywhere.
    """
    monkeypatch.setattr(devices, "measure_bf16_gain", lambda width: gain)
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: {"avx2": True, "amx_bf16": False, **able}
    )
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: allowed)
    assert devices.choose_precision("auto", devices.CPU) == precision
    assert devices.choose_precision("fp32", devices.CPU) == "fp32"
    assert devices.choose_precision("bf16", devices.CPU) == "bf16"


def test_processes_share_the_devices_in_turns(monkeypatch) -> None:
    """Oracle: the process's number modulo two devices."""
    chosen: list[int] = []
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    assert [devices.choose_device(number).index for number in range(3)] == [0, 1, 0] == chosen


def test_one_file_asks_torch_for_devices() -> None:
    """Oracle: only `benchmark.devices` uses the parts of torch that belong to devices. Programs in
    strings do not count: `doctor` probes nodes that cannot import the project.
    """
    of_devices = {"accelerator", "cuda", "mps", "xpu", "get_device_module"}
    asking = {
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) == "torch"
        and node.attr in of_devices
    }
    assert asking == {"benchmark.devices"}


def test_the_gain_of_bf16_is_a_ratio_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: by hand: on the test's clock the fastest products take 6 and 4 ticks, after a slow
    first one. Products have the width that is asked for.
    """
    now = [0.0]
    ticks = {torch.float32: [90.0, *[6.0] * 7], torch.bfloat16: [90.0, 9.0, *[4.0] * 6]}

    def multiply(states: torch.Tensor, weights: torch.Tensor) -> None:
        assert states.shape == (512, 96) and weights.shape == (96, 96)
        now[0] += ticks[states.dtype].pop(0)

    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    devices.measure_bf16_gain.cache_clear()
    assert devices.measure_bf16_gain(96) == 1.5
    devices.measure_bf16_gain.cache_clear()
