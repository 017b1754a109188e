"""Documents that share a row and do not see each other (`data.document_mask`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import methods
from benchmark.data.tokenizer import BOS, EOS
from benchmark.instruments.conformance import TinyRuns
from benchmark.models import load
from benchmark.settings.names import list_architecture_names
from benchmark.training.declaration import make_stage_keys
from benchmark.training.method import Phase
from tests.support.small_models import large
from tests.support.texts import draw

LENGTHS = (5, 3, 6)  # tokens of a row's documents, without EOS


def documents() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(4, 40, (length,), generator=generator) for length in LENGTHS]


@pytest.mark.parametrize("prompts", [False, True])
@pytest.mark.parametrize("architecture", list_architecture_names())
def test_each_document_is_read_as_if_alone(architecture: str, prompts: bool) -> None:
    """Oracle: each document in a row of its own, after `<s>` and the prompt, has the same logits. A
    decoder reads that row without `document_mask`, because one document needs no mask.
    """
    model: Any = large(architecture, layers=3, prompts=prompts)
    model.separate_documents()
    end = torch.tensor([EOS])
    packed = torch.cat(
        [torch.tensor([BOS]), *(part for text in documents() for part in (text, end))]
    )
    together, apart = logits(model, packed), model.network.config.document_mask
    begin = 1
    for number, text in enumerate(documents()):
        # to a decoder, a document's EOS is the first token of the next document
        alone = torch.cat([text, end] if model.masked else [end, text] if number else [text])
        begin -= not model.masked and number > 0
        model.network.config.document_mask = apart if model.masked else None
        by_itself = logits(model, torch.cat([packed[:1], alone]))[1:]
        torch.testing.assert_close(
            together[begin : begin + len(alone)], by_itself, rtol=1e-4, atol=1e-4
        )
        begin += len(alone) + (not model.masked)
    model.network.config.document_mask = None
    assert (logits(model, packed) - together)[-1].abs().max() > 0.01, (
        "else the test would prove nothing"
    )


@torch.no_grad()
def logits(model: Any, row: torch.Tensor) -> torch.Tensor:
    return model(row[None], torch.tensor([1]), torch.arange(len(row))[None])[0]


@pytest.mark.parametrize("method", ["elle", "pnn", "lora"])
@pytest.mark.parametrize("architecture", ["gpt", "bert"])
def test_a_run_keeps_documents_apart(architecture: str, method: str, tmp_path: Path) -> None:
    """Oracle: in the trained model, another first document leaves the last one's logits
    unchanged.
    """
    tiny = TinyRuns(method, methods.build, tmp_path)
    config = tiny.make_config(architecture)
    data = config.data.model_copy(update={"document_mask": True})
    config = config.model_copy(update={"data": data, "domains": config.domains[:2]})
    run = tiny.make_run(config, "run")
    run.train()
    model = load(run.store.stage_folder(run.keys[-1]) / "model")
    first, second = (
        torch.cat([torch.tensor([BOS, token]), *([torch.tensor([EOS])] * 2)]) for token in (5, 6)
    )
    assert torch.equal(logits(model, first)[-1], logits(model, second)[-1])
    assert not torch.equal(logits(model, first)[1], logits(model, second)[1])
    assert make_stage_keys(config, methods.build(method), ["a", "b"]) != make_stage_keys(
        tiny.make_config(architecture), methods.build(method), ["a", "b"]
    )


def test_what_ends_a_document_is_never_masked(tmp_path: Path) -> None:
    """Oracle: the text has as many EOS tokens as a model reads in an epoch. Without the setting,
    some of them are masked.
    """
    tiny, read = TinyRuns("naive", methods.build, tmp_path), {}
    config = tiny.make_config("bert")
    for apart in (True, False):
        data = config.data.model_copy(update={"document_mask": apart})
        stream = tiny.make_run(config.model_copy(update={"data": data}), "run").stream
        rows = stream.blocks[1]
        batch = draw(stream, 1, Phase("adapt"), 0, 0, rows, range(rows))
        read[apart] = int((batch.tokens == EOS).sum())
        text = stream.corpus.domains[1].train[: rows * stream.length]
    assert read[True] == int((text == EOS).sum()) > read[False]
