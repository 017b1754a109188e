"""A branch is evaluated and saved. The next stage continues from the model before the branch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmark.instruments.conformance import TinyRuns
from benchmark.models import load
from benchmark.settings.schedules import Piece, Schedule
from benchmark.training import checkpoint
from benchmark.training.method import LifelongMethod, Phase

NAME = "network.transformer.h.0.ln_1.weight"
CONSTANT = Schedule((Piece(1.0, 1.0),), begin=1.0)


@dataclass
class Branches(LifelongMethod):
    """Anneals a branch at the end of each stage. With `branch=False` it stops before the branch."""

    branch: bool = True

    def signature(self, stage):
        return {"branch": self.branch}

    def phases(self, stage):
        adapt = Phase("adapt", 0.6 if self.branch else 1.0, optimizer="carry", schedule=CONSTANT)
        anneal = Phase("anneal", 0.4, optimizer="carry", schedule="linear", discard_after=True)
        return [adapt, anneal] if self.branch else [adapt]


def test_the_next_stage_goes_on_from_before_the_branch(tiny_folder) -> None:
    """Oracle: a method without the branch that trains 6 instead of 10 steps per stage has the same
    weights and moments, bit for bit. The branch itself is another model.
    """
    tiny = TinyRuns("branches", lambda name, options: Branches(), tiny_folder)
    branched = tiny.make_run(tiny.make_config(), "undisturbed-gpt")
    branched.train()
    config = tiny.make_config()
    config = config.model_copy(update={"budget": config.budget.model_copy(update={"amount": 6.0})})
    plain = TinyRuns("plain", lambda name, options: Branches(branch=False), tiny_folder).make_run(
        config, "plain"
    )
    plain.train()
    for branch_key, plain_key in zip(branched.keys, plain.keys, strict=True):
        folder, expected = (
            branched.store.stage_folder(branch_key),
            plain.store.stage_folder(plain_key),
        )
        trunk, weights = (
            load(path).state_dict() for path in (folder / "trained", expected / "model")
        )
        assert all(torch.equal(trunk[name], weights[name]) for name in weights)
        assert not torch.equal(load(folder / "model").state_dict()[NAME], weights[NAME])
        kept, moments = (checkpoint.load(path / "optimizer.pt") for path in (folder, expected))
        for name, state in moments.items():
            assert all(torch.equal(kept[name][key], state[key]) for key in state)
