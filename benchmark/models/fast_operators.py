"""Dropout and cross-entropy that cost less than torch's.

Dropout: on a CPU, torch draws masks one number after the other. Its `bernoulli_` took a quarter of
a training step, 16 ns per element. Here a mask takes 16 bits of numpy's SFC64 per element, in about
1 ns, seeded from torch's generator. On other devices, and in compiled code, it is torch's own
dropout.

Cross-entropy: logits of n predictions over V tokens are n V numbers. A training step holds them
several times, which is more memory than all else in a small model. Here they are computed, and
turned into their gradient, for a tenth of the predictions at a time (the idea of Cut Cross-Entropy,
Wijmans et al. 2024, arXiv 2411.09009, and Liger Kernel, Hsu et al. 2024, arXiv 2410.10989). torch's
own `linear_cross_entropy` does the same, and takes longer on a CPU.

Shapes: n predictions, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

PARTS = 10  # a cross-entropy computes its predictions in so many parts
ATTENTION = "sdpa_fast_dropout"  # transformers' name of `attention`
# values of an element's random number: the dropped share is right to within 1e-5
LEVELS = 2**16


def use_fast_dropout(network: PreTrainedModel) -> None:
    """Make a network use this file's dropout, in its attention too."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))
    if network.config._attn_implementation == "sdpa":
        network.set_attn_implementation(ATTENTION)


def drop(x: Tensor, p: float) -> Tensor:
    """`x`, with each element set to 0 with probability `p`, or else divided by 1 - p.

    0 <= p < 1, to the nearest 1 / LEVELS.
    """
    kept_levels = max(1, round((1 - p) * LEVELS))
    if kept_levels == LEVELS:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    mask = torch.empty_like(x, requires_grad=False)
    levels = _draw_levels(x.numel()).view(x.shape)
    torch.lt(levels, kept_levels - LEVELS // 2, out=mask)
    return x * mask.mul_(LEVELS / kept_levels)


def _draw_levels(count: int) -> Tensor:
    """`count` random numbers (count,), int16."""
    seed = int(torch.randint(2**62, ()))
    words = np.random.SFC64(seed).random_raw(-(-count // 4))
    return torch.from_numpy(words.view(np.int16))[:count]


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return drop(x, self.p)
        return x


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention (B, T, H, D / H) of queries, keys and values (B, H, T, D / H).

    transformers calls it with these arguments. The mask is True where a query sees a key. It calls
    torch's own attention, except with dropout on a CPU outside compiled code: torch has no fused
    kernel for that.
    """
    if not dropout or query.device.type != "cpu" or torch.compiler.is_compiling():
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **options
        )
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = attention_mask is None and is_causal
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    scale = scaling or 1 / math.sqrt(query.shape[-1])
    scores = (query * scale) @ key.mT  # (B, H, T, T)
    if causal:
        is_later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill_(is_later, -math.inf)
    elif attention_mask is not None:
        scores = scores.masked_fill_(~attention_mask, -math.inf)
    shares = drop(scores.softmax(-1, dtype=scores.dtype), dropout)
    return (shares @ value).transpose(1, 2), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all targets, in nats.

    Logits (..., V), targets (...).
    """
    return F.cross_entropy(at_least_fp32(logits.flatten(0, -2)), targets.flatten())


def kl_divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student), the mean over all predictions, in nats.

    Logits (..., V), both softened by the temperature.
    """
    log_student, log_teacher = (
        F.log_softmax(at_least_fp32(logits.flatten(0, -2)) / temperature, -1)
        for logits in (student, teacher)
    )
    return F.kl_div(log_student, log_teacher, log_target=True, reduction="batchmean")


def at_least_fp32(logits: Tensor) -> Tensor:
    """The logits in fp32 or more: bf16 has too few digits for sums over the vocabulary."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def linear_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> Tensor:
    """Mean cross-entropy (), in nats, of targets (n,) for logits of states (n, D).

    The logits are states times weight (V, D) plus bias (V,). Under autocast the products are in its
    precision, and sums over the vocabulary in fp32. The gradients are computed in the forward pass.
    So it cannot be differentiated twice.
    """
    device = states.device.type
    precision = states.dtype
    if torch.is_autocast_enabled(device):
        precision = torch.get_autocast_dtype(device)
    apply: Any = _LinearCrossEntropy.apply  # torch says nothing of its type
    return apply(states, weight, bias, targets, precision)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        precision: torch.dtype,
    ) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):
            rounded_states = states.to(precision)
            rounded_weight = weight.to(precision)
            rounded_bias = None if bias is None else bias.to(precision)
            states_gradient = torch.empty_like(rounded_states)
            weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
            bias_gradient = None
            if bias is not None and ctx.needs_input_grad[2]:
                bias_gradient = torch.zeros_like(bias)
            sum_precision = torch.promote_types(precision, torch.float32)
            total = torch.zeros((), dtype=sum_precision, device=states.device)
            step = -(-len(states) // PARTS)
            for start in range(0, len(states), step):
                part = slice(start, start + step)
                target = targets[part].unsqueeze(1)
                # without a name for the logits, so that their memory is free right after
                logs = F.log_softmax(
                    F.linear(rounded_states[part], rounded_weight, rounded_bias),
                    1,
                    dtype=sum_precision,
                )
                total -= logs.gather(1, target).sum()
                # the logits' gradient is the softmax, minus 1 at the target
                gradient = logs.exp_()
                gradient.scatter_add_(1, target, -torch.ones_like(target, dtype=sum_precision))
                if bias_gradient is not None:
                    bias_gradient += gradient.sum(0)
                gradient = gradient.to(precision)
                torch.mm(gradient, rounded_weight, out=states_gradient[part])
                if weight_gradient is not None:
                    weight_gradient += gradient.mT @ rounded_states[part]
        # the loss is scaled only in the backward pass, so small gradients would be lost in fp16
        kept_precision = sum_precision if precision == torch.float16 else states.dtype
        gradients = [states_gradient.to(kept_precision), weight_gradient, bias_gradient]
        for tensor in gradients:
            if tensor is not None:
                tensor.div_(len(states))
        ctx.gradients = gradients
        return total / len(states)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.gradients
        ctx.gradients = None  # backward runs only once, so they may be overwritten
        for tensor in gradients:
            if tensor is not None:
                tensor.mul_(above[0])
        return (*gradients, None, None)
