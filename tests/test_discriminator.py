"""The domain discriminator: by formula on made-up models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmark.data.tokenizer import BOS, Vocabulary, train_bpe
from benchmark.downstream import discriminator
from benchmark.downstream.discriminator import create, fit, mean_embeddings, pick
from benchmark.models import build
from benchmark.settings.base import ConfigError
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


@pytest.mark.parametrize("classes", [2, 3])
def test_the_classifier_is_scikit_learns_without_its_scaling(classes):
    """Oracle: scikit-learn's own predictions in a pipeline with a scaler; two classes are a case of their own there."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model, draw = tiny(), np.random.default_rng(0)
    domains = np.arange(100) % classes
    texts = [draw.integers(4 + 10 * domain, 60, 8).tolist() for domain in domains]
    embeddings = mean_embeddings(model, texts)
    theirs = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(embeddings, domains)
    ours = fit(model, texts, domains)
    assert ours.domains == list(range(classes))
    np.testing.assert_array_equal(ours.pick(embeddings), theirs.predict(embeddings))


def test_a_discriminator_is_kept_beside_its_model_and_made_once(tmp_path, monkeypatch):
    """Oracle: what comes back from the file; the second call must not fit again, the message names what is missing."""
    bpe = train_bpe(["text"], 260)
    corpus = tiny_corpus(3, 4000, 1000, vocabulary=bpe.get_vocab_size())
    vocabulary = Vocabulary(bpe.get_vocab_size(), ("d0", "d1", "d2"))
    model = build("gpt", 1, 16, vocabulary, 34, head_size=16, dropout=0.0, prompts=True)
    for name in ("model", "copy"):
        model.save(tmp_path / name, bpe)
    with pytest.raises(ConfigError, match="domain_discriminator.json"):
        pick(tmp_path / "model", [[4, 5]])
    made = create(tmp_path / "model", Stream(corpus, DATA, masked=True, seed=0), seen=2)
    assert made.domains == [0, 1]
    assert create(tmp_path / "copy", Stream(corpus, DATA, masked=False, seed=0), seen=2) == made  # of whole texts
    monkeypatch.setattr(discriminator, "fit", None)
    assert create(tmp_path / "model", Stream(corpus, DATA, masked=True, seed=0), seen=2) == made
    texts = [[4, 5, 6], [7, 8]]
    assert pick(tmp_path / "model", texts).tolist() == made.pick(mean_embeddings(model, texts)).tolist()
