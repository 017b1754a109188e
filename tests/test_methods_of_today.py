"""Methods that came after the paper. Oracles: the formulas of their sources, worked out apart."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import methods
from benchmark import records
from benchmark.instruments.lab import Lab
from benchmark.models import load
from methods.ema import EMA


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("lab")


def rates_of(monkeypatch) -> list[float]:
    """The learning rates of AdamW's steps, as they come, but those of 0 before each phase."""
    rates: list[float] = []
    step = torch.optim.AdamW.step

    def noted(self, *args):
        if self.param_groups[0]["lr"]:
            rates.append(self.param_groups[0]["lr"])
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    return rates


def test_the_infinite_learning_rate(folder, monkeypatch) -> None:
    """Oracle: the four formulas of arXiv 2403.08763 at the middles of ten steps a stage; each stage begins with the
    weights of the one before it before its anneal."""
    options = {"warmup": 0.2, "cooldown": 0.6, "constant": 0.5, "minimum": 0.1, "anneal": 0.2, "replay": 0.25}
    lab, rates = Lab("infinite_lr", lambda name, _: methods.build(name, options), folder), rates_of(monkeypatch)
    run = lab.run(lab.config(), "infinite")
    run.train()
    middles = [(i + 0.5) / 10 for i in range(8)]
    warm = [share / 0.2 for share in middles if share < 0.2]
    cool = [0.5 + 0.25 * (1 + math.cos(math.pi * (share - 0.2) / 0.4)) for share in middles if 0.2 < share < 0.6]
    anneal = [0.5 * 0.2**0.25, 0.5 * 0.2**0.75]
    first = [*warm, *cool, *[0.5] * 2, *anneal]
    assert rates == pytest.approx([3e-3 * share for share in [*first, *[*[0.5] * 8, *anneal] * 2]], rel=1e-6)
    kept = torch.load(run.store.stage(run.keys[-1]) / "optimizer.pt", weights_only=True)
    assert {state["step"].item() for state in kept.values()} == {24}  # of adapt alone
    for key in run.keys:
        models = [load(run.store.stage(key) / name).state_dict() for name in ("model", "trained")]
        assert any(not torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_shares_that_leave_no_time_are_refused() -> None:
    """Oracle: the message, when the method is built."""
    with pytest.raises(ValueError, match="cooldown ends after warmup"):
        methods.build("infinite_lr", {"cooldown": 0.9, "anneal": 0.2})


def test_the_average_of_weights(folder) -> None:
    """Oracle: the recursion over the weights that each of ten steps left, at the shares of their middles."""
    kept: list[torch.Tensor] = []

    class Noting(EMA):
        def after_step(self, learner):
            super().after_step(learner)
            if learner.elapsed.stage:
                kept.append(learner.parameters[-1].detach().clone())

    lab = Lab("ema", methods.build, folder)
    run = lab.run(lab.config(), "ema")
    run.new_method = lambda: Noting(half_life=0.4)
    run.train(last_stage=0)
    folder_of_stage = run.store.stage(run.keys[0])
    name, last = list(load(folder_of_stage / "trained").named_parameters())[-1]
    assert len(kept) == 10 and torch.equal(last, kept[-1])
    # the weights before the first step: a layer norm's bias, 0
    mean = torch.zeros_like(last)
    for step, weight in enumerate(kept):
        alpha = 2 ** (-(0.1 if step else 0.05) / 0.4)
        mean = alpha * mean + (1 - alpha) * weight
    torch.testing.assert_close(
        dict(load(folder_of_stage / "model").named_parameters())[name], mean, rtol=1e-6, atol=1e-9
    )


def test_only_new_blocks_learn(folder) -> None:
    """Oracle: the paper's definition: the model before the first step of a stage has the recorded perplexities of the
    one before it, one block is new in each stage, and all other weights are bit for bit those of the stage before."""
    lab = Lab("llama_pro", methods.build, folder)
    run = lab.run(lab.config(), "llama_pro")
    run.train()
    for index in (1, 2):
        before, after = (load(run.store.stage(run.keys[i]) / "model") for i in (index - 1, index))
        assert after.layers == before.layers + 1
        lines = [records.read_stage(run.store.stage(run.keys[i]) / "records.jsonl") for i in (index - 1, index)]
        ended, begins = ([one for one in each if one["kind"] == "evaluation"] for each in lines)
        assert begins[0]["phase"] == "start"
        assert begins[0]["perplexity"] == pytest.approx(ended[-1]["perplexity"], rel=1e-5)
        [done] = [one for one in lines[1] if one["kind"] == "done"]
        known, now = before.state_dict(), after.state_dict()
        for new, old in enumerate(done["growth"]["layer_sources"]):
            block = f"network.transformer.h.{new}."
            source = f"network.transformer.h.{old}."
            same = all(
                torch.equal(now[name], known[name.replace(block, source)]) for name in now if name.startswith(block)
            )
            assert same != done["growth"]["layer_is_copy"][new]
        ends = [name for name in known if ".h." not in name and ".wte." not in name and "lm_head" not in name]
        assert ends and all(torch.equal(now[name], known[name]) for name in ends)
