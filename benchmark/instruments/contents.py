"""All that a method and its model hold, as bytes: they show what changes while no clock runs."""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from benchmark.training.method import LifelongMethod


@contextlib.contextmanager
def expect_no_change(where: str, method: LifelongMethod, model: nn.Module) -> Iterator[None]:
    """Raises AssertionError, which says `where`, if the block changes a method or its model."""
    old_contents = _read_contents(method, model)
    yield
    new_contents = _read_contents(method, model)
    changed = sorted(
        name
        for name in old_contents.keys() | new_contents.keys()
        if old_contents.get(name) != new_contents.get(name)
    )
    assert not changed, (
        f"{where} has changed {', '.join(changed[:3])}: name in `state` what a step changes; "
        "nothing else but start_stage may change anything"
    )


def _read_contents(method: LifelongMethod, model: nn.Module) -> dict[str, bytes]:
    """All that a method, its class, their file and their model hold, as bytes, by its place."""
    kind = type(method)
    holders = {
        kind.__name__: method,
        f"class {kind.__name__}": kind,
        kind.__module__: sys.modules[kind.__module__],
    }
    values: dict[str, object] = {"the model": model}
    for holder_name, holder in holders.items():
        for name, value in vars(holder).items():
            place = f"{holder_name}.{name}"
            if ".__" not in place:
                values[place] = value
    return {place: _pickle(value) for place, value in values.items()}


def _pickle(value: object) -> bytes:
    """What a value holds."""
    content = io.BytesIO()
    _Pickler(content).dump(value)
    return content.getvalue()


class _Pickler(pickle.Pickler):
    """Writes what values hold: the numbers of tensors on any device.

    It writes no code, and nothing that no pickle holds.
    """

    def persistent_id(self, value: object) -> object:
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().flatten()
            return value.requires_grad, tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()
        return "code" if isinstance(value, (type, ModuleType, FunctionType, MethodType)) else None

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, nn.Module):
            modes = [(name, module.training) for name, module in value.named_modules()]
            return object, (), [*value.named_parameters(), *value.named_buffers(), *modes]
        try:
            value.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        except (TypeError, pickle.PicklingError):
            return object, ()  # a lock, a file, a generator: they hold no numbers
        return NotImplemented
