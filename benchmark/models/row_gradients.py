"""The gradient of each row of a batch, from one forward and one backward pass over all rows.

A backward pass adds up the gradients of the rows, so the square or magnitude of each is lost. Here
the parameters' own gradients are switched off, and each layer keeps its input x. When the backward
pass reaches the layer's output y, each row's gradient is computed from its part of x and of d loss
/ d y. For y = x W^T that is (d loss / d y)^T x: the products of any backward pass, but not added up
(Goodfellow 2015, "Efficient per-example gradient computations", arXiv 1510.01799).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from benchmark.settings.base import ConfigError

Take = Callable[[nn.Parameter, slice, Tensor], object]
OfPart = Callable[[slice, Tensor | None], Tensor]
"""Gradients (rows, *part of the parameter), plus those of the parameter's earlier use, if any."""
Rule = Callable[[Any, Tensor, Tensor], Iterator[tuple[nn.Parameter, OfPart]]]
"""The function from a layer's inputs and its outputs' gradients to its parameters' gradients."""

AT_ONCE = 2**23  # numbers in gradients: few enough for a large CPU's cache, enough to fill a GPU


def compute_row_gradients(
    model: nn.Module, rows: int, loss: Callable[[], Tensor], take: Take
) -> None:
    """Call `take(parameter, part, gradients)` with the rows' gradients of each trainable parameter.

    It is called for each part of each parameter. A part is a slice of the parameter's first
    dimension. The gradients have the shape (rows, *parameter[part].shape), and `take` may overwrite
    them. `parameter.grad` is not changed. `loss()` runs the model on `rows` rows and returns the
    sum of the rows' losses, shape (). The first dimension of the layers' inputs and outputs is the
    rows, or 1 if all rows share the input.

    Raises ConfigError if a trainable parameter is not used by calling a layer that `find_rule`
    knows.
    """
    parameters = {
        parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    pending_calls: Counter[nn.Parameter] = Counter()  # calls whose backward pass is still to come
    # of each call whose backward pass is over. A tied parameter has several calls
    functions: defaultdict[nn.Parameter, list[OfPart]] = defaultdict(list)
    missing = set(parameters)  # whose gradients `take` has not got yet
    rules: dict[nn.Module, Rule] = {}  # of the layers that have a hook

    def forward(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if len(output) != rows:  # positions: one for all rows
            output = output.expand(rows, *output.shape[1:])
        if not output.requires_grad:  # an embedding: the graph begins here
            output.requires_grad_()
        # in a list that `backward` empties, because hooks live as long as the graph
        layer_input = inputs[0]
        saved = [layer_input.expand(rows, *layer_input.shape[1:])]
        output.register_hook(partial(backward, layer, saved))
        pending_calls.update(layer.parameters(recurse=False))
        return output

    @torch.no_grad()
    def backward(layer: nn.Module, saved: list[Tensor], gradient: Tensor) -> None:
        for parameter, function in rules[layer](layer, saved.pop(), gradient):
            pending_calls[parameter] -= 1
            if parameter not in parameters:
                continue
            functions[parameter].append(function)
            if pending_calls[parameter] == 0:
                missing.discard(parameter)
                _add_in_parts(parameter, rows, functions.pop(parameter), take)

    hooks = []
    try:
        for layer in model.modules():
            rule = find_rule(layer)
            if rule and parameters.keys() & set(layer.parameters(recurse=False)):
                rules[layer] = rule
                hooks.append(layer.register_forward_hook(forward))
        model.requires_grad_(False)
        loss().backward()
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in parameters:
            parameter.requires_grad_()
    if missing:
        names = ", ".join(sorted(parameters[parameter] for parameter in missing))
        layers = ", ".join([*(kind.__name__ for kind in LAYERS), "RMSNorm"])
        raise ConfigError(
            f"no gradients by row came to {names}: use these parameters in calls of {layers} alone"
        )


def _add_in_parts(
    parameter: nn.Parameter, rows: int, functions: Sequence[OfPart], take: Take
) -> None:
    """Add up the gradients of a parameter's uses, and pass them to `take`, a part at a time."""
    length = len(parameter)
    step = max(1, AT_ONCE * length // (rows * parameter.numel()))
    for start in range(0, length, step):
        part = slice(start, min(start + step, length))
        total = None
        for function in functions:
            total = function(part, total)
        assert total is not None
        take(parameter, part, total.to(parameter.dtype))


def _linear(layer: Any, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[nn.Parameter, OfPart]]:
    x = inputs.flatten(1, -2).to(gradient.dtype)
    dy = gradient.flatten(1, -2)
    first = dy
    second = x
    if isinstance(layer, Conv1D):  # its weight is (inputs, outputs)
        first = x
        second = dy

    def compute_weight(part: slice, total: Tensor | None) -> Tensor:
        product = first[..., part].mT @ second
        return _add(_fill_prompt_rows(product, part), total)

    def compute_bias(part: slice, total: Tensor | None) -> Tensor:
        sums = dy[..., part].sum(1)
        return _add(_fill_prompt_rows(sums, part), total)

    yield layer.weight, compute_weight
    if layer.bias is not None:
        yield layer.bias, compute_bias


def _fill_prompt_rows(gradients: Tensor, part: slice) -> Tensor:
    """Gradients with zeros added for the LM head's prompt rows, which give no logits."""
    missing = part.stop - part.start - gradients.shape[1]
    if not missing:
        return gradients
    other_dimensions = (0, 0) * (gradients.dim() - 2)
    return F.pad(gradients, (*other_dimensions, 0, missing))


def _layer_norm(
    layer: Any, inputs: Tensor, gradient: Tensor
) -> Iterator[tuple[nn.Parameter, OfPart]]:
    x = inputs.to(layer.weight.dtype)
    normal = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    return _norm(layer, normal, gradient)


def _rms_norm(
    layer: Any, inputs: Tensor, gradient: Tensor
) -> Iterator[tuple[nn.Parameter, OfPart]]:
    x = inputs.float()  # as transformers computes it, whatever the precision
    mean_square = x.square().mean(-1, keepdim=True)
    epsilon = getattr(layer, "variance_epsilon", None) or layer.eps
    normal = x * (mean_square + epsilon).rsqrt()
    return _norm(layer, normal, gradient)


def _norm(layer: Any, normal: Tensor, gradient: Tensor) -> Iterator[tuple[nn.Parameter, OfPart]]:
    """The gradients of a norm's gain and bias, if it has one, from the normalised inputs."""
    dtype = layer.weight.dtype
    normal = normal.flatten(1, -2).to(dtype)
    dy = gradient.flatten(1, -2).to(dtype)

    def compute_weight(part: slice, total: Tensor | None) -> Tensor:
        product = normal[..., part] * dy[..., part]
        return _add(product.sum(1), total)

    def compute_bias(part: slice, total: Tensor | None) -> Tensor:
        return _add(dy[..., part].sum(1), total)

    yield layer.weight, compute_weight
    if getattr(layer, "bias", None) is not None:
        yield layer.bias, compute_bias


def _embedding(layer: Any, ids: Tensor, gradient: Tensor) -> Iterator[tuple[nn.Parameter, OfPart]]:
    padding = -1 if layer.padding_idx is None else layer.padding_idx
    is_read = ids != padding
    if hasattr(layer, "embed_scale"):  # Gemma's embeddings are multiplied
        gradient = gradient * layer.embed_scale

    def compute_weight(part: slice, total: Tensor | None) -> Tensor:
        is_in_part = is_read & (ids >= part.start) & (ids < part.stop)
        row, column = is_in_part.nonzero(as_tuple=True)
        if total is None:
            size = part.stop - part.start
            total = gradient.new_zeros(len(ids), size, layer.weight.shape[1])
        places = ids[row, column] - part.start
        values = gradient[row, column].to(total.dtype)
        # `index_add_` adds in a fixed order only on a CPU, `index_put_` only on other devices
        if total.device.type != "cpu":
            return total.index_put_((row, places), values, accumulate=True)
        flat_total = total.view(-1, total.shape[-1])
        flat_places = row * total.shape[1] + places
        flat_total.index_add_(0, flat_places, values)
        return total

    yield layer.weight, compute_weight


def _add(gradients: Tensor, total: Tensor | None) -> Tensor:
    if total is None:
        return gradients
    return gradients.add_(total)


LAYERS = {nn.Linear: _linear, Conv1D: _linear, nn.LayerNorm: _layer_norm, nn.Embedding: _embedding}


def find_rule(layer: nn.Module) -> Rule | None:
    """The function that computes the gradients of a layer's parameters.

    Returns None for an unknown kind of layer. RMSNorms are found by name, because every
    architecture of transformers has its own class of them.
    """
    if isinstance(layer, nn.Embedding) and hasattr(layer, "embed_scale"):
        return _embedding
    is_norm = type(layer).__name__.endswith("RMSNorm") and not isinstance(layer, nn.RMSNorm)
    if is_norm:
        return _rms_norm
    return LAYERS.get(type(layer))
