"""Tiny models with their own tokenizers, like published models, and runs that start from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from benchmark.instruments.conformance import make_tiny_config
from benchmark.models.start_model import resolve_start_model
from benchmark.settings.suite import Model, RunConfig


def save_tokenizer(folder: Path, special: dict[str, str], kind: str = "gpt") -> Tokenizer:
    """Save a byte-level BPE that is trained on a page of Python, and return it. GPT-2's only
    special token has the last id, RoBERTa's five have the first four ids and the last.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    first = ["<s>", "<pad>", "</s>", "<unk>"] if kind == "bert" else []
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=first, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([(Path(json.__file__)).read_text()], trainer)
    bpe.add_special_tokens(["<mask>" if kind == "bert" else "<|endoftext|>"])
    PreTrainedTokenizerFast(tokenizer_object=bpe, **special).save_pretrained(folder)
    return bpe


def published(folder: Path, kind: str, **config: Any) -> Path:
    """Save a tiny GPT-2 or RoBERTa with a tokenizer from `save_tokenizer`. Returns the folder."""
    torch.manual_seed(0)
    special = {
        "gpt": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
        "bert": {
            "bos_token": "<s>",
            "pad_token": "<pad>",
            "eos_token": "</s>",
            "mask_token": "<mask>",
        },
    }[kind]
    bpe = save_tokenizer(folder, special, kind)
    rows = bpe.get_vocab_size() + 7  # published embeddings have rows that no token uses
    if kind == "gpt":
        end = bpe.token_to_id("<|endoftext|>")
        sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 40}
        GPT2LMHeadModel(
            GPT2Config(vocab_size=rows, bos_token_id=end, eos_token_id=end, **sizes | config)
        ).save_pretrained(folder)
    else:
        sizes = {
            "num_hidden_layers": 1,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "intermediate_size": 128,
        }
        sizes |= {"max_position_embeddings": 42, "type_vocab_size": 1}
        RobertaForMaskedLM(RobertaConfig(vocab_size=rows, **sizes | config)).save_pretrained(folder)
    return folder


def config_of(method: str, start: Path, **model: Any) -> RunConfig:
    tiny = make_tiny_config(method)
    return resolve_start_model(tiny.model_copy(update={"model": Model(start=str(start), **model)}))
