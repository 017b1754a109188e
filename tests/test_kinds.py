"""What columns (PNN), adapters (LoRA) and experts (Lifelong-MoE) have in common: streams, rows,
folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import methods
from benchmark.downstream.classifier import SavedModel
from benchmark.instruments.conformance import TinyRuns
from benchmark.models import load
from benchmark.settings.names import list_architecture_names
from tests.support.record_lines import read_stage_lines
from tests.support.small_models import adapted, mixture, of, plain, progressive, rows, tokenizer

KINDS: dict[str, Any] = {
    "pnn": progressive,
    "lora": adapted,
    "lifelong_moe": lambda architecture: mixture(plain(architecture, dropout=0.0), 3),
}
BY_DOMAIN = ("pnn", "lora")


@pytest.mark.parametrize("method", BY_DOMAIN)
def test_a_stream_forgets_exactly_nothing(method: str, tmp_path: Path) -> None:
    """Oracle: by hand, in a whole run: after its stage, a domain's perplexity never changes, to the
    last digit, so that AP⁺ is 0. Before its stage it is another.
    """
    tiny = TinyRuns(method, methods.build, tmp_path)
    run = tiny.make_run(tiny.make_config("gpt"), "run")
    run.train()
    lasts = []
    for key in run.keys:
        lines = read_stage_lines(run.store.stage_file(key))
        lasts.append([line for line in lines if line["kind"] == "evaluation"][-1]["perplexity"])
    names = list(lasts[0])
    for index, name in enumerate(names):
        assert [last[name] for last in lasts[index:]] == [lasts[index][name]] * (len(names) - index)
        assert index == 0 or lasts[index][name] != lasts[index - 1][name]


@pytest.mark.parametrize("kind", BY_DOMAIN)
def test_rows_are_read_as_their_domain_says(kind: str) -> None:
    """Oracle: each row read alone. Domain 3, which has no column or adapters yet, is read as domain
    2, the newest.
    """
    model = KINDS[kind]("gpt").eval()
    tokens, positions = rows(5)
    domains = torch.tensor([2, 0, 3, 1, 0])
    for compute in (lambda t, d, p: model(t, d, p), lambda t, d, p: model.hidden(t, d)):
        alone = [compute(tokens[[i]], domains[[i]].clamp(max=2), positions[[i]]) for i in range(5)]
        torch.testing.assert_close(
            compute(tokens, domains, positions), torch.cat(alone), rtol=1e-5, atol=1e-6
        )
    assert not torch.equal(model(tokens[[1]], torch.tensor([1]), positions[[1]]), alone[1])


@pytest.mark.parametrize(
    ("kind", "newest"), [("pnn", ("network.", "laterals.1.")), ("lora", ("adapters.1.",))]
)
def test_only_what_is_newest_learns(kind: str, newest: tuple[str, ...]) -> None:
    """Oracle: three steps of AdamW with weight decay leave all else bitwise as it was, and move
    every new tensor.
    """
    model = KINDS[kind]("bert").train()
    tokens, positions = rows(16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(tokens, of(2, 16), positions)
        F.cross_entropy(logits.flatten(0, 1), tokens.gather(1, positions).flatten()).backward()
        optimizer.step()
    moved = {
        name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert trained.keys() <= moved and all(name.startswith(newest) for name in moved)


@pytest.mark.parametrize("architecture", list_architecture_names())
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_computes_the_same(kind: str, architecture: str, tmp_path: Path) -> None:
    """Oracle: the model before saving, bit for bit."""
    model = KINDS[kind](architecture).eval()
    model.save(tmp_path / "model", tokenizer())
    model.save(tmp_path / "model", tokenizer())  # over what is there
    loaded = load(tmp_path / "model")
    tokens, positions = rows()
    for domain in range(4):
        assert torch.equal(
            loaded(tokens, of(domain), positions), model(tokens, of(domain), positions)
        )
    assert not loaded.training and loaded.state_dict().keys() == model.state_dict().keys()
    if kind in BY_DOMAIN:
        assert [p.requires_grad for p in loaded.parameters()] == [
            p.requires_grad for p in model.parameters()
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize("architecture", list_architecture_names())
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_fine_tuned_of_a_model(kind: str, architecture: str, tmp_path: Path) -> None:
    """Oracle: the model's hidden states for the task's domain. Padding at the right changes
    nothing.
    """
    model = KINDS[kind](architecture).eval()
    model.save(tmp_path / "model", tokenizer())
    tokens, _ = rows()
    mask = torch.ones_like(tokens)
    mask[1, 7:] = 0
    padded = torch.where(mask.bool(), tokens, 1)
    for domain, index in (("web", 0), ("news", 1), ("biology", 2), ("still to come", 2)):
        encoder = SavedModel(tmp_path / "model").load_classifier(("l", "r"), domain).eval().model
        assert all(parameter.requires_grad for parameter in encoder.parameters())
        hidden, short = model.hidden(tokens, of(index)), model.hidden(tokens[[1], :7], of(index, 1))
        torch.testing.assert_close(encoder.encode(tokens), hidden, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            encoder.encode(padded, mask.bool())[1, :7], short[0], rtol=1e-4, atol=1e-5
        )
