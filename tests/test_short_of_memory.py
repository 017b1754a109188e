"""Several processes of one run of which one has no memory: whoever starts them anew goes on with fewer rows at once.

And what the kernel kills for memory, which its parent tells. What Slurm does is in tests/test_slurm.py, and one
process, which goes on by itself, in tests/test_recovery.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from benchmark import records
from benchmark.instruments import tiny_runs as instruments
from benchmark.jobs import side_by_side, slots
from benchmark.jobs.plan import to_train
from benchmark.jobs.side_by_side import WorkerShare
from benchmark.jobs.states import RunState, Trained
from benchmark.jobs.training_graph import Segment
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig
from benchmark.store import Heartbeat, Store, lines_of_run
from benchmark.training.fewer_rows import rows_held, seconds_failed
from benchmark.training.method import LifelongMethod
from methods.naive import Naive
from tests.support.slurm_lab import Lab, copy_code, submitting
from tests.support.thorough import only_thorough


@only_thorough
@pytest.mark.parametrize("restarts", [0, 3])
def test_torchrun_begins_processes_again_that_have_no_memory(texts: Path, restarts: int, tmp_path: Path) -> None:
    """One of two has memory for two rows of four. Oracle: the weights of one process with all at once; without
    restarts the failure and its cure."""
    lab = Lab(tmp_path / "lab", texts)
    own = f'options = {{ gate = "{lab.gate("x")}" }}, set = {{ "model.dropout" = 0.0 }}'
    lab.write(f'{{ name = "x", method = "paced", {own} }}').tell("x", "hungry 1 2")
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    with submitting(copy_code(tmp_path / "code")):
        done = subprocess.run(
            [sys.executable, "-m", *torchrun, "run_all.py", *lab.arguments("run")],
            cwd=tmp_path / "code",
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
        )
        state = lab.states()["x"]
        failed = records.last(Store(lab.runs).run_file(lab.config("x")), "failed")
        assert (done.returncode == 0) == (state.state == "done") == (restarts > 0), done.stderr
        assert failed and failed["micro_batch_size"] == 2 and failed["key"] == lab.keys("x")[1]
        assert state.short_of_memory == (restarts == 0)
        if restarts:
            assert lab.stage("x")[-1]["micro_batch_size"] == 2
            expected = lab.undisturbed("x")
            for name, tensor in expected.weights("x").items():
                torch.testing.assert_close(lab.weights("x")[name], tensor, rtol=1e-3, atol=1e-5)


def test_only_what_torchrun_has_begun_again_takes_up_a_run_short_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: by hand: other failures wait for --retry-failed there too."""
    config, trained = RunConfig.model_construct(), Trained((), 0, 0.0, True)  # type: ignore[call-arg]
    states = [RunState(config, "failed", "", trained, short_of_memory=short) for short in (True, False)]
    assert to_train(states, retry_failed=False) == []
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert to_train(states, retry_failed=False) == []
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert to_train(states, retry_failed=False) == states[:1] and to_train(states, retry_failed=True) == states


@dataclass
class TooLarge(LifelongMethod):
    """No machine holds a row of it."""

    def loss(self, learner, batch):
        raise MemoryError


def test_a_run_of_which_memory_holds_no_row_says_so(tmp_path: Path) -> None:
    """Oracle: the cure by hand, in what is raised and in the record: Python's own MemoryError has no word."""
    lab = instruments.Lab("naive", lambda *_: TooLarge(), tmp_path)
    run = lab.run(lab.config(), "no-row")
    with pytest.raises(ConfigError, match=r"model of stage 0 and one row .*: take a smaller model"):
        run.train()
    failed = records.last(run.store.run_file(run.config), "failed")
    assert failed and "take a smaller model" in failed["error"]


@pytest.mark.parametrize(
    ("counts", "gpu", "said", "rows"),
    [
        ((3, 4), None, "the kernel killed its process for lack of memory; `run --retry-failed` goes on with 4 rows", 4),
        ((3, 4), 0, "the kernel killed its process for lack of memory: let it have more, or fewer runs go", 8),
        ((3, 3), None, "its process died, exit status -9; `run` goes on", 8),
        ((None, None), None, "if the kernel killed it for lack of memory, training.micro_batch_size = 4 needs less", 8),
    ],
)
def test_what_the_kernel_kills_for_memory_goes_on_with_fewer_rows(
    counts: tuple[int | None, int | None], gpu: int | None, said: str, rows: int, tmp_path: Path, monkeypatch
) -> None:
    """Oracle: by hand: half of eight rows where the kernel has counted such a kill (Linux, Documentation/filesystems/
    proc.rst: oom_kill of /proc/vmstat) and a CPU trains; what the run said of its time last is charged, once."""
    lab = instruments.Lab("naive", lambda *_: Naive(), tmp_path)
    run = lab.run(lab.config(), "killed")
    run._record_run()
    heartbeat = Heartbeat(
        stage=0, domain="json", phase="adapt", fraction=0.5, seconds=30.0, tokens_per_second=1.0, time=0.0
    )
    run.store.heartbeat(run.config).write_text(json.dumps(heartbeat))
    vmstat = tmp_path / "vmstat"
    monkeypatch.setattr(slots, "COUNTS", vmstat)

    def told(count: int | None) -> None:
        vmstat.write_text("" if count is None else f"oom_kill_disable 9\noom_kill {count}\n")

    def dies(*_: object) -> None:
        told(counts[1])
        os.kill(os.getpid(), signal.SIGKILL)

    def train(*_: object, **__: object) -> Callable[..., None]:
        return dies

    monkeypatch.setattr(side_by_side, "TrainRun", train)
    told(counts[0])
    share = WorkerShare(slots.Slot((), 1, gpu), 1, lab.build, run.store.root, start="fork")
    worker = side_by_side.Worker(share)
    worker.train(Segment("key", "name", run.config))
    outcome, why = worker.receive()
    worker.close(kill=False)
    assert outcome == "failed" and said in why
    known = lines_of_run(run.config, run.store)
    assert rows_held(run.config, known, 0) == rows
    assert seconds_failed(known, run.keys[0]) == (30.0 if rows < 8 else 0.0)
    assert (records.read(run.store.run_file(run.config))[-1]["kind"] == "failed") == (counts[1] == 4)


def test_a_kill_that_cannot_be_recorded_ends_no_other_run(tmp_path: Path, monkeypatch) -> None:
    """Oracle: what is told: the parent of all runs would have died of its own error, and they with it."""
    lab = instruments.Lab("naive", lambda *_: Naive(), tmp_path)
    run = lab.run(lab.config(), "killed")
    run.store.run_file(run.config).mkdir(parents=True)
    counts = iter(range(9))
    monkeypatch.setattr(side_by_side, "memory_kills", lambda: next(counts))
    monkeypatch.setattr(side_by_side, "TrainRun", lambda *_, **__: lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    share = WorkerShare(slots.Slot((), 1), 1, lab.build, run.store.root, start="fork")
    worker = side_by_side.Worker(share)
    worker.train(Segment("key", "name", run.config))
    outcome, why = worker.receive()
    worker.close(kill=False)
    assert outcome == "failed" and "lack of memory, which cannot be recorded: " in why and "is a folder" in why
