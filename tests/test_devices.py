"""The project on a device that is not the CPU: which tensors are where, and what a step waits for."""

from __future__ import annotations

import ast
import multiprocessing
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import methods
from analysis import attention, similarity
from benchmark import records
from benchmark.downstream import discriminator
from benchmark.downstream.classifier import SavedModel
from benchmark.downstream.finetune import score
from benchmark.instruments.checkpoints import AUTO, evaluate_text, export_model
from benchmark.instruments.tiny_runs import Lab
from benchmark.models import devices, load, saved_tokenizer
from benchmark.settings.suite import Budget
from benchmark.store import Store
from benchmark.training.processes import World
from benchmark.training.progress import Silent
from benchmark.training.run import Run
from benchmark.training.stage_inputs import Loader, Step
from benchmark.training.step import Stepper
from tests.support import other_device
from tests.support.source_tree import TREES
from tests.support.thorough import these_of
from tests.support.toy_task import SETTINGS, TASK, data_of

WAITS = ("scalars", "out", "waits")  # what a program waits for
Waited = dict[str, int]  # for what, how often


@dataclass
class Seen:
    """What a run asked of its device."""

    inside: list[Waited] = field(default_factory=list)  # what each step waited for
    between: list[tuple[int, int]] = field(default_factory=list)  # steps, and how often the loop waited before each
    batches: list[Made] = field(default_factory=list)
    queued: dict[str, int] = field(default_factory=dict)  # streams and events, in all threads


@dataclass(frozen=True)
class Made:
    """The batches of a step, as they were made for the device."""

    step: int
    ahead: bool  # in the loader's thread
    steered: bool  # by what the step before has seen, so that they cannot be made ahead
    tensors: int
    counted: dict[str, int]


# those whose steps, networks, weights or optimizers are not another's
OWN_STEP = {"naive", "agem", "pnn", "elle", "ewc"}
OPTIONS = {"ewc": {"share": 0.75}}  # so that the phase which trains nothing has several steps
CLIP = {"naive": 0.5}
TRIED = these_of(OWN_STEP, methods.names())


def trained(name: str, folder: Path, world: World) -> tuple[list[dict[str, torch.Tensor]], Seen]:
    """The weights of each stage of a tiny run, and what it asked of the device."""
    lab = Lab(name, methods.build, folder)
    budget = Budget(unit="steps", amount=4, reference=None)
    queued = counted_in_all("streams", "events")
    config = lab.config(evaluations=1, clip=CLIP.get(name)).model_copy(
        update={"budget": budget, "options": OPTIONS.get(name, {})}
    )
    run = lab.run(config, world.device.type)
    run = Run(run.config, run.new_method, run.store, world, Silent())
    seen, waited = Seen(), 0
    plain, compute = Stepper.step, Loader.compute

    def step(stepper: Stepper, number: int, *more: Any) -> torch.Tensor:
        nonlocal waited
        before = counted(*WAITS)
        if number:
            seen.between.append((number, before.total() - waited))
        loss = plain(stepper, number, *more)
        seen.inside.append(dict(counted(*WAITS) - before))
        waited = counted(*WAITS).total()
        return loss

    def make(loader: Loader, number: int) -> Step:
        before = counted("pins", "sent", "in")
        step = compute(loader, number)
        tensors = [one for batch in (*step[0], *step[1]) for one in vars(batch).values() if isinstance(one, Tensor)]
        ahead, steered = threading.current_thread().name.startswith("loader"), loader._method.replay_weights is not None
        seen.batches.append(Made(number, ahead, steered, len(tensors), dict(counted("pins", "sent", "in") - before)))
        return step

    with (
        patch.object(Stepper, "step", step),
        patch.object(Loader, "compute", make),
    ):
        run.train(last_stage=1)
    seen.queued = dict(counted_in_all("streams", "events") - queued)
    return [load(run.store.stage(key) / "model").state_dict() for key in run.keys[:2]], seen


def counted(*what: str) -> Counter[str]:
    """How often this thread has done that so far."""
    thread = threading.current_thread().name
    return Counter({one: other_device.COUNTS[thread, one] for one in what})


def counted_in_all(*what: str) -> Counter[str]:
    """How often all threads together have done that so far."""
    return Counter(one for (_, one), times in other_device.COUNTS.items() for _ in range(times) if one in what)


def what_queues_count() -> dict[str, int]:
    """What a program that uses a stream and an event of the device is counted for."""
    before = counted(*WAITS, "streams", "events")
    torch.accelerator.current_stream().record_event(torch.Event()).synchronize()
    with torch.get_device_module(other_device.NAME).Stream() as stream:
        stream.synchronize()
    return dict(counted(*WAITS, "streams", "events") - before)


def elsewhere(folder: Path) -> dict[str, Seen]:
    """Return what each method asked of the device. Raises AssertionError if a weight differs from the CPU's."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # Adam amplifies rounding where gradients are tiny, as right after growth
    cpu = {name: trained(name, folder / name, World(0, 1, devices.CPU))[0] for name in TRIED}
    found = {}
    world = World(0, 1, other_device.register())
    assert what_queues_count() == {"waits": 2, "streams": 2, "events": 2}  # made, asked for and recorded
    assert devices.own_device() == world.device and devices.device_name(world.device) == other_device.NAME
    for name, expected in cpu.items():
        actual, found[name] = trained(name, folder / name, world)
        for mine, theirs in zip(expected, actual, strict=True):
            for part, tensor in mine.items():
                assert torch.allclose(tensor, theirs[part], atol=1e-6), f"{name}: {part}"
    return found


def test_methods_on_another_device(tmp_path: Path) -> None:
    """Oracle: the weights of the CPU. Tensors in main memory meet none of the device's. No step of any method waits for
    the device, but A-GEM's, which must know whether it projects, and one of experts, which must know how many tokens
    each gets; the loop waits once a step, for the last loss, and before a phase's second step there is none. Each
    tensor of a batch is pinned once and sent once, which nobody waits for, in the loader's thread and before its step,
    but for the first of a phase. All goes through the device's one queue: there are no streams or events."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        found = process.submit(elsewhere, tmp_path).result()
    assert list(found) == TRIED
    for name, seen in found.items():
        may = {"scalars"} if name in ("agem", "lifelong_moe") else set()
        assert all(set(waited) <= may for waited in seen.inside), f"{name}: {seen.inside}"
        assert not seen.queued, f"{name}: {seen.queued}"
        assert all(waits == (step > 1) for step, waits in seen.between), f"{name}: {seen.between}"
        for made in seen.batches:
            assert made.counted == dict.fromkeys(("pins", "sent", "in"), made.tensors), f"{name}: {made}"
            assert made.ahead == (made.step > 0 and not made.steered), f"{name}: {made}"
    assert [step for step, _ in found["naive"].between] == 2 * [1, 2, 3]  # four steps a stage
    assert {made.tensors for made in found["naive"].batches} == {4}  # tokens, domains, positions, targets


def used(run: Run, folder: Path) -> dict[str, Any]:
    """What comes out, on this process's device, of all that is done with the models of a run but training."""
    store = Store(folder / "store")
    shutil.copytree(run.store.root, store.root, symlinks=True)
    stage = store.stage(run.keys[1])
    model = stage / "model"
    found: dict[str, Any] = {"discriminator": vars(discriminator.create(model, run.stream, 2))}
    loaded = load(model).to(devices.own_device())
    loaded.save(folder / "saved", saved_tokenizer.read(model, loaded.vocabulary))
    export_model(stage, folder / "exported")
    for name in ("saved", "exported"):
        found[name] = {path.name: path.read_bytes() for path in (folder / name).iterdir()}
    (folder / "text.txt").write_text("the model grows, and the text with it. " * 50, encoding="utf-8")
    found["evaluate"] = evaluate_text(model, folder / "text.txt", AUTO)
    task = TASK.model_copy(update={"domain": run.config.domains[0].name, "max_epochs": 1})
    for prompt in ("right", "picked"):
        scored = score(SavedModel(model), task, data_of(16, 16), prompt, 0, SETTINGS, folder / f"fine-tuned {prompt}")
        found[f"score {prompt}"] = {**scored, "seconds": 0}
        weights = load_file(folder / f"fine-tuned {prompt}" / "model.safetensors")
        # Adam amplifies rounding where gradients are tiny, so the values may be others
        found[f"fine-tuned {prompt}"] = {name: list(tensor.shape) for name, tensor in weights.items()}
    for measure in (similarity.measure, attention.measure):
        measure(run.config, store)
    paths = sorted((store.root / "similarity").glob("*.jsonl"))
    found["measures"] = [{**line, "time": 0} for path in paths for line in records.read(path)]
    return found


def leaves(value: Any, *place: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What has no parts in dicts and lists, and where it stands."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, *place, key)
    else:
        yield place, value


def used_on_both(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What comes out on the CPU, and on the registered device."""
    torch.set_num_threads(1)
    lab = Lab("elle", methods.build, folder)
    run = lab.run(lab.config("bert", evaluations=1), "run")
    run.train(last_stage=1)
    cpu = used(run, folder / "cpu")
    device = other_device.register()
    assert devices.own_device() == device
    elsewhere = used(run, folder / "device")
    assert counted("in").total() > 100  # models and rows have been there
    return cpu, elsewhere


def test_what_is_done_with_models_on_another_device(tmp_path: Path) -> None:
    """Oracle: what the CPU makes of the same models. Saved and exported files are the same bytes; the discriminator,
    perplexity, scores of fine-tuned models and what is measured for figures are the same numbers."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        cpu, elsewhere = process.submit(used_on_both, tmp_path).result()
    assert {line["kind"] for line in cpu["measures"]} == {"similarity", "attention"}
    assert cpu["measures"] and all(line["reason"] is None for line in cpu["measures"])
    expected, actual = dict(leaves(cpu)), dict(leaves(elsewhere))
    assert expected.keys() == actual.keys()
    for place, value in expected.items():
        close = 1 if "maps" in place else 1e-5  # in thousandths, rounded
        is_number = isinstance(value, float | int)
        assert actual[place] == (pytest.approx(value, rel=1e-4, abs=close) if is_number else value), place


class OfOtherMakers:
    """Modules of devices as torch has them: one that says its name and knows bf16, one that says neither."""

    class xpu:
        get_device_name = staticmethod(lambda device: f"Example {device}")
        is_bf16_supported = staticmethod(lambda: True)

    mps = object()


def test_seeding_the_cpu_asks_no_other_device(monkeypatch) -> None:
    """Oracles: the numbers after `torch.manual_seed`, and a count of the devices that are asked: none."""
    torch.manual_seed(7)
    expected = torch.rand(5)
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", asked.append)
    devices.seed_random_numbers(7, torch.device("cpu"))
    assert torch.rand(5).equal(expected) and not asked
    devices.seed_random_numbers(8, torch.device("cuda"))
    assert asked == [8]


def test_what_is_asked_of_a_device(monkeypatch) -> None:
    """Oracle: the answers put in."""
    monkeypatch.setattr(torch, "get_device_module", lambda device: getattr(OfOtherMakers, device.type))
    assert devices.device_name(torch.device("xpu", 1)) == "Example xpu:1"
    assert devices.device_name(torch.device("mps")) == "mps"
    assert devices.computes_in_bf16(torch.device("xpu", 1)) and not devices.computes_in_bf16(torch.device("mps"))


@pytest.mark.parametrize(
    ("able", "allowed", "precision"),
    [
        ({}, True, "fp32"),
        ({"avx512_bf16": True}, True, "bf16"),
        ({"amx_bf16": True}, True, "bf16"),
        ({"avx512_bf16": True}, False, "fp32"),
    ],
)
def test_auto_is_what_the_machine_computes_in(
    able: dict[str, bool], allowed: bool, precision: str, monkeypatch
) -> None:
    """Oracle: the instructions that the CPU says it has, where oneDNN is not told to leave them (ONEDNN_MAX_CPU_ISA);
    what a suite asks for is done everywhere."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "amx_bf16": False, **able})
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: allowed)
    assert devices.precision_of("auto", devices.CPU) == precision
    assert devices.precision_of("fp32", devices.CPU) == "fp32"
    assert devices.precision_of("bf16", devices.CPU) == "bf16"


def test_processes_share_the_devices_in_turns(monkeypatch) -> None:
    """Oracle: the remainder of the process's number by two devices."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    assert [devices.own_device(number).index for number in range(3)] == [0, 1, 0] == chosen


def test_one_file_asks_torch_for_devices() -> None:
    """Oracle: the parts of torch that belong to devices. A node that is only probed has nothing of the project."""
    of_devices = {"accelerator", "cuda", "mps", "xpu", "get_device_module"}
    asking = {
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch" and node.attr in of_devices
    }
    assert asking == {"benchmark.models.devices", "benchmark.jobs.slurm.probe"}
