"""`run_all.py export`: a model in a form that transformers alone can load.

The result is the model's network without the rows of prompts, and a tokenizer to go with it.

A prompt that precedes every text becomes a token to which no softmax may give a probability:

- If the decoder has biases, the prompt is one more row, with a bias of -10,000.
- Otherwise, the prompt replaces the embedding of a token that no text contains. The untied
  decoder keeps the token's old row, so the softmax is over the same rows as before.
"""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from benchmark.data.tokenizer import UNUSED, Vocabulary
from benchmark.files import replace_folder, write_checksums
from benchmark.models import LanguageModel, load
from benchmark.models.kinds.extended import ExtendedModel
from benchmark.models.kinds.lora import LoraModel
from benchmark.models.transformer import (
    find_kind,
    read_configuration,
    read_tokenizer,
    wrap_tokenizer,
)
from benchmark.settings.base import ConfigError

NONE = "none"  # no prompt
# keys of a configuration that only this project reads
OURS = ("domains", "prompts", "text_vocabulary", "special_tokens", "document_mask", "scaled")
NEVER = -1e4  # a logit whose token has probability 0, and that fits in half precision


def export(options: argparse.Namespace) -> int:
    """Write the model of a stage as a plain Hugging Face folder, and say where it went."""
    domain = export_model(Path(options.stage), options.out, options.prompt)
    reads = f"reads texts as those of {domain}" if domain else "reads all texts alike"
    print(f"wrote {options.out}, a Hugging Face model that {reads}")
    folder = _find_model_folder(Path(options.stage))
    arguments = [str(options.out)]
    if domain and read_configuration(folder)["prompts"]:
        # `evaluate` reads no folder whose texts begin with a prompt
        arguments = [str(folder), "--domain", domain]
    command = shlex.join(["evaluate", *arguments, "--text", "FILE"])
    print(f"next: `python run_all.py {command}` measures it")
    return 0


def export_model(stage: Path, out: Path, prompt: str | None = None) -> str | None:
    """Write the model of a stage and its tokenizer to the new folder `out`.

    `stage` is a folder below runs/stages, or the folder `model` in it. `prompt` is the domain whose
    prompt begins each text, or whose LoRA adapters are added into the weights. The default is the
    last domain, as in `evaluate`, and "none" is no prompt.

    Returns that domain, or None for no prompt. If it raises ConfigError, nothing is written.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already: name a new folder")
    folder = _find_model_folder(stage)
    if find_kind(folder) == "progressive":
        raise ConfigError(f"cannot export {stage}: transformers has no model with columns (PNN)")
    model = load(folder)
    domain = _choose_domain(model, stage, prompt)
    network, saved = make_plain(model, read_tokenizer(folder, model.vocabulary), domain)
    with replace_folder(out) as new_folder:
        network.save_pretrained(new_folder)
        saved.save_pretrained(new_folder)
        write_checksums(new_folder)
    return domain


def _find_model_folder(stage: Path) -> Path:
    model = stage / "model"
    if model.is_dir():
        return model
    return stage


def _choose_domain(model: LanguageModel, stage: Path, prompt: str | None) -> str | None:
    """The domain whose prompt or adapters are used, None if all domains are read alike."""
    names = model.vocabulary.domains
    has_adapters = isinstance(model, LoraModel)
    reads_alike = not (model.prompts or has_adapters)
    choices = names if has_adapters else (*names, NONE)
    if prompt is not None and prompt not in choices:
        raise ConfigError(
            f"--prompt {prompt!r}: {stage} knows {', '.join(choices)}: choose one of them"
        )
    if reads_alike or prompt == NONE:
        return None
    return prompt or names[-1]


@torch.no_grad()
def make_plain(
    model: LanguageModel, tokenizer: Tokenizer, domain: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The network and the tokenizer with which transformers predicts as `model` does.

    They are made of `model` and `tokenizer`, which may change.

    Args:
        tokenizer: the one in the model's folder.
        domain: the one whose prompt begins each text, or whose adapters are added into the
            weights. None for no prompt.

    Raises ConfigError if there is no place for a prompt.
    """
    vocabulary = model.vocabulary
    special = vocabulary.special
    index = 0 if domain is None else vocabulary.domains.index(domain)
    if isinstance(model, LoraModel):
        model = LanguageModel(model.to_plain(index), vocabulary)
        domain = None
    elif isinstance(model, ExtendedModel):
        model = LanguageModel(model.to_plain(), vocabulary, model.prompts)
    network: Any = model.network
    prompt = network.get_input_embeddings().weight[vocabulary.text + index].clone()
    model.add_domains((), seed=0)
    tokenizer = remove_prompts(tokenizer, vocabulary)
    row = None
    if domain is not None:
        row = _place_prompt(model, tokenizer, prompt)
        if row == special.mask:
            special = replace(special, mask=-1)
        else:
            tokenizer.add_special_tokens([vocabulary.prompt_tokens[index]])
    for key in OURS:
        vars(network.config).pop(key, None)
    return network, wrap_tokenizer(tokenizer, special, model.sequence_length, model.masked, row)


def _place_prompt(model: LanguageModel, tokenizer: Tokenizer, prompt: Tensor) -> int:
    """Put the embedding (D,) of a prompt into a network without prompts.

    Returns the id of the prompt's token. Raises ConfigError if there is no place for it.
    """
    network: Any = model.network
    row: int | None
    if network.get_output_embeddings().bias is not None:
        # the tokenizer's next id. Published models may have a row for it already
        row = tokenizer.get_vocab_size()
        if row >= network.config.vocab_size:
            network.resize_token_embeddings(row + 1, mean_resizing=False)
        network.get_output_embeddings().bias[row] = NEVER
    elif (row := _find_free_row(tokenizer, model.vocabulary)) is not None:
        decoder = network.get_output_embeddings()
        decoder.weight = nn.Parameter(decoder.weight.clone())
        network.config.tie_word_embeddings = False
    else:
        raise ConfigError(
            "no token of this model is free for a prompt, and its softmax has no biases that keep "
            "one out: export it with --prompt none"
        )
    network.get_input_embeddings().weight[row] = prompt
    return row


def _find_free_row(tokenizer: Tokenizer, vocabulary: Vocabulary) -> int | None:
    """A row whose token no text contains: the first without a token, or that of `<mask>`, if any.

    `<mask>` is free, because only causal models need such a row.
    """
    special = vocabulary.special
    if tokenizer.get_vocab_size() < vocabulary.text:
        return tokenizer.get_vocab_size()
    if special.mask in (special.bos, special.eos, special.pad, -1):
        return None
    return special.mask


def remove_prompts(tokenizer: Tokenizer, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer without the tokens that were added for prompts."""
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [
        token
        for token in content["added_tokens"]
        if token["id"] < vocabulary.text and not token["content"].startswith(UNUSED)
    ]
    return Tokenizer.from_str(json.dumps(content))
