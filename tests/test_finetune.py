"""Fine-tuning: what goes in, which epoch counts, what a model must and must not learn, grids that are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from benchmark import discriminator, finetune, records
from benchmark.classifier import Checkpoint, ColumnClassifier, Rows, prompt_domains, rows_of, truncate, wrong_domain
from benchmark.config import ConfigError
from benchmark.corpus import DataError
from benchmark.finetune import Trainer, length_bucketed, missing, score, score_all
from benchmark.models import build
from benchmark.models.lora import LoraModel
from benchmark.models.progressive import ProgressiveModel
from benchmark.task_settings import Finetuning, Task
from benchmark.tasks import Example, TaskData, metric
from benchmark.tokens import train_bpe
from benchmark.vocabulary import BOS, EOS, PAD, Vocabulary

DOMAINS = ("one", "two", "three")
WORDS = ["and", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]
LENGTH = 16
SETTINGS = Finetuning(seeds=2, patience=10)
TASK = Task(name="toy", domain="two", docstrings={}, metric="accuracy", batch_size=16, learning_rate=3e-3)


def tokenizer() -> Tokenizer:
    bpe = train_bpe([" ".join([*WORDS, "left", "right"])] * 50, 320)
    bpe.encode_special_tokens = True
    return bpe


def save(folder: Path, architecture: str = "gpt", prompts: bool = True, dropout: float = 0.0) -> Path:
    torch.manual_seed(0)
    bpe = tokenizer()
    vocabulary = Vocabulary(bpe.get_vocab_size(), DOMAINS)
    model = build(architecture, 2, 32, vocabulary, LENGTH, head_size=16, dropout=dropout, prompts=prompts)
    model.save(folder, bpe)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("checkpoints")
    return {kind: save(base / kind, kind) for kind in ("gpt", "bert", "bert_preln")}


def examples(count: int, seed: int, coin: bool = False, pair: bool = False) -> tuple[Example, ...]:
    """A few words; the class is which of two more is among them (or in the pair), or a coin's choice."""
    draw = random.Random(seed)
    found = []
    for index in range(count):
        words = draw.choices(WORDS, k=draw.randint(2, 6))
        words.insert(draw.randrange(len(words)), ("left", "right")[index % 2])
        text = " ".join(words)
        label = draw.randrange(2) if coin else index % 2
        found.append(Example("and", text, label, "-") if pair else Example(text, None, label, f"made:{index}"))
    return tuple(found)


def data_of(train: int = 400, test: int = 80, coin: bool = False, pair: bool = False) -> TaskData:
    splits = [examples(n, seed, coin, pair) for seed, n in enumerate((train, 40, test))]
    return TaskData(("l", "r"), *splits)


# What goes in


def test_rows_hold_prompt_text_and_pair_where_pre_training_has_them(folders):
    """Oracle: the layout by hand, from the tokenizer's own ids; the prompt is the row of its domain."""
    checkpoint = Checkpoint(folders["gpt"])
    bpe = tokenizer()
    single = TaskData(("l", "r"), *[(Example("and bee", None, 0, "-"), Example("cat", None, 1, "-"))] * 3)
    ids = bpe.encode("and bee").ids
    plain = rows_of(checkpoint, TASK, single, prompt_domains(checkpoint, TASK, single, "none", 0))["train"]
    assert plain.tokens[0] == [BOS, *ids, EOS]
    right = rows_of(checkpoint, TASK, single, prompt_domains(checkpoint, TASK, single, "right", 0))["test"]
    assert right.tokens[0] == [BOS, bpe.get_vocab_size() + 1, *ids, EOS]
    assert right.targets == [0, 1]
    paired = TaskData(("l", "r"), *[(Example("and bee", "cat", 0, "-"), Example("cat", "and", 1, "-"))] * 3)
    both = rows_of(checkpoint, TASK, paired, prompt_domains(checkpoint, TASK, paired, "none", 0))["dev"]
    assert both.tokens[0] == [BOS, *ids, EOS, *bpe.encode("cat").ids, EOS]


def test_special_tokens_in_a_text_are_text(folders):
    """Oracle: what a text says of padding must not become padding."""
    checkpoint = Checkpoint(folders["gpt"])
    data = TaskData(("l", "r"), *[(Example("<s> <pad> </s>", None, 0, "-"), Example("cat", None, 1, "-"))] * 3)
    (ids,) = checkpoint.texts("toy", data)["train"][0]
    assert min(ids) > 3


def test_long_texts_are_cut_at_the_end_the_longer_of_a_pair_first(folders):
    """Oracle: by hand; with prompt and separators a row is just as long as the model's."""
    assert truncate([[1, 2, 3, 4]], 3) == [[1, 2, 3]]
    assert truncate([[1, 2, 3, 4], [5]], 3) == [[1, 2], [5]]
    assert truncate([[1], [5, 6, 7]], 3) == [[1], [5, 6]]
    assert truncate([[1, 2, 3], [5, 6, 7]], 5) == [[1, 2, 3], [5, 6]]
    assert truncate([[1, 2], [5, 6]], 9) == [[1, 2], [5, 6]]
    long = TaskData(("l", "r"), *[(Example("cat " * 50, None, 0, "-"), Example("and " * 50, "dog " * 50, 1, "-"))] * 3)
    for kind, folder in folders.items():
        checkpoint = Checkpoint(folder)
        rows = rows_of(checkpoint, TASK, long, prompt_domains(checkpoint, TASK, long, "right", 0))["train"]
        assert [len(row) for row in rows.tokens] == [LENGTH, LENGTH], kind


def test_a_text_without_a_token_is_refused_with_its_row(tmp_path):
    """Oracle: a vocabulary of one letter."""
    bpe = Tokenizer(models.BPE({"<s>": 0, "<pad>": 1, "</s>": 2, "<mask>": 3, "c": 4}, []))
    build("gpt", 1, 16, Vocabulary(5, DOMAINS), LENGTH, head_size=16).save(tmp_path / "model", bpe)
    bad = Example("???", None, 1, "FILE:7")
    data = TaskData(("l", "r"), *[(Example("c", None, 0, "-"), bad)] * 3)
    with pytest.raises(DataError, match=r"FILE:7: '\?\?\?' has no token"):
        score_all("stage", tmp_path / "model", [(TASK, data)], SETTINGS, tmp_path / "scores.jsonl")


def test_a_wrong_prompt_is_another_domains_and_the_seeds_choice(folders):
    """Oracle: over seeds each other domain comes up, the right one never; the same seed gives the same one."""
    drawn = [wrong_domain(TASK, seed, DOMAINS) for seed in range(30)]
    assert set(drawn) == {"one", "three"}
    assert drawn == [wrong_domain(TASK, seed, DOMAINS) for seed in range(30)]
    with pytest.raises(ConfigError, match="second domain"):
        wrong_domain(TASK, 0, ["two"])
    checkpoint = Checkpoint(folders["gpt"], seen=["one", "two"])
    domains = prompt_domains(checkpoint, TASK, data_of(4, 2), "wrong", 5)
    assert domains == {"train": [0] * 4, "dev": [0] * 40, "test": [0, 0]}


def test_a_picked_prompt_is_the_discriminators_choice_for_each_row(folders, monkeypatch):
    """Oracle: a discriminator that picks by the first token of the text."""
    checkpoint, data = Checkpoint(folders["gpt"]), data_of(6, 4)
    monkeypatch.setattr(discriminator, "pick", lambda folder, texts: np.array([text[0] % 3 for text in texts]))
    domains = prompt_domains(checkpoint, TASK, data, "picked", 0)
    firsts = [tokenizer().encode(example.text).ids[0] for example in data.train]
    assert domains["train"] == [first % 3 for first in firsts]
    rows = rows_of(checkpoint, TASK, data, domains)["train"]
    assert [row[1] - checkpoint.config.text_vocabulary for row in rows.tokens] == domains["train"]
    result = score(checkpoint, TASK.model_copy(update={"max_epochs": 1}), data, "picked", 0, SETTINGS)
    assert result["picked_right"] == np.mean([domain == 1 for domain in domains["test"]])


def test_only_final_models_with_prompts_are_scored_with_all_prompts(folders, tmp_path):
    """Oracle: the prompts asked for, and that a folder without a model is refused."""
    asked = ("right", "none", "wrong")
    assert Checkpoint(folders["gpt"]).prompts(asked) == asked
    assert Checkpoint(folders["gpt"], seen=["one", "two"]).prompts(asked) == ("right",)
    assert Checkpoint(save(tmp_path / "plain", prompts=False)).prompts(asked) == ("none",)
    with pytest.raises(ConfigError, match="no checkpoint"):
        Checkpoint(tmp_path)


# The classifier


@pytest.mark.parametrize("kind", ["gpt", "bert", "bert_preln"])
def test_padding_changes_nothing_and_the_pooled_token_is_the_right_one(folders, kind):
    """Oracle: each row by itself, unpadded; the head applied by hand to the last hidden state of `<s>` or `</s>`."""
    checkpoint, data = Checkpoint(folders[kind]), data_of(8, 6)
    rows = rows_of(checkpoint, TASK, data, prompt_domains(checkpoint, TASK, data, "right", 0))["test"]
    torch.manual_seed(1)
    model = checkpoint.classifier(data.labels, "two")
    trainer = Trainer(model, TASK, SETTINGS, 0)
    model.eval()
    with torch.no_grad():
        together = trainer._logits(rows, np.arange(6))
        for index, row in enumerate(rows.tokens):
            ids = torch.tensor([row])
            hidden = model.base_model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            by_hand = model.score(hidden[:, -1]) if kind == "gpt" else model.classifier(hidden)
            torch.testing.assert_close(together[index : index + 1], by_hand, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gpt", "bert", "bert_preln"])
def test_the_head_on_a_column_is_transformers_own(folders, kind):
    """Oracle: the sequence classifier of transformers with the same weights."""

    class Encoder(nn.Module):
        def __init__(self, body):
            super().__init__()
            self.body = body

        def forward(self, input_ids, attention_mask):
            return self.body(input_ids, attention_mask=attention_mask).last_hidden_state

    checkpoint = Checkpoint(folders[kind])
    theirs = checkpoint.classifier(("a", "b", "c"), "two").eval()
    ours = ColumnClassifier(Encoder(theirs.base_model), checkpoint.config, 3).eval()
    ours.head.load_state_dict((theirs.score if kind == "gpt" else theirs.classifier).state_dict())
    ids = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 2, PAD, PAD]])
    mask = (ids != PAD).long()
    with torch.no_grad():
        torch.testing.assert_close(ours(ids, mask).logits, theirs(input_ids=ids, attention_mask=mask).logits)


@pytest.mark.parametrize("kind", ["pnn", "lora"])
def test_columns_and_adapters_are_fine_tuned_with_those_of_the_tasks_domain(tmp_path, kind):
    """Oracle: the model itself: hidden states of the domain's column; and the task is learned."""
    torch.manual_seed(0)
    bpe = tokenizer()
    vocabulary = Vocabulary(bpe.get_vocab_size(), DOMAINS)

    def fresh():
        return build("gpt", 2, 32, vocabulary, LENGTH, head_size=16, dropout=0.0)

    model = fresh()
    for _ in range(2):
        if kind == "pnn":
            model = ProgressiveModel.grown(model, fresh())
        else:
            model = model if isinstance(model, LoraModel) else LoraModel(model)
            model.add(4)
            nn.init.normal_(model.adapters[-1][0].up.weight)
    model.eval().save(tmp_path / "model", bpe)
    checkpoint, data = Checkpoint(tmp_path / "model"), data_of()
    ids = torch.tensor([[0, 5, 6, 7, 2]])
    for index, domain in enumerate(DOMAINS):
        encoder = checkpoint.classifier(data.labels, domain).eval().encoder
        with torch.no_grad():
            expected = model.hidden(ids, torch.tensor([index]))
            torch.testing.assert_close(encoder(ids, torch.ones_like(ids)), expected, atol=1e-5, rtol=1e-5)
    result = score(checkpoint, TASK, data, "none", 0, SETTINGS)
    assert result["test"] > 0.95
    with pytest.raises(ConfigError, match="cannot be saved"):
        score(checkpoint, TASK.model_copy(update={"max_epochs": 1}), data, "none", 0, SETTINGS, tmp_path / "tuned")


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_a_fine_tuned_model_loads_with_transformers_and_scores_the_same(folders, tmp_path, kind):
    """Oracle: AutoModelForSequenceClassification's own predictions, one row at a time, and the names of the classes."""
    checkpoint, data = Checkpoint(folders[kind]), data_of()
    result = score(checkpoint, TASK, data, "right", 0, SETTINGS, save_to=tmp_path / "tuned")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "tuned").eval()
    loaded = AutoTokenizer.from_pretrained(tmp_path / "tuned")
    predictions = []
    for example in data.test:
        ids = loaded(f"<s><domain:two>{example.text}</s>", return_tensors="pt", add_special_tokens=False).input_ids
        with torch.no_grad():
            predictions.append(model.config.id2label[int(model(input_ids=ids).logits.argmax())])
    expected = [data.labels[target] for target in data.targets("test")]
    assert metric("accuracy", expected, predictions) == result["test"] > 0.95


# Training


def test_batches_hold_every_row_once_and_rows_of_like_length_together():
    """Oracle: a permutation; padding far below that of random batches; another order for another generator state."""
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    generator = np.random.default_rng(1)
    batches, again = length_bucketed(lengths, 16, generator), length_bucketed(lengths, 16, generator)
    assert sorted(np.concatenate(batches)) == list(range(1000))
    assert not np.array_equal(np.concatenate(batches), np.concatenate(again))

    def padding(batches):
        return sum(len(batch) * lengths[batch].max() for batch in batches) / lengths.sum() - 1

    at_random = np.array_split(np.random.default_rng(2).permutation(1000), 63)
    assert padding(batches) < 0.25 < 0.7 < padding(at_random)
    small = [frozenset(length_bucketed(lengths[:40], 16, generator)[0]) for _ in range(10)]
    assert len(set(small)) == 10  # no two epochs with the same batch


def test_forward_passes_of_any_size_give_the_same_weights(folders):
    """Oracle: the gradient of a mean does not depend on how the sum is cut."""
    checkpoint, data = Checkpoint(folders["bert"]), data_of(40, 8)
    rows = rows_of(checkpoint, TASK, data, prompt_domains(checkpoint, TASK, data, "none", 0))
    weights = []
    for columns in (10_000, 40):
        torch.manual_seed(0)
        model = checkpoint.classifier(data.labels, "two")
        task = TASK.model_copy(update={"max_epochs": 1})
        Trainer(model, task, Finetuning(forward_tokens=columns), 0).fit(rows["train"], lambda: 1.0)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    # in relation to how far Adam moves a weight in these three steps
    torch.testing.assert_close(*weights, atol=1e-3 * TASK.learning_rate, rtol=0)


def test_the_epoch_with_the_best_dev_score_counts_and_patience_ends_the_training():
    """Oracle: a script of dev scores; the weights must be those of the first best epoch, 2, the last epoch 5."""
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

    best, scores = Trainer(model, TASK, Finetuning(patience=3), 0).fit(rows, dev_score)
    assert (best, scores) == (0.6, [0.3, 0.6, 0.5, 0.6, 0.1])
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
    checkpoint, data = Checkpoint(folders["gpt"]), data_of(48, 4)
    rows = rows_of(checkpoint, TASK, data, prompt_domains(checkpoint, TASK, data, "none", 0))
    task = TASK.model_copy(update={"max_epochs": 1, **changes})
    trainer = Trainer(checkpoint.classifier(data.labels, "two"), task, SETTINGS, 0)
    seen = []
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda: (seen.append(trainer.optimizer.param_groups[0]["lr"]), step())
    trainer.fit(rows["train"], lambda: 1.0)
    assert seen == pytest.approx([rate * task.learning_rate for rate in rates])


@pytest.mark.parametrize("kind", ["gpt", "bert"])
@pytest.mark.parametrize("pair", [False, True])
def test_a_small_model_solves_what_one_word_decides(folders, kind, pair):
    """Oracle: the rule that made the labels."""
    result = score(Checkpoint(folders[kind]), TASK, data_of(pair=pair), "right", 0, SETTINGS)
    assert result["test"] > 0.95
    assert result["dev"] == max(result["dev_by_epoch"]) > 0.95


def test_labels_of_a_coin_are_not_learned(folders):
    """Oracle: the binomial distribution: within 3.3 sigma of chance (99.9%) for 200 rows."""
    result = score(Checkpoint(folders["gpt"]), TASK, data_of(test=200, coin=True), "right", 0, SETTINGS)
    assert abs(result["test"] - 0.5) < 3.3 * (0.25 / 200) ** 0.5


def test_a_score_is_a_function_of_the_seed_and_leaves_no_trace(tmp_path):
    """Oracle: the same weights twice, with dropout, whatever ran before; torch's random numbers go on undisturbed."""
    checkpoint, data = Checkpoint(save(tmp_path / "model", "bert", dropout=0.1)), data_of(32, 40, coin=True)
    task = TASK.model_copy(update={"max_epochs": 2})

    def weights(name: str, seed: int) -> dict[str, torch.Tensor]:
        score(checkpoint, task, data, "right", seed, SETTINGS, save_to=tmp_path / name)
        return load_file(tmp_path / name / "model.safetensors")

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = weights("first", 0)
    assert torch.equal(torch.rand(2), expected)
    again, other = weights("again", 0), weights("other", 1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.out_proj.weight"], other["classifier.out_proj.weight"])


def test_a_diverging_training_says_so(folders):
    """Oracle: a learning rate that cannot work."""
    task = TASK.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(FloatingPointError, match=r"'toy': the loss is not finite in epoch \d+, with learning_rate 1e"):
        score(Checkpoint(folders["gpt"]), task, data_of(), "right", 0, SETTINGS)


def test_rows_that_leak_are_counted_in_the_score(folders):
    """Oracle: ten rows of test copied from train."""
    data = data_of(40, 20)
    leaky = TaskData(data.labels, data.train, data.dev, data.train[:10] + data.test[:10])
    result = score(Checkpoint(folders["gpt"]), TASK, leaky, "right", 0, SETTINGS)
    assert result["leaks"] >= 10
    assert 0 <= result["test_without_leaks"] <= 1


# Grids

GRID = """
import os, signal, sys
from pathlib import Path
from benchmark import records
from tests.test_finetune import grid

append, count = records.append, 0
def append_and_die(path, record):
    global count
    append(path, record)
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGKILL)
records.append = append_and_die
grid(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def grid(folder: Path, path: Path, progress=lambda record, left: None) -> None:
    """Two tasks, two prompts, two seeds: eight cells. The labels are noise, so that scores tell runs apart."""
    torch.set_num_threads(1)
    data = data_of(32, 64, coin=True)
    tasks = [
        (TASK.model_copy(update={"name": name, "max_epochs": 2, "learning_rate": rate}), data)
        for name, rate in (("first", 3e-3), ("second", 1e-3))
    ]
    settings = Finetuning(seeds=2, prompts=("right", "none"))
    score_all("stage", folder, tasks, settings, path, progress=progress)
    assert not missing("stage", tasks, ("right", "none"), settings, path)


def values(path: Path) -> list[tuple]:
    return [(r["key"], r["task"], r["prompt"], r["seed"], r["dev"], r["test"]) for r in records.read(path)]


def test_a_grid_that_is_killed_goes_on_where_it_was(folders, tmp_path):
    """Oracle: an undisturbed grid: the same scores, in the same order, none computed twice."""
    grid(folders["gpt"], tmp_path / "whole.jsonl")
    killed = tmp_path / "killed.jsonl"
    command = [sys.executable, "-c", GRID, str(folders["gpt"]), str(killed)]
    root = Path(__file__).resolve().parents[1]
    result = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True)
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()
    assert len(records.read(killed)) == 3
    left = []
    grid(folders["gpt"], killed, lambda record, count: left.append(count))
    assert left == [4, 3, 2, 1, 0]
    assert values(killed) == values(tmp_path / "whole.jsonl")
    assert len({cell[0] for cell in values(killed)}) == 8
    grid(folders["gpt"], killed, lambda record, count: left.append(count))
    assert len(left) == 5


def test_a_score_is_a_record_that_the_reader_takes(folders, tmp_path, monkeypatch):
    """Oracle: the fields of `benchmark.records`, and that the same cell for another stage is another score."""
    monkeypatch.setattr(finetune, "score", lambda *cell: {"kind": "score", **dict.fromkeys(records.FIELDS["score"], 0)})
    data, path = data_of(4, 4), tmp_path / "a.jsonl"
    score_all("a", folders["gpt"], [(TASK, data)], SETTINGS, path)
    (first, second) = records.read(path)
    assert (first["stage_key"], second["stage_key"]) == ("a", "a")
    assert len(missing("b", [(TASK, data)], ["right"], SETTINGS, path)) == 2


def test_prompts_cannot_be_picked_without_a_discriminator_and_that_shows_at_once(folders, tmp_path):
    """Oracle: the message, and that nothing was trained before it."""
    settings = Finetuning(prompts=("right", "picked"))
    with pytest.raises(ConfigError, match=r"domain_discriminator\.json"):
        score_all("a", folders["gpt"], [(TASK, data_of(4, 4))], settings, tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()
