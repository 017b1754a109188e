"""Code of a method's own that would run while the clock stands still, and a run that refuses it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import pytest
import torch
from torch.overrides import TorchFunctionMode

from benchmark.instruments.lab import Lab
from benchmark.training.method import LifelongMethod, Phase
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


@dataclass
class PutsAFunctionInAModulesPlace(LifelongMethod):
    def start_stage(self, model, stage):
        block = model.network.base_model.h[0].mlp
        act = block.act
        del block.act
        block.act = lambda hidden: act(hidden)
        return model


class Lazy(Phase):
    """Computes when it is asked for its schedule."""

    @property
    def schedule(self):
        return None


@dataclass
class HasPhasesOfItsOwn(LifelongMethod):
    def phases(self, stage):
        phase = Phase("adapt")
        object.__setattr__(phase, "__class__", Lazy)
        return [phase]


class Sums(dict):
    def __bool__(self):
        return True


@dataclass
class HasMetricsOfItsOwn(LifelongMethod):
    def adjust_gradients(self, learner, memory):
        learner.metrics = Sums(steps=1)


@dataclass
class HasALossOfItsOwn(LifelongMethod):
    def loss(self, learner, batch):
        return super().loss(learner, batch).as_subclass(Listening)


class Listens(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@dataclass
class ListensToAll(LifelongMethod):
    def start_stage(self, model, stage):
        mode = Listens()
        mode.__enter__()
        MODES.append(mode)
        return model


MODES: list[Listens] = []


@dataclass
class KeepsItsStateInAClass(LifelongMethod):
    state = ("kept",)
    kept: list = field(default_factory=list, init=False)

    def start_stage(self, model, stage):
        self.kept = [Sums()]
        return model


@dataclass
class SetsItsAttributesItself(LifelongMethod):
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


@pytest.mark.parametrize(
    ("cheat", "where"),
    [
        (ChangesInEvaluation, "ln_f is a tests.test_own_code.LearnsFromValidation, whose code would run"),
        (HasAModelOfItsOwn, "the model is a tests.test_own_code.Model, whose code would run"),
        (HasAModelThatSaysItIsTorchs, "the model is a torch.nn.modules.linear.Linear, whose code would run"),
        (HasATensorOfItsOwn, "ln_f.ear is a tests.test_own_code.Listening"),
        (PutsAFunctionInAModulesPlace, "h.0.mlp has a act of its own when it is evaluated"),
        (HasPhasesOfItsOwn, "phases.. of HasPhasesOfItsOwn gives a Lazy: give Phase itself"),
        (HasMetricsOfItsOwn, "learner.metrics is a tests.test_own_code.Sums, whose code would run"),
        (HasALossOfItsOwn, "the loss is a tests.test_own_code.Listening"),
        (ListensToAll, "Listens would see all that torch does"),
        (KeepsItsStateInAClass, "the state of KeepsItsStateInAClass is a tests.test_own_code.Sums"),
        (SetsItsAttributesItself, "SetsItsAttributesItself has a __setattr__"),
        (GrowthIsCode, r"GrowthIsCode.growth is code \(property\)"),
        (StateIsCode, r"StateIsCode.importance is code \(property\)"),
        (ReplayWeightsAreCode, r"ReplayWeightsAreCode.replay_weights is code \(property\)"),
        (AnswersForAnyName, "AnswersForAnyName has a __getattr__"),
        (WorksWhenBuilt, "building WorksWhenBuilt takes 16 FLOPs"),
    ],
)
def test_a_run_refuses_code_of_a_methods_own(cheat: type[LifelongMethod], where: str, tmp_path) -> None:
    """Oracle: the message names the place and the class."""
    try:
        with pytest.raises(SideEffect, match=where):
            Lab("cheat", lambda name, options: cheat(), tmp_path).undisturbed()
    finally:
        while MODES:
            MODES.pop().__exit__(*sys.exc_info())
