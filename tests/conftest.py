"""Fixtures that tests of several files share."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = (
    "1"  # before torch is imported, over any other value: more threads sum in another order
)
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # tests use the CPU, gpu-check the GPU

import pytest
import torch

from benchmark.interpreters import set_up_to_compute
from benchmark.training.step import Stepper
from tests.support import forked_python
from tests.support.slurm_cluster import SlurmCluster
from tests.support.suite_folder import SuiteFolder, missing, new_suite_folder, write_texts

set_up_to_compute()  # as commands do before they train


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[SlurmCluster]:
    assert not missing, f"not installed: {' '.join(missing)}"
    with SlurmCluster(
        tmp_path_factory.mktemp("cluster") / "slurm", nodes=2, cpus=4, gpus=2
    ) as running:
        yield running


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    SuiteFolder(folder / "prepared", folder).write('{ method = "naive" }').call("prepare")
    return folder


@pytest.fixture(scope="session")
def tokenised(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tokenised")


@pytest.fixture
def tiny_folder(tokenised, tmp_path) -> Path:
    """A folder for `TinyRuns`. Such folders share a tokenised text, made when first needed."""
    (tmp_path / "data").symlink_to(tokenised)
    return tmp_path


@pytest.fixture(scope="session")
def job_python(tmp_path_factory) -> Iterator[str]:
    """A `python` for jobs, forked from a process that has torch. Slurm cannot suspend such jobs."""
    program = tmp_path_factory.mktemp("bin") / "python"
    with forked_python.serve() as address:
        forked_python.install(address, program)
        yield str(program)


@pytest.fixture
def tiny(cluster, texts, job_python, tmp_path) -> Iterator[SuiteFolder]:
    with new_suite_folder(tmp_path, texts, python=job_python) as tiny:
        yield tiny


@pytest.fixture
def learning_rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rate of each step of AdamW, in order, without those of `Stepper.warm_up`."""
    rates: list[float] = []
    step, warm_up = torch.optim.AdamW.step, Stepper.warm_up

    def noted(self: torch.optim.AdamW, *args: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args)

    def forgotten(self: Stepper) -> float:
        count, flops = len(rates), warm_up(self)
        del rates[count:]
        return flops

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    monkeypatch.setattr(Stepper, "warm_up", forgotten)
    return rates
