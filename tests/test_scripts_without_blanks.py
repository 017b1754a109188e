"""Text without blanks between words: near copies, and counts of words."""

from __future__ import annotations

import random
import re
import unicodedata

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from benchmark.data.leaks import (
    NEARLY,
    NGRAM_WORDS,
    find_near_copies,
)
from benchmark.data.tokenizer import EOS, encode_texts, train_bpe
from benchmark.downstream.passages import Example
from benchmark.downstream.tasks import TaskData, _predict_by_words
from benchmark.settings.tasks import Task

SCRIPTS = {
    "Chinese": range(0x4E00, 0x4E00 + 900),
    "rare Chinese": range(0x20000, 0x20000 + 900),
    "Japanese": [*range(0x3042, 0x3090), *range(0x30A2, 0x30F0), *range(0x5000, 0x5100)],
    "Thai": range(0x0E01, 0x0E2F),
    "Lao": [code for code in range(0x0E81, 0x0EAF) if unicodedata.category(chr(code)) == "Lo"],
    "Khmer": range(0x1780, 0x17A3),
    "Burmese": range(0x1000, 0x102A),
    "Yi": range(0xA000, 0xA48D),
    "Javanese": range(0xA984, 0xA9B3),
    "New Tai Lue": range(0x1980, 0x19AC),
    "Balinese": range(0x1B05, 0x1B34),
    "Chinese for compatibility": range(0xF900, 0xFA0E),
    "half-width Japanese": range(0xFF66, 0xFF9E),
}


def draw(letters: list[str], size: int, chosen: random.Random) -> list[str]:
    return chosen.choices(letters, k=size)


def make_documents(script: str) -> tuple[list[str], list[str]]:
    """60 training documents and 20 validation documents: ten copies with three letters changed,
    then ten new ones.

    Every third training document also has a Latin word and a number.
    """
    chosen = random.Random(script)
    letters = [chr(code) for code in SCRIPTS[script]]
    train = [draw(letters, 200, chosen) for _ in range(60)]
    for number, document in enumerate(train):
        if number % 3 == 0:
            document[50] = f" Word{number} "
            document[90] = str(number)
    near = [list(document) for document in train[:10]]
    for document in near:
        for place in chosen.sample(range(200), 3):
            document[place] = chosen.choice(letters)
    fresh = [draw(letters, 200, chosen) for _ in range(10)]
    return ["".join(text) for text in train], ["".join(text) for text in near + fresh]


def encode(bpe: Tokenizer, texts: list[str]) -> np.ndarray:
    return np.array([number for ids in encode_texts(bpe, texts) for number in (*ids, EOS)])


def list_ngrams(text: str) -> set[tuple[str, ...]]:
    """The n-grams of NGRAM_WORDS words, by Python's own regular expressions. A word is a letter of
    a script without blanks, or other characters between blanks.
    """
    lone = "\u0e00-\u0fff\u1000-\u10bf\u1780-\u17ff\u1980-\u19df\u1b00-\u1b7f\u3000-\u9fff"
    lone += "\ua000-\ua4cf\ua980-\ua9df\uf900-\ufaff\uff66-\uff9f\U00020000-\U0002ffff"
    words = re.findall(f"[{lone}]|[^\\s{lone}]+", text.casefold())
    starts = range(len(words) - NGRAM_WORDS + 1)
    return {tuple(words[start : start + NGRAM_WORDS]) for start in starts}


def make_tokenizer(kind: str, texts: list[str]) -> Tokenizer:
    if kind == "letters":
        return train_bpe([], 0)
    if kind == "bpe":
        return train_bpe(texts, 900)
    if kind == "fallback":
        return make_fallback_tokenizer(texts)
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>", max_input_chars_per_word=1000))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<s>", "<pad>", "</s>", "<mask>", "<unk>"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=4000, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_fallback_tokenizer(texts: list[str]) -> Tokenizer:
    """Like Llama 2's: tokens for every tenth letter of the texts, and bytes for the others."""
    letters = sorted({letter for text in texts for letter in text})[::10]
    tokens = ["<s>", "<pad>", "</s>", "<mask>", "<unk>", "\u2581", *letters]
    tokens += [f"<0x{value:02X}>" for value in range(256)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    model = models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


@pytest.mark.parametrize("kind", ["letters", "bpe", "pieces", "fallback"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_near_copies_are_found_in_scripts_without_blanks(script: str, kind: str) -> None:
    """Oracle: Python's sets of n-grams, which find the ten documents with changed letters."""
    train, valid = make_documents(script)
    bpe = make_tokenizer(kind, train + valid)
    [found] = find_near_copies(bpe, EOS, [encode(bpe, valid)], encode(bpe, train))
    known = set().union(*map(list_ngrams, train))
    shares = [len(list_ngrams(text) & known) / len(list_ngrams(text)) for text in valid]
    assert found == [number for number, share in enumerate(shares) if share >= NEARLY]
    assert found == list(range(10))


@pytest.mark.parametrize("kind", ["letters", "bpe", "pieces", "fallback"])
def test_a_letter_in_another_place_changes_no_words_of_other_scripts(kind: str) -> None:
    """Oracle: the same documents of Latin, Greek and Hindi words without a Chinese one beside them.
    The Chinese one makes the code read all documents character by character.
    """
    chosen = random.Random(3)
    alphabets = ["abcdeéüß", "αβγδεζ", "कखगघचछ"]
    words = [
        "".join(chosen.choices(alphabets[number % 3], k=chosen.randint(2, 9)))
        for number in range(400)
    ]
    train = [" ".join(chosen.choices(words, k=60)) for _ in range(50)]
    valid = [f"{text} x" for text in train[:8]]
    valid += [" ".join(chosen.choices(words, k=60)) for _ in range(8)]
    bpe = make_tokenizer(kind, [*train, *valid, "中文字" * 3])
    answers = []
    for more in ([], ["中文字" * 20]):
        texts = encode(bpe, train + more)
        [found] = find_near_copies(bpe, EOS, [encode(bpe, valid + more)], texts)
        answers.append(found)
    assert answers[1] == [*answers[0], len(valid)]
    assert answers[0] == list(range(8))


def test_a_bag_of_words_counts_letters_of_such_scripts() -> None:
    """Oracle: a text's class is which of two letters is among its twelve. Texts differ, so a whole
    text as one word would tell nothing.
    """
    chosen = random.Random(1)
    letters = [chr(code) for code in SCRIPTS["Chinese"]][:40]

    def examples(count: int) -> tuple[Example, ...]:
        drawn = []
        for number in range(count):
            text = draw(letters, 12, chosen)
            text[chosen.randrange(12)] = "犬猫"[number % 2]
            drawn.append(Example("".join(text), None, number % 2, "-"))
        return tuple(drawn)

    task = Task(name="t", domain="d", docstrings={}, metric="accuracy")
    data = TaskData(task, ("dog", "cat"), examples(200), examples(60), examples(60))
    predictions = _predict_by_words(data)
    assert np.mean(np.array(predictions) == data.list_targets("test")) > 0.95
