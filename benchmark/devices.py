"""The device that a process computes on: torch's accelerator of this machine, or the CPU."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

import torch

CPU = torch.device("cpu")
WORTHWHILE = 1.2  # a gain of bf16 below this is not worth its rounding
BASE_WIDTH = 768  # of BERT base, where no width is given
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(number: int = 0) -> torch.device:
    """The accelerator of the `number`-th process on this machine (from 0), else the CPU.

    Processes share the accelerators in turn.
    """
    kind, count = find_accelerators()
    if not count:
        return CPU
    device = torch.device(kind, number % count)
    torch.accelerator.set_device_index(device.index)
    return device


def find_accelerators() -> tuple[str, int]:
    """The kind of devices that this machine trains on, and how many this process may use.

    The kind is as torch calls it. Of CPUs there are 0.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if not accelerator:
        return "cpu", 0
    return accelerator.type, torch.accelerator.device_count()


def take_share(device: torch.device, share: float) -> None:
    """Let this process take that part of the memory of its device, from 0 to 1, and fail beyond."""
    torch.get_device_module(device).set_per_process_memory_fraction(share)


def name_device(device: torch.device) -> str:
    """The device's name as its driver says it.

    Its kind alone where the driver says none.
    """
    if device.type == "cpu":
        return "CPU"
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return name(device) if name else device.type


def synchronize(device: torch.device) -> None:
    """Wait for the device's queue, so that a clock read next tells the truth."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device, without waiting for the copy.

    It is sent from pinned memory, as other copies are awaited.
    """
    if device.type != "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def seed_random_numbers(seed: int, device: torch.device) -> None:
    """Begin the random numbers of the CPU and of this device anew.

    `torch.manual_seed` does it for all kinds of devices, and writes down the stack for each kind
    that is not there: 0.4 ms, of a small model's step of 10.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def keep_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    """Let no random numbers that are drawn inside the block change those after it.

    Those of the CPU and of this device are meant.
    """
    if device.type == "cpu":
        return torch.random.fork_rng(())
    return torch.random.fork_rng((device,), device_type=device.type)


def computes_in_bf16(device: torch.device, width: int = BASE_WIDTH) -> bool:
    """Whether the device multiplies bf16 matrices of this width, and gains from it.

    Some CPUs have the instructions and are slower with them, so on a CPU a product is timed.
    """
    gain = find_bf16_gain(device, width)
    if gain is None:
        return has_bf16(device)
    return gain >= WORTHWHILE


def find_bf16_gain(device: torch.device, width: int) -> float | None:
    """How many times as fast as fp32 a product in bf16 is on a CPU that has instructions for it.

    None on other devices, where it is not timed.
    """
    if device.type == "cpu" and has_bf16(device):
        return measure_bf16_gain(width)
    return None


def has_bf16(device: torch.device) -> bool:
    """Whether the device has instructions for bf16.

    Elsewhere torch emulates them, slower than fp32.
    """
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        has_it = able.get("amx_bf16") or able.get("avx512_bf16")
        # not under ONEDNN_MAX_CPU_ISA=AVX2, say
        return bool(has_it and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return bool(supported and supported())


@cache
def measure_bf16_gain(width: int) -> float:
    """How many times as fast this CPU multiplies matrices in bf16 as in fp32.

    The product is that of a model's layer, (512, width) x (width, width). Each precision counts its
    fastest of several turns, which other programs disturb least. With a width of 768 it takes a
    fifth of a second, once in a process.
    """
    seconds = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for turn in range(8):
        for dtype in seconds:
            states = torch.ones(512, width, dtype=dtype)
            weights = torch.ones(width, width, dtype=dtype)
            began = time.perf_counter()
            torch.mm(states, weights)
            if turn:  # the first one sets up
                seconds[dtype] = min(seconds[dtype], time.perf_counter() - began)
    return seconds[torch.float32] / seconds[torch.bfloat16]


def gains_from_fp16(device: torch.device) -> bool:
    """Whether the device is an NVIDIA GPU that multiplies fp16 matrices by units of their own."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)


def choose_precision(precision: str, device: torch.device, width: int = BASE_WIDTH) -> str:
    """The arithmetic of forward passes of a model that becomes so wide.

    "auto" is autocast to bf16 where the device gains from it, else to fp16 where that is faster,
    else fp32. Weights, gradients' sums and the optimizer are fp32 in each.
    """
    if precision != "auto":
        return precision
    if computes_in_bf16(device, width):
        return "bf16"
    return "fp16" if gains_from_fp16(device) else "fp32"


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context of forward passes in a precision: "fp32", or one of HALF."""
    return torch.autocast(
        device.type, dtype=HALF.get(precision, torch.bfloat16), enabled=precision in HALF
    )


@contextmanager
def strict_algorithms(enabled: bool) -> Iterator[None]:
    """Inside the block torch takes algorithms that give the same bits each time, if asked to.

    It raises RuntimeError for what has none.
    """
    was_enabled = torch.are_deterministic_algorithms_enabled()
    if enabled:
        # CUDA's matrix products need it for that
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_enabled)


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No dropout inside the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device or the machine had no memory left.

    torch says it of a CPU, and of some devices, in words.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # main memory, drivers, CUDA's libraries
    words = ("can't allocate memory", "out of memory", "ALLOC_FAILED")
    return any(word in str(error) for word in words)
