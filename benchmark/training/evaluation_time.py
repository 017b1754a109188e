"""The time of evaluation, which no budget counts, as far as it is known before training.

No torch here.
"""

from __future__ import annotations

from benchmark.settings.suite import Size

UTILISATION = 0.1  # the share of a large matrix product's speed that small models reach
FORWARD = 2  # FLOPs of a forward pass per parameter and token. A training step has 6


def count_parameters(size: Size, vocabulary: int) -> int:
    """Count the weights of the matrices, with one matrix for the vocabulary."""
    in_layers = 12 * size.layers * size.hidden_size**2
    in_tables = vocabulary * size.hidden_size
    return in_layers + in_tables


def count_evaluations(evaluations: int, stage: int) -> int:
    """Count the evaluations of a stage.

    Each stage after the first also begins with one, before its first step.
    """
    return evaluations + (stage > 0)
