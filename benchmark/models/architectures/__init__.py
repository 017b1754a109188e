"""The class `Architecture`, and the architectures, one per file.

The file's name is the architecture's name. Its `ARCHITECTURE` is the record of the architecture:
all that other code must know of it. No other file compares the name of an architecture or a model
type: it asks the record. A file in another folder counts too, once that folder is appended to
`benchmark.settings.names.ARCHITECTURE_FOLDERS`.

A `Network` shows the weights of every architecture in the same form, so that code that works on
weights is written once. Its matrices are (out, in), as in nn.Linear, however the architecture
stores them: GPT-2's Conv1D is transposed, and a matrix that several maps share is split into them.

Shapes: B sequences, T tokens per sequence as the network sees it, D hidden size, F feed-forward
size, V vocabulary, C classes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from benchmark.data.tokenizer import BOS, EOS, PAD
from benchmark.settings.base import ConfigError
from benchmark.settings.names import (
    ARCHITECTURE_FOLDERS,
    check_architecture,
    list_architecture_names,
)

__path__ = ARCHITECTURE_FOLDERS

T = TypeVar("T")


@dataclass(kw_only=True)
class Attention(Generic[T]):
    """The attention of a layer. What an architecture does not have is None."""

    norm: T | None = None
    query: T
    key: T
    value: T
    output: T
    query_norm: T | None = None  # over a head, or over all (`Architecture.norms_all_heads`)
    key_norm: T | None = None
    output_norm: T | None = None  # normalises what is added to the residual stream


@dataclass(kw_only=True)
class FeedForward(Generic[T]):
    """The FFN of a layer. What an architecture does not have is None."""

    norm: T | None = None
    up: T  # (F, D)
    down: T  # (D, F)
    # (F, D): a gated FFN multiplies the outputs of `gate` and `up`, one after an activation
    gate: T | None = None
    output_norm: T | None = None  # normalises what is added to the residual stream


@dataclass(kw_only=True)
class Layer(Generic[T]):
    """A transformer layer.

    A pre-LN layer normalises the inputs of attention and FFN. A post-LN layer normalises the
    residual stream after each of them has been added. Some layers normalise the outputs that they
    add.
    """

    attention: Attention[T]
    ffn: FeedForward[T]


@dataclass(kw_only=True)
class Network(Generic[T]):
    """A language model with an LM head, from input to output.

    What an architecture does not have is None.
    """

    tables: list[T]  # (rows, D): embeddings of tokens, positions and, in BERT, types
    embedding_norm: T | None = None
    layers: list[Layer[T]]
    final_norm: T | None = None  # pre-LN: of the residual stream
    head: T | None = None  # BERT: a dense map, followed by GELU and head_norm
    head_norm: T | None = None
    decoder: T  # (V, D)


def map_parts(structure: Any, function: Callable[[Any], Any]) -> Any:
    """A copy of a network or a layer, with `function` applied to each part that is not None."""
    if isinstance(structure, list):
        return [map_parts(part, function) for part in structure]
    if isinstance(structure, Attention | FeedForward | Layer | Network):
        parts = {}
        for field in fields(structure):
            parts[field.name] = map_parts(getattr(structure, field.name), function)
        return type(structure)(**parts)
    if structure is None:
        return None
    return function(structure)


def list_parts(structure: Any) -> list[Any]:
    """The parts of a network or a layer that are not None, in the order of their fields."""
    parts: list[Any] = []
    map_parts(structure, parts.append)
    return parts


@dataclass
class Affine:
    """Weight (out, in) and bias (out) of a linear map.

    A norm has the shapes (D) and (D), a table (rows, D) and (rows). The bias is zero if the module
    has none.
    """

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Place:
    """The module that stores an Affine, and the Affine's part of it.

    `rows` are the Affine's rows in a matrix that several maps share, or None if the matrix is not
    shared. The network computes with `scale` times the sum of the weight and `offset`.
    """

    module: Any
    rows: Tensor | None = None
    scale: float = 1.0
    offset: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the Affine's weight: (out, in), (D) or (rows, D)."""
        return tuple(self.take(self.module.weight).shape)

    def take(self, tensor: Tensor) -> Tensor:
        """The Affine's part of a tensor that has the shape of the module's weight or bias.

        A matrix becomes (out, in). The part is a view, or a copy if several maps share the tensor.
        """
        turned = self._turn(tensor)
        if self.rows is None:
            return turned
        return turned[self.rows.to(tensor.device)]

    def put(self, tensor: Tensor, values: Tensor) -> None:
        """Set the part of the tensor that `take` returns to these values."""
        rows: slice | Tensor = slice(None)
        if self.rows is not None:
            rows = self.rows.to(tensor.device)
        self._turn(tensor)[rows] = values.to(tensor)

    def _turn(self, tensor: Tensor) -> Tensor:
        if isinstance(self.module, Conv1D):
            return tensor.t()  # a bias stays as it is
        return tensor

    @torch.no_grad()
    def read(self) -> Affine:
        """A copy in float64, so that sums over many copies lose no precision."""
        weight = self.take(self.module.weight).to("cpu", torch.float64, copy=True)
        bias = getattr(self.module, "bias", None)
        if bias is None:
            own_bias = weight.new_zeros(len(weight))
        else:
            own_bias = self.take(bias).to("cpu", torch.float64, copy=True)
        return Affine(weight=self.scale * (weight + self.offset), bias=own_bias)

    @torch.no_grad()
    def write(self, affine: Affine) -> None:
        """Store an Affine. Raises ValueError for a bias other than 0 if the module has none."""
        bias = getattr(self.module, "bias", None)
        if bias is None and affine.bias.any():
            raise ValueError(f"a bias for a {type(self.module).__name__} that has none")
        self.put(self.module.weight, affine.weight / self.scale - self.offset)
        if bias is not None:
            self.put(bias, affine.bias)


def get_matrix(module: Any) -> Tensor:
    """The weight (out, in) of a linear map.

    transformers' Conv1D stores it transposed.
    """
    if isinstance(module, Conv1D):
        return module.weight.T
    return module.weight


def split(module: Any, parts: int) -> list[Place]:
    """The places of `parts` linear maps of equal size, one below the other in one matrix."""
    rows = torch.arange(len(get_matrix(module)))
    return [Place(module, part) for part in rows.chunk(parts)]


@dataclass(frozen=True)
class Shape:
    """The sizes of a new network.

    Its feed-forward layers are four times as wide as `hidden_size`.
    """

    vocabulary: int
    columns: int
    layers: int
    hidden_size: int
    heads: int
    dropout: float
    scaled: bool = False  # see Architecture.build

    def make_common_keys(self) -> dict[str, Any]:
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
    """A network's forward pass in steps.

    finish(layers[-1](... layers[0](hidden))) are the last hidden states.
    """

    hidden: Tensor  # (B, T, D): the embeddings
    layers: Sequence[Callable[[Tensor], Tensor]]
    finish: Callable[[Tensor], Tensor]


class Architecture:
    """A kind of language model, or several kinds that the same code can handle.

    Attributes:
        families: transformers' classes of language models. A new network is of the first class.
        masked: whether it predicts masked tokens. If not, it predicts each token from the earlier
            ones.
        post_norm: whether the residual stream itself is normalised.
        rms_norm: whether its norms are RMSNorms. If not, they are LayerNorms.
        norms_all_heads: whether a norm of queries or keys spans all heads. If not, it normalises
            each head by itself.
        widths: the keys of the configuration that grow with the hidden size.
        layer_keys: the keys of the configuration that have a value for each layer.
        epsilon: the key of the configuration that has the norms' epsilon.
        stack: the path of the list of layers in the base model.
        unused: names of parameters that its forward pass does not read.
    """

    families: ClassVar[tuple[type[PreTrainedModel], ...]]
    masked: ClassVar[bool] = False
    post_norm: ClassVar[bool] = False
    rms_norm: ClassVar[bool] = False
    norms_all_heads: ClassVar[bool] = False
    layer_keys: ClassVar[tuple[str, ...]] = ("layer_types",)
    widths: ClassVar[tuple[str, ...]] = ("hidden_size", "num_attention_heads", "intermediate_size")
    epsilon: ClassVar[str] = "layer_norm_eps"
    stack: ClassVar[str] = "layers"
    unused: ClassVar[tuple[str, ...]] = ()

    def make_configuration(self, shape: Shape) -> PreTrainedConfig:
        """The configuration of a new network, with a tied head."""
        raise NotImplementedError

    def unroll(self, network: Any, tokens: Tensor, mask: Tensor | None) -> Unrolled:
        """The forward pass on tokens (B, T).

        The mask (B, T), if there is one, is False at padding. Padding is at the right.
        """
        raise NotImplementedError

    def see(
        self, network: Any, tokens: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The positions of tokens (B, T), and the attention mask or None.

        `mask` (B, T), if there is one, is False at padding. Positions have the shape (1, T) or
        (B, T), the attention mask (B, 1, T, T). It is True where a token (third axis) attends to
        another (last axis). It is None if every token attends to all, or in a decoder to all before
        it, because fast kernels need no mask for that. Padding is at the right, so a decoder needs
        no mask for it. If the network's configuration has `document_mask`, and `mask` is None, both
        results come from `separate_documents`.
        """
        if mask is None and getattr(network.config, "document_mask", None):
            end, text = network.config.document_mask
            return separate_documents(tokens, end, text, causal=not self.masked)
        columns = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        if mask is None or not self.masked:
            return columns, None
        row_mask = mask[:, None, None, :]
        return columns, row_mask.expand(-1, -1, tokens.shape[1], -1)

    def see_window(self, network: Any, positions: Tensor, mask: Tensor | None) -> Tensor | None:
        """The mask of `see`, restricted to a decoder's sliding window.

        A token attends only to the last positions up to its own, as many as the configuration says.
        """
        window = getattr(network.config, "sliding_window", None)
        if not window or positions.shape[1] <= window:
            return mask
        distances = (positions.unsqueeze(2) - positions.unsqueeze(1)).unsqueeze(1)
        is_near = distances < window
        return is_near & (distances >= 0 if mask is None else mask)

    def check(self, config: Any) -> None:
        """Raise ConfigError for a model that the code here would compute wrongly."""

    def set_buffers(self, network: Any) -> None:
        """Set the buffers that depend on the size of a network."""

    def find_modules(self, network: Any) -> Network[Any]:
        """The modules of a network.

        A Place stands for a map that shares its module with others, or whose stored weight differs
        from the one that the network computes with.
        """
        raise NotImplementedError

    def find_places(self, network: Any) -> Network[Place]:
        """Where the weights of a network are."""
        return map_parts(
            self.find_modules(network),
            lambda part: part if isinstance(part, Place) else Place(part),
        )

    def compute_decoder_inputs(self, network: Any, hidden: Tensor) -> Tensor:
        """The inputs (..., D) of the decoder, made from last hidden states (..., D)."""
        return hidden

    def find_activation(self, network: Any) -> Callable[[Tensor], Tensor]:
        """The activation function of a masked model's LM head."""
        return F.gelu

    def make_classifier(self, config: Any) -> nn.Module:
        """transformers' classification head, which maps hidden states to logits (B, C).

        Hidden states are (B, T, D), or in a causal model those of the last token (B, D).
        """
        return nn.Linear(config.hidden_size, config.num_labels, bias=False)

    def count_positions(self, config: Any) -> int:
        """The longest sequence, in tokens, that there are positions for."""
        return config.max_position_embeddings

    @property
    def model_types(self) -> tuple[str, ...]:
        """The `model_type` of each family's configuration in transformers."""
        families: tuple[Any, ...] = self.families
        return tuple(family.config_class.model_type for family in families)

    def build(self, shape: Shape) -> PreTrainedModel:
        """A freshly initialised network.

        Its weights are a function of torch's seed. transformers draws weights with a standard
        deviation of 0.02, chosen for 768 units. A scaled network has 1/sqrt(inputs) instead, so
        that states have the same size at any width (LeCun et al. 1998). For matrices that write to
        the residual stream, this is multiplied by 1/sqrt(2 layers) (GPT-2, Radford et al. 2019,
        section 2.3).
        """
        family: Any = self.families[0]
        config: Any = self.make_configuration(shape)
        if shape.scaled:
            config.scaled = True
            config.initializer_range = find_initial_std(config, shape.hidden_size)
        network = family(config)
        for layer in self.find_places(network).layers if shape.scaled else ():
            for place in (layer.attention.output, layer.ffn.down):
                std = find_initial_std(config, place.shape[1], writes=True)
                nn.init.normal_(place.module.weight, std=std)
        return network

    def layers(self, network: Any) -> Sequence[nn.Module]:
        """The transformer layers of a network, in order."""
        return network.base_model.get_submodule(self.stack)


def separate_documents(tokens: Tensor, end: int, text: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Positions (B, T) that restart with each document, and an attention mask (B, 1, T, T).

    The mask is True where a token (third axis) attends to another (last axis). All tokens of a
    document attend to `<s>` and the prompt, which attend to no document. A prompt's id is `text` or
    more. In a masked model, `end` is the last token of its document. In a decoder it is the first
    token of the next document, whose text it predicts.
    """
    columns = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
    is_prefix = (columns == 0) | (tokens >= text)  # `<s>` and the prompt
    is_end = (tokens == end) & ~is_prefix
    # of each token, from 0. The prefix counts as part of document 0
    document = is_end.cumsum(1)
    if not causal:
        document = document - is_end.long()
    differs = document[:, 1:] != document[:, :-1]
    begins = F.pad(differs, (1, 0))
    start = torch.where(begins, columns, 0).cummax(1).values
    # the first token of each document has the position after the prefix
    positions = columns - start + (document > 0) * is_prefix.sum(1, keepdim=True)
    is_same = document.unsqueeze(2) == document.unsqueeze(1)
    visible = (is_same & ~is_prefix.unsqueeze(2)) | is_prefix.unsqueeze(1)
    return positions, (visible.tril() if causal else visible).unsqueeze(1)


def find_initial_std(config: Any, inputs: int, writes: bool = False) -> float:
    """The standard deviation of the weights of a matrix with `inputs` columns in a new network.

    It is `initializer_range`, also for a published network, unless the network is scaled
    (`Architecture.build`). `writes` says whether the matrix writes to the residual stream. Some of
    transformers' models draw such matrices with a smaller deviation. Here only scaled networks do.
    """
    if not getattr(config, "scaled", False):
        return float(config.initializer_range)
    summands = 2 * config.num_hidden_layers if writes else 1
    return float((inputs * summands) ** -0.5)


_loaded: dict[str, Architecture] = {}


def load(name: str) -> Architecture:
    """The record in NAME.py. Raises ValueError with the choices if there is no such file."""
    if name not in _loaded:
        module = importlib.import_module(f"{__name__}.{check_architecture(name)}")
        _loaded[name] = module.ARCHITECTURE
    return _loaded[name]


def find(model_type: str) -> Architecture:
    """The record of a network whose configuration has this `model_type`.

    Files that are already imported are searched first, because importing one takes a while. Raises
    ConfigError if no record has the `model_type`.
    """
    model_types: list[str] = []
    for name in [*_loaded, *(name for name in list_architecture_names() if name not in _loaded)]:
        record = load(name)
        if model_type in record.model_types:
            return record
        model_types.extend(record.model_types)
    raise ConfigError(
        f"unknown architecture {model_type!r}; known are {', '.join(sorted(model_types))}"
    )
