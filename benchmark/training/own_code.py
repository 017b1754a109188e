"""Refusals of a method's own code in places where the loop would call it while the clock stands still.

Between steps the loop reads attributes of the method, and evaluates and saves the model. None of that may run code that
a method brought along: properties, hooks, modules and tensors of classes that are not the project's, torch's or
transformers'. What a network needs lives in `benchmark/models`, where it is read by everybody.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType

import numpy as np
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from benchmark.settings.schedules import Piece, Schedule
from benchmark.training.method import LifelongMethod, Phase, Source
from benchmark.training.step import count_flops
from benchmark.training.unchanged import SideEffect

TRUSTED = ("benchmark.models.", "torch.", "transformers.")  # packages whose classes a model may consist of
DECLARED = (Schedule, Piece, Source)  # what a phase may hold beside plain values
LOOKED_UP = ("__getattribute__", "__getattr__", "__setattr__")
PLAIN = {
    *(bool, int, float, complex, str, bytes, type(None), list, tuple, dict, set, frozenset),
    *(Tensor, nn.Parameter, np.ndarray, np.bool_, np.int64, np.float32, np.float64),
}


def built(new_method: Callable[[], LifelongMethod]) -> LifelongMethod:
    """A new method. Raises SideEffect if building it computes, or if reading its attributes would call code."""
    made: list[LifelongMethod] = []
    flops = count_flops(lambda: made.append(new_method()))
    [method] = made
    name = type(method).__name__
    if flops:
        raise SideEffect(f"building {name} takes {flops:g} FLOPs, off the clock: compute in start_stage")
    for attribute in (
        "growth",
        "evaluated",
        "replay_weights",
        "title",
        "group",
        "version",
        "space",
        "state",
        *method.state,
    ):
        found = inspect.getattr_static(method, attribute, None)
        if hasattr(type(found), "__get__"):
            raise SideEffect(
                f"{name}.{attribute} is code ({type(found).__name__}), which the loop would call off the clock: keep "
                "a value there"
            )
    for kind in type(method).__mro__:
        for attribute in LOOKED_UP:
            if kind not in (LifelongMethod, object) and attribute in vars(kind):
                raise SideEffect(f"{name} has a {attribute}, which would be called off the clock: do without it")
    return method


def refuse_own_code(model: nn.Module) -> None:
    """Raise SideEffect if evaluating or saving the model would call code that is not its packages' own.

    That is a module or a tensor of a class from elsewhere, a hook, one of torch's hooks on all modules too, or a
    function that stands in the place of a module's method. The project's own networks lead some calls elsewhere in
    that way.
    """
    parts = {name or "the model": module for name, module in model.named_modules()}
    for name, part in parts.items():
        refuse_class(name, type(part))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        refuse_class(name, type(tensor))
    for name, attributes in [("torch", vars(nn.modules.module)), *((name, vars(part)) for name, part in parts.items())]:
        for key, value in attributes.items():
            if key.endswith("_hooks") and value:
                raise SideEffect(
                    f"{name} has a hook when it is evaluated ({key.strip('_')}), which may be anybody's code, off the "
                    "clock: remove it in the step that adds it"
                )
    for name, part in parts.items():
        for key, value in vars(part).items():
            if callable(value) and not isinstance(value, type | nn.Module) and not _is_ours(value):
                raise SideEffect(
                    f"{name} has a {key} of its own when it is evaluated, which may be anybody's code, off the clock: "
                    f"give it a class with another {key}, in benchmark/models"
                )
    for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()):
        if not type(mode).__module__.startswith(TRUSTED):
            raise SideEffect(f"{type(mode).__name__} would see all that torch does, off the clock: leave that mode")


def refuse_class(place: str, kind: type) -> None:
    """Raise SideEffect for a class from elsewhere. One counts as a package's only if it is found there by its name."""
    trusted = kind.__module__.startswith(TRUSTED) and vars(sys.modules[kind.__module__]).get(kind.__name__) is kind
    if not trusted and kind not in (Tensor, nn.Parameter):
        raise SideEffect(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, whose code would run when it is evaluated or saved, "
            "off the clock: keep plain values, and put what a network needs into benchmark/models"
        )


def plain(name: str, value: object) -> None:
    """Raise SideEffect for a value whose class could compute when the loop reads or copies it off the clock."""
    if type(value) not in PLAIN:
        refuse_class(name, type(value))
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        for part in value:
            plain(name, part)


def declared(place: str, phase: Phase) -> None:
    """Raise SideEffect unless a phase and all values in it are of the interface's own classes, which only hold data."""
    if type(phase) is not Phase:
        raise SideEffect(f"{place} gives a {type(phase).__name__}: give Phase itself")
    values = [*vars(phase).values()]
    while values:
        value = values.pop()
        if type(value) in DECLARED:
            values += vars(value).values()
        elif type(value) in (tuple, list):
            values += value
        elif type(value) is dict:
            values += [*value, *value.values()]
        elif type(value) not in (bool, int, float, str, type(None)):
            raise SideEffect(f"{place}, {phase.name}, holds a {type(value).__name__}: give plain values")


def _is_ours(value: object) -> bool:
    """Whether a callable is a function of a trusted package, perhaps with arguments bound to it."""
    function = value.func if isinstance(value, partial) else value
    return isinstance(function, BuiltinFunctionType) or str(getattr(function, "__module__", "")).startswith(TRUSTED)
