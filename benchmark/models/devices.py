"""The device that a process computes on, whoever made it: torch's accelerator of this machine, or
the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

CPU = torch.device("cpu")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(number: int = 0) -> torch.device:
    """The accelerator of the `number`-th process on this machine (from 0), which share them in
    turn; else the CPU.
    """
    kind, count = find_accelerators()
    if not count:
        return CPU
    device = torch.device(kind, number % count)
    torch.accelerator.set_device_index(device.index)
    return device


def find_accelerators() -> tuple[str, int]:
    """The kind of devices that this machine trains on, as torch calls it, and how many this process
    may use; 0 CPUs.
    """
    there = torch.accelerator.current_accelerator(check_available=True)
    return (there.type, torch.accelerator.device_count()) if there else ("cpu", 0)


def take_share(device: torch.device, share: float) -> None:
    """Let this process take that part of the memory of its device, from 0 to 1, and fail beyond."""
    torch.get_device_module(device).set_per_process_memory_fraction(share)


def name_device(device: torch.device) -> str:
    """The device's name as its driver says it; its kind alone where the driver says none."""
    if device.type == "cpu":
        return "CPU"
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return name(device) if name else device.type


def synchronize(device: torch.device) -> None:
    """Wait for the device's queue, so that a clock read next tells the truth."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device, without waiting for the copy: from pinned memory, as other copies
    are awaited.
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
    """Let no random numbers that are drawn inside the block change those after it, of the CPU and
    of this device.
    """
    if device.type == "cpu":
        return torch.random.fork_rng(())
    return torch.random.fork_rng((device,), device_type=device.type)


def computes_in_bf16(device: torch.device) -> bool:
    """Whether its matrix products have bf16 inputs; elsewhere torch emulates that, slower than
    fp32.
    """
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        has_it = able.get("amx_bf16") or able.get("avx512_bf16")
        return bool(
            has_it and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        )  # not under ONEDNN_MAX_CPU_ISA=AVX2, say
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return bool(supported and supported())


def gains_from_fp16(device: torch.device) -> bool:
    """Whether it is an NVIDIA GPU of the generation that multiplies fp16 matrices by units of their
    own, or later.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)


def choose_precision(wanted: str, device: torch.device) -> str:
    """The arithmetic of forward passes: "auto" is autocast to bf16 where the device computes in it,
    else to fp16 where that is faster, else fp32.

    Weights, gradients' sums and the optimizer are fp32 in each.
    """
    if wanted != "auto":
        return wanted
    if computes_in_bf16(device):
        return "bf16"
    return "fp16" if gains_from_fp16(device) else "fp32"


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context of forward passes in a precision: "fp32", or one of HALF."""
    return torch.autocast(
        device.type, dtype=HALF.get(precision, torch.bfloat16), enabled=precision in HALF
    )


@contextmanager
def strict_algorithms(wanted: bool) -> Iterator[None]:
    """Inside the block torch takes algorithms that give the same bits each time, and raises
    RuntimeError for what has none, if that is wanted.
    """
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # which CUDA's matrix products need for it
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


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
    """Whether a device or the machine had no memory left; torch says it of a CPU, and of some
    devices, in words.
    """
    words = (
        "can't allocate memory",
        "out of memory",
        "ALLOC_FAILED",
    )  # main memory, drivers, CUDA's libraries
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        word in str(error) for word in words
    )
