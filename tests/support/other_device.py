"""A simulated device for tests without a GPU. It shows where tensors are, and what a step would
wait for.

Its tensors live in main memory. An operator that mixes them with CPU tensors fails, and operations
that wait for a GPU are counted. The device is registered with torch's accelerator API like any
vendor's device, so the project uses it as it would use a GPU. `register` changes the whole process,
so it is called in a process of its own.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "other"
DEVICE = torch.device("cpu")  # until it is registered
# by the thread's name and what was done. "scalars": numbers read from the device. "in", "out":
# tensors copied to and from it. "waits": calls that wait for its queue
COUNTS: Counter[tuple[str, str]] = Counter()
ATEN = torch.ops.aten
# every function that creates a tensor without an input tensor calls one of these
FACTORIES = ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step")
INDEXING = (
    ATEN.index.Tensor,
    ATEN.index_put_.default,
)  # their indices may be in main memory, as on every device
LIBRARY = torch.library.Library("aten", "IMPL")


def count(what: str) -> None:
    COUNTS[threading.current_thread().name, what] += 1


class OtherTensor(torch.Tensor):
    """A tensor on the device. `held` is the CPU tensor with its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OtherTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            inner.stride(),
            inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.held = inner
        return made

    def tolist(self) -> Any:
        count("scalars")
        return self.held.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The storage of `held`, because code that saves checks which tensors share memory."""
        return self.held.untyped_storage()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return dispatch(function, args, kwargs or {})


def dispatch(function: Any, args: Any, kwargs: Any) -> Any:
    """Compute an operator in main memory, and count copies and scalars. Raises TypeError if it
    mixes tensors of the device and of main memory.
    """
    given: list[Tensor] = []
    tree_map_only(Tensor, given.append, (args, kwargs))
    here = [tensor for tensor in given if isinstance(tensor, OtherTensor)]
    target = kwargs.get("device")
    moved = function in (ATEN._to_copy.default, ATEN.copy_.default)
    there = [tensor for tensor in given if not isinstance(tensor, OtherTensor) and tensor.dim()]
    if here and there and not moved and function not in INDEXING:
        shapes = [tuple(tensor.shape) for tensor in there]
        raise TypeError(f"{function}: tensors {shapes} are in main memory, others on the device")
    on_device = (
        target is not None and torch.device(target).type == NAME
        if target is not None
        else bool(here)
    )
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
    result = function(
        *tree_map_only(OtherTensor, attrgetter("held"), args),
        **tree_map_only(OtherTensor, attrgetter("held"), kwargs),
    )

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or not on_device:
            return value
        return known[id(value)] if id(value) in known else OtherTensor(value)

    if function is ATEN.copy_.default:
        return args[0]
    return tree_map(wrap, result)


class Backend:
    """What torch calls in a device's module. ANSWERS below adds those that return a constant."""

    @staticmethod
    def get_rng_state(device: Any = None) -> Tensor:
        return torch.zeros(1, dtype=torch.uint8)

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]

    @staticmethod
    def synchronize(device: Any = None) -> None:
        count("waits")


ANSWERS: dict[str, Any] = {
    "is_available": True,
    "device_count": 1,
    "current_device": 0,
    "_is_in_bad_fork": False,
}
ANSWERS |= {"manual_seed_all": None, "set_rng_state": None}
for name, answer in ANSWERS.items():
    setattr(Backend, name, staticmethod(lambda *_, answer=answer, **__: answer))


def register() -> torch.device:
    """Make the device this process's accelerator."""
    global DEVICE
    _setup_privateuseone_for_python_backend(NAME, Backend)
    DEVICE = torch.device(NAME, 0)
    torch.accelerator.synchronize = Backend.synchronize
    Tensor.pin_memory = Tensor.clone  # type: ignore[assignment]  # torch pins memory only for C++ devices
    torch.autograd.set_multithreading_enabled(
        False
    )  # a device guard in Python does not work in autograd's own threads
    torch.__future__.set_swap_module_params_on_conversion(
        True
    )  # otherwise moving a module to the device would untie tied weights
    for name in FACTORIES:
        LIBRARY.impl(
            name, functools.partial(_made, getattr(ATEN, name.partition(".")[0])), "PrivateUse1"
        )
    LIBRARY.impl(
        "_copy_from", _copied, "PrivateUse1"
    )  # the last operator of torch.tensor(numbers, device=...)
    return DEVICE


def _made(operator: Any, *args: Any, **kwargs: Any) -> OtherTensor:
    return OtherTensor(operator(*args, **{**kwargs, "device": "cpu"}))


def _copied(source: Tensor, to: OtherTensor, non_blocking: bool = False) -> OtherTensor:
    count("in")
    to.held.copy_(source)
    return to
