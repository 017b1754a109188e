"""Fine-tuning: what goes into a classifier, and the classifier."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmark.data.tokenizer import BOS, EOS, PAD, Vocabulary, train_bpe
from benchmark.downstream.classifier import (
    HiddenStateClassifier,
    SavedModel,
    average_embeddings,
    choose_prompt_domains,
    draw_wrong_domain,
    encode_rows,
    fit_discriminator,
    truncate,
)
from benchmark.downstream.finetune import Trainer
from benchmark.downstream.passages import Example
from benchmark.downstream.tasks import TaskData
from benchmark.files import CHECKSUMS
from benchmark.models import build, load
from benchmark.settings.base import ConfigError
from benchmark.settings.names import list_architecture_names
from benchmark.settings.suite import Data
from benchmark.training.stream import Stream
from tests.support.texts import tiny_corpus
from tests.support.toy_task import DOMAINS, LENGTH, SETTINGS, TASK, data_of, save, tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("checkpoints")
    return {kind: save(base / kind, kind) for kind in list_architecture_names()}


# What goes in


def test_rows_hold_prompt_text_and_pair_where_pre_training_has_them(folders):
    """Oracle: the layout by hand, with the tokenizer's own ids. A prompt's id is the size of the
    vocabulary plus the index of the domain.
    """
    checkpoint = SavedModel(folders["gpt"])
    bpe = tokenizer()
    single = TaskData(
        TASK, ("l", "r"), *[(Example("and bee", None, 0, "-"), Example("cat", None, 1, "-"))] * 3
    )
    ids = bpe.encode("and bee").ids
    plain = encode_rows(checkpoint, single, "none", 0)["train"]
    assert plain.tokens[0] == [BOS, *ids, EOS]
    right = encode_rows(checkpoint, single, "right", 0)["test"]
    assert right.tokens[0] == [BOS, bpe.get_vocab_size() + 1, *ids, EOS]
    assert right.targets == [0, 1]
    paired = TaskData(
        TASK, ("l", "r"), *[(Example("and bee", "cat", 0, "-"), Example("cat", "and", 1, "-"))] * 3
    )
    both = encode_rows(checkpoint, paired, "none", 0)["dev"]
    assert both.tokens[0] == [BOS, *ids, EOS, *bpe.encode("cat").ids, EOS]


def test_special_tokens_in_a_text_are_text(folders):
    """Oracle: ids 0 to 3 are special tokens, and `<pad>` in a text must not become one."""
    checkpoint = SavedModel(folders["gpt"])
    data = TaskData(
        TASK,
        ("l", "r"),
        *[(Example("<s> <pad> </s>", None, 0, "-"), Example("cat", None, 1, "-"))] * 3,
    )
    (ids,) = checkpoint.encode_texts(data)["train"][0]
    assert min(ids) > 3


def test_long_texts_are_cut_at_the_end_the_longer_of_a_pair_first(folders):
    """Oracle: by hand. With prompt and separators, a cut row has exactly the model's length."""
    assert truncate([[1, 2, 3, 4]], 3) == [[1, 2, 3]]
    assert truncate([[1, 2, 3, 4], [5]], 3) == [[1, 2], [5]]
    assert truncate([[1], [5, 6, 7]], 3) == [[1], [5, 6]]
    assert truncate([[1, 2, 3], [5, 6, 7]], 5) == [[1, 2, 3], [5, 6]]
    assert truncate([[1, 2], [5, 6]], 9) == [[1, 2], [5, 6]]
    long = TaskData(
        TASK,
        ("l", "r"),
        *[(Example("cat " * 50, None, 0, "-"), Example("and " * 50, "dog " * 50, 1, "-"))] * 3,
    )
    for kind, folder in folders.items():
        checkpoint = SavedModel(folder)
        rows = encode_rows(checkpoint, long, "right", 0)["train"]
        assert [len(row) for row in rows.tokens] == [LENGTH, LENGTH], kind


def test_a_wrong_prompt_is_another_domains_and_the_seeds_choice(folders):
    """Oracle: over 30 seeds each other domain is drawn, and the right one never. The same seed
    always draws the same domain.
    """
    drawn = [draw_wrong_domain(TASK, seed, DOMAINS) for seed in range(30)]
    assert set(drawn) == {"one", "three"}
    assert drawn == [draw_wrong_domain(TASK, seed, DOMAINS) for seed in range(30)]
    with pytest.raises(ConfigError, match="second domain"):
        draw_wrong_domain(TASK, 0, ["two"])
    domains = choose_prompt_domains(SavedModel(folders["gpt"]), data_of(4, 2), "wrong", 5)
    index = DOMAINS.index(draw_wrong_domain(TASK, 5, DOMAINS))
    assert domains == {"train": [index] * 4, "dev": [index] * 40, "test": [index] * 2}


def test_a_picked_prompt_is_the_discriminators_choice_for_each_row(folders):
    """Oracle: a discriminator that picks by the first token of the text."""
    checkpoint, data = SavedModel(folders["gpt"]), data_of(6, 4)
    checkpoint.pick = lambda texts: [text[0] % 3 for text in texts]
    domains = choose_prompt_domains(checkpoint, data, "picked", 0)
    firsts = [tokenizer().encode(example.text).ids[0] for example in data.train]
    assert domains["train"] == [first % 3 for first in firsts]
    rows = encode_rows(checkpoint, data, "picked", 0)["train"]
    assert [row[1] - checkpoint.config.text_vocabulary for row in rows.tokens] == domains["train"]


def test_mean_embeddings_leave_out_the_start_of_a_row(folders):
    """Oracle: means over rows of the embedding table, by hand."""
    model = load(folders["gpt"])
    table = model.network.get_input_embeddings().weight.detach().double().numpy()
    means = average_embeddings(model, [[BOS, 4, 5, 5], [6]])
    np.testing.assert_allclose(means, [(table[4] + 2 * table[5]) / 3, table[6]])


def test_domains_of_other_words_are_told_apart(tmp_path):
    """Oracle: the domain from which each text was drawn. Neighbouring domains share half of their
    words, and the model is untrained. The discriminator is fitted to the memory of the first two
    domains only, and does not depend on whether the stream masks tokens.
    """
    draw, data = np.random.default_rng(0), Data(sequence_length=34)
    bpe = train_bpe(["text"], 260)

    def ids(domain: int, count: int) -> np.ndarray:
        return draw.integers(10 + 40 * domain, 90 + 40 * domain, count).astype(np.uint16)

    corpus = tiny_corpus(3, 0, 0, vocabulary=bpe.get_vocab_size())
    domains = [
        replace(d, train=ids(i, 20_000), valid=ids(i, 2_000)) for i, d in enumerate(corpus.domains)
    ]
    corpus = replace(corpus, domains=tuple(domains))
    torch.manual_seed(0)
    vocabulary = Vocabulary(bpe.get_vocab_size(), ("d0", "d1", "d2"))
    build("gpt", 1, 64, vocabulary, 34, head_size=16, dropout=0.0, prompts=True).save(
        tmp_path / "model", bpe
    )
    truth = np.arange(200) % 2
    texts = [ids(domain, 32).tolist() for domain in truth.tolist()]
    picks = [
        fit_discriminator(tmp_path / "model", Stream(corpus, data, masked, seed=0), 2)(texts)
        for masked in (True, False)
    ]
    assert picks[0] == picks[1] and np.mean(picks[0] == truth) > 0.95


# The classifier


def head_by_hand(model, encoded):
    """What transformers' classifiers do with the body's outputs for one row without padding."""
    hidden = encoded.last_hidden_state
    model = getattr(model, "network", model)
    if hasattr(model, "score"):
        return model.score(hidden[:, -1])
    if hasattr(model, "head"):
        return model.classifier(model.head(hidden[:, 0]))
    pooled = getattr(encoded, "pooler_output", None)
    return model.classifier(hidden if pooled is None else pooled)


@pytest.mark.parametrize("kind", list_architecture_names())
def test_padding_changes_nothing_and_the_pooled_token_is_the_right_one(folders, kind):
    """Oracle: each row alone and unpadded, with the head applied by hand to the last layer's state
    of `<s>` or `</s>`.
    """
    checkpoint, data = SavedModel(folders[kind]), data_of(8, 6)
    rows = encode_rows(checkpoint, data, "right", 0)["test"]
    torch.manual_seed(1)
    model = checkpoint.load_classifier(data.labels, "two")
    trainer = Trainer(model, TASK, SETTINGS, 0)
    model.eval()
    with torch.no_grad():
        together = trainer._compute_logits(rows, np.arange(6))
        for index, row in enumerate(rows.tokens):
            ids = torch.tensor([row])
            body = getattr(model, "network", model).base_model
            by_hand = head_by_hand(model, body(ids, attention_mask=torch.ones_like(ids)))
            torch.testing.assert_close(together[index : index + 1], by_hand, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", list_architecture_names())
def test_the_head_on_a_column_is_transformers_own(folders, kind):
    """Oracle: the sequence classifier of transformers with the same weights."""

    class Encoder(nn.Module):
        def __init__(self, body):
            super().__init__()
            self.body = body

        def encode(self, input_ids, attention_mask):
            return self.body(input_ids, attention_mask=attention_mask).last_hidden_state

    checkpoint = SavedModel(folders[kind])
    theirs = checkpoint.load_classifier(("a", "b", "c"), "two").eval()
    theirs = getattr(theirs, "network", theirs)
    encoder: Any = Encoder(theirs.base_model)
    ours = HiddenStateClassifier(encoder, checkpoint.config, 3).eval()
    last = dict(reversed(theirs.state_dict().items()))  # the head's parameters
    weights = {
        key: next(last[name] for name in last if name.endswith(key))
        for key in ours.head.state_dict()
    }
    ours.head.load_state_dict(weights)
    ids = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 2, PAD, PAD]])
    mask = (ids != PAD).long()
    with torch.no_grad():
        torch.testing.assert_close(
            ours(ids, mask).logits, theirs(input_ids=ids, attention_mask=mask).logits
        )


@pytest.mark.parametrize("pad", [None, "eos", "text"])
@pytest.mark.parametrize("kind", ["gpt", "llama", "gpt_neox"])
def test_the_position_comes_from_the_mask_whatever_a_model_pads_with(kind, pad, tmp_path):
    """Published causal models have no padding token, or pad with the token at the end of a text.
    Oracle: the head applied by hand to the state of each row's last token, `</s>`.
    """
    folder = save(tmp_path / "model", kind)
    (folder / CHECKSUMS).unlink()
    content = json.loads((folder / "config.json").read_text())
    content["pad_token_id"] = {None: None, "eos": EOS, "text": 7}[pad]
    (folder / "config.json").write_text(json.dumps(content))
    checkpoint = SavedModel(folder)
    data = data_of(8, 6)
    rows = replace(encode_rows(checkpoint, data, "right", 0)["test"], padding=EOS)
    lengths = {len(row) for row in rows.tokens}
    assert len(lengths) > 1, "some rows are padded"
    model = checkpoint.load_classifier(data.labels, "two")
    trainer = Trainer(model, TASK, SETTINGS, 0)
    model.eval()
    with torch.no_grad():
        together = trainer._compute_logits(rows, np.arange(6))
    for index, row in enumerate(rows.tokens):
        assert row[-1] == EOS
        with torch.no_grad():
            states = model.network.base_model(torch.tensor([row])).last_hidden_state
            by_hand = model.network.score(states[:, -1])
        torch.testing.assert_close(together[index : index + 1], by_hand, atol=1e-5, rtol=1e-5)
