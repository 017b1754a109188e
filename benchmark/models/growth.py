"""Growing a language model in width and depth: the paper's way (`fpi`), or keeping its function (`exact`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmark.models.growth_advanced import Aki
from benchmark.models.growth_exact import Calibration, Exact, silenced
from benchmark.models.growth_layout import architecture_of, enlarged, epsilon, heads, placed, places, width_step
from benchmark.models.growth_maps import Copy, plan_layers
from benchmark.models.growth_padding import Padding
from benchmark.models.growth_width import Fpi, NoiseScale, Width
from benchmark.models.weight_files import WeightFiles
from benchmark.record_lines import GrowthRecord
from benchmark.settings.base import ConfigError

Mode = Literal["exact", "fpi", "aki"]
_CALIBRATION_STATES = 4096  # enough to fit the head's extra units; more only costs time


@torch.no_grad()
def grow(
    network: PreTrainedModel,
    layers: int,
    hidden_size: int,
    *,
    mode: Mode = "exact",
    noise: float = 0.0,
    noise_scale: NoiseScale = "absolute",
    copy: Copy = "new",
    copied: Sequence[int] = (),
    seed: int = 0,
    calibration: Tensor | None = None,
    files: WeightFiles | None = None,
) -> tuple[PreTrainedModel, GrowthRecord]:
    """A larger copy of a language model of a known architecture; the given one stays as it is.

    Heads keep their size, the FFN its multiple of the hidden size, dropout, dtype, device and the rest of the
    configuration stay as they are. torch's global random state is neither used nor changed.

    Args:
        layers, hidden_size: the new size.
        mode: "exact" keeps the function wherever the architecture allows and comes close elsewhere; "fpi" is the
            paper's width expansion and plain copies of layers, "aki" likewise with new units from the layer above.
        noise: standard deviation of the noise on split units (fpi only).
        noise_scale: whether `noise` is "absolute", or "relative" to the standard deviation of each matrix.
        copy: which layers to copy: "new" those never copied before, always the "first" or the "last", or "stack"
            the whole stack on itself.
        copied: layers of `network` that were copied before (`copied` in the GrowthRecord of its last growth).
        calibration: (B, T) token ids, masked as in training, on which exact growth of a BERT to other than whole
            multiples of its width fits the LM head's extra units.
        files: where the larger network's weights are to lie; by default in memory, on the device of the given one.

    Raises ConfigError for a network or a size that cannot be grown (to), saying what is possible.
    """
    _check(network, layers, hidden_size, mode, noise, copy, copied)
    generator = torch.Generator().manual_seed(seed)
    plan = plan_layers(network.config.num_hidden_layers, layers, copy, copied, generator)
    width = _width(network, hidden_size, generator, mode, (noise, noise_scale), calibration)
    grown = enlarged(network, plan.sources, hidden_size, epsilon(network) * width.variance, files)
    old, new = places(network), places(grown)
    wide = width.layers(old.layers, plan.sources)
    if mode == "exact":
        wide = silenced(wide, plan, architecture_of(network).post_norm)
    for place, weights in chain(placed(wide, new.layers), width.ends(old, new)):
        place.write(weights)
        if files:
            files.written(weights.weight)

    case, note = _case(network, layers, hidden_size, mode, noise, calibration is not None)
    return grown, GrowthRecord(
        layer_sources=plan.sources,
        layer_is_copy=plan.is_copy,
        head_sources=width.head_sources,
        copied=plan.copied,
        case=case,
        note=note,
    )


def _width(
    network: PreTrainedModel,
    hidden_size: int,
    generator: torch.Generator,
    mode: Mode,
    noise: tuple[float, NoiseScale],
    calibration: Tensor | None,
) -> Width:
    sizes = network.config.hidden_size, hidden_size, heads(network.config), generator
    if mode == "fpi":
        return Fpi(*sizes, *noise)
    if mode == "aki":
        return Aki(*sizes)
    if architecture_of(network).rms_norm:
        return Padding(*sizes, tied=network.config.tie_word_embeddings)
    return Exact(*sizes, architecture_of(network).post_norm, _calibration(network, hidden_size, calibration))


def _calibration(network: PreTrainedModel, hidden_size: int, rows: Tensor | None) -> Calibration | None:
    if rows is None or places(network).head is None or hidden_size % network.config.hidden_size == 0:
        return None
    return Calibration(_states(network, rows), architecture_of(network).activation(network), epsilon(network))


def _states(network: PreTrainedModel, calibration: Tensor) -> Tensor:
    """Hidden states (n, S) that enter the LM head for token ids (B, T), in float64."""
    training = network.training
    try:
        rows = calibration[: -(-_CALIBRATION_STATES // calibration.shape[1])].to(network.device)
        states = network.eval().base_model(rows).last_hidden_state
    finally:
        network.train(training)
    return states.flatten(0, 1).double().cpu()


def _case(
    network: PreTrainedModel, layers: int, hidden_size: int, mode: Mode, noise: float, calibrated: bool
) -> tuple[Literal["exact", "closest", "approximate"], str]:
    deeper = layers > network.config.num_hidden_layers
    whole = hidden_size % network.config.hidden_size == 0
    has_head, post_norm = places(network).head is not None, architecture_of(network).post_norm
    if mode != "exact":
        wider = hidden_size > network.config.hidden_size
        reasons = [
            reason
            for holds, reason in (
                (deeper, "a copied layer acts twice"),
                (not whole, "unequal numbers of copies shift the mean and variance of the norms"),
                (noise > 0, "noise on the outgoing weights of split units"),
                (mode == "aki" and wider, "new units are those of the layer above"),
            )
            if holds
        ]
        return ("approximate", "; ".join(reasons)) if reasons else ("exact", "every unit is there equally often")
    if architecture_of(network).rms_norm:
        return "exact", "new residual units are zero; new heads, feed-forward units and layers write nothing yet"
    if not has_head or (whole and not (post_norm and deeper)):
        return "exact", "average expansion; new layers add nothing yet" if deeper else "average expansion"
    reasons = []
    if not whole:
        fit = "fitted on the calibration batch" if calibrated else "copies, for there was no calibration batch"
        reasons.append(
            f"{hidden_size} is no whole multiple of {network.config.hidden_size}: the extra units of the LM head, "
            f"whose LayerNorm follows a GELU, are {fit}"
        )
        reasons.append(
            "extra units of the residual stream hold a constant for its mean"
            if post_norm
            else "the embedding's LayerNorm is kept up to the square of its output's mean"
        )
    if post_norm and deeper:
        reasons.append("new layers normalise once more, which differs by the LayerNorms' epsilon")
    return "closest", "; ".join(reasons)


def _check(
    network: PreTrainedModel, layers: int, hidden_size: int, mode: str, noise: float, copy: str, copied: Sequence[int]
) -> None:
    config = network.config
    old = f"L{config.num_hidden_layers}_D{config.hidden_size}"
    if layers < config.num_hidden_layers or hidden_size < config.hidden_size:
        raise ConfigError(
            f"cannot shrink {old} to L{layers}_D{hidden_size}: growth keeps or adds layers and width"
            "; give sizes that are no smaller"
        )
    if hidden_size % (step := width_step(config)):
        below = hidden_size - hidden_size % step
        what = f"in groups of {ratio}" if (ratio := heads(config).ratio) > 1 else "whole"
        raise ConfigError(
            f"cannot grow {old} to hidden size {hidden_size}: heads are copied {what}, so it must be a multiple of "
            f"{step}, such as {below} or {below + step}"
        )
    if mode not in get_args(Mode):
        raise ConfigError(f"unknown growth mode {mode!r}; choose from {', '.join(get_args(Mode))}")
    if copy not in get_args(Copy):
        raise ConfigError(f"unknown choice of layers to copy {copy!r}; choose from {', '.join(get_args(Copy))}")
    if noise < 0 or (noise and mode != "fpi"):
        raise ConfigError(
            f"noise {noise} with mode {mode!r}: it must not be negative, and aki or exact growth has none"
        )
    if any(not 0 <= layer < config.num_hidden_layers for layer in copied):
        raise ConfigError(
            f"copied layers {list(copied)} of a model with layers 0 to {config.num_hidden_layers - 1}"
            ": name layers that it has"
        )
    fixed_depth = architecture_of(network).fixed_depth(config)
    if layers > config.num_hidden_layers and fixed_depth:
        raise ConfigError(f"cannot insert layers into this network: {fixed_depth}; grow its width only")
