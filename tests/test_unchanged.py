"""Where a method can keep what it computed in the warm-up, and a run that finds it in each of these places."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from benchmark.instruments.lab import Lab
from benchmark.training.method import LifelongMethod
from benchmark.training.unchanged import SideEffect


class Slot:
    __slots__ = ("work",)


class Helper:
    """Stands for anything that a method's file defines beside the method."""


class Words(list):
    """A list that can have attributes."""


def kept_by_default(kept=[]):  # noqa: B006
    return kept


def opened():
    kept: list[torch.Tensor] = []

    def keep(work):
        kept.append(work)

    return keep


KEEP_IN_CLOSURE = opened()


@dataclass
class KeepsWorkElsewhere(LifelongMethod):
    """Keeps a forward pass of the warm-up in one of the places that a method can reach."""

    where: ClassVar[str]

    def start_stage(self, model, stage):
        self.slot, self.words, self.keys = Slot(), Words(), {Helper(): 1}
        kept: list[torch.Tensor] = []
        self.bound, self.partial = kept.append, functools.partial(print, [])
        self.objects, self.view = np.empty(1, object), torch.zeros(4)[:1]
        self.tensor = torch.zeros(2, requires_grad=True)
        return model

    def loss(self, learner, batch):
        work = learner.model(batch.tokens, batch.domains, batch.positions).detach()
        if self.where == "gradient":
            self.tensor.grad = work.flatten()[:2].clone()
        elif self.where == "storage":
            self.view._base[3] = work.sum()
        elif self.where == "objects":
            self.objects[0] = work
        elif self.where == "dunder":
            setattr(KeepsWorkElsewhere, "__work__", work)  # noqa: B010
        elif self.where in ("default", "bound", "partial", "closure"):
            lists = {"default": kept_by_default().append, "bound": self.bound, "closure": KEEP_IN_CLOSURE}
            lists.get(self.where, self.partial.args[0].append)(work)
        else:
            place = {
                "learner": learner,
                "parameter": learner.parameters[0],
                "slot": self.slot,
                "function": KeepsWorkElsewhere.loss,
                "base": LifelongMethod,
                "helper": Helper,
                "subclass": self.words,
                "key": next(iter(self.keys)),
            }[self.where]
            place.work = work
        return super().loss(learner, batch)


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("learner", "the learner.work"),
        ("parameter", r"the model.*\.work"),
        ("slot", r"\.slot\.work"),
        ("function", r"loss\.work"),
        ("base", "class LifelongMethod.work"),
        ("helper", "Helper.work"),
        ("default", "kept_by_default.its defaults.0.0"),
        ("closure", r"KEEP_IN_CLOSURE.\(0\).0"),
        ("bound", "bound.self.0"),
        ("partial", "partial.args.0.0"),
        ("objects", "objects.0"),
        ("gradient", "tensor.grad"),
        ("storage", "view.its storage"),
        ("subclass", "words.work"),
        ("key", "keys.key 0.work"),
        ("dunder", "class KeepsWorkElsewhere.__work__"),
    ],
)
def test_a_run_refuses_work_kept_anywhere(where: str, place: str, tmp_path, monkeypatch) -> None:
    """Oracle: the name of the place."""
    monkeypatch.setattr(KeepsWorkElsewhere, "where", where, raising=False)
    lab = Lab("cheat", lambda name, options: KeepsWorkElsewhere(), tmp_path)
    try:
        with pytest.raises(SideEffect, match=f"the warm-up step of KeepsWorkElsewhere has changed .*{place}"):
            lab.run(lab.config(), "run").train(last_stage=0)
    finally:
        for shared in (KeepsWorkElsewhere.loss, LifelongMethod, Helper):
            if "work" in vars(shared):
                del shared.work
        kept_by_default().clear()
