"""A toy language model, and the numbers that public implementations of the methods compute on it
(toy.json, see `read_numbers`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.instruments.conformance import ALONE
from benchmark.settings.suite import Size, Training
from benchmark.training.learner import Batch, Learner
from benchmark.training.method import LifelongMethod, Stage, StreamInfo

VOCABULARY = 13
EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}  # float64


class Toy(nn.Module):
    """Predicts one of 13 tokens from the one before, in float64. Called like a LanguageModel."""

    def __init__(self, weights: dict[str, Tensor] | None = None) -> None:
        super().__init__()
        self.embedding, self.hidden, self.output = (
            nn.Embedding(VOCABULARY, 6),
            nn.Linear(6, 8),
            nn.Linear(8, VOCABULARY),
        )
        self.dropout = nn.Dropout(0.0)
        self.double().load_state_dict(weights or self.state_dict())

    def forward(self, tokens: Tensor, domains: Tensor, positions: Tensor) -> Tensor:
        logits: Tensor = self.output(self.dropout(torch.tanh(self.hidden(self.embedding(tokens)))))
        return logits

    def compute_mean_loss(
        self, tokens: Tensor, domains: Tensor, positions: Tensor, targets: Tensor
    ) -> Tensor:
        return F.cross_entropy(self(tokens, domains, positions).flatten(0, 1), targets.flatten())


def batch(pairs: dict[str, list[int]], memory_sequences: int = 0, of: int | None = None) -> Batch:
    """A batch of the rows in `pairs` (one token and one target per row), of which the last
    `memory_sequences` are from memory. `of` is the size of the global batch, by default all rows.
    """
    tokens, targets = (torch.tensor(pairs[name]).unsqueeze(1) for name in ("tokens", "targets"))
    rows = len(tokens)
    zeros = torch.zeros(rows, dtype=torch.long)
    return Batch(
        tokens=tokens,
        domains=zeros,
        positions=zeros.unsqueeze(1),
        targets=targets,
        global_size=of or rows,
        memory_sequences=memory_sequences,
    )


def batches(domain: dict[str, list[int]]) -> list[Batch]:
    """The domain's 32 samples in consecutive batches of 8."""
    return [
        batch({name: column[i : i + 8] for name, column in domain.items()}) for i in range(0, 32, 8)
    ]


def learner(model: nn.Module, method: LifelongMethod) -> Learner:
    return Learner(model, method.loss, Training(precision="fp32"), ALONE)  # type: ignore[arg-type]


def stage(index: int) -> Stage:
    """A stage as methods that do not grow see it."""
    size = Size(layers=1, hidden_size=8)

    def refuse(*_: Any) -> Any:
        raise AssertionError(
            "a method that does not grow needs no new model, and no memory before its first step"
        )

    return Stage(
        domains=("a", "b", "c")[: index + 1],
        ladder=(size,) * (index + 1),
        spent=float(index),
        budget=1.0,
        unit="steps",
        learning_rate=1e-3,
        seed=0,
        build=refuse,
        memory_sequences=refuse,
        previous=refuse,
        stream_info=StreamInfo(stages=3, size=size, budget=3.0),
    )


def close(actual: dict[str, Tensor], expected: dict[str, Any]) -> None:
    """Compare the parameters that `expected` has."""
    for name, values in expected.items():
        torch.testing.assert_close(
            actual[name].detach(), torch.tensor(values, dtype=torch.float64), **EXACT
        )


def named(model: nn.Module, tensors: Any) -> dict[str, Tensor]:
    return dict(zip((name for name, _ in model.named_parameters()), tensors, strict=True))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def read_numbers() -> dict[str, Any]:
    """The numbers in toy.json. Most results have only `hidden.bias` and `output.bias`, as a sample
    of all parameters.

    weights: "first", "second" (after training on that domain) and "displaced". domains: tokens and
    targets.
    ewc: penalties (lambda/2) sum F (d)^2 with the Fisher information F = F_2 + gamma F_1, at the
    displaced weights with the second as anchor. mas: importances after domain "1" and "2", and
    penalties lambda sum O (d)^2.
    """
    numbers: dict[str, Any] = json.loads(
        (Path(__file__).parent / "toy.json").read_text(encoding="utf-8")
    )
    shapes = {name: p.shape for name, p in Toy().named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    for name, flat in numbers.pop("weights_times_4096").items():
        parts = (torch.tensor(flat, dtype=torch.float64) / 4096).split(sizes)
        weights = {
            key: part.view(shape) for (key, shape), part in zip(shapes.items(), parts, strict=True)
        }
        numbers.setdefault("weights", {})[name] = weights
    return numbers
