"""Comparisons of two runs: weights bit for bit, or predictions up to rounding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmark.models import load
from benchmark.training.run import Run

Weights = dict[str, Tensor]
ROWS = 4  # of each domain's validation text, on which predictions are compared
# of a logit, in double precision: a smaller difference comes from another order of operations
ROUNDING = 1e-5


@contextlib.contextmanager
def in_double_precision() -> Iterator[None]:
    """Make new models and tensors in double precision inside the block."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def load_weights(run: Run) -> list[Weights]:
    """The weights after each stage of a run."""
    return [load(run.store.stage_folder(key) / "model").state_dict() for key in run.keys]


def compute_predictions(run: Run, shift: int = 0) -> list[Tensor]:
    """The logits (rows, K, V_text) of the model after each stage, on validation text.

    The text is the first ROWS rows of each domain, with K predicted positions each. The model is
    told the domain that comes `shift` places later, in a circle.
    """
    count = len(run.config.domains)
    batches = [next(run.stream.read_validation(domain, ROWS)) for domain in range(count)]
    predictions = []
    for key in run.keys:
        model = load(run.store.stage_folder(key) / "model").double()
        logits = []
        with torch.no_grad():
            for batch in batches:
                domains = (batch.domains + shift) % count
                logits.append(model(batch.tokens, domains, batch.positions))
        predictions.append(torch.cat(logits))
    return predictions


def assert_same(
    expected: list[Weights], actual: list[Weights], what: str, cure: str, tolerance: float = 0.0
) -> None:
    for stage, (weights, actual_weights) in enumerate(zip(expected, actual, strict=True)):
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        actual_shapes = {name: tensor.shape for name, tensor in actual_weights.items()}
        assert shapes == actual_shapes, f"stage {stage}: other parameters {what}"
        for name in weights:
            difference = measure_difference(weights[name], actual_weights[name])
            assert difference <= tolerance, (
                f"stage {stage}: {name} differs by {difference:.1e} {what}: {cure}"
            )


def assert_alike(expected: list[Tensor], actual: list[Tensor], what: str, cure: str) -> None:
    expected_logits = [{"a logit": logits} for logits in expected]
    actual_logits = [{"a logit": logits} for logits in actual]
    assert_same(expected_logits, actual_logits, what, cure, ROUNDING)


def measure_difference(values: Tensor, other_values: Tensor) -> float:
    return (values - other_values).abs().max().item()
