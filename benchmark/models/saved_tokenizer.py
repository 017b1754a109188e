"""The tokenizer in a model's folder, as plain transformers reads it: it begins a text as the model's rows begin."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from benchmark.data.tokenizer import Special, Vocabulary, plainly
from benchmark.settings.base import ConfigError

UNUSED = "<unused:"  # what a row's token begins with that a published tokenizer has none for


def read(folder: Path, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer in the folder of a model of this vocabulary. Raises ConfigError if it is missing or damaged."""
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
        if missing := plainly(tokenizer):
            raise ValueError(f"it lacks {missing} of the 256 bytes")
        ids = [tokenizer.token_to_id(token) for token in vocabulary.prompt_tokens]
        if ids != list(range(vocabulary.text, vocabulary.size)):
            raise ValueError(f"the prompts of a model with {vocabulary.text} text ids would be {ids}")
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{path} is missing or damaged ({str(error)[:100]}): restore it from a copy") from None
    return tokenizer


def with_prompts(tokenizer: Tokenizer, vocabulary: Vocabulary) -> Tokenizer:
    """The text's tokenizer with the prompts as further special tokens.

    Raises ValueError when a prompt would not get the id of its row.
    """
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    if vocabulary.special != Special():  # a published model may have rows without a token
        tokenizer.add_special_tokens([f"{UNUSED}{i}>" for i in range(tokenizer.get_vocab_size(), vocabulary.text)])
    tokenizer.add_special_tokens(list(vocabulary.prompt_tokens))
    ids = [tokenizer.token_to_id(token) for token in vocabulary.prompt_tokens]
    if ids != list(range(vocabulary.text, vocabulary.size)):
        raise ValueError(
            f"the tokenizer does not fit a model with {vocabulary.text} text ids: the prompts would be {ids}"
        )
    return tokenizer


def without_prompts(tokenizer: Tokenizer, vocabulary: Vocabulary) -> Tokenizer:
    """The text's tokenizer, of one that `with_prompts` made."""
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [
        token
        for token in content["added_tokens"]
        if token["id"] < vocabulary.text and not token["content"].startswith(UNUSED)
    ]
    return Tokenizer.from_str(json.dumps(content))


def renamed(tokenizer: Tokenizer, row: int, name: str) -> Tokenizer:
    """The tokenizer with another name for the special token of a row."""
    content = json.loads(tokenizer.to_str())
    old = tokenizer.id_to_token(row)
    for token in content["added_tokens"]:
        if token["id"] == row:
            token["content"] = name
    if old in (words := content["model"]["vocab"]):
        words[name] = words.pop(old)
    return Tokenizer.from_str(json.dumps(content))


def wrapped(
    tokenizer: Tokenizer, special: Special, columns: int, masked: bool, prompt: int | None = None
) -> PreTrainedTokenizerFast:
    """What `AutoTokenizer` reads back.

    A text becomes `<s>`, the prompt if there is one, and its tokens; a masked model reads whole documents, so there
    `</s>` follows. Between two texts stands `</s>`.

    Args:
        columns: the longest row that the model has positions for.
        prompt: the id of a domain prompt that begins each text.

    Raises ValueError when the tokenizer lacks a special token.
    """
    names = {name: tokenizer.id_to_token(i) for name, i in vars(special).items() if i >= 0}
    if None in names.values():
        raise ValueError(f"the tokenizer does not fit the model: special tokens are {names}")
    ids = {"begin": special.bos, "end": special.eos} | ({} if prompt is None else {"prompt": prompt})
    begin = [name for name in ("begin", "prompt") if name in ids]
    end = ["end"] * masked
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.post_processor = TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", "end", "$B", *end],
        special_tokens=[{"id": name, "ids": [i], "tokens": [tokenizer.id_to_token(i)]} for name, i in ids.items()],
    )
    tokens = {f"{name}_token": token for name, token in names.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=columns, **tokens)
