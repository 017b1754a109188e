"""Code of a method's own that would run while the clock stands still, and a run that refuses it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from benchmark.instruments.lab import Lab
from benchmark.training.method import LifelongMethod
from benchmark.training.unchanged import SideEffect


class LearnsFromValidation(torch.nn.LayerNorm):
    """Changes when it is evaluated."""

    def forward(self, hidden):
        if not self.training:
            self.bias.data.add_(0.01)
        return super().forward(hidden)


@dataclass
class ChangesInEvaluation(LifelongMethod):
    def start_stage(self, model, stage):
        model.network.base_model.ln_f.__class__ = LearnsFromValidation
        return model


@dataclass
class GrowthIsCode(LifelongMethod):
    """The loop reads it when a stage has ended."""

    @property
    def growth(self):  # type: ignore[override]
        return None


@dataclass
class StateIsCode(LifelongMethod):
    """A checkpoint asks for it."""

    state = ("importance",)

    @property
    def importance(self):
        return torch.zeros(3)


@dataclass
class ReplayWeightsAreCode(LifelongMethod):
    """The thread that makes batches asks for them."""

    @property
    def replay_weights(self):  # type: ignore[override]
        return None


@dataclass
class AnswersForAnyName(LifelongMethod):
    def __getattr__(self, name):
        raise AttributeError(name)


@dataclass
class WorksWhenBuilt(LifelongMethod):
    def __post_init__(self):
        torch.eye(2) @ torch.eye(2)


@dataclass
class HasAModelOfItsOwn(LifelongMethod):
    """Its attributes are read when a stage begins, before anything is charged."""

    def start_stage(self, model, stage):
        model.__class__ = type("Model", (type(model),), {"layers": property(lambda self: 1)})
        return model


@dataclass
class HasAModelThatSaysItIsTorchs(LifelongMethod):
    def start_stage(self, model, stage):
        model.__class__ = type("Linear", (type(model),), {"__module__": "torch.nn.modules.linear"})
        return model


class Listening(torch.Tensor):
    """Hears of everything that is done with it."""


@dataclass
class HasATensorOfItsOwn(LifelongMethod):
    def start_stage(self, model, stage):
        norm = model.network.base_model.ln_f
        norm.register_buffer("ear", torch.zeros(1).as_subclass(Listening))
        return model


@pytest.mark.parametrize(
    ("cheat", "where"),
    [
        (ChangesInEvaluation, "ln_f is a tests.test_own_code.LearnsFromValidation, whose code would run"),
        (HasAModelOfItsOwn, "the model is a tests.test_own_code.Model, whose code would run"),
        (HasAModelThatSaysItIsTorchs, "the model is a torch.nn.modules.linear.Linear, whose code would run"),
        (HasATensorOfItsOwn, "ln_f.ear is a tests.test_own_code.Listening"),
        (GrowthIsCode, r"GrowthIsCode.growth is code \(property\)"),
        (StateIsCode, r"StateIsCode.importance is code \(property\)"),
        (ReplayWeightsAreCode, r"ReplayWeightsAreCode.replay_weights is code \(property\)"),
        (AnswersForAnyName, "AnswersForAnyName has a __getattr__"),
        (WorksWhenBuilt, "building WorksWhenBuilt takes 16 FLOPs"),
    ],
)
def test_a_run_refuses_code_of_a_methods_own(cheat: type[LifelongMethod], where: str, tmp_path) -> None:
    """Oracle: the message names the place and the class."""
    with pytest.raises(SideEffect, match=where):
        Lab("cheat", lambda name, options: cheat(), tmp_path).undisturbed()
