"""What a method holds besides its options, so that `check` sees what changes behind the clock's back."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence, Set
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.training.method import LifelongMethod


def contents_of(method: LifelongMethod, model: nn.Module) -> dict[str, object]:
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
