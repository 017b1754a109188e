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
BASE_WIDTH = 768  # the default width: that of BERT base
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(number: int = 0) -> torch.device:
    """The accelerator of the `number`-th process on this machine (from 0), or else the CPU.

    If there are more processes than accelerators, several processes share one.
    """
    kind, count = find_accelerators()
    if not count:
        return CPU
    device = torch.device(kind, number % count)
    torch.accelerator.set_device_index(device.index)
    return device


def find_accelerators() -> tuple[str, int]:
    """The kind of devices that this machine trains on, and how many this process may use.

    The kind is torch's name for it, such as "cuda". Without accelerators the result is ("cpu", 0).
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if not accelerator:
        return "cpu", 0
    return accelerator.type, torch.accelerator.device_count()


def limit_memory(device: torch.device, share: float) -> None:
    """Limit this process to a share (0 to 1) of its device's memory: allocations beyond it fail."""
    torch.get_device_module(device).set_per_process_memory_fraction(share)


def name_device(device: torch.device) -> str:
    """The device's name as its driver reports it, "CPU" for a CPU.

    If torch cannot ask the driver, it is the device's type.
    """
    if device.type == "cpu":
        return "CPU"
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return name(device) if name else device.type


def synchronize(device: torch.device) -> None:
    """Wait until the device's queue is done, so that a time read next includes that work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy the tensor to the device, without waiting until the copy is done.

    It is copied from pinned memory, because torch waits for copies from other memory.
    """
    if device.type != "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def seed_random_numbers(seed: int, device: torch.device) -> None:
    """Seed the random number generators of the CPU and of this device.

    `torch.manual_seed` seeds those of all kinds of devices. For each kind that is absent it records
    a stack trace, which takes 0.4 ms of a small model's step of 10 ms.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def keep_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    """Restore the random number generators of the CPU and of this device after the block.

    Random numbers that are drawn inside the block then do not change those after it.
    """
    if device.type == "cpu":
        return torch.random.fork_rng(())
    return torch.random.fork_rng((device,), device_type=device.type)


def computes_in_bf16(device: torch.device, width: int = BASE_WIDTH) -> bool:
    """Whether the device has instructions for bf16, and matrices of this width gain from them.

    Some CPUs are slower with these instructions, so on a CPU a matrix product is timed.
    """
    if device.type == "cpu":
        return has_bf16(device) and measure_bf16_gain(width) >= WORTHWHILE
    return has_bf16(device)


def has_bf16(device: torch.device) -> bool:
    """Whether the device has instructions for bf16.

    Without them torch emulates bf16, which is slower than fp32.
    """
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        has_it = able.get("amx_bf16") or able.get("avx512_bf16")
        # ONEDNN_MAX_CPU_ISA=AVX2, for example, turns them off
        return bool(has_it and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return bool(supported and supported())


@cache
def measure_bf16_gain(width: int) -> float:
    """How many times as fast this CPU multiplies matrices in bf16 as in fp32.

    The product is that of a model's layer, (512, width) x (width, width). For each precision the
    fastest of several turns counts, because other programs disturbed it least. With a width of 768
    it takes a fifth of a second, once per process.
    """
    seconds = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for turn in range(8):
        for dtype in seconds:
            states = torch.ones(512, width, dtype=dtype)
            weights = torch.ones(width, width, dtype=dtype)
            began = time.perf_counter()
            torch.mm(states, weights)
            if turn:  # the first turn is a warm-up
                seconds[dtype] = min(seconds[dtype], time.perf_counter() - began)
    return seconds[torch.float32] / seconds[torch.bfloat16]


def gains_from_fp16(device: torch.device) -> bool:
    """Whether the device is an NVIDIA GPU with tensor cores, which are fast in fp16."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)


def choose_precision(precision: str, device: torch.device, width: int = BASE_WIDTH) -> str:
    """The precision of forward passes of a model whose largest hidden size is `width`.

    "auto" is autocast to bf16 if the device gains from it, else to fp16 if that is faster, else
    fp32. In each of them, weights, sums of gradients and the optimizer are fp32.
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
    """Inside the block, let torch use only algorithms that repeat the same bits, if `enabled`.

    torch then raises RuntimeError for an operation that has no such algorithm.
    """
    was_enabled = torch.are_deterministic_algorithms_enabled()
    if enabled:
        # without it CUDA's matrix products may differ in bits
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_enabled)


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switch the model's dropout off inside the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def is_out_of_memory(error: Exception) -> bool:
    """Whether the error says that a device or the machine had no memory left.

    For a CPU, and for some devices, torch says so only in the error's text.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # main memory, drivers, CUDA's libraries
    words = ("can't allocate memory", "out of memory", "ALLOC_FAILED")
    return any(word in str(error) for word in words)
