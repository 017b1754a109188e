"""Shares of this machine for runs that are trained side by side: disjoint cores, or a part of a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig
from benchmark.settings.units import UNITS

PROCESS = 1.0e9  # bytes that a process takes before it has a model
TOPOLOGY = Path("/sys/devices/system/cpu")
MEMORY = Path("/proc/meminfo")
DEVICES = Path("/dev")
GPUS = ("nvidia*", "nvhost*", "kfd", "dxg", "dri/render*")  # NVIDIA, its small boards, AMD, below Windows, all others


@dataclass(frozen=True)
class Slot:
    """What one process has to itself. `gpu_share` is the part of its GPU's memory that it may take, 0 to 1."""

    cores: tuple[int, ...]  # none where the system cannot pin a process
    threads: int
    gpu: int | None = None  # its number among those that this process may use
    gpu_share: float = 1.0


def slots_for(runs: Sequence[RunConfig], parallel: int | None) -> list[Slot]:
    """Divide the machine into as many equal slots as `parallel` says, or as fit where it is None; at most one a run.

    Under a budget of wall time one, unless `parallel` says more: then each slot needs a physical core of its own and,
    where there are GPUs, a whole one. Raises ConfigError where that cannot be.
    """
    timed = any(UNITS[run.budget.unit].is_wall_time for run in runs)
    cores, (kind, gpus) = physical_cores(), accelerators()
    if parallel is not None and parallel < 1:
        raise ConfigError(f"--parallel {parallel}: give at least 1")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        if parallel not in (None, 1):
            raise ConfigError(f"--parallel {parallel} and torchrun: several processes train a run already; choose one")
        parallel = 1
    if parallel is None:
        parallel = 1 if timed else _fitting(runs, len(cores), kind, gpus)
    elif parallel > 1:
        check_shared(parallel, kind, gpus, f"--parallel {parallel}")
        if timed:
            check_apart(parallel, len(cores), gpus, f"--parallel {parallel}")
    return equal_slots(max(1, min(parallel, len(runs))), cores, gpus)


def equal_slots(count: int, cores: Sequence[tuple[int, ...]], gpus: int) -> list[Slot]:
    """Equal slots: what does not divide is left idle."""
    each, pinned = len(cores) // count, hasattr(os, "sched_setaffinity")
    share = 1 / -(-count // gpus) if gpus else 1.0
    found = []
    for number in range(count):
        if each:
            own = tuple(sorted(core for group in cores[number * each : (number + 1) * each] for core in group))
        else:  # more runs than cores: they take turns
            own = cores[number % len(cores)]
        gpu = number % gpus if gpus else None
        found.append(Slot(own if pinned else (), max(1, each), gpu, share))
    return found


def check_shared(count: int, kind: str, gpus: int, asked: str) -> None:
    """Raises ConfigError where so many runs would share devices of a kind that cannot be shared."""
    if not gpus or count <= gpus:
        return
    from benchmark.models.devices import can_be_shared

    if not can_be_shared(kind):
        raise ConfigError(
            f"{asked}: torch gives no process a part of the memory of {kind} devices, and this machine has {gpus}"
            f": give at most {gpus}"
        )


def check_apart(count: int, cores: int, gpus: int, asked: str) -> None:
    """Raises ConfigError where so many runs cannot have a physical core each, and a GPU where there are some.

    `asked` is the option or the key that wants them.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError(
            f"{asked}: this system cannot give a process its own cores, which a budget in seconds needs; "
            "let runs go one at a time, or use another budget.unit"
        )
    for what, there in (("physical cores", cores), ("GPUs", gpus or count)):
        if count > there:
            raise ConfigError(
                f"{asked}: under a budget in seconds each run needs its own, and this machine has "
                f"{there} {what}: give at most {there}, or use another budget.unit"
            )


def physical_cores() -> list[tuple[int, ...]]:
    """The cores that this process may use; logical ones that share a physical one are together."""
    if not hasattr(os, "sched_getaffinity"):
        return [(core,) for core in range(os.cpu_count() or 1)]
    groups: dict[str, list[int]] = {}
    for core in sorted(os.sched_getaffinity(0)):
        siblings = TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list"
        groups.setdefault(siblings.read_text(encoding="utf-8") if siblings.exists() else str(core), []).append(core)
    return [tuple(group) for group in groups.values()]


def accelerators() -> tuple[str, int]:
    """What `devices.accelerators` says, without torch where no device file is: torch takes seconds to start."""
    if sys.platform == "linux" and not any(any(DEVICES.glob(name)) for name in GPUS):
        return "cpu", 0
    from benchmark.models import devices

    return devices.accelerators()


def _fitting(runs: Sequence[RunConfig], cores: int, kind: str, gpus: int) -> int:
    """How many runs fit: one a core at most, and as many as the memory of the machine and of its GPUs holds.

    They take the GPUs in turns, so the fullest one decides; one run each where torch cannot tell or divide its memory.
    """
    need = max(map(needed_bytes, runs), default=PROCESS)
    fitting = min(cores, int(available_bytes() / (PROCESS + (0 if gpus else need))))
    if gpus:
        import torch

        from benchmark.models.devices import can_be_shared, free_bytes

        free = [free_bytes(torch.device(kind, number)) for number in range(gpus)] if can_be_shared(kind) else [None]
        fitting = min(fitting, gpus * min(1 if one is None else int(one / (PROCESS + need)) for one in free))
    return fitting


def needed_bytes(run: RunConfig) -> float:
    """The memory that training the largest model of a run takes, roughly and rather too much.

    Weights, gradients, two moments of Adam, a teacher and what it computes; and the activations of one forward pass in
    fp32, twice the 34 s b h + 5 a s^2 b bytes a layer of Korthikanti et al. (2022, arXiv 2205.05198), with logits.
    """
    rows = min(run.training.micro_batch_size or run.training.batch_size, run.training.batch_size)
    length, vocabulary = run.data.sequence_length, run.tokenizer.vocabulary
    most = 0.0
    for size in run.model.ladder:
        width, heads = size.hidden_size, size.hidden_size // run.model.head_size
        parameters = 12 * size.layers * width**2 + (vocabulary + length) * width
        layers = 2 * size.layers * rows * length * (34 * width + 5 * heads * length)
        most = max(most, 4 * 6 * parameters + layers + 3 * 4 * rows * length * vocabulary)
    return most


def available_bytes() -> float:
    """The machine's memory that nobody uses; where the system does not say, half of all that there is."""
    if MEMORY.exists():
        for line in MEMORY.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
