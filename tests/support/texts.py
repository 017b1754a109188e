"""Made-up texts for tests of tokens, with awkward Unicode and imitations of special tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch

from benchmark.data import tokens
from benchmark.data.tokenizer import EOS, SPECIAL_TOKENS, train_bpe
from benchmark.data.tokens import Corpus, DataCache, DomainTokens, Say
from benchmark.instruments.conformance import make_tiny_config
from benchmark.settings.suite import Data, Start, Tokenizer
from benchmark.settings.texts import Domain
from benchmark.training.learner import Batch
from benchmark.training.method import Phase
from benchmark.training.stream import Stream
from tests.support.record_lines import write_lines

WORDS = [
    "the",
    "model",
    "grows",
    "über",
    "東京",
    "🙂🙃",
    "don't",
    "x=1",
    "1234567",
    "<s>",
    "</s>",
    "<mask>",
    "<domain:a>",
]
ODD = [
    "\u0000",
    "\ufffd \u200b",
    "a\r\n\tb",
    " \n\n ",
    "<|endoftext|>",
    "ＡＢ  ｃ",
    "\u0301e",
    "\x85.\u2028",
]
DATA = Data(sequence_length=18, valid_share=0.2)
SMALL = Tokenizer(vocabulary=320)


def cut_rows(ids: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a validation text (rows, length), and which of their tokens are measured.

    The last row ends with the text. What it shares with the row before is not measured again.
    """
    whole = len(ids) // length
    starts = [row * length for row in range(whole)]
    if len(ids) % length:
        starts.append(len(ids) - length)
    rows = torch.stack([ids[start : start + length] for start in starts])
    is_measured = torch.ones_like(rows, dtype=torch.bool)
    if len(ids) % length:
        is_measured[-1, : length - len(ids) % length] = False
    return rows, is_measured


def sentences(seed: int, count: int = 200, words: list[str] = WORDS) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(5, 40))) for _ in range(count)]


def write(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, ({"text": text} for text in texts))
    return path


def two_domains(folder: Path) -> tuple[Domain, Domain]:
    return (
        Domain(name="a", title="A", train=(str(write(folder / "a.jsonl", sentences(1) + ODD)),)),
        Domain(
            name="b", train=(str(write(folder / "b.jsonl", sentences(2, words=["other", "text"]))),)
        ),
    )


def prepare(
    domains: Sequence[Domain],
    folder: Path,
    tokenizer: Tokenizer = SMALL,
    data: Data = DATA,
    report: Say = lambda line: None,
    start: Path | None = None,
) -> Corpus:
    """The corpus of a run with these settings, near copies of training text included."""
    texts = {
        "domains": tuple(domains),
        "tokenizer": tokenizer,
        "data": data,
        "start": Start(folder=str(start), key="") if start else None,
    }
    config = make_tiny_config("naive").model_copy(update=texts)
    return tokens.prepare(config, DataCache(folder, report))


def decoded(corpus: Corpus, ids: np.ndarray) -> list[str]:
    """The documents in an array, decoded one by one."""
    ends = np.flatnonzero(ids == EOS)
    assert ends[-1] == len(ids) - 1
    return [
        corpus.tokenizer.decode(part[:-1].tolist(), False) for part in np.split(ids, ends[:-1] + 1)
    ]


def assert_same(corpus: Corpus, other: Corpus) -> None:
    assert corpus.keys == other.keys
    for first, second in zip(corpus.domains, other.domains, strict=True):
        assert (first.key, first.info) == (second.key, second.info)
        assert np.array_equal(first.train, second.train)
        assert np.array_equal(first.valid, second.valid)


def gpt2_files(folder: Path, extra: int = 0) -> Path:
    """Files like those of GPT-2, with `<|endoftext|>` as the only special token, at the end.

    The vocabulary begins with `extra` entries that no text uses.
    """
    model = json.loads(train_bpe(sentences(3), 500).to_str())["model"]
    entries = [f"unused{i}" for i in range(extra)] + [
        t for t in model["vocab"] if t not in SPECIAL_TOKENS
    ]
    folder.mkdir()
    vocabulary = {token: index for index, token in enumerate([*entries, "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    return folder


def draw(
    stream: Stream,
    stage: int,
    phase: Phase,
    index: int,
    step: int,
    size: int,
    rows: Sequence[int],
    **more: Any,
) -> Batch:
    """Some rows of a step's batch of `size` rows. The phase must have one batch per step."""
    [part], _ = stream.plan_draws(phase, index, stage, size)
    return stream.make_batch(stage, part, step, rows, **more)


def tiny_corpus(
    domains: int, train_tokens: int, valid_tokens: int, vocabulary: int = 100
) -> Corpus:
    """Random ids of the text vocabulary: enough to see which row comes from where."""
    random = np.random.default_rng(0)

    def ids(count: int) -> np.ndarray:
        return random.integers(4, vocabulary, count).astype(np.uint16)

    tokens = {str(number): number for number in range(vocabulary)}
    return Corpus(
        tokenizer=tokenizers.Tokenizer(tokenizers.models.BPE(tokens, [])),
        text_vocabulary=vocabulary,
        domains=tuple(
            DomainTokens(f"d{i}", f"D{i}", f"key{i}", ids(train_tokens), ids(valid_tokens), {})
            for i in range(domains)
        ),
    )
