"""PNN: laterals, the forward pass of columns, dropout, parameters, and rows for fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmark.data.tokenizer import Vocabulary
from benchmark.downstream.classifier import SavedModel
from benchmark.models import build
from benchmark.models.kinds.progressive import (
    AdapterLateral,
    Kind,
    ProgressiveModel,
)
from benchmark.settings.names import list_architecture_names
from tests.support.small_models import VOCABULARY, plain, progressive, rows, tokenizer


def test_adapter_lateral_is_rusus_equation_2() -> None:
    """Oracle: U f(V [a_1 h_1, a_2 h_2]) in NumPy with the exact GELU."""
    from math import erf

    torch.manual_seed(0)
    adapter = AdapterLateral(2, 3, 4).double()
    earlier = torch.randn(2, 5, 3, dtype=torch.float64)
    state = {name: tensor.numpy() for name, tensor in adapter.state_dict().items()}
    joined = np.concatenate(
        [a * h for a, h in zip(state["scales"], earlier.numpy(), strict=True)], axis=-1
    )
    inner = joined @ state["down.weight"].T + state["down.bias"]
    gelu = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
    expected = gelu @ state["up.weight"].T + state["up.bias"]
    np.testing.assert_allclose(adapter(list(earlier)).detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("architecture", list_architecture_names())
def test_columns_are_transformers_with_laterals_added(architecture: str) -> None:
    """Oracle: transformers' own forward pass, with hooks that add sum_j U h_j + c to the input of
    each layer, and to the output of the last layer.
    """
    model = progressive(architecture).eval()
    tokens, positions = rows()
    heard: list[list[Tensor]] = []
    for k, column in enumerate(model.columns):
        levels: list[Tensor] = []
        layers = list(column.architecture.layers(column.network))

        def add(level: int, hidden: Tensor, k: int = k, levels: list = levels) -> Tensor:
            levels.append(hidden)
            maps = model.laterals[k - 1][level].maps if k else []
            return hidden + sum(
                h[level] @ m.weight.T + m.bias for h, m in zip(heard, maps, strict=True)
            )

        handles = [
            layer.register_forward_pre_hook(
                lambda _, args, i=i, add=add: (add(i, args[0]), *args[1:])
            )
            for i, layer in enumerate(layers)
        ]
        handles.append(layers[-1].register_forward_hook(lambda _, args, out, add=add: add(2, out)))
        offset = column.network.config.max_position_embeddings - column.sequence_length
        with torch.no_grad():
            logits = column.network(tokens, position_ids=torch.arange(11)[None] + offset).logits
        for handle in handles:
            handle.remove()
        heard.append(levels)
        expected = logits[torch.arange(4)[:, None], positions, : VOCABULARY.text]
        actual = model(tokens, torch.full((4,), k), positions)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_dropout_only_in_the_newest_column() -> None:
    """Oracle: in training mode, two outputs of an earlier column are equal and two outputs of the
    newest differ. In evaluation mode, the newest column's outputs are equal, too.
    """
    model = ProgressiveModel.add_column(
        progressive("bert", 2, dropout=0.5), plain("bert", dropout=0.5).eval()
    )
    assert model.training
    tokens, _ = rows()
    assert torch.equal(model.encode(tokens, column=1), model.encode(tokens, column=1))
    assert not torch.equal(model.encode(tokens, column=2), model.encode(tokens, column=2))
    model.eval()
    assert torch.equal(model.encode(tokens, column=2), model.encode(tokens, column=2))


@pytest.mark.parametrize("kind, millions", [("linear", 162.1), ("adapter", 166.2)])
def test_parameters_of_the_released_code(kind: Kind, millions: float) -> None:
    """Oracle: the released code has about 162 M for five columns of L6_D384. Adapters have one more
    d x d map for each of 7 levels of 4 columns: 28 x 147,456 = 4.1 M.
    """
    with torch.device("meta"):
        model: Any = build("bert", 6, 384, Vocabulary(50265), 512)
        for _ in range(4):
            model = ProgressiveModel.add_column(
                model, build("bert", 6, 384, Vocabulary(50265), 512), kind
            )
    assert model.parameters_count / 1e6 == pytest.approx(millions, abs=0.05)


def test_rows_to_fine_tune_on_fit_every_column(tmp_path: Path) -> None:
    """A first column, such as a published model, may have more positions than the second.

    Oracle: the length of the second column's rows, and logits for a row of that length.
    """
    long, short = (build("gpt", 1, 16, VOCABULARY, length, 8, 0.0) for length in (24, 12))
    ProgressiveModel.add_column(long, short).save(tmp_path / "model", tokenizer())
    checkpoint = SavedModel(tmp_path / "model")
    assert checkpoint.length == 12
    classifier = checkpoint.load_classifier(("l", "r"), VOCABULARY.domains[1])
    row = torch.full((1, checkpoint.length), 7)
    assert classifier(row, torch.ones_like(row)).logits.shape == (1, 2)
