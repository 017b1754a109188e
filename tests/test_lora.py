"""LoRA: adapters as a change of weights, what is frozen, whose adapters a row is read with, folders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers.pytorch_utils import Conv1D

import methods
from benchmark import records
from benchmark.data.tokenizer import SPECIAL_TOKENS, Vocabulary
from benchmark.instruments.tiny_runs import Lab
from benchmark.models import LanguageModel, build, load, transformer
from benchmark.models.kinds.lora import AdaptedLinear, LoraModel, load_column
from benchmark.settings.base import ConfigError
from benchmark.settings.names import architecture_names
from benchmark.training.keys import stage_of
from tests.support.thorough import only_thorough

VOCABULARY = Vocabulary(40, ("web", "news", "reviews", "biology"))


def plain(architecture: str, dropout: float = 0.1) -> LanguageModel:
    torch.manual_seed(0)
    return build(architecture, 2, 32, VOCABULARY, sequence_length=12, head_size=16, dropout=dropout)


def adapted(architecture: str, domains: int = 2, dropout: float = 0.1) -> LoraModel:
    """A model with random adapters for the second domain and the `domains` - 1 after it."""
    model = LoraModel(plain(architecture, dropout))
    for _ in range(domains):
        model.add(rank=3)
    for parameter in model.adapters.parameters():
        parameter.data.normal_(std=0.2)
    return model


def rows(count: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, VOCABULARY.text, (count, 11), generator=generator)
    positions = torch.stack([torch.randperm(11, generator=generator)[:3] for _ in range(count)])
    return tokens, positions


def of(domain: int, count: int = 4) -> Tensor:
    return torch.full((count,), domain)


def tokenizer() -> Tokenizer:
    words = {f"w{i}": i for i in range(len(SPECIAL_TOKENS), VOCABULARY.text)}
    tokenizer = Tokenizer(models.WordLevel(words | {token: i for i, token in enumerate(SPECIAL_TOKENS)}))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def changed(model: LoraModel, architecture: str, domain: int) -> LanguageModel:
    """The plain model with W + B A for the weights of a domain: the matrices of its numbered modules, the layers."""
    one = plain(architecture).eval()
    numbered = [module for name, module in one.network.named_modules() if re.search(r"\.\d+\.", name)]
    maps = [module for module in numbered if getattr(module, "weight", None) is not None and module.weight.dim() == 2]
    for module, adapter in zip(maps, model.adapters[domain - 1], strict=True):  # type: ignore[call-overload]
        change = adapter.up.weight @ adapter.down.weight
        module.weight.data += change.T if isinstance(module, Conv1D) else change
    return one


@pytest.mark.parametrize("architecture", architecture_names())
def test_adapters_are_a_change_of_weights(architecture: str) -> None:
    """Oracle: the plain model with W + B A in place of W (Hu et al., eq. 3); the first domain's is the plain model."""
    model = adapted(architecture).eval()
    tokens, positions = rows()
    assert torch.equal(model(tokens, of(0), positions), plain(architecture).eval()(tokens, of(0), positions))
    for domain in (1, 2):
        expected = changed(model, architecture, domain)(tokens, of(domain), positions)
        torch.testing.assert_close(model(tokens, of(domain), positions), expected, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_changed_weights() -> None:
    """Oracle: finite differences in float64, for the gradients of x, A and B that are written by hand."""
    generator = torch.Generator().manual_seed(2)
    shapes = {"x": (2, 3, 5), "weight": (4, 5), "bias": (4,), "down": (2, 5), "up": (4, 2)}
    inputs = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes.values()]
    for name, tensor in zip(shapes, inputs, strict=True):
        tensor.requires_grad_(name in ("x", "down", "up"))
    assert torch.autograd.gradcheck(AdaptedLinear.apply, inputs)


def test_new_adapters_change_nothing() -> None:
    """Oracle: B = 0, so the model computes what it did for the first domain."""
    model = adapted("gpt", domains=1).eval()
    model.add(rank=3)
    tokens, positions = rows()
    assert torch.equal(model(tokens, of(2), positions), model(tokens, of(0), positions))


def test_only_the_newest_adapters_learn() -> None:
    """Oracle: three steps of AdamW with weight decay leave all else bitwise as it was and move every new adapter."""
    model = adapted("bert").train()
    tokens, positions = rows(16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(tokens, of(2, 16), positions)
        F.cross_entropy(logits.flatten(0, 1), tokens.gather(1, positions).flatten()).backward()
        optimizer.step()
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == trained == {name for name in before if name.startswith("adapters.1.")}


def test_a_stream_forgets_exactly_nothing(tmp_path) -> None:
    """Oracle: in a whole run, the perplexity on each domain at the end of its stage is that at the end of the stream,
    to the last digit, and not that before its stage."""
    lab = Lab("lora", methods.build, tmp_path)
    run = lab.run(lab.config("gpt"), "run")
    run.train()
    lasts = []
    for key in run.keys:
        lines = records.read_stage(run.store.stage(key) / "records.jsonl")
        lasts.append([line for line in lines if line["kind"] == "evaluation"][-1]["perplexity"])
    names = list(lasts[0])
    for index, name in enumerate(names):
        assert [last[name] for last in lasts[index:]] == [lasts[index][name]] * (len(names) - index)
        assert index == 0 or lasts[index][name] != lasts[index - 1][name]


def test_the_first_stage_is_naives() -> None:
    """Oracle: the interface's rule for sharing a stage."""
    config = Lab("lora", methods.build, Path()).config()
    method, stage, model = methods.build("lora", {"rank": 2}), stage_of(config, 0), plain("gpt")
    assert method.start_stage(model, stage) is model and method.signature(stage) == {}
    assert method.signature(stage_of(config, 1)) == {"method": "lora", "rank": 2}
    with pytest.raises(ConfigError, match="rank: Input should be greater than or equal to 1"):
        methods.build("lora", {"rank": 0})


@pytest.mark.parametrize("architecture, parameters", [("bert", 331_776), ("gpt", 294_912)])
def test_number_of_parameters(architecture: str, parameters: int) -> None:
    """Oracle: rank x (inputs + outputs) over the maps of L6_D384 at rank 8, by hand: 6 x 8 x 18 x 384 for BERT with
    four d x d maps; GPT's query, key and value are one d x 3d map, so 16 x 384."""
    with torch.device("meta"):
        model = LoraModel(build(architecture, 6, 384, Vocabulary(50265), 512))
        model.add(rank=8)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters


def test_rows_are_read_with_the_adapters_of_their_domain() -> None:
    """Oracle: each row alone. The domain without adapters (3) is read with the newest (2)."""
    model = adapted("bert").eval()
    tokens, positions = rows(5)
    domains = torch.tensor([2, 0, 3, 1, 0])
    alone = [model(tokens[[i]], domains[[i]].clamp(max=2), positions[[i]]) for i in range(5)]
    torch.testing.assert_close(model(tokens, domains, positions), torch.cat(alone), rtol=1e-5, atol=1e-6)
    assert not torch.equal(alone[3], model(tokens[[3]], torch.tensor([2]), positions[[3]]))


@only_thorough
def test_training_is_one_graph() -> None:
    """Oracle: the eager logits; `fullgraph` raises where the compiler would have to leave the graph."""
    model = adapted("gpt", dropout=0.0).train()
    tokens, positions = rows()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, of(2), positions), model(tokens, of(2), positions))


@pytest.mark.parametrize("architecture", architecture_names())
def test_a_saved_model_computes_the_same(architecture: str, tmp_path) -> None:
    """Oracle: the model before saving, bit for bit; as a Hugging Face folder, it is the frozen model."""
    model = adapted(architecture).eval()
    model.save(tmp_path / "model", tokenizer())
    loaded = load(tmp_path / "model")
    tokens, positions = rows()
    for domain in range(4):
        assert torch.equal(loaded(tokens, of(domain), positions), model(tokens, of(domain), positions))
    assert not loaded.training
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]
    frozen = transformer.load(tmp_path / "model")
    assert torch.equal(frozen(tokens, of(0), positions), model(tokens, of(0), positions))


@pytest.mark.parametrize("architecture", architecture_names())
def test_a_network_to_fine_tune(architecture: str, tmp_path) -> None:
    """Oracle: the model's hidden states with the domain's adapters; padding at the right changes nothing."""
    model = adapted(architecture).eval()
    model.save(tmp_path / "model", tokenizer())
    tokens, _ = rows()
    mask = torch.ones_like(tokens)
    mask[1, 7:] = 0
    padded = torch.where(mask.bool(), tokens, 1)
    for domain, index in (("web", 0), ("news", 1), ("biology", 2), ("still to come", 2)):
        encoder = load_column(tmp_path / "model", domain).eval()
        assert all(parameter.requires_grad for parameter in encoder.parameters())
        hidden = model.hidden(tokens, of(index))
        short = model.hidden(tokens[[1], :7], of(index, 1))
        torch.testing.assert_close(encoder(tokens, torch.ones_like(tokens)), hidden, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(encoder(padded, mask)[1, :7], short[0], rtol=1e-4, atol=1e-5)
