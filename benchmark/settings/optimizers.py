"""Kinds of optimizer, with all differences between them.

A suite names one (`training.optimizer`). A method's file may define its own, in
`LifelongMethod.optimizer`. No torch here until one is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer as TorchOptimizer

    from benchmark.settings.suite import Training

Options = Mapping[str, Any]
Groups = Sequence[dict[str, Any]]  # of torch: "params", and the "factor" of their learning rate
State = Mapping[str, Any]  # what torch's optimizer remembers of a parameter


# decay would pull the gains of a published model's norms to 0
DEFAULTS_OF_START_MODELS: Options = {"decay": "matrices"}


@dataclass(frozen=True)
class Part:
    """One of torch's optimizers, and which parameters it gets.

    It gets the parameters that `takes` accepts and that no part before it has taken.
    """

    # its learning rate does not count, because each step sets it
    make: Callable[[Groups, Training, Options], TorchOptimizer]
    # by the parameter's name in `LanguageModel.map_parameter_names`
    takes: Callable[[str, Parameter], bool] = lambda name, parameter: True


@dataclass(frozen=True)
class Optimizer:
    """A kind of optimizer, whose last part takes all remaining parameters."""

    name: str  # in suites, records and keys
    meaning: str
    parts: tuple[Part, ...]
    # with the values that they have unless a suite sets them
    options: Options = field(default_factory=dict)
    # settings of `training`, as in recipes with it, for what a suite does not set
    defaults: Options = field(default_factory=dict)
    # whether a step needs whole matrices, which `training.shard` splits
    needs_full_weights: bool = False

    # A function of a parameter's state, the parameter, which may have grown, and the size of the
    # vocabulary. It returns the state to go on with, {} for no state. None means
    # `benchmark.training.optimizer.fit_moments`. In every kind, a layer that is a copy of another
    # takes the other's state.
    fit: Callable[[State, Parameter, int], dict[str, Tensor | float]] | None = None
    reason: str = ""  # why one would take it, in a line

    @property
    def described(self) -> str:
        """Its meaning and its options, for docs/suite_keys.md."""
        if not self.options:
            return self.meaning
        options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in self.options.items())
        return f"{self.meaning} (options {options})"

    def replace_options(self, options: Options) -> Optimizer:
        """This kind with other values of its options.

        Raises ValueError for an option that it lacks, or a value of another type.
        """
        for name, value in options.items():
            if name not in self.options:
                raise ValueError(
                    f"{self.name} has no option {name!r}; there are "
                    f"{', '.join(self.options) or 'none'}"
                )
            kind = type(self.options[name])
            if type(value) is not kind and (kind, type(value)) != (float, int):
                raise ValueError(f"{name} of {self.name} is {value!r}, which is no {kind.__name__}")
        return replace(self, options={**self.options, **options})


def _make_adamw(groups: Groups, training: Training, options: Options) -> TorchOptimizer:
    """Adam with decoupled weight decay, as fairseq's Adam does it for the paper."""
    import torch

    return torch.optim.AdamW(
        groups,
        lr=0.0,
        betas=training.betas,
        eps=training.epsilon,
        weight_decay=training.weight_decay,
        fused=True,
    )


def _make_muon(groups: Groups, training: Training, options: Options) -> TorchOptimizer:
    import torch

    return torch.optim.Muon(groups, lr=0.0, weight_decay=training.weight_decay, **options)


def _make_sgd(groups: Groups, training: Training, options: Options) -> TorchOptimizer:
    import torch

    return torch.optim.SGD(groups, lr=0.0, weight_decay=training.weight_decay, **options)


def _is_matrix_of_a_layer(name: str, parameter: Parameter) -> bool:
    return name.startswith("layers.") and parameter.dim() == 2


OPTIMIZERS = {
    kind.name: kind
    for kind in (
        Optimizer(
            "adamw",
            "Adam with decoupled weight decay (the paper's)",
            (Part(_make_adamw),),
            reason="Take it first: it is the paper's, and what published models were trained with.",
        ),
        Optimizer(
            "muon",
            "Muon (Jordan et al. 2024) for matrices of layers, else adamw",
            (Part(_make_muon, _is_matrix_of_a_layer), Part(_make_adamw)),
            # so that its steps are as large as AdamW's, and the same learning rate fits both (Liu
            # et al. 2025)
            {"momentum": 0.95, "nesterov": True, "ns_steps": 5, "adjust_lr_fn": "match_rms_adamw"},
            # so that it is the same optimizer whether maps share a matrix or not
            defaults={"fused_maps": "apart", "decay": "matrices"},
            needs_full_weights=True,
            reason="Take it for fewer steps and half the moments, where weights are not sharded.",
        ),
        Optimizer(
            "sgd",
            "gradient descent with momentum",
            (Part(_make_sgd),),
            {"momentum": 0.9, "nesterov": False},
            reason="Take it as a control: the plainest step, with the fewest moments.",
        ),
    )
}


def find_optimizer(name: str) -> Optimizer:
    """The kind with this name. Raises ValueError with the choices if there is none."""
    if name not in OPTIMIZERS:
        raise ValueError(f"no optimizer {name!r}; there are {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]
