"""Streams that start from today's published families of models, made small with transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import methods
from benchmark.data.tokenizer import Vocabulary, load_tokenizer
from benchmark.instruments.conformance import TinyRuns
from benchmark.instruments.export import export_model
from benchmark.ledger.runs import load_runs
from benchmark.models import LanguageModel, load
from benchmark.models.transformer import load_network
from benchmark.settings.base import ConfigError
from tests.support.published_families import FAMILIES, published
from tests.support.published_models import config_of
from tests.support.texts import cut_rows


def test_a_token_for_images_needs_no_row(tmp_path: Path) -> None:
    """Oracle: the ids that transformers gives for text, which never has a token for images. Gemma
    3's models of text have 262,144 rows, but their tokenizer has token 262,144, for images.
    """
    folder = published(tmp_path / "start", "Gemma 3")
    plain = AutoTokenizer.from_pretrained(folder)
    ids = plain("def load(file):").input_ids
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    plain.add_tokens([f"<unused{i}>" for i in range(rows - len(plain))])
    plain.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    assert plain.convert_tokens_to_ids("<image_soft_token>") == rows
    plain.save_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.bpe.encode("def load(file):").ids == ids
    assert max(tokenizer.bpe.get_vocab().values()) == rows - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_goes_in_and_out(family: str, tiny_folder: Path) -> None:
    """Oracle: plain transformers: on the rows of the validation text it measures the perplexities
    that the run recorded, to 1e-5, of the untouched model and of the exported last one. It also
    generates with the exported model.
    """
    start = published(tiny_folder / "start", family)
    tiny = TinyRuns("er", methods.build, tiny_folder)
    config = config_of("er", start)
    run = tiny.make_run(config.model_copy(update={"domains": config.domains[:2]}), "runs")
    run.train()
    records = load_runs(run.store.root, "conformance")[0]
    untouched = AutoModelForCausalLM.from_pretrained(start).eval()
    assert records.start.perplexity == pytest.approx(measure(untouched, run), rel=1e-5)
    assert (run.corpus.domains[0].train == untouched.config.eos_token_id).any()

    export_model(run.store.stage_folder(run.keys[-1]), tiny_folder / "out")
    exported: Any = AutoModelForCausalLM.from_pretrained(tiny_folder / "out").eval()
    assert type(exported) is type(untouched)
    assert records.matrix[-1].perplexity == pytest.approx(measure(exported, run), rel=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder / "out")
    prompt = tokenizer("def load(", return_tensors="pt")
    said = exported.generate(**prompt, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert said.shape[1] == prompt["input_ids"].shape[1] + 5


@torch.no_grad()
def measure(network: Any, run: Any) -> dict[str, float]:
    """The perplexity of each domain's validation text by plain transformers."""
    end = network.config.eos_token_id
    length = run.config.data.text_length
    perplexities = {}
    for domain in run.corpus.domains:
        text = torch.from_numpy(domain.valid.astype("int64"))
        rows, is_measured = cut_rows(text, length)
        logits = network(torch.cat([torch.full((len(rows), 1), end), rows], 1)).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits[is_measured], rows[is_measured])
        perplexities[domain.name] = math.exp(loss)
    return perplexities


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_apart_have_windows_of_their_own(family: str, tmp_path: Path) -> None:
    """Oracle: transformers' own network on each document separately, after the token that begins a
    row. Two documents are longer than the window.
    """
    folder = published(tmp_path / "start", family)
    network = load_network(folder)
    end = network.config.eos_token_id
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    special = Vocabulary(network.config.vocab_size).special
    vocabulary = Vocabulary(
        network.config.vocab_size, (), type(special)(bos=0, pad=end, eos=end, mask=-1)
    )
    model = LanguageModel(network, vocabulary).eval()
    model.separate_documents()
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(1, 300, (length,), generator=generator) for length in (11, 3, 14)]
    begin = torch.tensor([0])
    stop = torch.tensor([end])
    row = torch.cat([begin, texts[0], stop, texts[1], stop, texts[2]])
    together = compute_logits(model, row)
    place = 1
    for number, text in enumerate(texts):
        # the token that ends a document is the first of the next
        alone = torch.cat([begin, text] if number == 0 else [begin, stop, text])
        with torch.no_grad():
            expected = plain(alone[None]).logits[0, 1:]
        seen = together[place : place + len(expected)]
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-4)
        place += len(expected)


@pytest.mark.parametrize("family", ["OLMo 3", "Gemma 3"])
def test_a_run_keeps_documents_apart_in_windows(family: str, tiny_folder: Path) -> None:
    """Oracle: by hand: in a model trained with `document_mask`, another first document changes only
    the first document's logits. A run without the mask has another stage key.
    """
    config = config_of("er", published(tiny_folder / "start", family))
    together = config.model_copy(update={"domains": config.domains[:2]})
    data = config.data.model_copy(update={"document_mask": True})
    tiny = TinyRuns("er", methods.build, tiny_folder)
    run = tiny.make_run(together.model_copy(update={"data": data}), "run")
    run.train()
    model = load(run.store.stage_folder(run.keys[-1]) / "model").eval()
    special = model.vocabulary.special
    rows = []
    for token in (50, 60):
        rows.append(torch.tensor([special.bos, token, token, special.eos, 70, 80, 90]))
    first, second = (compute_logits(model, row) for row in rows)
    assert torch.equal(first[3:], second[3:])
    assert not torch.equal(first[1:3], second[1:3])
    assert run.keys[0] != tiny.make_run(together, "together").keys[0]


@torch.no_grad()
def compute_logits(model: LanguageModel, row: Tensor) -> Tensor:
    return model(row[None], torch.tensor([0]), torch.arange(len(row))[None])[0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"final_logit_softcapping": 30.0}, r"final_logit_softcapping = 30\.0"),
        ({"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping = 50\.0"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_what_is_computed_otherwise_is_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """By hand: the models here compute neither Gemma 2's soft caps nor EmbeddingGemma's attention.
    The message must name the setting, and the suite's key.
    """
    folder = published(tmp_path / "start", "Gemma 3", **changed)
    with pytest.raises(ConfigError, match=rf"model\.start: .*{message}"):
        config_of("naive", folder)
    with pytest.raises(ConfigError, match=message):
        load_network(folder)
