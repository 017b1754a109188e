"""Methods for tests only: one that combines many parts of the interface, and one that idles."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import methods
from benchmark.settings.schedules import Piece, Schedule
from benchmark.training.method import LifelongMethod, Phase, Source, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel
    from benchmark.training.learner import Batch, Learner

RISE_AND_FALL = Schedule((Piece(0.4, 1.0), Piece(1.0, 0.1, "cosine")), over="stream")
ANNEAL = Schedule((Piece(1.0, 0.1, "exponential"),), begin=0.5)


@dataclass
class Everything(LifelongMethod):
    """Evaluates an average of the weights over the stream, and trains on several sources.

    The optimizer's state continues from stage to stage. The anneal has a schedule of its own,
    leaves the embeddings as they are, and is discarded after evaluation.
    """

    needs_full_weights = True  # its average is of whole weights

    pace: float = 0.5  # weight of the newest weights in the average, at the stream's end

    steps: int = field(default=0, init=False)
    state = ("steps",)

    def signature(self, stage: Stage) -> dict[str, Any]:
        return {"everything": self.pace}

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        self.eval_model = copy.deepcopy(model) if stage.first else stage.previous()
        return model

    def phases(self, stage: Stage) -> Sequence[Phase]:
        old = () if stage.first else (Source("memory", 0.25, weight=0.5), Source("json", 0.25))
        return [
            Phase(
                "adapt",
                0.5,
                sources=(Source("new", 0.5), *old),
                schedule=RISE_AND_FALL,
                optimizer="carry",
            ),
            Phase("look", 0.1, trains=False),
            Phase(
                "anneal",
                0.4,
                schedule=ANNEAL,
                optimizer="carry",
                discard_after=True,
                lr_multipliers={"embeddings.*": 0.0},
            ),
        ]

    def on_batch(self, learner: Learner, batches: Sequence[Batch]) -> None:
        learner.accumulate(batches)  # forward and backward, as for importances

    def after_step(self, learner: Learner) -> None:
        import torch

        self.steps += 1
        # the plain mean at first. So a step more or less in `state` changes what is evaluated
        share = max(1 / self.steps, self.pace * learner.elapsed.stream)
        with torch.no_grad():
            means = self.eval_model.parameters()  # type: ignore[union-attr]
            for mean, weight in zip(means, learner.model.parameters(), strict=True):
                mean.lerp_(weight, share)


@dataclass
class Idles(LifelongMethod):
    """Has a phase that computes nothing, for half of the budget."""

    def signature(self, stage: Stage) -> dict[str, Any]:
        return {"idles": True}

    def phases(self, stage: Stage) -> list[Phase]:
        return [Phase("idle", 0.5, trains=False), Phase("adapt", 0.5)]


def build(name: str, options: Mapping[str, Any]) -> LifelongMethod:
    """The method with that name, or `Everything`."""
    return Everything(**options) if name == "everything" else methods.build(name, options)
