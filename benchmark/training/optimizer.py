"""The optimizer of a phase, and which of its moments the next phase starts with.

The next phase may belong to the next stage, and to a larger model. Kinds of optimizers are records
in `benchmark/settings/optimizers.py`. Rules for copied layers and new embedding rows are here.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from benchmark.models import LanguageModel
from benchmark.models.architectures import Place, list_parts
from benchmark.settings.base import ConfigError
from benchmark.settings.optimizers import Optimizer
from benchmark.settings.suite import Training
from benchmark.training.shards import gather, spread

# the state of each parameter in torch's optimizer, by the parameter's name (`map_parameter_names`)
Moments = dict[str, dict[str, Any]]
Named = Sequence[tuple[str, nn.Parameter]]
LinearMaps = Mapping[nn.Parameter, Sequence[Place]]


def find_linear_maps(model: LanguageModel) -> LinearMaps:
    """The linear maps in each matrix of the layers that holds several or is stored transposed."""
    maps: dict[nn.Parameter, list[Place]] = {}
    for layer in model.architecture.find_places(model.network).layers:
        for place in list_parts(layer):
            if place.rows is not None or isinstance(place.module, Conv1D):
                maps.setdefault(place.module.weight, []).append(place)
    return maps


@dataclass(frozen=True)
class SplitParameter:
    """The linear maps in a parameter, as separate parameters (out, in) for torch's optimizer."""

    parameter: nn.Parameter
    places: Sequence[Place]
    parts: Sequence[nn.Parameter]

    @classmethod
    def make(cls, parameter: nn.Parameter, places: Sequence[Place]) -> SplitParameter:
        parts = [nn.Parameter(place.take(parameter.detach())) for place in places]
        return cls(parameter, places, parts)

    def before_step(self) -> None:
        """Set weights and gradients of the parts from the parameter."""
        for place, part in zip(self.places, self.parts, strict=True):
            part.data = place.take(self.parameter.detach())
            part.grad = None
            if self.parameter.grad is not None:
                part.grad = place.take(self.parameter.grad)

    def after_step(self) -> None:
        """Write the weights of the parts back into the parameter."""
        for place, part in zip(self.places, self.parts, strict=True):
            if place.rows is not None:
                place.put(self.parameter.detach(), part.detach())
                part.data = part.data.new_empty(0)  # free the copy's memory
            part.grad = None

    def join_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The optimizer state of the parameter, joined from the states of its parts."""
        state = dict(states[0])
        for key, value in state.items():
            if isinstance(value, Tensor) and value.dim():
                joined = torch.empty_like(self.parameter, dtype=value.dtype)
                for place, part_state in zip(self.places, states, strict=True):
                    place.put(joined, part_state[key])
                state[key] = joined
        return state

    def split_state(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The optimizer state of each part, cut from the state of the parameter."""
        states = []
        for place in self.places:
            part_state = {}
            for key, value in state.items():
                is_matrix = isinstance(value, Tensor) and value.dim()
                part_state[key] = place.take(value) if is_matrix else value
            states.append(part_state)
        return states


class PhaseOptimizer:
    """All torch optimizers of one phase, used as one.

    Each has its own parameters. `named` has the parameters that the phase trains, by
    `map_parameter_names`. `factors` are the factors of their learning rates. `linear_maps` is the
    result of `find_linear_maps`, for a kind that looks at whole matrices.
    """

    def __init__(
        self,
        kind: Optimizer,
        named: Named,
        factors: Sequence[float],
        training: Training,
        linear_maps: LinearMaps | None = None,
    ) -> None:
        self._fit = kind.fit or fit_moments
        self._named = named
        self._optimizer_of: dict[nn.Parameter, torch.optim.Optimizer] = {}
        self._torch_optimizers: list[torch.optim.Optimizer] = []
        self._split_parameters: dict[nn.Parameter, SplitParameter] = {}
        if linear_maps and kind.needs_full_weights and training.fused_maps == "apart":
            for _, parameter in named:
                if parameter in linear_maps:
                    split = SplitParameter.make(parameter, linear_maps[parameter])
                    self._split_parameters[parameter] = split
        for part in kind.parts:
            groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
            for (name, parameter), factor in zip(named, factors, strict=True):
                # the first part of the kind that takes a parameter has it
                if parameter not in self._optimizer_of and part.takes(name, parameter):
                    decays = training.decay == "all" or is_decaying_matrix(name, parameter)
                    groups.setdefault((factor, decays), []).append(parameter)
            if not groups:
                continue
            settings = []
            for (factor, decays), group in groups.items():
                parameters: list[nn.Parameter] = []
                for parameter in group:
                    parameters += self._list_parts(parameter)
                setting: dict[str, Any] = {"params": parameters, "factor": factor}
                if not decays:
                    setting["weight_decay"] = 0.0
                settings.append(setting)
            try:
                optimizer = part.make(settings, training, kind.options)
            except (ValueError, TypeError) as error:
                options = dict(kind.options)
                raise ConfigError(f"optimizer {kind.name} with {options}: {error}") from None
            self._torch_optimizers.append(optimizer)
            for group in groups.values():
                self._optimizer_of |= dict.fromkeys(group, optimizer)

    def _list_parts(self, parameter: nn.Parameter) -> Sequence[nn.Parameter]:
        """The parameters that torch's optimizer has in place of this one."""
        if parameter in self._split_parameters:
            return self._split_parameters[parameter].parts
        return [parameter]

    def step(self, learning_rate: float) -> None:
        """Move all parameters by their gradients."""
        for split in self._split_parameters.values():
            split.before_step()
        for optimizer in self._torch_optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * group["factor"]
            optimizer.step()
        for split in self._split_parameters.values():
            split.after_step()

    def gather_moments(self) -> Moments:
        """The moments by parameter name.

        They are copied only if sharded or split in parts. All processes must call this together.
        """
        moments = {}
        for name, parameter in self._named:
            part_states = self._optimizer_of[parameter].state
            states = [part_states.get(part, {}) for part in self._list_parts(parameter)]
            state = gather(states[0])
            if state and parameter in self._split_parameters:
                state = self._split_parameters[parameter].join_states(states)
            if state:
                moments[name] = state
        return moments

    def load_moments(self, moments: Moments, vocabulary: int) -> None:
        """Start with copies of the moments that fit a vocabulary of `vocabulary` rows."""
        for name, parameter in self._named:
            state = self._fit(moments.get(name, {}), parameter, vocabulary)
            if not state:
                continue
            on_device = {}
            for key, value in state.items():
                if isinstance(value, Tensor):
                    value = value.to(parameter.device, copy=True)
                on_device[key] = value
            part_states = self._optimizer_of[parameter].state
            if parameter in self._split_parameters:
                split = self._split_parameters[parameter]
                part_states.update(zip(split.parts, split.split_state(on_device), strict=True))
            else:
                part_states[parameter] = spread(on_device, parameter)


def is_decaying_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter decays under `training.decay = "matrices"`.

    Embeddings do not, nor do prompts, which are rows of an embedding. `name` is from
    `map_parameter_names`.
    """
    return parameter.dim() >= 2 and not name.startswith("embeddings.")


def fit_moments(
    state: Mapping[str, Any], parameter: nn.Parameter, vocabulary: int
) -> dict[str, Any]:
    """The state that a parameter goes on with, if moments have its shape (Adam, Muon, SGD).

    If a parameter of `vocabulary` rows got new rows with a domain, the new rows' moments are 0. Any
    other parameter whose shape changed starts without state, {}, because the moments of a wider
    model are not those of its parts.
    """
    fitted = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
            has_same_columns = value.shape[1:] == parameter.shape[1:]
            has_new_rows = has_same_columns and len(value) < len(parameter) == vocabulary
            if not has_new_rows:
                return {}
            count = len(parameter) - len(value)
            new_rows = value.new_zeros(count, *value.shape[1:])
            value = torch.cat([value, new_rows])
        fitted[key] = value
    return fitted


def copy_layers(moments: Moments, sources: Sequence[int]) -> Moments:
    """The moments for a deeper model, whose i-th layer was made from layer `sources[i]`.

    A copy of a layer starts with the moments of that layer.
    """
    copies: Moments = {}
    layers: dict[int, Moments] = {}
    for name, state in moments.items():
        if name.startswith("layers."):
            _, layer, part = name.split(".", 2)
            layers.setdefault(int(layer), {})[part] = state
        else:
            copies[name] = state
    for new, old in enumerate(sources):
        for part, state in layers.get(old, {}).items():
            copies[f"layers.{new}.{part}"] = state
    return copies


def find_rate_factors(names: Iterable[str], rates: Mapping[str, float], phase: str) -> list[float]:
    """The factor of each parameter's learning rate: that of the first matching pattern, or 1.

    Raises ConfigError for a pattern that matches no name.
    """
    names = list(names)
    for pattern in rates:
        if not fnmatch.filter(names, pattern):
            # one pattern for all layers
            patterns = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names)
            choices = ", ".join(patterns)
            raise ConfigError(
                f"lr_multipliers of phase {phase!r}: {pattern!r} fits no parameter; there are "
                f"{choices}"
            )
    factors = []
    for name in names:
        fits = [rate for pattern, rate in rates.items() if fnmatch.fnmatchcase(name, pattern)]
        factors.append(fits[0] if fits else 1.0)
    return factors


def find_width_factors(
    model: LanguageModel, parameters: Iterable[nn.Parameter], training: Training
) -> list[float]:
    """The factor of each parameter's learning rate for the width of its model.

    Under muP for Adam, matrices that multiply the D states of a token have a factor that falls as
    1 / width (Yang et al. 2022, arXiv 2203.03466, table 8): the matrices of the layers, and the
    output matrix, which is often the token table, too. Vectors and tables that only embed keep the
    suite's rate. Without muP all factors are 1.
    """
    if training.rate_width is None:
        return [1.0 for _ in parameters]
    matrix_factor = training.rate_width / model.hidden_size
    decoder: Any = model.network.get_output_embeddings()
    tables = model.architecture.find_places(model.network).tables
    only_embeds = {id(table.module.weight) for table in tables}
    only_embeds.discard(id(decoder.weight))
    factors = []
    for parameter in parameters:
        is_matrix = parameter.dim() >= 2 and id(parameter) not in only_embeds
        factors.append(matrix_factor if is_matrix else 1.0)
    return factors
