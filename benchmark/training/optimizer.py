"""The optimizer of a phase, and which of its moments go on into the next phase, stage or larger
model.

Kinds are records in `benchmark/settings/optimizers.py`. Whole layers and new rows of an embedding
have rules here.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmark.settings.base import ConfigError
from benchmark.settings.optimizers import Optimizer
from benchmark.settings.suite import Training
from benchmark.training.shards import gather, spread

Moments = dict[
    str, dict[str, Any]
]  # what torch's optimizer remembers of a parameter, by its name (`part_names`)
Named = Sequence[tuple[str, nn.Parameter]]


class PhaseOptimizer:
    """torch's optimizers of one phase as one; each has parameters of its own.

    `named`: what the phase trains, by `part_names`; `of_each`: for each the factor of its learning
    rate.
    """

    def __init__(
        self, kind: Optimizer, named: Named, of_each: Sequence[float], training: Training
    ) -> None:
        self._fit, self._named = kind.fit or fit_moments, named
        self._of: dict[nn.Parameter, torch.optim.Optimizer] = {}
        self._parts: list[torch.optim.Optimizer] = []
        left = list(zip(named, of_each, strict=True))
        for part in kind.parts:
            groups: dict[float, list[nn.Parameter]] = {}
            for (name, parameter), factor in left:
                if part.takes(name, parameter):
                    groups.setdefault(factor, []).append(parameter)
            if groups:
                each = [{"params": group, "factor": factor} for factor, group in groups.items()]
                try:
                    made = part.make(each, training, kind.options)
                except (ValueError, TypeError) as error:
                    raise ConfigError(
                        f"optimizer {kind.name} with {dict(kind.options)}: {error}"
                    ) from None
                self._parts.append(made)
                self._of |= {parameter: made for group in groups.values() for parameter in group}
            left = [item for item in left if item[0][1] not in self._of]

    def step(self, learning_rate: float) -> None:
        """Move all parameters by their gradients."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = learning_rate * group["factor"]
            part.step()

    def gather_moments(self) -> Moments:
        """The moments; copied only where they are sharded, and gathered: all processes must ask for
        them at once.
        """
        states = {
            name: gather(self._of[parameter].state.get(parameter))
            for name, parameter in self._named
        }
        return {name: state for name, state in states.items() if state}

    def carry_on(self, known: Moments, vocabulary: int) -> None:
        """Begin with a copy of the known moments that fit; `vocabulary`: how many rows it has."""
        for name, parameter in self._named:
            if state := self._fit(known.get(name, {}), parameter, vocabulary):
                on_device = {
                    key: value.to(parameter.device, copy=True)
                    if isinstance(value, Tensor)
                    else value
                    for key, value in state.items()
                }
                self._of[parameter].state[parameter] = spread(on_device, parameter)


def fit_moments(
    state: Mapping[str, Any], parameter: nn.Parameter, vocabulary: int
) -> dict[str, Any]:
    """The state that a parameter goes on with, where moments have the parameter's shape: Adam's,
    Muon's, SGD's.

    A tensor with a row for each of `vocabulary` remembers nothing of rows that came with a domain.
    Whatever else has changed its shape begins anew, {}: the moments of a wider model are not those
    of its parts.
    """
    fitted = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
            if (
                value.shape[1:] != parameter.shape[1:]
                or not len(value) < len(parameter) == vocabulary
            ):
                return {}
            value = torch.cat(
                [value, value.new_zeros(len(parameter) - len(value), *value.shape[1:])]
            )
        fitted[key] = value
    return fitted


def copy_layers(known: Moments, sources: Sequence[int]) -> Moments:
    """The moments in a deeper model, whose i-th layer was made of layer `sources[i]`: a copy begins
    with its own.
    """
    others = {name: state for name, state in known.items() if not name.startswith("layers.")}
    layers: dict[int, Moments] = {}
    for name, state in known.items():
        if name.startswith("layers."):
            _, layer, part = name.split(".", 2)
            layers.setdefault(int(layer), {})[part] = state
    return others | {
        f"layers.{new}.{part}": state
        for new, old in enumerate(sources)
        for part, state in layers.get(old, {}).items()
    }


def find_rate_factors(names: Iterable[str], rates: Mapping[str, float], phase: str) -> list[float]:
    """The factor of each parameter's learning rate: 1, or what the first pattern that fits says.

    Raises ConfigError for a pattern that fits none of the names.
    """
    names = list(names)
    for pattern in rates:
        if not fnmatch.filter(names, pattern):
            known = ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))
            raise ConfigError(
                f"rates of phase {phase!r}: {pattern!r} fits no parameter; there are {known}"
            )
    return [next((rates[p] for p in rates if fnmatch.fnmatchcase(name, p)), 1.0) for name in names]
