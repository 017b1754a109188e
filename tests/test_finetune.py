"""Fine-tuning: which epoch counts, what a model must and must not learn, grids that are killed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import nn

from benchmark import cancel
from benchmark.downstream import finetune
from benchmark.downstream.classifier import Rows, SavedModel, encode_rows
from benchmark.downstream.finetune import NotScored, Trainer, bucket_by_length, score, score_all
from benchmark.downstream.tasks import IN_WINDOW, TaskData, record_baselines
from benchmark.ledger import records
from benchmark.settings.tasks import SPLITS, Finetuning
from tests.support.processes import call_apart
from tests.support.record_lines import read_lines
from tests.support.toy_task import LENGTH, SETTINGS, TASK, data_of, grid, save, tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("checkpoints")
    return {kind: save(base / kind, kind) for kind in ("gpt", "bert", "bert_preln")}


def test_batches_hold_every_row_once_and_rows_of_like_length_together():
    """Oracle: a permutation of all rows, less than 25% of padding (random batches have more than
    70%), and another order at the next call.
    """
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    generator = np.random.default_rng(1)
    batches, again = (
        bucket_by_length(lengths, 16, generator),
        bucket_by_length(lengths, 16, generator),
    )
    assert sorted(np.concatenate(batches)) == list(range(1000))
    assert not np.array_equal(np.concatenate(batches), np.concatenate(again))

    def padding(batches):
        return sum(len(batch) * lengths[batch].max() for batch in batches) / lengths.sum() - 1

    at_random = np.array_split(np.random.default_rng(2).permutation(1000), 63)
    assert padding(batches) < 0.25 < 0.7 < padding(at_random)
    small = [frozenset(bucket_by_length(lengths[:40], 16, generator)[0]) for _ in range(10)]
    assert len(set(small)) == 10  # no two epochs with the same batch


def test_forward_passes_of_any_size_give_the_same_weights(folders):
    """Oracle: the gradient of a mean does not depend on how the sum is cut."""
    checkpoint, data = SavedModel(folders["bert"]), data_of(40, 8)
    rows = encode_rows(checkpoint, data, "none", 0)
    weights = []
    for columns in (10_000, 40):
        torch.manual_seed(0)
        model = checkpoint.load_classifier(data.labels, "two")
        task = TASK.model_copy(update={"max_epochs": 1})
        Trainer(model, task, Finetuning(forward_tokens=columns, precision="fp32"), 0).fit(
            rows["train"], lambda: 1.0
        )
        weights.append(
            torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        )
    # in relation to how far Adam moves a weight in these three steps
    torch.testing.assert_close(*weights, atol=1e-3 * TASK.learning_rate, rtol=0)


def test_the_epoch_with_the_best_dev_score_counts_and_patience_ends_the_training():
    """Oracle: by hand, from a script of dev scores: the weights must be those of epoch 2, the first
    with the best score, and a patience of 3 ends the training after epoch 5.
    """
    torch.manual_seed(0)

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 2)

        def forward(self, input_ids, attention_mask):
            return type("Output", (), {"logits": self.table(input_ids).mean(1)})

    model = Bag()
    rows = Rows([[4, 5], [6, 7], [4, 7]], [0, 1, 0])
    script, weights = iter([0.3, 0.6, 0.5, 0.6, 0.1, 0.9]), []

    def dev_score():
        weights.append(model.table.weight.detach().clone())
        return next(script)

    assert (
        Trainer(model, TASK, Finetuning(patience=3, precision="fp32"), 0).fit(rows, dev_score)
        == 0.6
    )
    assert list(script) == [0.9]
    assert torch.equal(model.table.weight, weights[1])
    assert not torch.equal(weights[1], weights[3])


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({"warmup": 0.5}, [0.5, 1.0, 0.5]),
        ({"schedule": "constant", "warmup": 0.0}, [1.0, 1.0, 1.0]),
    ],
)
def test_the_learning_rate_warms_up_and_decays_over_all_epochs(folders, changes, rates):
    """Oracle: by hand. Three steps stand at a quarter, a half and three quarters of the way."""
    checkpoint, data = SavedModel(folders["gpt"]), data_of(48, 4)
    rows = encode_rows(checkpoint, data, "none", 0)
    task = TASK.model_copy(update={"max_epochs": 1, **changes})
    trainer = Trainer(checkpoint.load_classifier(data.labels, "two"), task, SETTINGS, 0)
    seen = []
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda: (seen.append(trainer.optimizer.param_groups[0]["lr"]), step())  # type: ignore[method-assign, misc, assignment]
    trainer.fit(rows["train"], lambda: 1.0)
    assert seen == pytest.approx([rate * task.learning_rate for rate in rates])


@pytest.mark.parametrize("kind", ["gpt", "bert"])
@pytest.mark.parametrize("pair", [False, True])
def test_a_small_model_solves_what_one_word_decides(folders, kind, pair):
    """Oracle: the rule that made the labels."""
    result = score(SavedModel(folders[kind]), data_of(pair=pair), "right", 0, SETTINGS)
    assert result.test > 0.95
    assert result.dev > 0.95


def test_a_score_is_a_function_of_the_seed_and_leaves_no_trace(tmp_path):
    """Oracle: a seed gives the same weights twice, with dropout, whatever ran before. torch's own
    random numbers continue as if nothing had run between.
    """
    task = TASK.model_copy(update={"max_epochs": 2})
    checkpoint, data = (
        SavedModel(save(tmp_path / "model", "bert", dropout=0.1)),
        data_of(32, 40, coin=True, task=task),
    )

    rows = encode_rows(checkpoint, data, "right", 0)

    def weights(seed: int) -> dict[str, torch.Tensor]:
        trainer, *_ = finetune._fine_tune(checkpoint, data, rows, seed, SETTINGS)
        return trainer.model.state_dict()

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = weights(0)
    assert torch.equal(torch.rand(2), expected)
    again, other = weights(0), weights(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.out_proj.weight"], other["classifier.out_proj.weight"])


def test_auto_is_of_the_models_own_width(folders, monkeypatch):
    """Oracle: the width in the model's configuration, which is not that of BERT base."""
    widths = []

    def choose(precision: str, device: torch.device, width: int) -> str:
        widths.append(width)
        return "fp32"

    monkeypatch.setattr(finetune, "choose_precision", choose)
    task = TASK.model_copy(update={"max_epochs": 1})
    for folder in folders.values():
        checkpoint = SavedModel(folder)
        score(checkpoint, data_of(8, 4, task=task), "none", 0, Finetuning())
        assert widths.pop() == checkpoint.config.hidden_size < 768


def test_a_diverging_training_says_so(folders):
    """By hand: no loss stays finite at a rate of 1e30. The message must name the task, the epoch
    and the rate.
    """
    task = TASK.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(NotScored, match=r"'toy': .*epoch \d+.*learning_rate 1e"):
        score(SavedModel(folders["gpt"]), data_of(task=task), "right", 0, SETTINGS)


def test_a_lack_of_memory_halves_the_columns_of_a_forward_pass(tmp_path, monkeypatch, caplog):
    """Oracle: a run with the smaller `forward_tokens` from the start, bit for bit, with dropout.
    The score must record how many tokens a pass had.
    """
    task = TASK.model_copy(update={"max_epochs": 2})
    checkpoint, data = (
        SavedModel(save(tmp_path / "model", "bert", dropout=0.1)),
        data_of(32, 40, coin=True, task=task),
    )
    asked = {
        columns: SETTINGS.model_copy(update={"forward_tokens": columns}) for columns in (40, 160)
    }
    few = score(checkpoint, data, "right", 0, asked[40])
    plain = Trainer._compute_logits

    def short(self, rows, part):
        if len(part) * max(len(rows.tokens[i]) for i in part) > 40:
            raise torch.OutOfMemoryError("of this test")
        return plain(self, rows, part)

    monkeypatch.setattr(Trainer, "_compute_logits", short)
    line = score(checkpoint, data, "right", 0, asked[160])
    assert (
        line == structs.replace(few, forward_tokens=40, seconds=line.seconds)
        and few.forward_tokens is None
    )
    assert [record.args[1] for record in caplog.records] == [80, 40]


def test_what_cannot_be_scored_takes_nothing_else_with_it(folders, tmp_path, monkeypatch):
    """Oracle: by hand: the first task fails (its rate is too high, memory does not hold a row, an
    unexpected error), and all scores of the second are recorded. So is the reason of each failure.
    The next call, without a fault, adds the first task's scores.
    """
    tasks = [
        data_of(16, 8, task=TASK.model_copy(update={"name": name, "max_epochs": 3}))
        for name in ("first", "second")
    ]
    hot = [
        replace(tasks[0], task=tasks[0].task.model_copy(update={"learning_rate": 1e30})),
        tasks[1],
    ]
    path, plain = tmp_path / "a.jsonl", Trainer._compute_logits
    with pytest.raises(NotScored, match="'first': .*learning_rate 1e"):
        score_all("a", SavedModel(folders["gpt"]), hot, SETTINGS, path)

    def without_memory(self, rows, part):
        if self.task.name == "first":
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return plain(self, rows, part)

    def not_scored(*words: str) -> list[dict[str, Any]]:
        return [
            line
            for line in read_lines(path)
            if all(word in line.get("error", "") for word in words)
        ]

    def scored() -> set[tuple[str, int]]:
        return {
            (line["task"], line["seed"]) for line in read_lines(path) if line["kind"] == "score"
        }

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_compute_logits", without_memory)
        with pytest.raises(NotScored, match=r"'first': .*\d+ columns"):
            score_all("a", SavedModel(folders["gpt"]), tasks, SETTINGS, path)
    with monkeypatch.context() as patched:
        patched.setattr(
            Trainer, "_compute_logits", lambda *_: (_ for _ in ()).throw(ValueError("of this test"))
        )
        with pytest.raises(NotScored, match="'first': ValueError"):
            score_all("a", SavedModel(folders["gpt"]), tasks, SETTINGS, path)
    assert scored() == {("second", 0), ("second", 1)} and len(read_lines(path)) == 2 + 3 * 2
    for words in (("learning_rate 1e",), (" columns",), ("ValueError", "of this test")):
        assert [
            (line["kind"], line["task"], line["seed"])
            for line in not_scored("task 'first'", *words)
        ] == [("unscored", "first", seed) for seed in (0, 1)]
    score_all("a", SavedModel(folders["gpt"]), tasks, SETTINGS, path)
    assert len(scored()) == 4


def test_who_is_asked_to_stop_scores_no_more(folders, tmp_path, monkeypatch):
    """Oracle: by hand: a signal raises Stopped in the middle of a score, so neither a score nor a
    failure is recorded.
    """
    monkeypatch.setattr(
        Trainer, "_compute_logits", lambda *_: (_ for _ in ()).throw(cancel.Stopped)
    )
    with pytest.raises(cancel.Stopped):
        score_all("a", SavedModel(folders["gpt"]), [data_of(16, 8)], SETTINGS, tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()


def test_word_counts_of_a_models_window_miss_what_lies_beyond_it(folders, tmp_path):
    """Oracles: the tokenizer's offsets, for the part of each text in the window. By hand: the word
    that decides the class lies behind the window, so word counts score 1 on whole texts and 0.5 on
    windows.
    """
    whole = data_of(200, 80)
    splits = [
        tuple(replace(e, text="cat dog elk " * 6 + e.text) for e in getattr(whole, name))
        for name in SPLITS
    ]
    data = TaskData(TASK.model_copy(update={"max_epochs": 1}), ("l", "r"), *splits)
    checkpoint = SavedModel(folders["gpt"])
    window, ends = checkpoint.cut_to_window(data), []
    for example, part in zip(data.test, window.test, strict=True):
        encoding = tokenizer().encode(example.text)
        ends.append(encoding.offsets[LENGTH - 2 - 1 - 1][1])
        assert part == replace(example, text=example.text[: ends[-1]])
    assert max(ends) < len("cat dog elk " * 6)
    for seeds in (1, 2):
        settings = SETTINGS.model_copy(update={"seeds": seeds})
        score_all("stage", SavedModel(folders["gpt"]), [data], settings, tmp_path / "a.jsonl")
    [line] = read_lines(tmp_path / "baselines.jsonl")
    assert (line["name"], line["window"], line["task_key"]) == (IN_WINDOW, window.key, data.key)
    record_baselines([data], tmp_path / "whole.jsonl")
    assert line["test"] == 0.5 and read_lines(tmp_path / "whole.jsonl")[1]["test"] == 1.0
    assert [line["window"] for line in read_lines(tmp_path / "a.jsonl")] == [window.key] * 2


# Grids


def grid_and_die(model: Path, path: Path) -> None:
    """Score a grid, and kill this process right after the third score."""
    append, written = records.append, count(1)

    def append_and_die(file: Path, record: records.Line) -> None:
        append(file, record)
        if file == path and next(written) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(records, "append", append_and_die):
        grid(model, path)


def values(path: Path) -> list[tuple]:
    return [
        (r["key"], r["task"], r["prompt"], r["seed"], r["dev"], r["test"]) for r in read_lines(path)
    ]


def test_a_grid_that_is_killed_goes_on_where_it_was(folders, tmp_path):
    """Oracle: an undisturbed grid: the same scores, in the same order, none computed twice."""
    grid(folders["gpt"], tmp_path / "whole.jsonl")
    killed = tmp_path / "killed.jsonl"
    assert call_apart(grid_and_die, folders["gpt"], killed) == -signal.SIGKILL
    assert len(read_lines(killed)) == 3
    left = []
    grid(folders["gpt"], killed, lambda record, count: left.append(count))
    assert left == [4, 3, 2, 1, 0]
    assert values(killed) == values(tmp_path / "whole.jsonl")
    assert len({cell[0] for cell in values(killed)}) == 8
    grid(folders["gpt"], killed, lambda record, count: left.append(count))
    assert len(left) == 5
