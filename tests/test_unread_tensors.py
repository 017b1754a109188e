"""Tensors of a published model that its config.json does not describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmark.models import weights_hash
from benchmark.models.transformer import load_network
from benchmark.settings.base import ConfigError
from tests.support.small_networks import FAMILIES, RMS_FAMILIES, network

# What files on the Hub hold beside the weights: heads of other tasks, poolers, buffers that older versions saved
NEEDLESS = {
    "bert": (
        *("bert.pooler.dense.weight", "bert.embeddings.position_ids", "cls.seq_relationship.weight"),
        *("pooler.dense.bias", "embeddings.position_ids", "classifier.bias", "qa_outputs.weight"),
    ),
    "roberta": ("roberta.pooler.dense.weight", "roberta.embeddings.position_ids", "classifier.out_proj.weight"),
    "roberta-prelayernorm": ("roberta_prelayernorm.pooler.dense.bias", "roberta_prelayernorm.embeddings.position_ids"),
    "gpt2": (
        *("transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias", "h.1.attn.masked_bias", "h.1.attn.bias"),
        *("v_head.summary.weight", "score.weight", "multiple_choice_head.summary.weight"),
    ),
    "gpt_neox": (
        *("gpt_neox.layers.0.attention.bias", "gpt_neox.layers.1.attention.masked_bias", "score.weight"),
        "gpt_neox.layers.0.attention.rotary_emb.inv_freq",
    ),
    "modernbert": ("classifier.weight", "model.layers.0.attn.rotary_emb.inv_freq"),
    **dict.fromkeys(RMS_FAMILIES, ("model.layers.0.self_attn.rotary_emb.inv_freq", "score.weight")),
}
# What would change the network, had it a place for them: of a further layer, a bias, a norm, a part of another kind
LOST = {
    "bert": ("bert.encoder.layer.2.output.dense.weight", "cls.predictions.transform.dense.scale"),
    "gpt2": ("h.2.mlp.c_fc.bias", "transformer.h.0.attn.extra.bias", "lm_head.bias"),
    "modernbert": ("model.layers.1.attn.Wqkv.bias",),
    "llama": ("model.layers.0.self_attn.q_proj.bias", "model.norm.bias"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a network, by its family."""
    folders: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            network(family).save_pretrained(folders[family])
        return folders[family]

    return of


def with_more(folder: Path, here: Path, *names: str) -> Path:
    """The network in a folder with further tensors."""
    weights = load_file(folder / "model.safetensors")
    more = {name: torch.ones(3) for name in names}
    assert not weights.keys() & more.keys()
    save_file({**weights, **more}, here / "model.safetensors", metadata={"format": "pt"})
    (here / "config.json").write_text((folder / "config.json").read_text())
    return here


@pytest.mark.parametrize("family", [*FAMILIES, *RMS_FAMILIES])
def test_what_published_files_hold_beside_the_weights_is_passed_over(family: str, saved: Any, tmp_path: Path) -> None:
    """Oracle: the hash of the network's weights without them."""
    wanted = weights_hash(load_network(saved(family)))
    assert weights_hash(load_network(with_more(saved(family), tmp_path, *NEEDLESS[family]))) == wanted


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in LOST.items() for name in names])
def test_what_belongs_to_the_network_is_not_left_out(family: str, name: str, saved: Any, tmp_path: Path) -> None:
    """Oracle: where transformers' networks of this family, or of its relatives, have such a tensor."""
    folder = with_more(saved(family), tmp_path, name, *NEEDLESS[family])
    with pytest.raises(ConfigError, match=f"1 tensors are not described by config.json, e.g. {name}"):
        load_network(folder)


def test_a_model_of_another_type_is_not_read_without_its_biases(saved: Any) -> None:
    """Oracle: Qwen2's layers are Llama's with three biases each; there are two layers."""
    path = saved("qwen2") / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ConfigError, match=r"6 tensors .* e.g. model.layers.0.self_attn.k_proj.bias"):
        load_network(path.parent)
    path.write_text(json.dumps(content))
    load_network(path.parent)
