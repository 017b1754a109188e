"""The project on a device that is not the CPU: which tensors are where, and what a step waits for.

The device is none: its tensors live in main memory and may meet no others, and what a GPU would wait for is counted.
torch's accelerator API is told of it as of any maker's device, so the project runs on it as it would on a GPU.
`register` changes the whole process: it is called in one of its own.
"""

from __future__ import annotations

import ast
import functools
import multiprocessing
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from msgspec import structs
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import methods
from analysis import model_similarity
from benchmark.downstream import discriminator
from benchmark.downstream.classifier import SavedModel
from benchmark.downstream.finetune import score
from benchmark.instruments.checkpoints import AUTO, evaluate_text
from benchmark.instruments.conformance import TinyRuns
from benchmark.instruments.export import export_model
from benchmark.models import devices, load
from benchmark.models.transformer import read_tokenizer
from benchmark.settings.suite import Budget
from benchmark.store import Store
from benchmark.training.processes import World
from benchmark.training.run import Run
from benchmark.training.step import Stepper
from tests.support.record_lines import read_lines
from tests.support.source_tree import TREES
from tests.support.thorough import these_of
from tests.support.toy_task import SETTINGS, TASK, data_of

NAME = "other"
DEVICE = torch.device("cpu")  # until it is registered
# by the thread's name. "scalars": numbers asked for; "in", "out": tensors copied; "waits" for its queue
COUNTS: Counter[tuple[str, str]] = Counter()
ATEN = torch.ops.aten
# what makes a tensor from nothing calls one of these
FACTORIES = ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step")
INDEXING = (ATEN.index.Tensor, ATEN.index_put_.default)  # with indices from main memory, as on every device
LIBRARY = torch.library.Library("aten", "IMPL")


def count(what: str) -> None:
    COUNTS[threading.current_thread().name, what] += 1


class OtherTensor(torch.Tensor):
    """A tensor of the device; `held` is the same in main memory."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OtherTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=DEVICE
        )
        made.held = inner
        return made

    def tolist(self) -> Any:
        count("scalars")
        return self.held.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Where it lies, for those who look which tensors share memory before they save."""
        return self.held.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return dispatch(function, args, kwargs or {})


def dispatch(function: Any, args: Any, kwargs: Any) -> Any:
    """Compute in main memory what is asked of the device. Raises TypeError for tensors of both in one operator."""
    given: list[Tensor] = []
    tree_map_only(Tensor, given.append, (args, kwargs))
    here = [tensor for tensor in given if isinstance(tensor, OtherTensor)]
    target = kwargs.get("device")
    moved = function in (ATEN._to_copy.default, ATEN.copy_.default)
    there = [tensor for tensor in given if not isinstance(tensor, OtherTensor) and tensor.dim()]
    if here and there and not moved and function not in INDEXING:
        shapes = [tuple(tensor.shape) for tensor in there]
        raise TypeError(f"{function}: tensors {shapes} are in main memory, others on the device")
    on_device = target is not None and torch.device(target).type == NAME if target is not None else bool(here)
    if function is ATEN.copy_.default:
        on_device = isinstance(args[0], OtherTensor)
    if function is ATEN._local_scalar_dense.default and here:
        count("scalars")
    if moved and given:
        source = args[1] if function is ATEN.copy_.default else args[0]
        if isinstance(source, OtherTensor) != on_device:
            count("in" if on_device else "out")
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known = {id(tensor.held): tensor for tensor in here}
    result = function(*tree_map_only(OtherTensor, _inner, args), **tree_map_only(OtherTensor, _inner, kwargs))

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or not on_device:
            return value
        return known[id(value)] if id(value) in known else OtherTensor(value)

    if function is ATEN.copy_.default:
        return args[0]
    return tree_map(wrap, result)


def _inner(tensor: OtherTensor) -> Tensor:
    return tensor.held


class Backend:
    """What torch asks of a device's module; below, what has one answer."""

    @staticmethod
    def get_rng_state(device: Any = None) -> Tensor:
        return torch.zeros(1, dtype=torch.uint8)

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]

    @staticmethod
    def synchronize(device: Any = None) -> None:
        count("waits")


ANSWERS: dict[str, Any] = {"is_available": True, "device_count": 1, "current_device": 0, "_is_in_bad_fork": False}
ANSWERS |= {"manual_seed_all": None, "set_rng_state": None}
for name, answer in ANSWERS.items():
    setattr(Backend, name, staticmethod(lambda *_, answer=answer, **__: answer))


def register() -> torch.device:
    """Make the device this process's accelerator."""
    global DEVICE
    _setup_privateuseone_for_python_backend(NAME, Backend)
    DEVICE = torch.device(NAME, 0)
    torch.accelerator.synchronize = Backend.synchronize
    Tensor.pin_memory = _pinned  # type: ignore[assignment]
    torch.autograd.set_multithreading_enabled(False)  # a guard in Python cannot serve the engine's own threads
    torch.__future__.set_swap_module_params_on_conversion(True)  # or a module's way there would untie tied weights
    for name in FACTORIES:
        LIBRARY.impl(name, functools.partial(_made, getattr(ATEN, name.partition(".")[0])), "PrivateUse1")
    LIBRARY.impl("_copy_from", _copied, "PrivateUse1")  # what torch.tensor(numbers, device=...) ends with
    return DEVICE


def _pinned(tensor: Tensor) -> Tensor:
    """A copy: torch asks a device written in C++ for pinned memory, and has none of this one."""
    return tensor.clone()


def _made(operator: Any, *args: Any, **kwargs: Any) -> OtherTensor:
    return OtherTensor(operator(*args, **{**kwargs, "device": "cpu"}))


def _copied(source: Tensor, to: OtherTensor, non_blocking: bool = False) -> OtherTensor:
    count("in")
    to.held.copy_(source)
    return to


WAITS = ("scalars", "out", "waits")  # what a program waits for
Waited = dict[str, int]  # for what, how often


# those whose steps, networks, weights or optimizers are not another's
OWN_STEP = {"naive", "agem", "pnn", "elle", "ewc"}
OPTIONS = {"ewc": {"share": 0.75}}  # so that the phase which trains nothing has several steps
CLIP = {"naive": 0.5}
TRIED = these_of(OWN_STEP, methods.names())


def trained(name: str, folder: Path, world: World) -> tuple[list[dict[str, torch.Tensor]], list[Waited]]:
    """The weights of each stage of a tiny run, and what each of its steps waited for."""
    tiny = TinyRuns(name, methods.build, folder)
    budget = Budget(unit="steps", amount=4, reference=None)
    config = tiny.config(evaluations=1, clip=CLIP.get(name)).model_copy(
        update={"budget": budget, "options": OPTIONS.get(name, {})}
    )
    run = tiny.run(config, world.device.type)
    run = Run(run.config, run.new_method, run.store, world)
    waited: list[Waited] = []
    plain = Stepper.step

    def step(stepper: Stepper, number: int, *more: Any) -> torch.Tensor:
        before = counted(*WAITS)
        loss = plain(stepper, number, *more)
        waited.append(dict(counted(*WAITS) - before))
        return loss

    with patch.object(Stepper, "step", step):
        run.train(last_stage=1)
    return [load(run.store.stage(key) / "model").state_dict() for key in run.keys[:2]], waited


def counted(*what: str) -> Counter[str]:
    """How often this thread has done that so far."""
    thread = threading.current_thread().name
    return Counter({name: COUNTS[thread, name] for name in what})


def elsewhere(folder: Path) -> dict[str, list[Waited]]:
    """Return what each method's steps waited for. Raises AssertionError if a weight differs from the CPU's."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # Adam amplifies rounding where gradients are tiny, as right after growth
    cpu = {name: trained(name, folder / name, World(0, 1, devices.CPU))[0] for name in TRIED}
    waited = {}
    world = World(0, 1, register())
    assert devices.own_device() == world.device and devices.device_name(world.device) == NAME
    for name, expected in cpu.items():
        actual, waited[name] = trained(name, folder / name, world)
        for mine, theirs in zip(expected, actual, strict=True):
            for part, tensor in mine.items():
                assert torch.allclose(tensor, theirs[part], atol=1e-6), f"{name}: {part}"
    return waited


def test_methods_on_another_device(tmp_path: Path) -> None:
    """Oracle: the weights of the CPU. Tensors in main memory meet none of the device's. No step of any method waits for
    the device, but A-GEM's, which must know whether it projects, and one of experts, which must know how many tokens
    each gets."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        steps_of = process.submit(elsewhere, tmp_path).result()
    assert list(steps_of) == TRIED
    for name, steps in steps_of.items():
        may = {"scalars"} if name in ("agem", "lifelong_moe") else set()
        assert steps and all(set(waited) <= may for waited in steps), f"{name}: {steps}"


def used(run: Run, folder: Path) -> dict[str, Any]:
    """What comes out, on this process's device, of all that is done with the models of a run but training."""
    store = Store(folder / "store")
    shutil.copytree(run.store.root, store.root, symlinks=True)
    stage = store.stage(run.keys[1])
    model = stage / "model"
    results: dict[str, Any] = {"discriminator": vars(discriminator.create(model, run.stream, 2))}
    loaded = load(model).to(devices.own_device())
    loaded.save(folder / "saved", read_tokenizer(model, loaded.vocabulary))
    export_model(stage, folder / "exported")
    for name in ("saved", "exported"):
        results[name] = {path.name: path.read_bytes() for path in (folder / name).iterdir()}
    (folder / "text.txt").write_text("the model grows, and the text with it. " * 50, encoding="utf-8")
    results["evaluate"] = evaluate_text(model, folder / "text.txt", AUTO)
    task = TASK.model_copy(update={"domain": run.config.domains[0].name, "max_epochs": 1})
    for prompt in ("right", "picked"):
        scored = score(SavedModel(model), task, data_of(16, 16), prompt, 0, SETTINGS)
        results[f"score {prompt}"] = structs.asdict(structs.replace(scored, seconds=0.0))
    for measure in (model_similarity.measure_similarity, model_similarity.measure_attention):
        measure(run.config, store)
    paths = sorted((store.root / "similarity").glob("*.jsonl"))
    results["measures"] = [{**line, "time": 0} for path in paths for line in read_lines(path)]
    return results


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
    tiny = TinyRuns("elle", methods.build, folder)
    run = tiny.run(tiny.config("bert", evaluations=1), "run")
    run.train(last_stage=1)
    cpu = used(run, folder / "cpu")
    device = register()
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
    assert asking == {"benchmark.models.devices"}
