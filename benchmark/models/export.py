"""A model as transformers alone can load it: its network without the rows of prompts, and a tokenizer to go with it.

A prompt that precedes every text becomes a token, and no softmax may give it a probability:

- Where the decoder has biases, the prompt is one more row, with a bias of -10,000.
- Else it takes the embedding of a token that no text contains. The decoder, untied, keeps the row that this token had,
  so the softmax is over the same rows as before.
- Else, where positions are learned, `<s>` stands twice, and the second position turns its embedding into the prompt's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from benchmark.data.tokenizer import Vocabulary
from benchmark.models.kinds import lora
from benchmark.models.kinds.lora import LoraModel
from benchmark.models.saved_tokenizer import renamed, without_prompts, wrapped
from benchmark.models.transformer import LanguageModel
from benchmark.settings.base import ConfigError

OURS = ("domains", "prompts", "text_vocabulary", "special_tokens")  # keys of a configuration that nobody else reads
NEVER = -1e4  # a logit that leaves nothing to its token, and that half precision can hold


@torch.no_grad()
def plain_model(
    model: LanguageModel, tokenizer: Tokenizer, domain: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The network and the tokenizer with which transformers predicts as `model` does; `model` is used up.

    Args:
        tokenizer: the one in the model's folder.
        domain: whose prompt begins each text, or whose adapters are added into the weights; None for no prompt.

    Raises ConfigError where there is no place for a prompt.
    """
    vocabulary, special = model.vocabulary, model.vocabulary.special
    index = 0 if domain is None else vocabulary.domains.index(domain)
    if domain is not None and isinstance(model, LoraModel):
        model, domain = LanguageModel(lora.merged(model, index), vocabulary), None
    network: Any = model.network
    prompt = network.get_input_embeddings().weight[vocabulary.text + index].clone()
    model.meet((), seed=0)
    tokenizer, row = without_prompts(tokenizer, vocabulary), None
    if domain is not None:
        row = _place(model, tokenizer, prompt)
        if row == special.mask:
            tokenizer, special = renamed(tokenizer, row, vocabulary.prompt_tokens[index]), replace(special, mask=-1)
        elif row != special.bos:
            tokenizer.add_special_tokens([vocabulary.prompt_tokens[index]])
    for key in OURS:
        vars(network.config).pop(key, None)
    return network, wrapped(tokenizer, special, model.sequence_length, model.masked, row)


def _place(model: LanguageModel, tokenizer: Tokenizer, prompt: Tensor) -> int:
    """Put the embedding (D,) of a prompt into a network without prompts; returns the id of its token."""
    network: Any = model.network
    row: int | None
    if network.get_output_embeddings().bias is not None:
        row = tokenizer.get_vocab_size()  # the next id that it gives; published models have rows beyond
        if row >= network.config.vocab_size:
            network.resize_token_embeddings(row + 1, mean_resizing=False)
        network.get_output_embeddings().bias[row] = NEVER
    elif (row := _free_row(tokenizer, model.vocabulary)) is not None:
        decoder = network.get_output_embeddings()
        decoder.weight = nn.Parameter(decoder.weight.clone())
        network.config.tie_word_embeddings = False
    else:
        return _at_the_second_position(model, prompt)
    network.get_input_embeddings().weight[row] = prompt
    return row


def _free_row(tokenizer: Tokenizer, vocabulary: Vocabulary) -> int | None:
    """A row whose token no text contains: the first without a token, or `<mask>`'s, for only causal models ask."""
    special = vocabulary.special
    if tokenizer.get_vocab_size() < vocabulary.text:
        return tokenizer.get_vocab_size()
    return None if special.mask in (special.bos, special.eos, special.pad, -1) else special.mask


def _at_the_second_position(model: LanguageModel, prompt: Tensor) -> int:
    tables, bos = model.architecture.places(model.network).tables, model.vocabulary.special.bos
    if len(tables) == 1:
        raise ConfigError(
            "no token of this model is free for a prompt, its softmax has no biases that could keep one out, and its "
            "positions are not learned: export it with --prompt none"
        )
    tokens, positions = (cast(Tensor, table.module.weight) for table in tables[:2])
    positions[1] += prompt - tokens[bos]
    return bos
