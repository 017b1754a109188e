"""Comparisons of two runs: weights bit for bit, or predictions up to rounding.

And of a method before and after code that may not change it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.models import load
from benchmark.training.method import LifelongMethod
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


@contextlib.contextmanager
def expect_no_change(where: str, method: LifelongMethod, model: nn.Module) -> Iterator[None]:
    """Raise AssertionError, which says `where`, if the block changes a method or its model."""
    old_values = _read_values(method, model)
    yield
    new_values = _read_values(method, model)
    places = sorted(old_values | new_values)
    changed = []
    for place in places:
        if old_values.get(place) != new_values.get(place):
            changed.append(place)
    assert not changed, (
        f"{where} has changed {', '.join(changed[:3])}: name in `state` what a step changes; "
        "nothing else but start_stage may change anything"
    )


def _read_values(method: LifelongMethod, model: nn.Module) -> dict[str, list[object]]:
    """The values in a method, its class, their module and the model, each by its name."""
    kind = type(method)
    values = {"the model": [*_list_values(model, set())]}
    holders = (vars(sys.modules[kind.__module__]), vars(kind), vars(method))
    for name, value in chain.from_iterable(holder.items() for holder in holders):
        if not name.startswith("__"):
            values[f"{kind.__name__}.{name}"] = [*_list_values(value, set())]
    return values


def _list_values(value: object, visited_ids: set[int]) -> Iterator[object]:
    """The numbers and texts in a value, without those in values that were visited before."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().flatten()
        yield value.requires_grad, value.shape, flat.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, int | float | str | bytes | None):
        yield repr(value)
    elif id(value) not in visited_ids and not isinstance(value, type | ModuleType):
        visited_ids.add(id(value))
        parts: Iterable[object] = getattr(value, "__dict__", {}).items()
        if isinstance(value, nn.Module):
            modes = (module.training for module in value.modules())
            parts = [*value.parameters(), *value.buffers(), *modes]
        elif isinstance(value, Mapping):
            parts = value.items()
        elif isinstance(value, list | tuple | Set):
            parts = value
        for part in parts:
            yield from _list_values(part, visited_ids)
