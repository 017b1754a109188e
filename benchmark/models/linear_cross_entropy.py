"""The cross-entropy of a large vocabulary without its logits ever being there all at once.

Logits of n predictions over V tokens take n V numbers, several times over in a training step, which is more memory than
all else in a small model. Here they are made, and turned into their gradient, for a tenth of the predictions at a time
(the idea of Cut Cross-Entropy, Wijmans et al. 2024, arXiv 2411.09009, and Liger Kernel, Hsu et al. 2024, arXiv
2410.10989). torch's own `linear_cross_entropy` does the same, and on a CPU takes longer than with all logits.

Shapes: n predictions, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PARTS = 10  # of the predictions, one after the other


def linear_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Mean cross-entropy (), in nats, of targets (n,) for logits states (n, D) times weight (V, D) plus bias (V,).

    Under autocast the products are in its precision, and sums over the vocabulary in fp32. The gradients are computed
    in the forward pass; it cannot be differentiated twice.
    """
    device = states.device.type
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    apply: Any = _LinearCrossEntropy.apply  # torch says nothing of its type
    return apply(states, weight, bias, targets, precision)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, precision: torch.dtype
    ) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):
            rows, columns = states.to(precision), weight.to(precision)
            shift = None if bias is None else bias.to(precision)
            of_states = torch.empty_like(rows)
            of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
            of_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
            sums = torch.promote_types(precision, torch.float32)
            total = torch.zeros((), dtype=sums, device=states.device)
            step = -(-len(rows) // PARTS)
            for start in range(0, len(rows), step):
                here = slice(start, start + step)
                target = targets[here].unsqueeze(1)
                logs = F.log_softmax(F.linear(rows[here], columns, shift), 1, dtype=sums)
                total -= logs.gather(1, target).sum()
                gradient = logs.exp_()  # the softmax; less 1 at the target it is the gradient of the logits
                gradient.scatter_add_(1, target, -torch.ones_like(target, dtype=sums))
                if of_bias is not None:
                    of_bias += gradient.sum(0)
                gradient = gradient.to(precision)
                torch.mm(gradient, columns, out=of_states[here])
                if of_weight is not None:
                    of_weight += gradient.mT @ rows[here]
        gradients = (of_states.to(states.dtype), of_weight, of_bias)
        ctx.gradients = tuple(None if one is None else one.div_(len(rows)) for one in gradients)
        return total / len(rows)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # only once, so they may be overwritten
        return (*(None if one is None else one.mul_(above[0]) for one in gradients), None, None)
