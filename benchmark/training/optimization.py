"""The optimizer and the learning rate, the same for every method."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Training
from benchmark.training.learner import Elapsed

Moments = dict[str, dict[str, Tensor]]  # what Adam remembers of a parameter, by its name (`part_names`)
Named = Sequence[tuple[str, nn.Parameter]]


def factors(names: Iterable[str], rates: Mapping[str, float], phase: str) -> list[float]:
    """What the learning rate of each parameter is multiplied by: 1, or what the first pattern that fits says.

    Raises ConfigError for a negative factor, and for a pattern that fits none of the names.
    """
    names = list(names)
    for pattern in rates:
        if rates[pattern] < 0:
            raise ConfigError(
                f"rates of phase {phase!r}: {pattern!r} has {rates[pattern]:g}, less than 0: give 0 or more"
            )
        if not fnmatch.filter(names, pattern):
            known = ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))
            raise ConfigError(f"rates of phase {phase!r}: {pattern!r} fits no parameter; there are {known}")
    return [next((rates[p] for p in rates if fnmatch.fnmatchcase(name, p)), 1.0) for name in names]


def new_optimizer(
    parameters: Sequence[nn.Parameter], training: Training, of_each: Sequence[float] = ()
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay on all parameters, as fairseq's Adam does it for the paper.

    `of_each`: for each parameter the factor of its learning rate; a group of the optimizer for each factor.
    """
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter, factor in zip(parameters, of_each or [1.0] * len(parameters), strict=True):
        groups.setdefault(factor, []).append(parameter)
    return torch.optim.AdamW(
        [{"params": group, "factor": factor} for factor, group in groups.items()],
        lr=0.0,
        betas=training.betas,
        eps=training.epsilon,
        weight_decay=training.weight_decay,
        fused=True,
    )


def set_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Let each group step at its own multiple of the rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("factor", 1.0)  # checkpoints of earlier versions lack it


def moments(optimizer: torch.optim.Optimizer, named: Named) -> Moments:
    """What the optimizer remembers; not copied."""
    return {name: optimizer.state[parameter] for name, parameter in named if parameter in optimizer.state}


def in_main_memory(known: Moments) -> Moments:
    """The same, for a machine that lacks the device that it was computed on."""
    return {name: {key: value.cpu() for key, value in state.items()} for name, state in known.items()}


def carry_on(optimizer: torch.optim.Optimizer, named: Named, known: Moments, vocabulary: int) -> list[str]:
    """Let a new optimizer begin with a copy of what is known. Returns the names of which nothing fitting is known.

    A tensor with a row for each of `vocabulary` remembers nothing of rows that came with a domain. Whatever else has
    changed its shape begins anew: the moments of a wider model are not those of its parts.
    """
    fresh = []
    for name, parameter in named:
        state = known.get(name, {})
        fitted = {key: _fitted(value, parameter, vocabulary) for key, value in state.items()}
        if not state or any(value is None for value in fitted.values()):
            fresh.append(name)
        else:
            optimizer.state[parameter] = fitted
    return fresh


def _fitted(value: Tensor, parameter: nn.Parameter, vocabulary: int) -> Tensor | None:
    """A copy of one of a parameter's moments in its shape, or of its number of steps; None where there is no rule."""
    value = value.to(parameter.device)
    if value.dim() == 0 or value.shape == parameter.shape:
        return value.clone()
    if value.shape[1:] != parameter.shape[1:] or not len(value) < len(parameter) == vocabulary:
        return None
    return torch.cat([value, value.new_zeros(len(parameter) - len(value), *value.shape[1:])])


def of_layers(known: Moments, sources: Sequence[int]) -> Moments:
    """The moments in a deeper model, whose i-th layer was made of layer `sources[i]`: a copy begins with its own."""
    others = {name: state for name, state in known.items() if not name.startswith("layers.")}
    layers: dict[int, Moments] = {}
    for name, state in known.items():
        if name.startswith("layers."):
            _, layer, part = name.split(".", 2)
            layers.setdefault(int(layer), {})[part] = state
    return others | {
        f"layers.{new}.{part}": state for new, old in enumerate(sources) for part, state in layers.get(old, {}).items()
    }


Part = tuple[float, float]  # where a part of the stream begins and ends, in the budget's unit


def elapsed(spent: float, step_cost: float, phase: Part, stage: Part, stream: Part) -> Elapsed:
    """What share of each part is over at the middle of a step that begins when `spent` is spent and costs `step_cost`.

    All count from where the stage at hand begins.
    """

    def share(begin: float, end: float) -> float:
        length = max(end - begin, step_cost) or 1.0  # a budget may be shorter than a step
        return min(max((spent + step_cost / 2 - begin) / length, 0.0), 1.0)

    return Elapsed(share(*phase), share(*stage), share(*stream))
