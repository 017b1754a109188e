"""ASCII text to ids word by word: the ids of a byte-level BPE, whose own way of cutting text takes most of its time."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

# GPT-2's words, by which `ByteLevel` cuts: these are all letters, digits and blanks that ASCII has (\x1c is none there)
WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\s0-9A-Za-z]+|\s+(?!\S)|\s+", re.ASCII)
MOST_WORDS = 2**17  # that are remembered: about 40 MB
LONGEST_WORD = 64  # letters; longer ones hardly come again


def takes_words_alone(bpe: Tokenizer) -> bool:
    """Whether the ids of a text are those of its words in turn: no step before, between or after joins them."""
    made = json.loads(bpe.to_str())
    cut, model = made["pre_tokenizer"] or {}, made["model"]
    return (
        (cut.get("type"), cut.get("add_prefix_space"), cut.get("use_regex")) == ("ByteLevel", False, True)
        and (model["type"], model["dropout"]) == ("BPE", None)
        and not any(made[step] for step in ("normalizer", "truncation", "padding"))
        and (bpe.encode_special_tokens or not made["added_tokens"])
        and all(token["special"] for token in made["added_tokens"])
    )


class Words(dict[str, bytes]):
    """The ids of each word, as bytes of `dtype`; the tokenizer is asked for those that are not remembered."""

    def __init__(self, bpe: Tokenizer, dtype: np.dtype[Any], eos: int) -> None:
        self._bpe, self._dtype = bpe, dtype
        self._end = np.array(eos, dtype).tobytes()

    def __missing__(self, word: str) -> bytes:
        ids = np.array(self._bpe.encode(word, add_special_tokens=False).ids, self._dtype).tobytes()
        if len(word) <= LONGEST_WORD:
            if len(self) >= MOST_WORDS:
                self.clear()
            self[word] = ids
        return ids

    def ids(self, text: str) -> NDArray[Any]:
        """The ids of an ASCII text, and `eos`."""
        return np.frombuffer(b"".join(map(self.__getitem__, WORD.findall(text))) + self._end, self._dtype)
