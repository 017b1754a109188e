"""What several tests build on. Everything is made here; nothing is read from elsewhere."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer, models

from benchmark.data.tokens import Corpus, DomainTokens


def tiny_corpus(domains: int, train_tokens: int, valid_tokens: int, vocabulary: int = 100) -> Corpus:
    """Random ids of the text vocabulary: enough to see which row comes from where."""
    random = np.random.default_rng(0)

    def ids(count: int) -> np.ndarray:
        return random.integers(4, vocabulary, count).astype(np.uint16)

    return Corpus(
        tokenizer=Tokenizer(models.BPE()),
        text_vocabulary=vocabulary,
        domains=tuple(
            DomainTokens(f"d{i}", f"D{i}", f"key{i}", ids(train_tokens), ids(valid_tokens), {}) for i in range(domains)
        ),
    )
