"""Trained stages of the version whose keys held the whole corpus, moved to the keys of today."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

import methods
from benchmark import records
from benchmark.instruments import rekey as rekeying
from benchmark.instruments.lab import ALONE, Lab, tiny_config
from benchmark.instruments.rekey import old_stage_keys, rekey
from benchmark.models import load
from benchmark.settings.config import Budget
from benchmark.settings.suite_files import load_suite
from benchmark.training import checkpoint
from tests.support.older_version import as_that_version_left_it
from tests.support.tiny_suite import write

# written by that version: benchmark.training.run.stage_keys(tiny_config(METHOD), methods.build(METHOD), "corpus")
OLD_KEYS = {
    "naive": ["546b40c2ca35", "9e225e23313b", "b04d306d66f9"],
    "mas": ["546b40c2ca35", "661ff8fc04eb", "5d89c191e3c4"],
    "elle": ["3aa2c7e95fde", "fc4d7bc43d36", "cf329234fd72"],
    "scratch": ["6f5f4c1a57cb", "f9aa144b6fe5", "c464b24043f7"],
    "er_large": ["5a90da9c0316", "804e79943636", "02513781e2a2"],
    "rewarm": ["546b40c2ca35", "cd7a67c21e7e", "09bd2a46e013"],
}


@pytest.mark.parametrize("method", OLD_KEYS)
def test_old_keys_are_those_of_that_version(method: str) -> None:
    """Oracle: what that version computed."""
    options = {"noise_scale": "relative"} if method == "elle" else {}  # what ELLE's noise was then
    assert old_stage_keys(tiny_config(method), methods.build(method, options), "corpus") == OLD_KEYS[method]


@pytest.mark.parametrize("method", ["elle", "ewc", "pnn"])
def test_a_finished_run_is_moved_and_goes_on(tmp_path: Path, method: str) -> None:
    """Oracles: the weights and perplexities before; a stage trained from a moved one; twice moves nothing."""
    suite = load_suite(str(write(tmp_path)))
    lab = Lab(method, methods.build, tmp_path)
    run = lab.run(lab.config(), "store")
    run.train()
    weights = [load(run.store.stage(key) / "model").state_dict() for key in run.keys]
    matrix = records.load_runs(run.store.root, "conformance")[0].matrix
    old = as_that_version_left_it(run)
    assert not any(run.store.stage_done(key) for key in run.keys)
    [said] = rekey(suite, [run.config], methods.build, run.store, ALONE)
    assert said.endswith("its stages: moved: json, email, logging") and not any(
        run.store.stage(key).exists() for key in old
    )
    for key, before in zip(run.keys, weights, strict=True):
        after = load(run.store.stage(key) / "model").state_dict()
        assert after.keys() == before.keys()
        assert all(tensor[: len(before[name])].equal(before[name][: len(tensor)]) for name, tensor in after.items())
    assert run.done() and records.load_runs(run.store.root, "conformance")[0].matrix == matrix
    [said] = rekey(suite, [run.config], methods.build, run.store, ALONE)
    assert said.endswith("its stages: there already: json, email, logging")
    run.store.stage(run.keys[2]).rename(tmp_path / "lost")
    lab.run(lab.config(), "store").train()
    assert run.store.stage_done(run.keys[2])


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc, which says what is synced")
def test_all_that_was_moved_is_on_the_disk_before_the_old_is_removed(tmp_path: Path, monkeypatch) -> None:
    """Oracle: what the system is asked to sync before the old folder goes: a power cut leaves one of the two whole."""
    lab = Lab("ewc", methods.build, tmp_path)
    run = lab.run(lab.config(), "store")
    run.train(last_stage=0)
    first = old_stage_keys(run.config, methods.build("ewc", {}), rekeying._old_corpus_key(run.corpus))[0]
    memory = run.store.stage(run.keys[0]) / "method.pt"
    torch.save(checkpoint.load(memory), memory)  # that version did not say of which stage it is
    run.store.stage(run.keys[0]).rename(run.store.stage(first))
    asked: list[Path] = []
    sync, remove = os.fsync, shutil.rmtree

    def synced(file: int) -> None:
        asked.append(Path(os.readlink(f"/proc/self/fd/{file}")))
        sync(file)

    def removed(folder: Path, *arguments, **options) -> None:
        asked.append(Path(folder))
        remove(folder, *arguments, **options)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(shutil, "rmtree", removed)
    rekeying._move(run, 0, first)
    before = asked[: asked.index(run.store.stage(first))]
    assert {"method.pt", "records.jsonl"} <= {path.name.removeprefix(".").rpartition(".")[0] for path in before}
    assert {run.store.stage(run.keys[0]), run.store.root / "stages"} <= {*before}, "and their folders"


def test_what_was_trained_on_other_text_stays_and_is_named(tmp_path: Path) -> None:
    """Oracle: a run whose records name stages that no key of the suite is: which, and of what domain."""
    suite = load_suite(str(write(tmp_path)))
    run = Lab("naive", methods.build, tmp_path).run(tiny_config("naive"), "store")
    description = {**run.config.description(), "stages": ["a", "b", "c"], "unigram": {}}
    records.append(run.store.run_file(run.config), {"kind": "run", **description})
    [said] = rekey(suite, [run.config], methods.build, run.store, ALONE)
    assert said == (
        "naive, seed 3, its stages: not to be found: json, email, logging; of other text or settings than the suite, "
        "so not moved: a (json), b (email), c (logging)"
    )


def test_a_budget_whose_meaning_changed_moves_nothing(tmp_path: Path) -> None:
    """Oracle: FLOPs of a stage's start were not charged by that version, so its stages are others."""
    suite = load_suite(str(write(tmp_path)))
    run = Lab("naive", methods.build, tmp_path).run(tiny_config("naive"), "store")
    flops = run.config.model_copy(update={"budget": Budget(unit="flops", amount=1e6, reference=None)})
    assert list(rekey(suite, [flops], methods.build, run.store, ALONE)) == [
        "naive, seed 3: not moved: a budget in FLOPs includes a stage's start now"
    ]
