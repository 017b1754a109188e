"""Several processes of one run of which one has no memory: whoever starts them anew goes on with fewer rows at once.

What Slurm does is in tests/test_slurm.py, and one process, which goes on by itself, in tests/test_recovery.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmark import records
from benchmark.jobs.plan import to_train
from benchmark.jobs.states import RunState, Trained
from benchmark.settings.config import RunConfig
from benchmark.store import Store
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
