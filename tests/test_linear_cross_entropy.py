"""The loss of a large vocabulary, a tenth of the logits at a time. Oracle: torch's cross-entropy of
all logits at once.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmark.data.tokenizer import Vocabulary
from benchmark.models import LanguageModel, build, transformer
from benchmark.models.fast_operators import linear_cross_entropy
from benchmark.models.kinds.lora import LoraModel
from benchmark.models.kinds.progressive import ProgressiveModel

VOCABULARY = Vocabulary(61, ("a", "b"))


def inputs(n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    shapes = ((n, 3), (40, 3), (40,))
    states, weight, bias = (
        torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes
    )
    return states, weight, bias, torch.randint(40, (n,), generator=generator)


def plain(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    return F.cross_entropy(
        F.linear(states, weight, bias).to(torch.promote_types(states.dtype, torch.float32)), targets
    )


@pytest.mark.parametrize("n", [1, 7, 10, 23, 100])
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_the_cross_entropy_of_all_logits(n, with_bias):
    given: list[Any]
    *given, targets = inputs(n)
    given[2] = given[2] if with_bias else None
    leaves = [leaf for leaf in given if leaf is not None]
    ours, expected = (loss(*given, targets) for loss in (linear_cross_entropy, plain))  # type: ignore[call-arg]
    torch.testing.assert_close(ours, expected)
    # times 3, because what follows the loss scales its gradients
    torch.testing.assert_close(
        torch.autograd.grad(3 * ours, leaves), torch.autograd.grad(3 * expected, leaves)
    )


def test_autocast_costs_what_bf16_costs():
    """Oracle: torch's cross-entropy under the same autocast, with gradients within bf16's 1%."""
    *leaves, targets = inputs(50, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, expected = (loss(*leaves, targets) for loss in (linear_cross_entropy, plain))  # type: ignore[call-arg]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    pairs = zip(
        torch.autograd.grad(ours, leaves), torch.autograd.grad(expected, leaves), strict=True
    )
    for a, b in pairs:
        assert a.dtype == torch.float32 and (a - b).norm() < 0.01 * b.norm()


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is made inside."""

    numbers = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


def test_a_tenth_of_the_logits_is_there_at_once():
    """Oracle: the largest tensor that torch makes: a tenth of the logits, not all of them."""
    states, weight, bias, targets = inputs(1000)
    with Largest() as seen:
        linear_cross_entropy(states, weight, bias, targets).backward()
    assert seen.numbers == 1000 * 40 / 10
    with Largest() as seen:
        plain(states, weight, bias, targets).backward()
    assert seen.numbers == 1000 * 40


def models() -> dict[str, LanguageModel]:
    def create(architecture: str, **more: Any) -> LanguageModel:
        torch.manual_seed(3)
        model = (
            build(architecture, 1, 32, VOCABULARY, 18, head_size=16, dropout=0.0, **more)
            .double()
            .train()
        )
        for parameter in model.parameters():  # biases too, which begin at zero
            parameter.data.add_(0.02 * torch.randn_like(parameter))
        return model

    adapted = LoraModel(create("gpt"))
    adapted.add(2)
    return {
        **{name: create(name) for name in ("bert", "bert_preln", "gpt")},
        "prompts": create("gpt", prompts=True),
        "lora": adapted.double().train(),
        "pnn": ProgressiveModel.add_column(create("gpt"), create("gpt")).double().train(),
    }


@pytest.mark.parametrize("name", models())
def test_every_model_has_the_same_loss_either_way(name, monkeypatch):
    """Oracle: the loss of all logits at once, and its gradient for every parameter that learns."""
    model = models()[name]
    tokens = torch.randint(4, 61, (3, 17))
    batch = (
        tokens,
        torch.tensor([0, 1, 1]),
        torch.arange(1, 9).expand(3, 8),
        torch.randint(4, 61, (3, 8)),
    )
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    results = []
    for few in (2**30, 0):
        monkeypatch.setattr(transformer, "FEW_LOGITS", few)
        loss = model.compute_mean_loss(*batch)
        results.append(
            [loss, *torch.autograd.grad(loss, learning, allow_unused=True, materialize_grads=True)]
        )
    torch.testing.assert_close(results[1], results[0])
    assert "LinearCrossEntropy" in loss.grad_fn.name()
