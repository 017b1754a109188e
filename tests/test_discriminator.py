"""The domain discriminator: by formula on made-up models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from benchmark.data.tokenizer import BOS, Vocabulary, train_bpe
from benchmark.downstream.discriminator import fit, mean_embeddings
from benchmark.models import build
from benchmark.settings.suite import Data
from benchmark.training.stream import Stream
from tests.support.texts import tiny_corpus

DATA = Data(sequence_length=34)
VOCABULARY = Vocabulary(100, ("d0", "d1", "d2"))


def tiny(architecture: str = "gpt", prompts: bool = True):
    torch.manual_seed(0)
    return build(architecture, 1, 16, VOCABULARY, 34, head_size=16, dropout=0.0, prompts=prompts).eval()


def test_mean_embeddings_leave_out_the_start_of_a_row():
    """Oracle: the embedding table, by hand."""
    model = tiny()
    table = model.network.get_input_embeddings().weight.detach().double().numpy()
    means = mean_embeddings(model, [[BOS, 4, 5, 5], [6]])
    np.testing.assert_allclose(means, [(table[4] + 2 * table[5]) / 3, table[6]])


def test_domains_of_other_words_are_told_apart(tmp_path):
    """Oracle: made-up domains that share half of their words, of which a model knows nothing; the memory of two alone
    is asked, whatever the model predicts of a row."""
    draw = np.random.default_rng(0)
    bpe = train_bpe(["text"], 260)

    def ids(domain: int, count: int) -> np.ndarray:
        return draw.integers(10 + 40 * domain, 90 + 40 * domain, count).astype(np.uint16)

    corpus = tiny_corpus(3, 0, 0, vocabulary=bpe.get_vocab_size())
    domains = [replace(d, train=ids(i, 20_000), valid=ids(i, 2_000)) for i, d in enumerate(corpus.domains)]
    corpus = replace(corpus, domains=tuple(domains))
    torch.manual_seed(0)
    vocabulary = Vocabulary(bpe.get_vocab_size(), ("d0", "d1", "d2"))
    build("gpt", 1, 64, vocabulary, 34, head_size=16, dropout=0.0, prompts=True).save(tmp_path / "model", bpe)
    truth = np.arange(200) % 2
    texts = [ids(domain, 32).tolist() for domain in truth.tolist()]
    picks = [fit(tmp_path / "model", Stream(corpus, DATA, masked, seed=0), 2)(texts) for masked in (True, False)]
    assert picks[0] == picks[1] and np.mean(picks[0] == truth) > 0.95
