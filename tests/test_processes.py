"""Several processes that train together: what one does while the others wait, and what they say
when all fail.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.elastic.utils.distributed import get_free_port

from benchmark import devices
from benchmark.instruments import conformance
from benchmark.instruments.conformance import TinyRuns
from benchmark.jobs.executors import local
from benchmark.jobs.executors.local import count_processes, launch
from benchmark.settings.base import ConfigError
from benchmark.training.method import LifelongMethod
from benchmark.training.processes import World, join
from tests.support.record_lines import read_lines

TALKS = 5  # values that the processes exchange before the first one's work ends


def _let_the_first_act(rank: int, folder: Path) -> None:
    talked: list[float] = []
    plain = World.find_maximum

    def maximum(world: World, *values: float) -> list[float]:
        talked.extend(values)
        return plain(world, *values)

    def act() -> None:
        while len(talked) < TALKS:
            time.sleep(0.01)
        (folder / f"acted-{rank}").touch()

    def fail() -> None:
        raise ConfigError("not this text")

    with join() as world, patch.object(World, "find_maximum", maximum):
        world.let_first(act)
        with pytest.raises(ConfigError, match="not this text"):
            world.let_first(fail)
    assert len(talked) >= TALKS


@dataclass
class Hungry(LifelongMethod):
    """It runs out of memory if a process has more than three rows."""

    def loss(self, learner: Any, batch: Any) -> torch.Tensor:
        if len(batch.tokens) > 3:
            raise torch.OutOfMemoryError("out of memory")
        return super().loss(learner, batch)


def build(name: str, options: Mapping[str, Any]) -> LifelongMethod:
    return Hungry()


def _run_short_of_memory(rank: int, folder: Path) -> None:
    tiny = TinyRuns("naive", build, folder)
    with join() as world:
        run = tiny.make_run(tiny.make_config(), "two", world=world)
        with pytest.raises(
            ConfigError, match=r"4 rows .*stage 0: .*training\.micro_batch_size = 2"
        ):
            run.train(last_stage=0)
        world.wait_for_all()
        run = tiny.make_run(tiny.make_config(micro_batch_size=2), "two", world=world)
        run.train(last_stage=0)


def _leave_a_model(rank: int, folder: Path) -> None:
    with join():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        model.__dict__["cycle"] = model  # like a run's model
        del model
    names = [
        file.read_text(encoding="utf-8").strip() for file in Path("/proc/self/task").glob("*/comm")
    ]
    left = [name for name in names if "gloo" in name]
    assert not left, f"{left} live on"


def _do_all(ports: Sequence[int], folder: Path) -> None:
    for act, port in zip(
        (_let_the_first_act, _run_short_of_memory, _leave_a_model), ports, strict=True
    ):
        os.environ["MASTER_PORT"] = str(port)
        act(int(os.environ["RANK"]), folder)


def test_a_pair_of_processes(tiny_folder: Path) -> None:
    """One pair does three tests, because it takes seconds to start.

    Only the first process prepares, and both exchange values meanwhile. Oracle: its work ends only
    after five values. If the other waited in a single collective, which has a time limit, the work
    would never end. Both raise the first one's error.

    Both run out of memory. Oracle: by hand: each of two processes has four of eight rows, too many
    for both. Both errors name the cure, and the records name it once. A later run with it is
    trained.

    Their threads end with the pair. Oracle: Linux's list of threads. A thread that is alive when
    the interpreter ends can abort it.
    """
    tiny = TinyRuns("naive", build, tiny_folder)
    run = tiny.make_run(tiny.make_config(), "two")  # makes the text
    ports = [get_free_port() for _ in range(3)]
    conformance.call_in_two_processes(_do_all, ports, tiny_folder)
    assert [path.name for path in tiny_folder.glob("acted-*")] == ["acted-0"]
    lines = read_lines(run.store.run_file(run.config))
    assert [line["kind"] for line in lines] == ["run", "failed"]
    assert "training.micro_batch_size = 2" in lines[-1]["error"]
    cured = tiny.make_run(tiny.make_config(micro_batch_size=2), "two")
    assert cured.store.is_stage_done(cured.keys[0])


PROGRAM = """
import os, pathlib, signal, sys
rank, size = (os.environ[name] for name in ("RANK", "WORLD_SIZE"))
pathlib.Path(sys.argv[1], rank).write_text(f"{size} {sys.argv[2]}")
if rank == "1" and sys.argv[2] == "fails":
    sys.exit(2)
if sys.argv[2] in ("fails", "is killed"):
    signal.pause() if rank == "0" else os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("what", "status"), [("ends", 0), ("fails", 2), ("is killed", 128 + signal.SIGKILL)]
)
def test_processes_are_started_and_end_together(
    what: str, status: int, tmp_path: Path, monkeypatch
) -> None:
    """Oracle: by hand: each has a rank. If one fails, the other, which would wait for ever, is
    ended. The exit status is that of the failed one, or 128 plus the signal that killed it.
    """
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(local, "list_physical_cores", lambda: [(core,) for core in range(7)])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + "assert os.environ['OMP_NUM_THREADS'] == '3'\n" * (what == "ends"))
    (tmp_path / "ranks").mkdir()
    assert launch(2, [str(program), str(tmp_path / "ranks"), what]) == status
    ranks = {path.name: path.read_text() for path in (tmp_path / "ranks").iterdir()}
    assert ranks.items() <= {("0", f"2 {what}"), ("1", f"2 {what}")}


def test_all_are_as_many_as_there_are_gpus(monkeypatch) -> None:
    """By hand: on a made-up machine with 8 GPUs `all` is 8, and on one without GPUs it is refused.
    A number stays as it is.
    """
    monkeypatch.setattr(devices, "find_accelerators", lambda: ("cuda", 8))
    assert (count_processes("all"), count_processes(3)) == (8, 3)
    monkeypatch.setattr(devices, "find_accelerators", lambda: ("cpu", 0))
    with pytest.raises(ConfigError, match="--processes all: .*number"):
        count_processes("all")
