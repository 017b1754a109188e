"""`run_all.py grow` on folders as they are published, and on those that hold more than a network."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmark.data.tokenizer import Vocabulary
from benchmark.downstream import discriminator
from benchmark.instruments.checkpoints import evaluate_text, export_model, grow_checkpoint
from benchmark.models import LanguageModel, build, growth_width, load
from benchmark.models.experts import ExpertModel
from benchmark.models.growth import grow
from benchmark.models.lora import LoraModel
from benchmark.models.progressive import ProgressiveModel
from benchmark.models.transformer import load_network
from benchmark.models.weight_files import WeightFiles
from benchmark.models.weights import weights_hash
from benchmark.settings.base import ConfigError
from tests.support.small_networks import FAMILIES, RMS_FAMILIES, TOKENS, network
from tests.support.toy_task import DOMAINS, LENGTH, WORDS, save, tokenizer


@pytest.mark.parametrize("family", RMS_FAMILIES)
def test_a_published_folder_keeps_what_is_not_of_its_size(family: str, tmp_path: Path) -> None:
    """Oracle: the folder before: dtype, generation settings, chat template, and in bf16 the function to 8 bits."""
    small, large = tmp_path / "small", tmp_path / "large"
    model = network(family).to(torch.bfloat16)
    model.generation_config = GenerationConfig(temperature=0.6, top_p=0.9, do_sample=True, eos_token_id=2)
    model.save_pretrained(small)
    (small / "chat_template.jinja").write_text("{{ messages }}")
    found = grow_checkpoint(small, layers=3, hidden_size=24, out=large)
    grown = AutoModelForCausalLM.from_pretrained(large)
    assert found.growth["case"] == "exact" and grown.dtype == torch.bfloat16 and grown.config.hidden_size == 24
    assert (large / "chat_template.jinja").read_text() == "{{ messages }}"
    for name in ("temperature", "top_p", "do_sample", "eos_token_id"):
        assert getattr(grown.generation_config, name) == getattr(model.generation_config, name)
    with torch.no_grad():
        before, after = model(TOKENS).logits.float(), grown(TOKENS).logits.float()
    assert (before - after).std() < 0.05 * before.std()
    assert json.loads((large / "config.json").read_text())["tie_word_embeddings"]


def tensors(folder: Path) -> set[str]:
    return {name for file in folder.glob("*.safetensors") for name in load_file(file)}


def resident(folder: Path) -> int:
    """How many kB of a folder's files are in this process's memory."""
    lines, total, counts = Path("/proc/self/smaps").read_text().splitlines(), 0, False
    for line in lines:
        if "-" in line.split(maxsplit=1)[0]:  # a range of addresses, and the file that lies there
            counts = str(folder) in line
        elif counts and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", (*FAMILIES, *RMS_FAMILIES))
def test_growing_into_files_is_growing_in_memory(family: str, tied: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """Oracle: the network grown in memory and saved by transformers: every weight bit for bit, what tensors are called,
    config.json, and what it puts out. Tables come in blocks of rows; what reads new units of an untied decoder is drawn
    block by block, so there the oracle is, too. Nothing stays in memory, after growth or a forward pass."""
    small, saved, files = (tmp_path / name for name in ("small", "saved", "files"))
    network(family, tie_word_embeddings=tied).float().save_pretrained(small, max_shard_size="3KB")
    old = load_network(small)
    if family in RMS_FAMILIES and not tied:
        monkeypatch.setattr(growth_width, "_BLOCK", 100)
    wanted, record = grow(old, 5, 24, seed=4)
    wanted.save_pretrained(saved, max_shard_size="9KB")
    monkeypatch.setattr(growth_width, "_BLOCK", 100)
    files.mkdir()
    progress = list[tuple[int, int]]()
    grown, same = grow(old, 5, 24, seed=4, files=WeightFiles(files, 9000, lambda *now: progress.append(now)))
    if Path("/proc/self/smaps").exists():
        assert resident(files) == 0, "pages"
    assert same == record and len(list(files.glob("*.safetensors"))) > 5
    assert weights_hash(load_network(files)) == weights_hash(wanted) == weights_hash(grown)
    assert tensors(files) == tensors(saved)
    assert (files / "config.json").read_text() == (saved / "config.json").read_text()
    with torch.no_grad():
        assert torch.equal(grown(TOKENS).logits, wanted(TOKENS).logits)
    assert not Path("/proc/self/smaps").exists() or resident(files) < 100
    assert progress[-1][0] == progress[-1][1] > progress[0][0] > 0


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    """Oracle: the words a user needs; no folder is left."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    network("llama").save_pretrained(tmp_path / "small")
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(ConfigError, match=r"no room for [\d,]+ bytes .*: No space left on device"):
        grow_checkpoint(tmp_path / "small", 3, 24, tmp_path / "large")
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def save_more(kind: str, folder: Path) -> None:
    """Save a model that is more than a network."""

    def model() -> LanguageModel:
        return build("llama", 1, 16, Vocabulary(tokenizer().get_vocab_size(), DOMAINS), LENGTH, head_size=16)

    if kind == "columns":
        ProgressiveModel.grown(model(), model()).save(folder, tokenizer())
    elif kind == "adapters":
        adapted = LoraModel(model())
        adapted.add(rank=2)
        adapted.save(folder, tokenizer())
    else:
        mixture = ExpertModel(model())
        mixture.add()
        mixture.save(folder, tokenizer())


@pytest.mark.parametrize("kind", ["columns", "adapters", "experts"])
def test_more_than_a_network_is_refused(kind: str, tmp_path: Path) -> None:
    """Oracle: the words a user needs; nothing is written."""
    save_more(kind, tmp_path / "small")
    with pytest.raises(ConfigError, match=f"small: it has {kind}"):
        grow_checkpoint(tmp_path / "small", 2, 16, tmp_path / "large")
    assert not (tmp_path / "large").exists()


@pytest.mark.parametrize(
    ("kind", "name"), [("columns", "laterals"), ("columns", "column_1/model"), ("adapters",) * 2, ("experts",) * 2]
)
def test_a_number_that_is_none_is_found_in_each_file_of_weights(kind: str, name: str, tmp_path: Path) -> None:
    """Oracle: the tensor that got it, of a folder without checksums."""
    save_more(kind, tmp_path)
    for checksums in tmp_path.rglob("files.json"):
        checksums.unlink()
    path = tmp_path / f"{name}.safetensors"
    weights = load_file(path)
    spoilt = sorted(weights)[len(weights) // 2]
    weights[spoilt].view(-1)[-1] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"{path.parent}: tensor {spoilt} holds NaN or infinity"):
        load(tmp_path)


@pytest.mark.parametrize("architecture", ["gpt", "bert"])
def test_the_perplexities_are_those_of_evaluate(architecture: str, tmp_path: Path) -> None:
    """Oracle: `evaluate` on either folder; the model reads with prompts. Its discriminator stays behind."""
    small, large, text = save(tmp_path / "small", architecture), tmp_path / "large", tmp_path / "text.jsonl"
    (small / discriminator.FILE).write_text("{}")
    text.write_text("".join(json.dumps({"text": " ".join(WORDS[i % 5 :])}) + "\n" for i in range(60)))
    found = grow_checkpoint(small, layers=3, hidden_size=48, out=large, mode="fpi", text=text)
    assert found.perplexity == tuple(evaluate_text(folder, text)["perplexity"] for folder in (small, large))
    assert found.perplexity[0] != found.perplexity[1]
    assert not (large / discriminator.FILE).exists()


def test_a_published_model_is_measured_as_evaluate_measures_it(tmp_path: Path) -> None:
    """Oracle: `evaluate`, and the stage's own perplexity, of which the published one is an export."""
    stage, small, large, text = (tmp_path / name for name in ("stage", "small", "large", "text.jsonl"))
    save(stage, prompts=False)
    export_model(stage, small)
    text.write_text("".join(json.dumps({"text": " ".join(WORDS[i % 5 :])}) + "\n" for i in range(60)))
    found = grow_checkpoint(small, layers=2, hidden_size=48, out=large, text=text)
    before = evaluate_text(stage, text)["perplexity"]
    assert found.perplexity == pytest.approx((before, before), rel=1e-5)
    assert evaluate_text(small, text)["perplexity"] == pytest.approx(before, rel=1e-6)
    assert evaluate_text(large, text)["domain"] == "none"
