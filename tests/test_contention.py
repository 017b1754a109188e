"""What share of its cores a stage had, and who waits for a lock."""

from __future__ import annotations

import os

import pytest
import torch

import methods
from benchmark import cancel
from benchmark.instruments.conformance import ALONE, TinyRuns
from benchmark.ledger.records import CoreShare
from benchmark.locks import Lease
from benchmark.settings.suite import Budget
from benchmark.training import clock as contention
from benchmark.training import stage
from benchmark.training.clock import Clock, CoreTime, CoreUse, measure_share
from benchmark.training.processes import World
from tests.support.record_lines import read_lines


def use(threads: int, cpu: float, busy: float, cores: int = 2) -> CoreUse:
    return CoreUse("here", tuple(range(cores)), threads, CoreTime(wall=10.0, cpu=cpu, busy=busy))


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([use(2, 18.0, 18.0)], 1.0),  # alone, and not always busy
        ([use(2, 10.0, 20.0)], 0.5),  # another program has one of the two cores
        ([use(1, 9.0, 19.0)], 1.0),  # one thread, and a core is left for it
        ([use(4, 30.0, 35.0, cores=8)], 1.0),
        (
            [use(2, 9.0, 20.0), use(2, 9.0, 19.9)],
            0.9,
        ),  # two processes of the run on the same two cores
        ([use(2, 18.0, 17.9)], 1.0),  # the counters tick every 10 ms
    ],
)
def test_what_others_leave(uses: list[CoreUse], expected: float) -> None:
    """Oracle: by hand: the cores minus those that others keep busy on average, divided by the cores
    that the run's threads can use (one per thread, at most all). The share is at most 1.
    """
    assert measure_share(uses) == pytest.approx(expected)


def test_cores_are_read_from_the_kernel(tmp_path, monkeypatch) -> None:
    """Oracle: proc(5): user, nice, system, irq, softirq and steal in clock ticks; idle and iowait
    are not work. Only the cores that the process may use count, and only what passes between start
    and pause.
    """
    file, tick = tmp_path / "stat", os.sysconf("SC_CLK_TCK")

    def at(work: int) -> None:
        file.write_text(
            f"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 {work} 1 2 900 900 3 4 5 0 0\ncpu7 {work} 0 0 0 0 0 0 "
            "0 0 0\n"
        )

    monkeypatch.setattr(contention, "STAT", file)
    monkeypatch.setattr(contention, "list_own_cores", lambda: [0])
    at(100)
    assert contention._read_busy_seconds((0,)) == pytest.approx(115 / tick)
    clock = Clock(Budget(unit="seconds", amount=10.0), 0, ALONE)
    for before, after in ((100, 150), (500, 501)):
        at(before)
        clock.start()
        at(after)
        clock.pause()
    assert clock.cores.busy == pytest.approx(51 / tick)


def test_a_stage_records_what_it_had_of_its_cores(tiny_folder, monkeypatch) -> None:
    """Oracle: the share that is put in. Time counted before a stop still counts after it."""
    totals = []

    def note(cores: CoreTime, world: World) -> CoreShare:
        totals.append(cores.wall)
        return CoreShare(share=0.8)

    monkeypatch.setattr(stage, "measure_core_share", note)
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    tiny.make_run(tiny.make_config(), "text")  # now, because a run also stops while it makes text
    run = tiny.make_run(tiny.make_config(), "steps")
    with pytest.raises(cancel.Stopped), cancel.heed(iter([False, True]).__next__):
        run.train(last_stage=0)
    saved = torch.load(run.store.stage_folder(run.keys[0]) / "checkpoint.pt", weights_only=True)
    run = tiny.make_run(tiny.make_config(), "steps")
    run.train(last_stage=0)
    assert 0 < saved["cores"]["wall"] < totals[0]
    [done] = [
        line for line in read_lines(run.store.stage_file(run.keys[0])) if line["kind"] == "done"
    ]
    assert done["cores"] == {"share": 0.8, "stood_still": 0.0}


def test_whoever_wants_a_lock_waits_until_it_is_asked_to_stop(tmp_path) -> None:
    """Oracle: the contract: while another has the lock, the waiting one says so once and takes
    nothing. A free lock is taken without a message.
    """
    said: list[str] = []
    with Lease(tmp_path / "lock"):
        mine = Lease(tmp_path / "lock")
        with pytest.raises(cancel.Stopped), cancel.heed(iter([False, True]).__next__):
            mine.acquire(lambda: said.append("waits"), cancel.check)
        assert said == ["waits"] and not mine.number
    mine.acquire(lambda: said.append("waits"), cancel.check)
    assert said == ["waits"] and mine.number
    mine.release()
