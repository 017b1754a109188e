"""ELLE's adaptive replay: which earlier domains the memory rows come from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import methods
from methods._adaptive_replay import FLOOR, weigh_by_fall
from tests.support import toy


def build(name: str, options: dict[str, Any] | None = None) -> Any:
    """The method, whose attributes of its own the tests look at."""
    return methods.build(name, options)


@pytest.mark.parametrize(
    ("before", "now", "rows", "expected"),
    [
        ([5.0, 5.0], [4.0, 4.5], [10, 10], [1.0, 0.5]),  # the second falls half as fast
        ([5.0, 5.0], [4.0, 4.0], [10, 40], [1.0, 0.25]),  # as much, but with four times the rows
        (
            [5.0, 5.0, 5.0],
            [4.0, 4.5, 5.5],
            [10, 10, 10],
            [1.0, 0.5, 1.0],
        ),  # a loss that rose counts as the fastest
        ([5.0, 5.0], [4.0, 4.999], [10, 10], [1.0, FLOOR]),  # never forgotten altogether
        ([5.0, 5.0], [5.5, 5.0], [10, 10], [1.0, 1.0]),  # nothing falls
    ],
)
def test_weights(before, now, rows, expected) -> None:
    """Oracle: the released code's rule by hand: the fall of the loss per replayed row, the largest
    where it rose.
    """
    assert weigh_by_fall(before, now, rows) == pytest.approx(expected)


def test_losses_are_kept_by_domain() -> None:
    """Oracle: the mean loss of each earlier domain's rows, counted by hand over two steps; and the
    loss of ER.
    """
    numbers = toy.own()
    method, er = (
        build("elle", {"adaptive": 2, "prompts": False, "width": False, "depth": False}),
        build("er"),
    )
    model = toy.Toy(numbers["weights"]["first"])
    method.start_stage(Sized(model), toy.stage(2))
    learner = toy.learner(model, method)
    assert method.replay_weights == [1.0, 1.0]
    losses: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for step, domains in enumerate([[2, 2, 2, 2, 2, 0, 1, 0], [2, 2, 2, 2, 2, 1, 1, 1]]):
        part = toy.batch(
            {k: v[step * 8 : step * 8 + 8] for k, v in numbers["domains"][0].items()}, memory_rows=3
        )
        part.domains = torch.tensor(domains)
        assert float(learner.accumulate([part])) == pytest.approx(
            float(toy.learner(model, er).accumulate([part]))
        )
        method.adjust_gradients(learner, [])
        rows = torch.nn.functional.cross_entropy(
            model(part.tokens, part.domains, part.positions).squeeze(1),
            part.targets.squeeze(1),
            reduction="none",
        )
        for domain, loss in zip(domains, rows.tolist(), strict=True):
            losses[domain].append(loss)
    assert method.before == pytest.approx([sum(losses[d]) / len(losses[d]) for d in (0, 1)])
    assert (method.steps, method.seen) == (0, [0.0] * 4)

    method.before = [method.before[0] + 1.0, method.before[1] + 0.1]  # as if they had fallen since
    for _ in range(2):
        learner.accumulate([part])  # holds no row of domain 0, so the interval does not end
        method.adjust_gradients(learner, [])
    assert method.replay_weights == [1.0, 1.0] and method.steps == 2
    part.domains = torch.tensor([2, 2, 2, 2, 2, 1, 1, 0])
    learner.accumulate([part])
    method.adjust_gradients(learner, [])
    assert method.steps == 0 and method.replay_weights != [1.0, 1.0]


class Sized(torch.nn.Module):
    """A model that is as large as its stage wants it."""

    layers = hidden_size = 0

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model


def test_not_adaptive_and_first_stage() -> None:
    """By hand: with `adaptive = 0`, and in the first stage, no earlier domains are weighed, so
    there are no weights.
    """
    for adaptive, index in ((0, 2), (5, 0)):
        method = build(
            "elle", {"adaptive": adaptive, "prompts": False, "width": False, "depth": False}
        )
        method.start_stage(Sized(toy.Toy()), toy.stage(index))
        assert method.replay_weights is None
