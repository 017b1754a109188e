"""Runs side by side on one machine: one process a slot, which takes the next segment that nobody has."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal

import torch

from benchmark.jobs.payloads import TrainRun
from benchmark.jobs.slots import Slot
from benchmark.jobs.stop_signals import StopSignals
from benchmark.jobs.training_graph import Segment
from benchmark.models.devices import take_share
from benchmark.training.method import Build
from benchmark.training.processes import Stopped, Taken, join

Outcome = Literal["done", "failed", "stopped", "taken"]
Tell = Callable[[Segment, Literal["begun", "done", "failed"], str], None]  # what has become of it, and of what it died
HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)  # from workers: the parent is asked to stop
PATIENCE = 0.5  # seconds until a signal is noticed
AGAIN = 10.0  # seconds after which a segment is tried again that another process had


@dataclass(frozen=True)
class WorkerShare:
    """All that a worker is told once: what it has of the machine, and what it trains with."""

    slot: Slot
    slots: int
    build: Build
    runs: Path
    scratch: str | None = None  # see TrainRun
    exclusive: bool | str | None = None  # whether nothing else runs on its machine, where the launcher knows
    # a fork need not import torch again, but threads and devices do not survive it
    start: Literal["spawn", "fork"] = "spawn"


def train_side_by_side(
    segments: Sequence[Segment], shares: Sequence[WorkerShare], asked_to_stop: Callable[[], bool], tell: Tell
) -> bool:
    """Train segments, each after the one that it needs has ended; where one fails the others go on.

    What another process trains is left until nothing else is to do, and then tried every ten seconds. Returns whether
    all of them stopped after a checkpoint: when asked to, or because one was told so by a signal of its own.
    """
    queue, stopping = _Queue(segments), False
    with _workers(shares[: len(segments)]) as workers:
        while True:
            stopping |= asked_to_stop()
            for worker in workers:
                if stopping:
                    worker.ask_to_stop()
                elif not worker.segment and (segment := queue.take()):
                    worker.train(segment)
                    tell(segment, "begun", "")
            busy = {worker.connection: worker for worker in workers if worker.segment}
            if not busy and (stopping or not queue.left):
                return stopping
            sys.stderr.flush()  # a board draws then
            for connection in wait(list(busy), PATIENCE):
                worker = busy[connection]  # type: ignore[index]
                segment, (outcome, why) = worker.segment, worker.receive()
                if not outcome or not segment:
                    continue
                stopping |= outcome == "stopped"
                queue.give_back(segment, outcome)
                if outcome in ("done", "failed"):
                    tell(segment, outcome, why)


class _Queue:
    """Segments that are still to be trained, each after the one that it needs."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.left = list(segments)
        self._unfinished = {segment.key for segment in segments}
        self._not_before: dict[str, float] = {}

    def take(self) -> Segment | None:
        """The first that waits for no other, and that no other process had a moment ago."""
        now = time.monotonic()
        for segment in self.left:
            if segment.after not in self._unfinished and self._not_before.get(segment.key, 0.0) <= now:
                self.left.remove(segment)
                return segment
        return None

    def give_back(self, segment: Segment, outcome: Outcome) -> None:
        """Say how it has ended."""
        if outcome != "taken":
            self._unfinished.discard(segment.key)
            return
        if segment.key not in self._not_before:
            print(f"{segment.name}  another process trains a stage of it: its turn comes later", file=sys.stderr)
        self._not_before[segment.key] = time.monotonic() + AGAIN
        self.left.append(segment)


class Worker:
    """A process with a share of the machine, as its parent sees it; a new one takes the place of one that dies."""

    def __init__(self, share: WorkerShare) -> None:
        self.share = share
        self.segment: Segment | None = None  # that it trains now
        self._asked = False
        self._start()

    def train(self, segment: Segment) -> None:
        """Begin; `receive` says when it has ended."""
        self.segment = segment
        try:
            self.connection.send(segment)
        except OSError:  # it has died since its last one, when it had nothing in hand
            self.process.join()
            self._start()
            with contextlib.suppress(OSError):  # this one, too: `receive` says so
                self.connection.send(segment)

    def ask_to_stop(self) -> None:
        if not self._asked:
            self._asked = True
            with contextlib.suppress(OSError):  # it has died
                self.connection.send(None)

    def receive(self) -> tuple[Outcome | None, str]:
        """Print the line that it said; or return how its segment has ended, if it has, and why."""
        assert self.segment
        try:
            said, outcome = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            said, outcome = self._cause_of_death(self.segment), "failed"
            print(f"{self.segment.name}  {said}", file=sys.stderr, flush=True)
            if not self._asked:
                self._start()
        if outcome:
            self.segment = None
        else:
            print(said, end="", file=sys.stderr, flush=True)
        return outcome, said

    def _cause_of_death(self, segment: Segment) -> str:
        """Why its process died, by what the kernel tells, and what goes on with the run."""
        said = f"its process died, exit status {self.process.exitcode}; `run` goes on"
        if self.process.exitcode != -signal.SIGKILL:
            return said
        rows = -(-(segment.config.training.micro_batch_size or segment.config.training.batch_size) // 2)
        return f"{said}; if the kernel killed it for lack of memory, training.micro_batch_size = {rows} needs less"

    def close(self, kill: bool) -> None:
        if kill:
            self.process.kill()
        self.ask_to_stop()  # forks after it have this end of the connection too: that it is closed here ends nothing
        self.connection.close()
        self.process.join()

    def _start(self) -> None:
        context = multiprocessing.get_context(self.share.start)
        self.connection, theirs = context.Pipe()
        # a fork has the parent's end, too, and would never see it close
        ours = self.connection if self.share.start == "fork" else None
        self.process = context.Process(target=_serve, args=(theirs, self.share, ours), daemon=True)  # type: ignore[attr-defined]
        with _in(self.share.slot):
            self.process.start()
        theirs.close()


@contextlib.contextmanager
def _workers(shares: Sequence[WorkerShare]) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    kill = True
    try:
        for share in shares:
            workers.append(Worker(share))
        yield workers
        kill = False
    finally:
        for worker in workers:
            worker.close(kill)


@contextlib.contextmanager
def _in(slot: Slot) -> Iterator[None]:
    """What a process inherits that starts now: the slot's cores and GPU, and signals held back until it is ready."""
    cores = os.sched_getaffinity(0) if slot.cores else None
    gpu = os.environ.get("LOCAL_RANK")  # which device `join` takes
    resource_tracker.ensure_running()  # else it starts with the first process, and lets the signals through again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    if slot.cores:
        os.sched_setaffinity(0, slot.cores)
    if slot.gpu is not None:
        os.environ["LOCAL_RANK"] = str(slot.gpu)
    try:
        yield
    finally:
        if gpu is not None:
            os.environ["LOCAL_RANK"] = gpu
        else:
            os.environ.pop("LOCAL_RANK", None)
        if cores:
            os.sched_setaffinity(0, cores)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(connection: Connection, share: WorkerShare, ours: Connection | None) -> None:
    """A worker's life: segments come, lines and outcomes go. Ctrl-C is the parent's business, and stays held back.

    Anything that comes while it trains asks it to stop, and so does the end of the connection, if the parent died.
    """
    if ours:
        ours.close()
    sys.stderr = Lines(connection)
    torch.set_num_threads(min(torch.get_num_threads(), share.slot.threads))
    with StopSignals(signal.SIGTERM) as signals, join() as world, contextlib.suppress(EOFError, OSError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if share.slot.gpu_share < 1:
            take_share(world.device, share.slot.gpu_share)
        world = dataclasses.replace(world, side_by_side=share.slots, exclusive=share.exclusive)
        while segment := connection.recv():
            outcome: Outcome = "done"
            why = ""
            try:
                train = TrainRun(
                    segment.config, share.build, share.runs, segment.last_stage, share.scratch, waits=False
                )
                train(world, lambda: signals() or connection.poll())
            except Taken:
                outcome = "taken"
            except Stopped:
                outcome = "stopped"
            except Exception as error:  # it is in the run's records, and said in its line
                logging.debug(traceback.format_exc())
                outcome, why = "failed", f"{type(error).__name__}: {error}"
            connection.send((why, outcome))


class Lines(io.TextIOBase):
    """A standard error that sends whole lines to the parent, so that those of several runs do not tear each other."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._unfinished = ""

    def write(self, text: str) -> int:
        whole, newline, self._unfinished = (self._unfinished + text).rpartition("\n")
        if newline:
            with contextlib.suppress(OSError):  # nobody is left to read it
                self._connection.send((whole + newline, None))
        return len(text)
