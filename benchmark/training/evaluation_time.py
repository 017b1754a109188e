"""The time of evaluation, which no budget counts, as far as it is known before training.

No torch here.
"""

from __future__ import annotations

from benchmark.settings.suite import Size

UTILISATION = 0.1  # of a large matrix product's speed, that small models reach
FORWARD = 2  # FLOPs of a forward pass per parameter and token; a training step has 6


def count_parameters(size: Size, vocabulary: int) -> int:
    """Count the weights of matrices, those of the vocabulary once."""
    in_layers = 12 * size.layers * size.hidden_size**2
    in_tables = vocabulary * size.hidden_size
    return in_layers + in_tables


def count_evaluations(evaluations: int, stage: int) -> int:
    """Count the evaluations of a stage.

    Later stages than the first begin with one, before the first step.
    """
    return evaluations + (stage > 0)
