"""Linear probes: features against transformers, scores against scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel

from benchmark.data.tokenizer import Vocabulary
from benchmark.downstream.classifier import SavedModel
from benchmark.downstream.finetune import score_all
from benchmark.downstream.linear_probe import compute_features, score_probe
from benchmark.downstream.passages import Example
from benchmark.downstream.tasks import TaskData
from benchmark.models import build, load
from benchmark.models.kinds.lora import LoraModel
from benchmark.settings.tasks import SPLITS, Finetuning
from tests.support.record_lines import read_lines
from tests.support.toy_task import DOMAINS, LENGTH, TASK, data_of, save, tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("checkpoints")
    return {name: save(base / name, name) for name in ("gpt", "bert")}


def long(data: TaskData) -> TaskData:
    """Texts of one to five windows."""

    def lengthen(rows: Sequence[Example]) -> tuple[Example, ...]:
        words = "cat dog elk "
        return tuple(replace(row, text=words * (i % 8) + row.text) for i, row in enumerate(rows))

    return TaskData(
        data.task, data.labels, lengthen(data.train), lengthen(data.dev), lengthen(data.test)
    )


def mean_by_hand(network: Any, ids: list[int], before: list[int]) -> np.ndarray:
    """The mean hidden state of the tokens `ids`, in windows that begin with `before`."""
    length, states = LENGTH - 2, []
    for start in range(0, len(ids), length):
        row = torch.tensor([[*before, *ids[start : start + length]]])
        with torch.no_grad():
            states.append(network(input_ids=row).last_hidden_state[0, len(before) :])
    return torch.cat(states).mean(0).numpy()


@pytest.mark.parametrize(
    ("architecture", "prompt"), [("gpt", "right"), ("gpt", "none"), ("bert", "right")]
)
def test_a_probe_is_logistic_regression_on_mean_states_of_all_windows(
    folders, architecture, prompt
):
    """Oracle: transformers' own network, window by window, and scikit-learn's logistic regression,
    with the C of four that is best on dev.
    """
    folder, data = folders[architecture], long(data_of(60, 40))
    network = AutoModel.from_pretrained(folder).eval()
    bos, bpe = SavedModel(folder).special.bos, tokenizer()
    before = [bos, bpe.get_vocab_size() + DOMAINS.index("two")] if prompt == "right" else [bos]
    by_hand = {
        s: [mean_by_hand(network, bpe.encode(e.text).ids, before) for e in getattr(data, s)]
        for s in SPLITS
    }
    features = compute_features(SavedModel(folder), data, prompt, 64)
    for split in SPLITS:
        np.testing.assert_allclose(features[split], by_hand[split], atol=2e-6)
    scaler, tried = StandardScaler().fit(features["train"]), []
    for strength in (0.01, 0.1, 1.0, 10.0):
        model = LogisticRegression(C=strength, max_iter=300)
        model.fit(scaler.transform(features["train"]), data.list_targets("train"))
        said = {split: model.predict(scaler.transform(features[split])) for split in SPLITS[1:]}
        of = {
            split: accuracy_score(data.list_targets(split), classes)
            for split, classes in said.items()
        }
        tried.append((of["dev"], of["test"]))
    line = score_probe(SavedModel(folder), data, prompt, 64)
    assert (line.dev, line.test) == max(tried, key=lambda pair: pair[0])  # the first among ties
    assert line.test > 0.75  # a word decides


def test_a_pair_is_compared(folders):
    """Oracle: the features of either text alone, their absolute difference and their product."""
    data = data_of(12, 8)
    pairs = {
        s: tuple(replace(e, text_pair="cat " * i + "dog") for i, e in enumerate(getattr(data, s)))
        for s in SPLITS
    }
    second = {
        s: tuple(replace(e, text=e.text_pair, text_pair=None) for e in pairs[s]) for s in SPLITS
    }
    of = [
        TaskData(data.task, data.labels, each["train"], each["dev"], each["test"])
        for each in (pairs, second)
    ]
    checkpoint = SavedModel(folders["gpt"])
    both, v, u = (compute_features(checkpoint, each, "right", 64)["test"] for each in (*of, data))
    np.testing.assert_allclose(both, np.concatenate([u, v, abs(u - v), u * v], axis=1), atol=1e-6)


def test_adapters_read_with_those_of_the_tasks_domain(tmp_path):
    """Oracle: `make_encoder`, with which fine-tuning begins, on a text that fits one window. Each
    domain gives other features.
    """
    torch.manual_seed(0)
    bpe = tokenizer()
    vocabulary = Vocabulary(bpe.get_vocab_size(), DOMAINS)
    model = LoraModel(build("gpt", 1, 16, vocabulary, LENGTH, head_size=8, dropout=0.0))
    folder = tmp_path / "model"
    for _ in DOMAINS[1:]:
        model.add(2)
    for adapter in model.adapters.parameters():
        torch.nn.init.normal_(adapter, std=0.5)
    model.save(folder, bpe)
    text = Example("cat dog elk", None, 0, "-")
    data = TaskData(TASK, ("l", "r"), (text,), (text,), (text,))
    ids, seen = torch.tensor([[SavedModel(folder).special.bos, *bpe.encode(text.text).ids]]), []
    for domain in ("one", "two", "not met"):
        of_domain = replace(data, task=TASK.model_copy(update={"domain": domain}))
        [feature] = compute_features(SavedModel(folder), of_domain, "none", 64)["test"]
        with torch.no_grad():
            expected = load(folder).make_encoder(domain).encode(ids)[0, 1:].mean(0)
        np.testing.assert_allclose(feature, expected.numpy(), atol=1e-5)
        seen.append(tuple(feature.round(4)))
    assert len(set(seen)) == 3


def test_probes_are_recorded_beside_fine_tuning(folders, tmp_path):
    """By hand: each of two tasks has, with each of two prompts, two fine-tuned scores and one of a
    probe. Ten leaked rows are in test. Oracle of the fine-tuned scores: fine-tuning without probes.
    """
    data, checkpoint = data_of(40, 20), SavedModel(folders["gpt"])
    leaky = TaskData(data.task, data.labels, data.train, data.dev, data.train[:10] + data.test[:10])
    tasks = [
        replace(leaky, task=TASK.model_copy(update={"name": name, "max_epochs": 1}))
        for name in ("a", "b")
    ]
    both = Finetuning(
        protocols=("finetune", "linear_probe"), seeds=2, prompts=("right", "none"), precision="fp32"
    )
    path, left = tmp_path / "a.jsonl", list[int]()
    score_all("m", checkpoint, tasks, both, path, progress=lambda line, count: left.append(count))
    lines = read_lines(path)
    assert len(lines) == 2 * 2 * (2 + 1) and left == list(range(11, -1, -1))
    probes = [line for line in lines if line.get("protocol") == "linear_probe"]
    assert {(line["task"], line["prompt"], line["seed"]) for line in probes} == {
        (task, prompt, 0) for task in "ab" for prompt in ("right", "none")
    }
    assert all(line["leaks"] >= 10 for line in probes)
    score_all(
        "m", checkpoint, tasks, both.model_copy(update={"protocols": ("finetune",)}), tmp_path / "b"
    )
    without = {line["key"]: line["test"] for line in read_lines(tmp_path / "b")}
    assert {line["key"]: line["test"] for line in lines if line not in probes} == without
