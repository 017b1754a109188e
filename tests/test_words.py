"""Looking words up gives the library's ids, for every ASCII text of every tokenizer for which it is done."""

from __future__ import annotations

import json
import sysconfig
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from benchmark.data import words
from benchmark.data.tokenizer import EOS, SPECIAL_TOKENS, load_bpe, train_bpe
from benchmark.data.words import Words, takes_words_alone
from tests.support.texts import gpt2_files, sentences

ASCII = [chr(code) for code in range(128)]
PIECES = (
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "''", "'", "_", "0", "12", "a", "the", "don't"),
    *" \t\n\r\v\f\x1c\x1d\x1e\x1f\0\x7f",
    "  ",
    "\r\n",
)
TYPES = (np.dtype("<u2"), np.dtype("<u4"))


def trained() -> Tokenizer:
    """One whose merges join blanks, apostrophes and controls where it may, so that another cut is another id."""
    texts = sentences(1) + ["  \n\n\t\t  don't we've 's 12 12 == == \x1c\x1c \x1f\x1f a", *PIECES] * 20
    bpe = train_bpe(texts, 600)
    bpe.encode_special_tokens = True
    return bpe


OURS = trained()


def same_ids(bpe: Tokenizer, texts: list[str], dtype: np.dtype[Any] = TYPES[0]) -> bool:
    looked_up = Words(bpe, dtype, EOS)
    expected = bpe.encode_batch_fast(texts, add_special_tokens=False)
    return all(looked_up.ids(text).tolist() == [*one.ids, EOS] for text, one in zip(texts, expected, strict=True))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from([*PIECES, *SPECIAL_TOKENS, "<|endoftext|>"]) | st.sampled_from(ASCII)))
def test_any_ascii_text(pieces: list[str]) -> None:
    """Oracle: the tokenizer's own encode. Controls, blanks at either end, contractions, what looks like a
    special token."""
    assert takes_words_alone(OURS)
    assert all(same_ids(OURS, ["".join(pieces)], dtype) for dtype in TYPES)


def test_every_ascii_character_beside_every_other() -> None:
    """Oracle: the tokenizer's own encode, of all pairs, alone and after a blank and before a letter."""
    pairs = ["".join(pair) for pair in product(ASCII, repeat=2)]
    assert same_ids(OURS, [*pairs, *(f" {pair}a" for pair in pairs)])


def test_source_code(tmp_path) -> None:
    """Oracle: the tokenizer's own encode, of modules of Python's library; a loaded tokenizer's too."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in sorted(library.glob("*.py"))[:60]]
    texts = [text for text in texts if text.isascii()]
    assert sum(map(len, texts)) > 500_000
    loaded = load_bpe(gpt2_files(tmp_path / "bpe"))
    loaded.encode_special_tokens = True
    for bpe in (OURS, loaded):
        assert takes_words_alone(bpe) and same_ids(bpe, texts)


ADDED = {"id": 600, "content": "the model", "single_word": False, "lstrip": False, "rstrip": False} | {
    "normalized": False,
    "special": False,
}
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
CUT_BEFORE = {"type": "Split", "pattern": {"Regex": "(?<=x) "}, "behavior": "Removed", "invert": False}
OTHERS: dict[str, tuple[str, Any, str]] = {
    "another cut before": ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [CUT_BEFORE, GPT2]}, "x 12"),
    "no words": ("pre_tokenizer", {**GPT2, "use_regex": False}, "a  ~"),
    "a blank before all": ("pre_tokenizer", {**GPT2, "add_prefix_space": True}, "12 a=the"),
    "text that is changed before": (
        "normalizer",
        {"type": "Strip", "strip_left": True, "strip_right": True},
        "the model",
    ),
    "text that is cut short": (
        "truncation",
        {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "a a a a",
    ),
    "rows that are filled up": (
        "padding",
        {"strategy": {"Fixed": 8}, "direction": "Right", "pad_id": 1, "pad_type_id": 0, "pad_token": "<pad>"}
        | {"pad_to_multiple_of": None},
        "a a",
    ),
    "tokens of several words": ("added_tokens", [*json.loads(OURS.to_str())["added_tokens"], ADDED], "x the model"),
}


@pytest.mark.parametrize("why", OTHERS)
def test_other_tokenizers_keep_their_way(why: str) -> None:
    """Oracle: a text of which the words alone would give other ids."""
    part, value, text = OTHERS[why]
    bpe = Tokenizer.from_str(json.dumps({**json.loads(OURS.to_str()), part: value}))
    bpe.encode_special_tokens = True
    assert not takes_words_alone(bpe) and not same_ids(bpe, [text])


def test_special_tokens_that_stand_for_themselves_keep_their_way() -> None:
    """Oracle: a text of which the words alone would give other ids; the same tokenizer takes them for text if
    told to."""
    bpe = Tokenizer.from_str(OURS.to_str())
    assert not takes_words_alone(bpe) and not same_ids(bpe, ["a <s> b"])
    bpe.encode_special_tokens = True
    assert takes_words_alone(bpe) and same_ids(bpe, ["a <s> b"])


def test_merges_drawn_by_chance_are_not_remembered() -> None:
    """Oracle: the settings of the model."""
    made = json.loads(OURS.to_str())
    made["model"]["dropout"] = 0.1
    bpe = Tokenizer.from_str(json.dumps(made))
    bpe.encode_special_tokens = True
    assert not takes_words_alone(bpe)


def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    """Oracle: the bounds put in; the ids stay those of the library."""
    monkeypatch.setattr(words, "MOST_WORDS", 5)
    monkeypatch.setattr(words, "LONGEST_WORD", 8)
    looked_up, sizes = Words(OURS, TYPES[0], EOS), []
    for text in [f"the {name} {name}{'x' * 20}" for name in "abcdefgh"]:
        assert looked_up.ids(text).tolist() == [*OURS.encode(text, add_special_tokens=False).ids, EOS]
        sizes.append(len(looked_up))
        assert max(map(len, looked_up)) <= 8
    assert max(sizes) == 5 and len(set(sizes)) > 1
