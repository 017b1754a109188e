"""Does a method work, or leave something behind, where no clock charges it? `check` asks, and so does `verify --stage`.

Free are building a method, its answers (`signature`, `options`, `phases`) and the warm-up before a phase; a step is
charged by the FLOPs of the first one of its phase. What only a generator, a compiled extension, a file or another
process holds is not seen: methods are code that is read.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.instruments.speed import stages
from benchmark.instruments.tiny_runs import ALONE, STEPS, Lab
from benchmark.training.keys import stage_of
from benchmark.training.method import LifelongMethod
from benchmark.training.step import Stepper, count_flops


def works_on_the_clock_alone(lab: Lab) -> None:
    """Nothing is computed or left behind where no clock runs, no step costs more than its first, no thread works on."""
    config = lab.config()
    _refuse_work("building it", lab.new_method)
    others = _others()
    for _, prepared in stages(config, lab.build, lab.run(config, "untrained").stream, ALONE):
        inputs, index = prepared.inputs, prepared.inputs.stage.index
        method, bare = inputs.method, stage_of(config, index)

        def ask() -> object:
            return method.signature(bare), method.options(), list(method.phases(inputs.stage))  # noqa: B023

        with _unchanged(f"stage {index}: signature, options or phases", method, inputs.model):
            _refuse_work(f"stage {index}: signature, options or phases", ask)
            answers = ask(), ask()
        assert answers[0] == answers[1], f"stage {index}: asked twice, it says {answers[0]} and {answers[1]}"
        for number, phase in enumerate(method.phases(inputs.stage)):
            where = f"stage {index}, phase {phase.name}"
            stepper = Stepper(inputs, phase, number)
            with _unchanged(f"{where}: the warm-up", method, inputs.model):
                first = stepper.warm_up()
            for step in range(STEPS):
                flops = count_flops(lambda: stepper.step(step))  # noqa: B023
                assert flops <= first * 1.001, (
                    f"{where}: step {step} takes {flops:g} FLOPs, the first, by which all are charged, {first:g}"
                )
            stepper.close()
            left = _others() - others
            assert not left, f"{where}: beside the loop there are {left}, which work on while the clock is paused"


def _others() -> set[object]:
    return {*threading.enumerate(), *multiprocessing.active_children()}


def _refuse_work(where: str, call: Callable[[], object]) -> None:
    flops = count_flops(call)
    assert not flops, f"{where} takes {flops:g} FLOPs, which nobody charges: let steps or start_stage compute it"


@contextmanager
def _unchanged(where: str, method: LifelongMethod, model: nn.Module) -> Iterator[None]:
    before = _contents(method, model)
    yield
    after = _contents(method, model)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    assert not changed, (
        f"{where} has changed {', '.join(changed[:3])}: what a step changes must be named in the method's `state`, and "
        "nothing but steps and start_stage may change anything"
    )


def _contents(method: LifelongMethod, model: nn.Module) -> dict[str, object]:
    """All that a method, its class, their file and its model hold, by place; of arrays a hash."""
    kind, contents, seen = type(method), dict[str, object](), dict[int, object]()

    def add(place: str, value: Any) -> None:
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().flatten().view(torch.uint8)
            contents[place] = value.requires_grad, tuple(value.shape), _hash(flat.numpy())
        elif isinstance(value, np.ndarray):
            contents[place] = value.shape, _hash(value)
        elif isinstance(value, torch.Generator):
            contents[place] = _hash(value.get_state().numpy())
        elif value is None or isinstance(value, (bool, int, float, str, bytes)):
            contents[place] = value
        elif id(value) not in seen and not isinstance(value, (type, ModuleType, FunctionType, MethodType)):
            seen[id(value)] = value
            for name, part in _parts(value):
                add(f"{place}.{name}", part)

    add("the model", model)
    add(kind.__name__, method)
    for place, names in ((f"class {kind.__name__}", vars(kind)), (kind.__module__, vars(sys.modules[kind.__module__]))):
        add(place, {name: value for name, value in names.items() if not name.startswith("__")})
    return contents


def _parts(value: Any) -> list[tuple[object, Any]]:
    if isinstance(value, nn.Module):
        return [*value.named_parameters(), *value.named_buffers(), *((n, m.training) for n, m in value.named_modules())]
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (Sequence, Set)):
        return list(enumerate(value if isinstance(value, Sequence) else sorted(value, key=repr)))
    return list(getattr(value, "__dict__", {}).items())


def _hash(array: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()
