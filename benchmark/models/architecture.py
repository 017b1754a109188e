"""What the project needs to know of an architecture. `benchmark/models/architectures/` holds a record for each.

Shapes: B rows, T columns of a row as the network sees it, D hidden size, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel

from benchmark.data.vocabulary import BOS, EOS, PAD
from benchmark.models.layout import Network, Place


@dataclass(frozen=True)
class Shape:
    """Of a new network. The feed-forward layer is four times as wide as `hidden_size`."""

    vocabulary: int
    columns: int
    layers: int
    hidden_size: int
    heads: int
    dropout: float

    def common(self) -> dict[str, Any]:
        """The keys of a configuration that have the same names in every architecture."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "bos_token_id": BOS,
            "pad_token_id": PAD,
            "eos_token_id": EOS,
        }


class Unrolled(NamedTuple):
    """A network's forward pass in steps: finish(layers[-1](... layers[0](hidden))) are the last hidden states."""

    hidden: Tensor  # (B, T, D): the embeddings
    layers: Sequence[Callable[[Tensor], Tensor]]
    finish: Callable[[Tensor], Tensor]


def last_token_head(config: Any) -> nn.Module:
    """The classification head of transformers' causal models: (B, D) to (B, C)."""
    return nn.Linear(config.hidden_size, config.num_labels, bias=False)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A kind of language model, or several that differ in nothing that matters here.

    Attributes:
        families: transformers' classes of language models; new ones are of the first.
        masked: whether it predicts masked tokens, else each token from those before it.
        post_norm: whether the residual stream itself is normalised.
        widths: the keys of the configuration that grow with the hidden size.
        epsilon: the key of its norms' epsilon.
        stack: where in its base model the list of layers is.
        configuration: of a new network.
        unroll: the forward pass of a network on tokens (B, T); where the mask (B, T), if any, is False there is
            padding, at the right.
        transform: what a network's decoder multiplies (..., D), of its last hidden states (..., D).
        places: where the weights of a network are.
        classifier: for a configuration transformers' classification head, from hidden states (B, T, D), or from those
            of the last token (B, D) where the model is causal, to logits (B, C).
        length: how many columns of a row a configuration has positions for.
        unused: names of parameters that its forward pass does not read.
        activation: of a network's LM head, where that has one.
        fixed_depth: why a network of a configuration cannot have more layers; empty where it can.
    """

    families: tuple[type[PreTrainedModel], ...]
    masked: bool
    post_norm: bool
    widths: tuple[str, ...]
    epsilon: str
    stack: str
    configuration: Callable[[Shape], PreTrainedConfig]
    unroll: Callable[[Any, Tensor, Tensor | None], Unrolled]
    places: Callable[[Any], Network[Place]]
    transform: Callable[[Any, Tensor], Tensor] = lambda network, hidden: hidden
    classifier: Callable[[Any], nn.Module] = last_token_head
    length: Callable[[Any], int] = lambda config: config.max_position_embeddings
    unused: tuple[str, ...] = ()
    activation: Callable[[Any], Callable[[Tensor], Tensor]] = lambda network: F.gelu
    fixed_depth: Callable[[Any], str] = lambda config: ""

    @property
    def model_types(self) -> tuple[str, ...]:
        """transformers' names of its configurations."""
        families: tuple[Any, ...] = self.families
        return tuple(family.config_class.model_type for family in families)

    def family(self, model_type: str) -> type[PreTrainedModel]:
        """transformers' class for one of its names."""
        return self.families[self.model_types.index(model_type)]

    def build(self, shape: Shape) -> PreTrainedModel:
        """A freshly initialised network; its weights are a function of torch's seed."""
        family: Any = self.families[0]
        return family(self.configuration(shape))

    def layers(self, network: Any) -> Sequence[nn.Module]:
        """The transformer layers of a network, in order."""
        return network.base_model.get_submodule(self.stack)
