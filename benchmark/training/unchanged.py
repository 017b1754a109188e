"""Proof that code had no effect: what a method and its model hold is compared before and after.

A method could else do its work where the clock stands still. What cannot be seen from the method is not compared:
memory that only a closure, a cache, a generator or a compiled extension holds, files, other processes. A module of the
method's own in the network is called in evaluation; that it leaves nothing behind is proven here, and that it does no
more there than in training, which is charged, by the check `evaluation_is_a_forward_pass`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.errors import UserError
from benchmark.training.method import LifelongMethod, get_state

PLUMBING = {"autocast", "objective", "_no_sync"}  # of a learner: torch's, and what is compiled
OWN_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial)


class SideEffect(UserError):
    """A method did something where it must not, as the clock does not charge it there."""


@contextmanager
def unchanged(where: str, method: LifelongMethod, model: nn.Module, learner: object | None = None) -> Iterator[None]:
    """Raise SideEffect unless they all hold at the end of the block what they held at its beginning."""
    before = contents(method, model, learner)
    yield
    after = contents(method, model, learner)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        raise SideEffect(
            f"{where} of {type(method).__name__} has changed {', '.join(changed[:3])}"
            + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            + ": what a step changes must be named in the method's `state`, and nothing but steps and start_stage may "
            "change anything"
        )


def refuse_hooks(model: nn.Module) -> None:
    """Raise SideEffect if evaluating or saving the model would call code that is not its classes' own.

    That is a hook, one of torch's hooks on all modules too, or a function that stands in the place of a module's
    method. The project's own networks lead some calls elsewhere in that way.
    """
    parts = {name or "the model": module for name, module in model.named_modules()}
    for name, attributes in [("torch", vars(nn.modules.module)), *((name, vars(part)) for name, part in parts.items())]:
        for key, value in attributes.items():
            if key.endswith("_hooks") and value:
                raise SideEffect(
                    f"{name} has a hook when it is evaluated ({key.strip('_')}), which may be anybody's code, off the "
                    "clock: remove it in the step that adds it"
                )
    for name, part in parts.items():
        for key, value in vars(part).items():
            if callable(value) and hasattr(type(part), key) and not _is_ours(value):
                raise SideEffect(
                    f"{name} has a {key} of its own when it is evaluated, which may be anybody's code, off the clock: "
                    f"give it a class with another {key}"
                )


def _is_ours(value: object) -> bool:
    return isinstance(value, partial) and str(getattr(value.func, "__module__", "")).startswith("benchmark.models.")


def contents(method: LifelongMethod, model: nn.Module, learner: object | None = None) -> dict[str, object]:
    """All that a method, its model and its learner hold, by place: attributes, those of classes, data in modules.

    Of tensors and arrays a hash stands for the content.
    """
    found: dict[str, object] = {}
    seen: dict[int, tuple[str, object]] = {}  # by id, and alive, or another could have its id
    _add("the model", model, found, seen)
    if learner is not None:
        held = {name: id(value) if name in PLUMBING else value for name, value in vars(learner).items()}
        _add("the learner", held, found, seen)
    _add(type(method).__name__, {**vars(method), **get_state(method)}, found, seen)
    for kind in type(method).__mro__:
        if issubclass(kind, LifelongMethod):
            _add(f"class {kind.__name__}", _data(vars(kind)), found, seen)
            _add(f"module {kind.__module__}", _data(vars(sys.modules[kind.__module__])), found, seen)
    return found


def _data(names: Mapping[str, Any]) -> dict[str, Any]:
    """The names that a program keeps there, without Python's own."""
    return {name: value for name, value in names.items() if not name.startswith("__")}


def _add(place: str, value: Any, found: dict[str, object], seen: dict[int, tuple[str, object]]) -> None:
    """Add what `value` holds; each object once, under the first place where it is met."""
    if id(value) in seen:
        found[place] = seen[id(value)][0]
        return
    leaf = _leaf(value)
    if leaf is None or isinstance(value, Tensor | np.ndarray | FunctionType):
        seen[id(value)] = place, value
    found[place] = type(value) if leaf is None else leaf
    for name, part in _parts(value) if leaf is None else _attached(value):
        _add(f"{place}.{name}", part, found, seen)


def _attached(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that somebody gave a tensor or a function, but for the marks of torch's compiler."""
    if isinstance(value, Tensor | FunctionType):
        for name, part in vars(value).items():
            if not (name.startswith(("_dynamo", "_torchdynamo")) and isinstance(part, str | bool)):
                yield name, part


def _leaf(value: Any) -> object:
    """What stands for a value that has no parts, None for one that has."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        return value.dtype, tuple(value.shape), value.requires_grad, _hash(flat.numpy())
    if isinstance(value, np.ndarray):
        is_file = isinstance(value, np.memmap) or value.dtype.hasobject  # too large to read, and read-only
        return value.dtype, value.shape, id(value) if is_file else _hash(value)
    if isinstance(value, torch.Generator):
        return _hash(value.get_state().numpy())
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | bytearray):
        return repr(value)
    if isinstance(value, OWN_CODE):
        return value
    if isinstance(value, Mapping | Set | Sequence) or hasattr(value, "__dict__") or _slots(value):
        return None
    return id(value)


def _slots(value: object) -> list[str]:
    """The names of its attributes that are in no `__dict__`; Python's own classes keep caches there."""
    kinds = [kind for kind in type(value).__mro__ if kind.__module__.partition(".")[0] not in sys.stdlib_module_names]
    names = (kind.__dict__.get("__slots__", ()) for kind in kinds)
    return [name for each in names for name in ([each] if isinstance(each, str) else each) if hasattr(value, name)]


def _parts(value: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(value, nn.Module):
        for name, part in vars(value).items():
            yield from part.items() if name in ("_parameters", "_buffers", "_modules") else [(name, part)]
    elif isinstance(value, Mapping):
        yield from ((key if isinstance(key, str) else repr(key), part) for key, part in value.items())
    elif isinstance(value, Set):
        yield from enumerate(sorted(value, key=repr))
    elif isinstance(value, Sequence):
        yield from enumerate(value)
    else:
        yield from getattr(value, "__dict__", {}).items()
        yield from ((name, getattr(value, name)) for name in _slots(value) if name != "__dict__")


def _hash(array: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()
