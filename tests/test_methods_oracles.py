"""Each method computes the same numbers as independent implementations, in float64, within their
stated 1e-9.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import methods
from benchmark.devices import evaluating
from benchmark.settings.suite import Data
from benchmark.training.learner import Learner
from benchmark.training.method import Phase
from benchmark.training.stream import Stream
from methods.agem import project
from tests.support import toy
from tests.support.texts import tiny_corpus


def build(name: str, options: dict[str, Any] | None = None) -> Any:
    """A method, typed Any because the tests look at attributes of its own."""
    return methods.build(name, options)


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    return toy.read_numbers()


def measured(method, oracle, weights: str, domain: int) -> tuple[nn.Module, Learner]:
    """Let `method` measure a model at these weights, without dropout, at the beginning of a stage.
    Returns the model and its learner.
    """
    model = toy.Toy(oracle["weights"][weights])
    model.dropout.p = 0.5
    method.start_stage(model, toy.stage(domain))
    learner = toy.learner(model, method)
    with evaluating(model):  # as the loop does
        for part in toy.batches(oracle["domains"][domain - 1]):
            method.on_batch(learner, [part])
    model.dropout.p = 0.0
    return model, learner


def pull_at(method, model, learner, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradient of the penalty at `weights`."""
    model.load_state_dict(weights)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    method.adjust_gradients(learner, [])
    return toy.gradients(model)


def half_product(
    gradient: dict[str, torch.Tensor], model: nn.Module, anchor: dict[str, torch.Tensor]
) -> float:
    """The value of a quadratic form from its gradient: g . (x - a) / 2 (Euler)."""
    with torch.no_grad():
        return (
            sum(
                float((gradient[name] * (p - anchor[name])).sum())
                for name, p in model.named_parameters()
            )
            / 2
        )


def test_online_ewc_penalty(oracle) -> None:
    """Oracle: (lambda/2) sum (F_2 + gamma F_1) (theta - theta*)^2 and its gradient, from GMvandeVen
    with gamma 1.
    """
    expected = oracle["ewc"]
    method = build("ewc", {"strength": expected["lambda"], "decay": expected["gamma"]})
    model, learner = measured(method, oracle, "first", 1)
    assert method.count == 32
    pull_at(
        method, model, learner, oracle["weights"]["first"]
    )  # the first step of training adds what was measured
    model, learner = measured(method, oracle, "second", 2)
    gradient = pull_at(method, model, learner, oracle["weights"]["displaced"])
    toy.close(gradient, expected["penalty_gradient"]["per_sample"])
    value = half_product(gradient, model, oracle["weights"]["second"])
    assert value == pytest.approx(expected["penalty"]["per_sample"], rel=1e-9)


def test_mas_importance_and_penalty(oracle) -> None:
    """Oracle: the importance |d ||logits||^2 / d theta|, averaged over samples and summed over two
    domains, with its penalty and that penalty's gradient.
    """
    expected = oracle["mas"]
    method = build("mas", {"strength": expected["lambda"]})
    for domain, weights in ((1, "first"), (2, "second")):
        model, learner = measured(method, oracle, weights, domain)
        toy.close(
            toy.named(model, [total / method.count for total in method.total]),
            expected["importance"][str(domain)],
        )
        gradient = pull_at(method, model, learner, oracle["weights"]["displaced"])
    toy.close(gradient, expected["penalty_gradient"])
    assert half_product(gradient, model, oracle["weights"]["second"]) == pytest.approx(
        expected["penalty"], rel=1e-9
    )


def test_agem_projects_the_gradient(oracle) -> None:
    """Oracle: g - (g.r / r.r) r if g.r < 0, else g, from mammoth and avalanche. By hand: the share
    of conflicts, of five steps.
    """
    method = build("agem")
    model = toy.Toy()
    learner = toy.learner(model, method)
    conflict, aligned = sorted(oracle["agem"]["cases"], key=lambda case: case["product"])
    assert conflict["product"] < 0 < aligned["product"]
    for case in (conflict, aligned, aligned, conflict, aligned):
        model.load_state_dict(oracle["weights"][case["weights"]])
        learner.accumulate([toy.batch(case["current"])])
        method.adjust_gradients(learner, [toy.batch(case["memory"])])
        toy.close(toy.gradients(model), case["projected"])
    assert learner.metrics == {"steps": 5, "conflicts": pytest.approx(0.4)}


def test_agem_ignores_a_memory_gradient_of_zero() -> None:
    """By hand: if the reference is zero, the gradient stays as it is, without NaN."""
    gradient = torch.tensor([1.0, -2.0])
    assert not project([gradient], [torch.zeros(2)])
    assert gradient.tolist() == [1.0, -2.0]


class Logits(nn.Module):
    """A model whose parameters are its logits, so that a test can read their gradient."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.detach().clone())

    def forward(self, tokens, domains, positions):
        return self.logits[-len(tokens) :]


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_logit_kd(temperature: float, oracle) -> None:
    """Oracle: KL(teacher || student), batchmean, times T^2 (avalanche, mammoth); (1-r) CE + r T^2
    KL (ELLE's code).
    """
    expected = oracle["logit_kd"]
    rows = toy.batch(expected, memory_sequences=8)
    answers = expected["T"][str(round(temperature))]
    teacher, student = (
        toy.Toy(oracle["weights"][expected[name]]) for name in ("teacher", "student")
    )

    def learning(r: float) -> tuple[float, torch.Tensor]:
        method = build("logit_kd", {"distillation": r, "temperature": temperature})
        method.start_stage(teacher, toy.stage(1))
        model = Logits(student(rows.tokens, rows.domains, rows.positions))
        loss = toy.learner(model, method).accumulate([rows])
        return float(loss), model.logits.grad.squeeze(1)

    assert learning(1.0)[0] == pytest.approx(answers["kl_T2"], rel=1e-9)
    loss, gradient = learning(expected["r"])
    assert loss == pytest.approx(answers["loss"], rel=1e-9)
    torch.testing.assert_close(
        gradient[: len(answers["gradient"])],
        torch.tensor(answers["gradient"], dtype=torch.float64),
        **toy.EXACT,
    )


@pytest.mark.parametrize(
    ("name", "options", "memory_loss"),
    [
        (
            "logit_kd",
            {"distillation": 0.3, "temperature": 2.0},
            lambda ce, kl, mse: 0.7 * ce + 0.3 * 4 * kl,
        ),
        ("derpp", {"alpha": 0.5, "beta": 0.8}, lambda ce, kl, mse: 0.8 * ce + 0.5 * mse),
    ],
)
def test_distillation_is_a_mean_over_rows(name: str, options, memory_loss, oracle) -> None:
    """Oracle: the mean over 8 rows of each row's own loss. 3 rows are from memory. The result is
    the same however the rows are split.
    """
    weights, domain = oracle["weights"], {k: v[:8] for k, v in oracle["domains"][0].items()}
    teacher, student = toy.Toy(weights["first"]), toy.Toy(weights["second"])
    rows = toy.batch(domain, memory_sequences=3)
    s, t = (
        m(rows.tokens, rows.domains, rows.positions).squeeze(1).detach() for m in (student, teacher)
    )
    cross_entropies = -s.log_softmax(-1)[range(8), rows.targets.squeeze(1)]
    soft_s, soft_t = (s / 2).log_softmax(-1), (t / 2).log_softmax(-1)
    divergences = (soft_t.exp() * (soft_t - soft_s)).sum(-1)
    errors = (s - t).square().mean(-1)
    expected = [
        float(memory_loss(ce, kl, mse) if row >= 5 else ce)
        for row, (ce, kl, mse) in enumerate(zip(cross_entropies, divergences, errors, strict=True))
    ]

    def part(start: int, end: int, memory_sequences: int):
        return toy.batch({k: v[start:end] for k, v in domain.items()}, memory_sequences, of=8)

    results = []
    for parts in ([part(0, 8, 3)], [part(0, 4, 0), part(4, 8, 3)], [part(0, 6, 1), part(6, 8, 2)]):
        method = build(name, options)
        method.start_stage(teacher, toy.stage(1))
        model = toy.Toy(weights["second"])
        loss = toy.learner(model, method).accumulate(parts)
        results.append((float(loss), torch.cat([p.grad.flatten() for p in model.parameters()])))
        assert float(loss) == pytest.approx(sum(expected) / 8, rel=1e-9)
        torch.testing.assert_close(results[-1][1], results[0][1], **toy.EXACT)
        assert all(p.grad is None and not p.requires_grad for p in method.teacher.parameters())
    assert all(p.grad is None for p in teacher.parameters())


def test_er_mixes_nine_to_one(oracle) -> None:
    """Oracle: the nearest whole number to a tenth of the batch, as counted from three
    implementations.
    """
    stream = Stream(
        tiny_corpus(2, 400, 100), Data(sequence_length=18, memory_tokens=160), masked=True, seed=0
    )
    (phase,) = build("er").phases(toy.stage(1))
    assert phase == Phase("adapt", memory=0.1)
    for rows, memory in oracle["er"]["memory_rows"].items():
        assert [part.memory for part in stream.plan_draws(phase, 0, 1, int(rows))[0]] == [memory]


def test_er_is_one_mean_over_the_union(oracle) -> None:
    """Oracle: mammoth's loss and gradient on the concatenation, in one piece and in two."""
    for union in oracle["er"]["unions"]:
        count = len(union["new"]["tokens"]) + len(union["memory"]["tokens"])
        new, memory = (
            toy.batch(union["new"], of=count),
            toy.batch(union["memory"], len(union["memory"]["tokens"]), count),
        )
        both = toy.batch(
            {name: union["new"][name] + union["memory"][name] for name in ("tokens", "targets")}
        )
        for parts in ([both], [new, memory]):
            method = build("er")
            model = toy.Toy(oracle["weights"][union["weights"]])
            loss = toy.learner(model, method).accumulate(parts)
            assert float(loss) == pytest.approx(union["loss"], rel=1e-9)
            toy.close(toy.gradients(model), union["gradient"])
