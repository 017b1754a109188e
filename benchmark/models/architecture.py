"""What the project needs to know of an architecture. `benchmark/models/architectures/` holds a record for each.

Shapes: B rows, T columns of a row as the network sees it, D hidden size, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel

from benchmark.data.tokenizer import BOS, EOS, PAD
from benchmark.models.layout import Network, Place


@dataclass(frozen=True)
class Shape:
    """The sizes of a new network. Its feed-forward layers are four times as wide as `hidden_size`."""

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


class Architecture:
    """A kind of language model, or several that differ in nothing that matters here.

    Attributes:
        families: transformers' classes of language models; new ones are of the first.
        masked: whether it predicts masked tokens, else each token from those before it.
        post_norm: whether the residual stream itself is normalised.
        rms_norm: whether its norms divide by the root mean square and nothing else, else they are LayerNorms.
        widths: the keys of the configuration that grow with the hidden size.
        epsilon: the key of its norms' epsilon.
        stack: where in its base model the list of layers is.
        unused: names of parameters that its forward pass does not read.
    """

    families: ClassVar[tuple[type[PreTrainedModel], ...]]
    masked: ClassVar[bool] = False
    post_norm: ClassVar[bool] = False
    rms_norm: ClassVar[bool] = False
    widths: ClassVar[tuple[str, ...]] = ("hidden_size", "num_attention_heads", "intermediate_size")
    epsilon: ClassVar[str] = "layer_norm_eps"
    stack: ClassVar[str] = "layers"
    unused: ClassVar[tuple[str, ...]] = ()

    def configuration(self, shape: Shape) -> PreTrainedConfig:
        """The configuration of a new network, with a tied head."""
        raise NotImplementedError

    def unroll(self, network: Any, tokens: Tensor, mask: Tensor | None) -> Unrolled:
        """The forward pass on tokens (B, T); where the mask (B, T), if any, is False there is padding, at the right."""
        raise NotImplementedError

    def places(self, network: Any) -> Network[Place]:
        """Where the weights of a network are."""
        raise NotImplementedError

    def transform(self, network: Any, hidden: Tensor) -> Tensor:
        """What a network's decoder multiplies (..., D), of its last hidden states (..., D)."""
        return hidden

    def activation(self, network: Any) -> Callable[[Tensor], Tensor]:
        """The activation function of a masked model's LM head."""
        return F.gelu

    def classifier(self, config: Any) -> nn.Module:
        """transformers' classification head: to logits (B, C) from hidden states (B, T, D), or from those of the last
        token (B, D) where the model is causal."""
        return nn.Linear(config.hidden_size, config.num_labels, bias=False)

    def length(self, config: Any) -> int:
        """How many columns of a row there are positions for."""
        return config.max_position_embeddings

    def fixed_depth(self, config: Any) -> str:
        """Why a network cannot have more layers; empty where it can."""
        return ""

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
