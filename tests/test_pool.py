"""Runs side by side: their shares of the machine, the same results as alone, and how they end."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_info

import methods
from benchmark import cancel, devices
from benchmark.jobs import pool
from benchmark.jobs.executors import local
from benchmark.jobs.pool import do_unit, share_machine
from benchmark.jobs.work import Train, Unit, Worker
from benchmark.ledger.store import Store
from benchmark.locks import Lease
from benchmark.settings.base import ConfigError
from benchmark.training.processes import Sources, World, join
from tests.support import processes
from tests.support.suite_folder import (
    SuiteFolder,
    copy_code,
    submitting,
    train_here,
    wait_until,
    write_texts,
)
from tests.support.thorough import only_thorough

NAIVE, ER, MAS = ('{ method = "naive" }', '{ method = "er" }', '{ method = "mas" }')


@pytest.fixture
def tiny(tmp_path) -> SuiteFolder:
    write_texts(tmp_path)
    tiny = SuiteFolder(tmp_path / "tiny", tmp_path).write(NAIVE, ER, MAS)
    text = tiny.file.read_text()
    tiny.file.write_text(text.replace("[40, 200]", "[10, 20]").replace("ations = 20", "ations = 1"))
    return tiny


# Which part of the machine each run gets


@pytest.mark.parametrize("count", range(1, 9))
def test_slots_are_equal_and_apart(count: int, monkeypatch) -> None:
    """Oracle: a partition of eight physical cores with two threads each, without the cores that do
    not divide evenly.
    """
    cores = [(core, core + 8) for core in range(8)]
    slots = pool.make_slots(count, cores, 0)
    taken = [core for slot in slots for core in slot.cores]
    assert len(taken) == len(set(taken)) and len({len(slot.cores) for slot in slots}) == 1
    assert [slot.threads for slot in slots] == [8 // count] * count
    assert all((core + 8) % 16 in slot.cores for slot in slots for core in slot.cores), (
        "siblings stay together"
    )


def test_siblings_are_one_core(tmp_path, monkeypatch) -> None:
    """Oracle: the files in which Linux says which logical cores share a physical one."""
    for core, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}" / "topology" / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(pool, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert pool.list_physical_cores() == [(0, 2), (1, 3)]


def machine(monkeypatch, cores: int, memory: float) -> None:
    monkeypatch.setattr(pool, "list_physical_cores", lambda: [(core,) for core in range(cores)])
    monkeypatch.setattr(pool, "read_memory_size", lambda: memory)
    monkeypatch.setattr(devices, "find_accelerators", lambda: ("cpu", 0))


def test_as_many_as_fit(tiny: SuiteFolder, monkeypatch) -> None:
    """Oracle: by hand: the least of the numbers of runs, of cores, and of processes that fit in
    memory. An empty list means one run after the other.
    """
    runs = tiny.configs()
    for cores, memory, expected in (
        (8, 1e12, 3),
        (2, 1e12, 2),
        (8, 2.5 * pool.BYTES_PER_PROCESS, 2),
        (8, 1e6, 0),
    ):
        machine(monkeypatch, cores, memory)
        assert len(share_machine(runs, None)) == expected
        assert len(share_machine(runs, 2)) == 2, "what is asked for counts more"


@dataclass
class Accelerators:
    """Stands in for torch's accelerators, and notes what it is told."""

    # device and share of its memory, for each process
    taken: list[tuple[int, float]] = field(default_factory=list)
    current: int = 0

    def set_per_process_memory_fraction(self, share: float) -> None:
        self.taken.append((self.current, share))

    def choose(self, index: int) -> None:
        self.current = index


@pytest.fixture
def install(monkeypatch):
    """A function that gives this machine two accelerators, eight cores and much main memory."""

    def put(module: object) -> None:
        monkeypatch.setattr(pool, "list_physical_cores", lambda: [(core,) for core in range(8)])
        monkeypatch.setattr(pool, "read_memory_size", lambda: 1e12)
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu")
        )
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
        monkeypatch.setattr(torch.accelerator, "set_device_index", getattr(module, "choose", None))
        monkeypatch.setattr(torch, "get_device_module", lambda device: module)

    return put


def test_runs_on_gpus_are_one_a_device_unless_more_are_asked_for(
    tiny: SuiteFolder, install
) -> None:
    """Oracle: by hand: two devices have one run each. Five runs have a third of a device each."""
    install(Accelerators())
    runs = 4 * tiny.configs()
    assert [(slot.gpu, slot.gpu_share) for slot in share_machine(runs, None)] == [
        (0, 1.0),
        (1, 1.0),
    ]
    assert [(slot.gpu, slot.gpu_share) for slot in share_machine(runs, 5)] == [
        (n % 2, 1 / 3) for n in range(5)
    ]


@dataclass(frozen=True)
class Nothing(Unit):
    """A unit without work."""

    kind = "prepare"

    def __call__(self, worker: Worker) -> None:
        pass


@pytest.mark.parametrize("count", [2, 4])
def test_each_process_takes_its_device_and_its_share(
    count: int, tiny: SuiteFolder, install, monkeypatch
) -> None:
    """Oracle: by hand: processes take devices in turn. Each may take half of the memory if two
    share a device, and has no limit if it has a device for itself.
    """
    there = Accelerators()
    install(there)
    monkeypatch.setenv("LOCAL_RANK", "7")
    order = []
    for slot in pool.make_slots(count, [(core,) for core in range(8)], 2):
        unit = Nothing(tiny.runs, tiny.configs()[0], "key")
        try:
            with pytest.raises(SystemExit) as ended:
                pool._work(unit, dataclasses.replace(slot, cores=()), {}, Sources.read())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        assert ended.value.code == 0
        order.append(there.current)
    assert order == [number % 2 for number in range(count)]
    assert there.taken == ([] if count == 2 else [(number % 2, 0.5) for number in range(4)])


@dataclass(frozen=True)
class NoteThreads(Unit):
    """Writes down its key, and the largest number of threads of a BLAS library."""

    kind = "measure"

    def __call__(self, worker: Worker) -> None:
        most = max(
            library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
        )
        with (self.runs / "notes").open("a") as file:
            file.write(f"{self.key} {most}\n")


def test_the_last_unit_begins_first_with_threads_of_its_slot_alone(tiny: SuiteFolder) -> None:
    """Oracle: by hand, the units in reverse order. By threadpoolctl, each process has one thread,
    because the slot has one core, however many the machine has.
    """
    units = [NoteThreads(tiny.runs, tiny.configs()[0], key) for key in "abc"]
    assert pool.work_through(units, pool.make_slots(1, [(0,)], 0)) == []
    assert (tiny.runs / "notes").read_text() == "c 1\nb 1\na 1\n"


def test_under_seconds_only_when_asked_and_apart(tiny: SuiteFolder, monkeypatch) -> None:
    """Oracle: the rule: one run at a time, or each on physical cores of its own."""
    timed = [
        config.model_copy(update={"budget": config.budget.model_copy(update={"unit": "seconds"})})
        for config in tiny.configs()
    ]
    machine(monkeypatch, cores=2, memory=1e12)
    assert share_machine(timed, None) == []
    assert [slot.cores for slot in share_machine(timed, 2)] == [(0,), (1,)]
    with pytest.raises(ConfigError, match="for 2: .*most 2"):
        share_machine(timed, 3)


def test_several_processes_and_runs_side_by_side_are_one_too_many(
    tiny: SuiteFolder, capsys
) -> None:
    """By hand: three processes train one run at a time, so two runs side by side are refused with
    both numbers.
    """
    assert tiny.call("run", "--processes", "3", "--parallel", "2") == 2
    assert "--parallel 2: 3 processes " in capsys.readouterr().err


def test_gpus_that_stand_idle_are_said(tiny: SuiteFolder, monkeypatch, capsys) -> None:
    """Oracle: by hand: of eight GPUs a run takes one, and two runs side by side take two."""
    monkeypatch.setattr(devices, "find_accelerators", lambda: ("cuda", 8))
    monkeypatch.setattr(
        "benchmark.training.processes.choose_device", lambda *_: torch.device("cpu")
    )
    monkeypatch.setattr(local, "work_through", lambda *_, **__: [])
    monkeypatch.setattr(local, "do_units", lambda *_, **__: [])
    for count, idle in (("1", 7), ("2", 6)):
        tiny.call("run", "--parallel", count)
        assert f"\n{idle} GPUs " in (said := capsys.readouterr().err) and "--processes all" in said


@pytest.mark.parametrize("option", [("--parallel", "2"), ("--processes", "all")])
def test_slurm_refuses_what_is_for_one_machine(
    tiny: SuiteFolder, capsys, option: tuple[str, ...]
) -> None:
    """Oracle: the message names the settings that do the same on a cluster."""
    assert tiny.call("run", "--executor", "slurm", *option) == 2
    assert "slurm.array_parallelism" in capsys.readouterr().err


# Results


def hashes(tiny: SuiteFolder) -> dict[str, str]:
    """A hash of the weights of each row."""
    return {
        config.row: hashlib.sha256(
            (
                Store(tiny.runs).stage_folder(tiny.keys(config.row)[-1])
                / "model"
                / "model.safetensors"
            ).read_bytes()
        ).hexdigest()
        for config in tiny.configs()
    }


@contextlib.contextmanager
def held_until_done(row: str, tiny: SuiteFolder, stages: list[Path]) -> Iterator[None]:
    """Hold the locks of stages until a row is done, as a process does that trains them."""
    for stage in stages:
        stage.mkdir(parents=True)
    locks = [Lease(stage / "lock") for stage in stages]

    def let_go() -> None:
        try:
            wait_until(lambda: tiny.count(row, "done"))
        finally:
            for lock in locks:
                lock.release()

    for lock in locks:
        lock.acquire()
    watching = threading.Thread(target=let_go)
    watching.start()
    yield
    watching.join()


def test_results_are_those_of_single_runs(tiny: SuiteFolder, monkeypatch, capfd) -> None:
    """Oracle: the same runs one after the other, bit for bit. Their shared stage is trained once.

    Another process has two of the three runs at first. The two workers do the third run meanwhile,
    and these two once they are free.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = SuiteFolder(tiny.folder / "alone", tiny.texts)
    alone.file.write_text(tiny.file.read_text())
    assert alone.call("run", "--parallel", "1") == 0
    capfd.readouterr()
    monkeypatch.setattr(pool, "AGAIN", 2.0)
    others = [Store(tiny.runs).stage_folder(alone.keys(row)[1]) for row in ("Naive", "ER")]
    with held_until_done("MAS", tiny, others):
        assert tiny.call("run", "--parallel", "2") == 0
    said = capfd.readouterr().err
    assert 1 <= said.count("another process") <= 2
    assert hashes(tiny) == hashes(alone) and len(set(hashes(tiny).values())) == 3
    assert tiny.count("Naive", "stage", index=0) == 1 and tiny.count("Naive", "done", index=0) == 1


def test_a_trained_stage_is_waited_for_by_who_waits_for_none(tiny: SuiteFolder) -> None:
    """Oracle: by hand: a worker with `waits=False` postpones a run whose next stage another has.

    But it waits for a trained stage that runs share, if another process only looks at it.
    """
    train_here(tiny.config("Naive"), tiny.runs)
    shared, own = (Store(tiny.runs).stage_folder(key) for key in tiny.states()["ER"].view.keys)
    er = Train(tiny.runs, tiny.config("ER"), "", methods.build)
    with join() as world:
        worker = Worker(world, waits=False)
        own.mkdir()
        with Lease(own / "lock"):
            assert do_unit(er, worker) == "taken"
        looks = Lease(shared / "lock")
        looks.acquire()
        letting_go = threading.Timer(0.3, looks.release)
        letting_go.start()
        assert do_unit(er, worker) == "done"
        letting_go.join()


def test_who_works_in_turns_does_first_what_nobody_has() -> None:
    """Oracle: by hand: a unit that another process has comes last, and is waited for only then."""
    done: list[tuple[str, bool]] = []

    @dataclass(frozen=True)
    class Named(Unit):
        kind = "train"

        def __call__(self, worker: Worker) -> None:
            if self.key == "another's" and not worker.waits:
                raise cancel.Taken
            done.append((self.key, worker.waits))

    units = [Named(Path(), None, key) for key in ("another's", "first", "second")]  # type: ignore[arg-type]
    with join() as world:
        assert local.do_units(units, (), Worker(world)) == []
    assert done == [("first", False), ("second", False), ("another's", True)]


def test_what_one_process_does_alone_fails_alone(tiny: SuiteFolder, capsys) -> None:
    """Oracle: by hand: one of two processes that trained together scores a model. The failure is
    said, and the report comes after it.
    """

    @dataclass(frozen=True)
    class Fails(Unit):
        kind = "score"

        def __call__(self, worker: Worker) -> None:
            raise ConfigError(f"{worker.world.size} process")

    unit = Fails(tiny.runs, tiny.configs()[0], "key")
    worker = Worker(World(0, 2, torch.device("cpu")))
    assert local._do_small_units([unit], worker) == [unit]
    assert "1 process" in capsys.readouterr().err


# How they end


@pytest.fixture
def paced(tiny: SuiteFolder) -> Iterator[SuiteFolder]:
    """A suite with the methods of `tests/examples/paced*.py`, in `folder/code`."""
    with submitting(copy_code(tiny.folder / "code")):
        yield tiny


def start(tiny: SuiteFolder, *more: str) -> subprocess.Popen[bytes]:
    """Two runs at a time, in a process group of their own."""
    return subprocess.Popen(
        [sys.executable, "run_all.py", *tiny.arguments("run", "--parallel", "2", *more)],
        cwd=tiny.folder / "code",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


@only_thorough
def test_all_stop_after_a_checkpoint_when_the_parent_is_killed(paced: SuiteFolder) -> None:
    """Oracle: undisturbed runs, bit for bit; no process is left."""
    tiny = paced.write("x", "y", NAIVE)
    tiny.tell("x", "slow")
    tiny.tell("y", "slow")
    process = start(tiny)
    wait_until(lambda: tiny.run_lines("x") and tiny.run_lines("y"))
    tiny.wait_for_mid_stage("x", "y")
    below = processes.descendants(process.pid)
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not below & set(processes.everyone()))
    assert tiny.count("x", "done") == tiny.count("y", "done") == 0 and not tiny.run_lines("Naive")
    for row in ("x", "y"):
        assert (Store(tiny.runs).stage_folder(tiny.keys(row)[1]) / "checkpoint.pt").exists()
        tiny.let_go(row)
    assert start(tiny).wait(timeout=120) == 0
    assert [tiny.count(row, "resumed") for row in ("x", "y")] == [1, 1]
    for row in ("x", "y", "Naive"):
        expected = tiny.undisturbed(row).weights(row)
        assert all(
            torch.equal(tensor, tiny.weights(row)[name]) for name, tensor in expected.items()
        )


@only_thorough
def test_a_process_that_is_killed_costs_no_other_run(paced: SuiteFolder) -> None:
    """Oracle: by hand: two runs share their first stage, and SIGKILL ends one in its second. The
    other is trained, and with --retry-failed the killed one too. Each stage is done once.
    """
    tiny = paced.write("x", "y")
    tiny.tell("x", "die")
    assert start(tiny).wait(timeout=300) == 1
    assert [tiny.count(row, "done") for row in ("x", "y")] == [0, 1]
    tiny.let_go("x")
    assert start(tiny, "--retry-failed").wait(timeout=300) == 0
    assert [tiny.count(row, "done") for row in ("x", "y")] == [1, 1]
    assert tiny.count("x", "done", index=0) == 1
