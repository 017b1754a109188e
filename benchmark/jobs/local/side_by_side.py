"""Runs side by side on this machine: one process a slot, which takes the next segment that nobody has."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal

import torch

from benchmark.jobs.local.slots import Slot
from benchmark.jobs.payloads import TrainRun
from benchmark.jobs.stop_signals import StopSignals
from benchmark.jobs.training_graph import Segment
from benchmark.settings.config import RunConfig
from benchmark.training.method import Build
from benchmark.training.processes import join
from benchmark.training.stage import Stopped

Outcome = Literal["done", "failed", "stopped"]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 0.5  # seconds until a signal is noticed


@dataclass(frozen=True)
class WorkerShare:
    """All that a worker is told once: what it has of the machine, and what it trains with."""

    slot: Slot
    slots: int
    build: Build
    runs: Path


def train_side_by_side(segments: Sequence[Segment], build: Build, runs: Path, slots: Sequence[Slot]) -> list[RunConfig]:
    """Train segments, each after the one that it needs has ended. Returns the runs that failed; the others go on.

    When asked to stop, all processes stop after a checkpoint, and it raises KeyboardInterrupt; so it does when one of
    them was told to stop by a signal of its own. A second Ctrl-C kills them.
    """
    left, failed, stopping = list(segments), [], False
    shares = [WorkerShare(slot, len(slots), build, runs) for slot in slots]
    with StopSignals(*SIGNALS) as asked_to_stop, _workers(shares) as workers:
        while True:
            if asked_to_stop():
                stopping = True
            for worker in workers:
                if stopping:
                    worker.ask_to_stop()
                elif not worker.segment and (segment := _next(left, workers)):
                    left.remove(segment)
                    worker.train(segment)
            busy = {worker.connection: worker for worker in workers if worker.segment}
            if not busy:
                break
            sys.stderr.flush()  # a board draws then
            for connection in wait(list(busy), PATIENCE):
                worker = busy[connection]  # type: ignore[index]
                segment, outcome = worker.segment, worker.receive()
                stopping |= outcome == "stopped"
                if outcome == "failed" and segment and segment.last_stage is None:  # else those that share it will say
                    failed.append(segment.config)
    if stopping:
        raise KeyboardInterrupt
    return failed


def _next(left: Sequence[Segment], workers: Sequence[Worker]) -> Segment | None:
    """The first segment that waits for no other."""
    unfinished = {one.key for one in left} | {worker.segment.key for worker in workers if worker.segment}
    return next((segment for segment in left if segment.after not in unfinished), None)


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
        self.connection.send(segment)

    def ask_to_stop(self) -> None:
        if not self._asked:
            self._asked = True
            with contextlib.suppress(OSError):  # it has died
                self.connection.send(None)

    def receive(self) -> Outcome | None:
        """Print the line that it said; or return how its segment has ended, if it has."""
        assert self.segment
        try:
            line, outcome = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            line = f"{self.segment.name}  its process died, exit status {self.process.exitcode}; `run` goes on\n"
            outcome = "failed"
            if not self._asked:
                self._start()
        print(line, end="", file=sys.stderr, flush=True)
        if outcome:
            self.segment = None
        return outcome  # type: ignore[no-any-return]

    def close(self, kill: bool) -> None:
        if kill:
            self.process.kill()
        self.connection.close()
        self.process.join()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.share), daemon=True)
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
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    resource_tracker.ensure_running()  # else it starts with the first process, and lets the signals through again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if slot.cores:
        os.sched_setaffinity(0, slot.cores)
    if slot.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu
    try:
        yield
    finally:
        if gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        else:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if cores:
            os.sched_setaffinity(0, cores)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(connection: Connection, share: WorkerShare) -> None:
    """A worker's life: segments come, lines and outcomes go. Ctrl-C is the parent's business, and stays held back.

    Anything that comes while it trains asks it to stop, and so does the end of the connection, if the parent died.
    """
    sys.stderr = Lines(connection)
    torch.set_num_threads(min(torch.get_num_threads(), share.slot.threads))
    if share.slot.gpu is not None:
        torch.cuda.set_per_process_memory_fraction(share.slot.gpu_share)
    with StopSignals(signal.SIGTERM) as signals, join() as world, contextlib.suppress(EOFError, OSError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        world = dataclasses.replace(world, side_by_side=share.slots)
        while segment := connection.recv():
            outcome: Outcome = "done"
            try:
                train = TrainRun(segment.config, share.build, share.runs, segment.last_stage)
                train(world, lambda: signals() or connection.poll())
            except Stopped:
                outcome = "stopped"
            except Exception:  # it is in the run's records, and said in its line
                logging.debug(traceback.format_exc())
                outcome = "failed"
            connection.send(("", outcome))


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
