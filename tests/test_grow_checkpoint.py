"""`run_all.py grow` on published models, and on models that have more than a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

import run_all
from benchmark.instruments.checkpoints import evaluate_text, grow_checkpoint
from benchmark.instruments.export import export_model
from benchmark.models import LanguageModel
from benchmark.settings.base import ConfigError
from tests.support import small_models
from tests.support.small_models import adapted, mixture, plain, progressive
from tests.support.small_networks import RMS_FAMILIES, TOKENS, network
from tests.support.toy_task import WORDS, save


@pytest.mark.parametrize("family", RMS_FAMILIES)
def test_a_published_folder_keeps_what_is_not_of_its_size(
    family: str, tmp_path: Path, capsys
) -> None:
    """Oracle: the folder before growth: its dtype, generation settings, chat template, and its
    logits within 5% of their spread, because bf16 has only 8 significant bits.
    """
    small, large = tmp_path / "small", tmp_path / "large"
    model = network(family).to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        temperature=0.6, top_p=0.9, do_sample=True, eos_token_id=2
    )
    model.save_pretrained(small)
    (small / "chat_template.jinja").write_text("{{ messages }}")
    assert (
        run_all.main(["grow", str(small), "--layers", "3", "--width", "24", "--out", str(large)])
        == 0
    )
    said = capsys.readouterr().out
    grown = AutoModelForCausalLM.from_pretrained(large)
    assert (
        "max_logit_difference: " in said
        and grown.dtype == torch.bfloat16
        and grown.config.hidden_size == 24
    )
    assert (large / "chat_template.jinja").read_text() == "{{ messages }}"
    for name in ("temperature", "top_p", "do_sample", "eos_token_id"):
        assert getattr(grown.generation_config, name) == getattr(model.generation_config, name)
    with torch.no_grad():
        before, after = model(TOKENS).logits.float(), grown(TOKENS).logits.float()
    assert (before - after).std() < 0.05 * before.std()
    assert json.loads((large / "config.json").read_text())["tie_word_embeddings"]


MORE: dict[str, LanguageModel] = {
    "columns": progressive("llama", 2),
    "adapters": adapted("llama", 1),
    "experts": mixture(plain("llama"), 2),
}


@pytest.mark.parametrize("kind", MORE)
def test_more_than_a_network_is_refused(kind: str, tmp_path: Path) -> None:
    """By hand: each model has columns or modules beside its network. The message must name them,
    and nothing is written.
    """
    MORE[kind].save(tmp_path / "small", small_models.tokenizer())
    with pytest.raises(
        ConfigError, match=f"small: it has {'columns' if kind == 'columns' else 'modules'}"
    ):
        grow_checkpoint(tmp_path / "small", 2, 16, tmp_path / "large")
    assert not (tmp_path / "large").exists()


def test_a_published_model_is_measured_as_evaluate_measures_it(tmp_path: Path) -> None:
    """Oracle: `evaluate` on the stage that was exported. Growth keeps the perplexity."""
    stage, small, large, text = (
        tmp_path / name for name in ("stage", "small", "large", "text.jsonl")
    )
    save(stage, prompts=False)
    export_model(stage, small)
    text.write_text(
        "".join(json.dumps({"text": " ".join(WORDS[i % 5 :])}) + "\n" for i in range(60))
    )
    facts = grow_checkpoint(small, layers=2, hidden_size=48, out=large, text=text)
    before = evaluate_text(stage, text)["perplexity"]
    assert [facts["perplexity_before"], facts["perplexity_after"]] == pytest.approx(
        [before, before], rel=1e-5
    )
    assert evaluate_text(small, text)["perplexity"] == pytest.approx(before, rel=1e-6)
    assert evaluate_text(large, text)["domain"] == "none"
