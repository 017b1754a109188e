"""Proof that code had no effect: what a method and its model hold is compared before and after.

A method could else do its work where the clock stands still. What cannot be seen from the method is not compared:
memory that only a cache, a generator, a queue, a context variable or a compiled extension holds, modules outside
`methods` that it imports, files, other processes. A method that replaces functions of torch or of this project is not
seen either: methods are code that is read, not code that nobody trusts.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.errors import UserError
from benchmark.training.method import LifelongMethod, get_state

PLUMBING = {"autocast", "objective", "_no_sync"}  # of a learner: torch's, and what is compiled
PYTHONS = {  # names in classes and modules that Python itself uses
    *("__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dataclass_fields__"),
    *("__dataclass_params__", "__dict__", "__firstlineno__", "__static_attributes__", "__weakref__"),
    *("__builtins__", "__cached__", "__file__", "__loader__", "__path__", "__spec__", "__warningregistry__"),
}
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


def contents(method: LifelongMethod, model: nn.Module, learner: object | None = None) -> dict[str, object]:
    """All that a method, its model and its learner hold, by place: attributes, those of classes, data in modules.

    Of tensors and arrays a hash stands for the content. Functions and classes are opened where they are defined in a
    module of the method's classes, or in `methods`.
    """
    kinds = [kind for kind in type(method).__mro__ if issubclass(kind, LifelongMethod)]
    homes = dict.fromkeys([*(kind.__module__ for kind in kinds), *(m for m in sys.modules if m.startswith("methods."))])
    walk = _Walk(frozenset(homes))
    walk.add("the model", model)
    if learner is not None:
        walk.add("the learner", {name: id(v) if name in PLUMBING else v for name, v in vars(learner).items()})
    walk.add(type(method).__name__, {**vars(method), **get_state(method)})
    for kind in kinds:
        walk.add(f"class {kind.__name__}", _data(vars(kind)))
    for home in homes:
        walk.add(f"module {home}", _data(vars(sys.modules[home])))
    return walk.found


def _data(names: Mapping[str, Any]) -> dict[str, Any]:
    """The names that a program keeps there, without Python's own."""
    return {name: value for name, value in names.items() if name not in PYTHONS}


class _Walk:
    """Goes through objects, each once, and notes in `found` what stands for each by the first place where it is met."""

    def __init__(self, homes: frozenset[str]) -> None:
        self.homes = homes
        self.found: dict[str, object] = {}
        self._seen: dict[int, tuple[str, object]] = {}  # by id, and alive, or another could have its id

    def add(self, place: str, value: Any) -> None:
        if id(value) in self._seen:
            self.found[place] = self._seen[id(value)][0]
            return
        leaf = _leaf(value)
        if leaf is None or isinstance(value, (Tensor, np.ndarray, *OWN_CODE)):
            self._seen[id(value)] = place, value
        self.found[place] = type(value) if leaf is None else leaf
        for name, part in _parts(value) if leaf is None else self._attached(value):
            self.add(f"{place}.{name}", part)

    def _attached(self, value: Any) -> Iterator[tuple[str, Any]]:
        """What hangs on a value that is compared as a whole: attributes that somebody gave it, a function's values."""
        if isinstance(value, Tensor):
            yield from (item for item in vars(value).items() if not _is_compilers(*item))
            yield from (("grad", value.grad), ("its storage", value._base)) if value.is_leaf else ()
        elif isinstance(value, FunctionType):
            yield from (item for item in vars(value).items() if not _is_compilers(*item))
            if value.__module__ in self.homes:
                cells = {f"({i})": cell for i, cell in enumerate(value.__closure__ or ())}
                yield from ((name, cell.cell_contents) for name, cell in cells.items() if cell != CellType())
                yield from (("its defaults", value.__defaults__), ("its keywords", value.__kwdefaults__))
        elif isinstance(value, type):
            yield from _data(vars(value)).items() if value.__module__ in self.homes else ()
        elif isinstance(value, MethodType | BuiltinFunctionType):
            yield from [] if isinstance(value.__self__, ModuleType) else [("self", value.__self__)]
        elif isinstance(value, partial):
            yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
        elif isinstance(value, np.ndarray) and value.dtype.hasobject:
            yield from ((str(i), part) for i, part in enumerate(value.flat))
        elif not isinstance(value, ModuleType):
            yield from getattr(value, "__dict__", {}).items()  # of a subclass of int, str and the like


def _is_compilers(name: str, value: object) -> bool:
    """Whether an attribute of a tensor or a function is a mark of torch's compiler."""
    return name.startswith(("_dynamo", "_torchdynamo")) and isinstance(value, str | bool)


def _leaf(value: Any) -> object:
    """What stands for a value that has no parts, None for one that has."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        return value.dtype, tuple(value.shape), value.requires_grad, _hash(flat.numpy())
    if isinstance(value, np.ndarray):
        is_file = isinstance(value, np.memmap)  # too large to read, and read-only
        return value.dtype, value.shape, id(value) if is_file or value.dtype.hasobject else _hash(value)
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
        return
    if isinstance(value, Mapping):
        yield from ((key if isinstance(key, str) else repr(key), part) for key, part in value.items())
        yield from ((f"key {i}", key) for i, key in enumerate(value) if _leaf(key) is None)
    elif isinstance(value, Set):
        yield from enumerate(sorted(value, key=repr))
    elif isinstance(value, Sequence):
        yield from enumerate(value)
    yield from getattr(value, "__dict__", {}).items()
    yield from ((name, getattr(value, name)) for name in _slots(value) if name != "__dict__")


def _hash(array: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()
