"""Comparisons of two runs: their weights bit for bit, or their predictions but for rounding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmark.models import load
from benchmark.training.run import Run

Weights = dict[str, Tensor]
ROWS = 4  # of each domain's validation text, on which predictions are compared
# of a logit, in double precision: what differs by less is the same, computed in another order
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
    """The weights after each of its stages."""
    return [load(run.store.stage_folder(key) / "model").state_dict() for key in run.keys]


def compute_predictions(run: Run, shift: int = 0) -> list[Tensor]:
    """The logits (rows, K, V_text) of the model after each stage, on each domain's validation text.

    `shift`: how many domains further in the stream lies the domain that the model is told.
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


def assert_same(expected: list[Weights], actual: list[Weights], what: str, cure: str) -> None:
    for stage, (weights, actual_weights) in enumerate(zip(expected, actual, strict=True)):
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        actual_shapes = {name: tensor.shape for name, tensor in actual_weights.items()}
        assert shapes == actual_shapes, f"stage {stage}: other parameters {what}"
        for name in weights:
            difference = measure_difference(weights[name], actual_weights[name])
            assert difference == 0, (
                f"stage {stage}: {name} differs by {difference:.1e} {what}: {cure}"
            )


def assert_alike(expected: list[Tensor], actual: list[Tensor], what: str, cure: str) -> None:
    for stage, (logits, other_logits) in enumerate(zip(expected, actual, strict=True)):
        difference = measure_difference(logits, other_logits)
        assert difference <= ROUNDING, (
            f"stage {stage}: a logit differs by {difference:.1e} {what}: {cure}"
        )


def measure_difference(logits: Tensor, other_logits: Tensor) -> float:
    return (logits - other_logits).abs().max().item()
