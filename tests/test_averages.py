"""Models that are evaluated and saved and are not the trained ones: averages and branches."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch

from benchmark.instruments import conformance
from benchmark.instruments.conformance import TinyRuns
from benchmark.models import load
from benchmark.settings.schedules import Piece, Schedule
from benchmark.training import checkpoint
from benchmark.training.method import LifelongMethod, Phase

NAME = "network.transformer.h.0.ln_1.weight"
CONSTANT = Schedule((Piece(1.0, 1.0),), begin=1.0)


@dataclass
class Averages(LifelongMethod):
    """A moving average, which goes on over stages beside the trained weights; it notes one of these."""

    seen: list = field(default_factory=list, init=False)
    state = ("seen",)

    def signature(self, stage):
        return {"averages": True}

    def start_stage(self, model, stage):
        self.evaluated = copy.deepcopy(model) if stage.first else stage.previous()
        self.seen = [*self.seen, dict(model.named_parameters())[NAME].detach().clone()]
        return model

    def after_step(self, learner):
        with torch.no_grad():
            for mean, weight in zip(self.evaluated.parameters(), learner.model.parameters(), strict=True):
                mean.lerp_(weight, 0.25)
        self.seen = [*self.seen, dict(learner.named_parameters)[NAME].detach().clone()]


def test_an_average_is_saved_beside_the_trained_model(tmp_path) -> None:
    """Oracle: the average in closed form, over the weights that each of 20 steps left; the trained model is the last of
    them, and the next stage begins with it. What is loaded has the recorded perplexity."""
    tiny = TinyRuns("averages", lambda name, options: Averages(), tmp_path)
    run = tiny.run(tiny.config(), "undisturbed-gpt")
    run.train()
    folder = run.store.stage(run.keys[1])
    seen = torch.load(folder / "method.pt", weights_only=True)["seen"]
    assert len(seen) == 2 * 11 and torch.equal(seen[10], seen[11])
    average = seen[0]
    for weight in [*seen[1:11], *seen[12:]]:
        average = 0.75 * average + 0.25 * weight
    torch.testing.assert_close(load(folder / "model").state_dict()[NAME], average)
    assert torch.equal(load(folder / "trained").state_dict()[NAME], seen[-1])
    conformance.checkpoints_compute_what_was_recorded(tiny)


@dataclass
class Branches(LifelongMethod):
    """Anneals a branch at the end of each stage, or only trains as long as before the branch."""

    branch: bool = True

    def signature(self, stage):
        return {"branch": self.branch}

    def phases(self, stage):
        adapt = Phase("adapt", 0.6 if self.branch else 1.0, optimizer="carry", schedule=CONSTANT)
        anneal = Phase("anneal", 0.4, optimizer="carry", schedule="linear", branch=True)
        return [adapt, anneal] if self.branch else [adapt]


def test_the_next_stage_goes_on_from_before_the_branch(tmp_path) -> None:
    """Oracle: a method without the branch, in 6 of 10 steps a stage: weights and moments, bit for bit; the branch
    itself is another model."""
    tiny = TinyRuns("branches", lambda name, options: Branches(), tmp_path)
    branched = tiny.run(tiny.config(), "undisturbed-gpt")
    branched.train()
    config = tiny.config()
    config = config.model_copy(update={"budget": config.budget.model_copy(update={"amount": 6.0})})
    plain = TinyRuns("plain", lambda name, options: Branches(branch=False), tmp_path).run(config, "plain")
    plain.train()
    for branch_key, plain_key in zip(branched.keys, plain.keys, strict=True):
        folder, expected = branched.store.stage(branch_key), plain.store.stage(plain_key)
        trunk, weights = (load(path).state_dict() for path in (folder / "trained", expected / "model"))
        assert all(torch.equal(trunk[name], weights[name]) for name in weights)
        assert not torch.equal(load(folder / "model").state_dict()[NAME], weights[NAME])
        kept, moments = (checkpoint.load(path / "optimizer.pt") for path in (folder, expected))
        for name, state in moments.items():
            assert all(torch.equal(kept[name][key], state[key]) for key in state)
