"""The processes that train one run together, and the device each of them uses.

There is one process, unless a launcher (torchrun, or an executor in its jobs) has set the usual
variables RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from benchmark.devices import choose_device, name_device, synchronize
from benchmark.errors import UserError
from benchmark.files import hash_sources, replace_folder
from benchmark.interpreters import standing_in_code
from benchmark.ledger.records import Hardware, Provenance
from benchmark.settings.names import ROOT

T = TypeVar("T")


POLL_INTERVAL = 0.1  # seconds between two messages of processes that wait for the first one
NODE = "BENCHMARK_NODE"  # the variable in which an executor names the machine of its job


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def find_maximum(self, *values: float) -> list[float]:
        """The maximum of each value over all processes, the same in every process."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.tolist()

    def total(self, *values: float) -> list[float]:
        """The sum of each value over all processes."""
        columns = zip(*self.gather(values), strict=True)
        return [sum(column) for column in columns]

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        for tensor in tensors if self.size > 1 else ():
            dist.all_reduce(tensor)

    def broadcast(self, value: T) -> T:
        """Return the first process's value in every process."""
        return self.gather(value)[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks, in every process."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def let_first(self, act: Callable[[], None]) -> None:
        """Let only the first process call `act`.

        All exchange messages meanwhile, or their connection would time out. All raise its error.
        """
        if self.size == 1:
            return act()
        with ThreadPoolExecutor(1, thread_name_prefix="first") as thread:
            future = thread.submit(act) if self.leads else None

            def is_done() -> bool:
                """Whether `act` has ended. All processes must call this together."""
                is_done_here = future is not None and future.done()
                [is_done_anywhere] = self.find_maximum(is_done_here)
                return bool(is_done_anywhere)

            while not is_done():
                time.sleep(POLL_INTERVAL)
        own_error = future.exception() if future else None
        error = self.broadcast(own_error)
        if error:
            raise own_error or error  # a broadcast copy lacks the traceback

    def wait_for_all(self) -> None:
        if self.size > 1:
            dist.barrier()

    def synchronize(self) -> None:
        """Wait for the device's queue, so that a clock read next tells the truth."""
        synchronize(self.device)

    def describe_hardware(self) -> Hardware:
        return Hardware(
            device=name_device(self.device),
            count=self.size,
            cpu=_read_cpu_model(),
            instructions=torch.backends.cpu.get_cpu_capability(),
            cores=os.cpu_count(),
            threads=torch.get_num_threads(),
            node=find_machine_name(),
        )


# signals that forked processes do not receive: only their parent is asked to stop
HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def start_fork_server() -> None:
    """Start, once, the server from which processes are forked.

    It has imported torch, has no threads, and blocks the signals HELD_BACK for these processes.
    """
    with standing_in_code():
        # else the tracker would start with the server, and unblock the signals again
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        forkserver.set_forkserver_preload(
            [
                "torch",
                "benchmark.training.run",
                "benchmark.downstream.finetune",
                "sklearn.linear_model",
            ]
        )
        forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def list_own_cores() -> list[int]:
    """The cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def find_machine_name() -> str:
    return os.environ.get(NODE) or socket.gethostname()


def read_launch() -> tuple[int, int]:
    """The rank of this process, and the number of processes.

    These are 0 and 1 if a launcher's variables are missing, empty or left over in part.
    """
    rank = os.environ.get("RANK")
    size = os.environ.get("WORLD_SIZE")
    if rank and size and os.environ.get("MASTER_ADDR"):
        return int(rank), int(size)
    return 0, 1


@contextmanager
def join() -> Iterator[World]:
    """Join the process group that the environment names, or be alone."""
    rank, size = read_launch()
    device = choose_device(int(os.environ.get("LOCAL_RANK") or 0))
    if size == 1:
        yield World(0, 1, device)
        return
    dist.init_process_group(dist.get_default_backend_for_device(device))
    yield World(rank, size, device)
    # a model in a reference cycle keeps the group alive, whose threads abort Python at its exit
    gc.collect()
    # not after an error: NCCL would wait for the others, who wait for this process
    dist.destroy_process_group()


def _read_cpu_model() -> str:
    content = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    match = re.search(r"^model name\s*:(.*)", content, re.MULTILINE)
    if match:
        return match[1].strip()
    return platform.machine()


COMMIT_FILE = "COMMIT"  # in a snapshot of the code, which has no git
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "scikit-learn",
    "submitit",
)


def describe_provenance(world: World, precision: str) -> Provenance:
    """The code, the packages and the machine with which this process trains a stage.

    `precision` is the one that the run decided.
    """
    return Provenance(
        code=join_version(hash_benchmark()),
        packages={
            "python": sys.version.split()[0],
            **{name: metadata.version(name) for name in PACKAGES},
        },
        hardware=world.describe_hardware(),
        precision=precision,
    )


@cache
def hash_benchmark() -> str:
    """A hash of `benchmark/`, by which records identify the code that trained a stage.

    A method's own code has another hash, so that a new method changes nothing for the others.
    """
    return hash_sources(ROOT, "benchmark")


@cache
def find_code_version() -> str:
    """`<commit>+<hash of the sources of benchmark/ and methods/>`.

    Without git only the hash.
    """
    return join_version(hash_sources(ROOT, "benchmark", "methods"))


def join_version(sources: str) -> str:
    """`<commit>+<hash of sources>`, without git only the hash."""
    commit = find_commit()
    if commit:
        return f"{commit}+{sources}"
    return sources


@dataclass(frozen=True)
class Sources:
    """The source code of a process that starts others, which must run the same code.

    Its folder may be another on their machine. Local workers compare only `benchmark/`, so that a
    method that somebody writes meanwhile ends no other run.
    """

    folder: Path
    packages: tuple[str, ...]
    digest: str

    @classmethod
    def read(cls, folder: Path = ROOT, packages: tuple[str, ...] = ("benchmark",)) -> Sources:
        return cls(folder, packages, hash_sources(folder, *packages))

    def check(self) -> None:
        """Raise UserError if this process runs other source code."""
        digest = hash_sources(ROOT, *self.packages)
        if digest != self.digest:
            raise UserError(
                f"this process runs {digest} of {ROOT}, and who started it {self.digest} of "
                f"{self.folder}: give the same command again if the code was edited meanwhile, "
                "else look where Python finds `benchmark`"
            )


def find_commit() -> str:
    """The commit of the code, or an empty string."""
    if (ROOT / COMMIT_FILE).exists():
        return (ROOT / COMMIT_FILE).read_text(encoding="utf-8")
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip()


def copy_code(root: Path, names: Iterable[str], folder: Path) -> Path:
    """Copy the code below `root` into `folder`, for jobs that start later, or start again."""
    ignore = shutil.ignore_patterns("__pycache__")
    copy = folder / find_code_version().replace("/", "_")
    if not copy.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), replace_folder(copy) as unfinished:
            try:
                for name in names:
                    shutil.copytree(root / name, unfinished / name, ignore=ignore)
            except shutil.Error as error:
                # copytree goes on after an error, and lists (source, copy, reason) for each
                first_failure = error.args[0][0]
                reason = first_failure[-1]
                raise UserError(f"{reason}; make room there, and try again") from None
            (unfinished / COMMIT_FILE).write_text(find_commit(), encoding="utf-8")
    return copy
