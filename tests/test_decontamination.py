"""Validation text without near copies of training text, measured to its last token."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import methods
from analysis.catalogue import ModelMeasure
from benchmark.data.documents import DataError
from benchmark.data.prepared import prepare_corpus
from benchmark.data.tokenizer import EOS
from benchmark.data.tokens import measure_unigram_perplexity
from benchmark.downstream.tasks import decontaminate_tasks, find_example_keys, load_tasks
from benchmark.instruments.conformance import TinyRuns, make_tiny_config
from benchmark.ledger.ledger import MEASURED_OTHERWISE
from benchmark.ledger.records import (
    EvaluationLine,
    SimilarityLine,
    StageLine,
    find_last,
    select_kind,
)
from benchmark.ledger.store import Store
from benchmark.models import load
from benchmark.settings.load import load_suite
from benchmark.settings.suite import RunConfig, Tokenizer
from benchmark.settings.texts import Domain
from benchmark.training.clock import Clock
from benchmark.training.declaration import open_ledger
from benchmark.training.evaluate import measure_loss
from benchmark.training.processes import World
from benchmark.training.run import Run
from tests.support.record_lines import read_lines, write_lines
from tests.support.texts import sentences, write

WORDS = [f"word{number}" for number in range(300)]
COPIED = [" ".join(WORDS[(7 * number) % 200 :][:40]) for number in range(40)]


def make_config(
    folder: Path,
    near_copies: str = "drop",
    architecture: str = "gpt",
    valid: list[str] | None = None,
) -> RunConfig:
    """Two domains. Half of the second's validation text is training text of the first, in capitals.

    The other half is of 40 documents of its own.
    """
    own = sentences(2, 90, WORDS)
    capitals = [text.upper() for text in COPIED]
    valid_b = [*own[:40], *capitals] if valid is None else valid
    texts = {
        "a": ([*sentences(1, 90, WORDS), *COPIED], own),
        "b": (sentences(3), valid_b),
    }
    domains = []
    for name, (train, held_out) in texts.items():
        train_file = write(folder / f"{name}.jsonl", train)
        valid_file = write(folder / f"{name}_valid.jsonl", held_out)
        domains.append(Domain(name=name, train=(str(train_file),), valid=(str(valid_file),)))
    config = make_tiny_config("naive", architecture, batch_size=20)
    data = {"max_valid_bytes": 10**6, "near_copies": near_copies}
    model = config.model.model_copy(update={"ladder": config.model.ladder[:2]})
    return config.model_copy(
        update={
            "domains": tuple(domains),
            "model": model,
            "data": config.data.model_copy(update=data),
            "tokenizer": Tokenizer(vocabulary=400, domains=("a",)),
        }
    )


def train(tiny: TinyRuns, config: RunConfig) -> Run:
    run = tiny.make_run(config, "store")
    run.train()
    return run


@pytest.mark.parametrize("architecture", ["gpt", "bert"])
def test_losses_are_recorded_by_document(tmp_path: Path, architecture: str) -> None:
    """Oracle: the definition, from all logits at once: cross-entropy at predicted tokens of each
    document. The last row overlaps the row before it, and the tokens of both count once.
    """
    config = make_config(tmp_path, "drop", architecture)
    run = train(TinyRuns("naive", methods.build, tmp_path), config)
    end = find_last(run.store.read_stage(run.keys[1]), EvaluationLine)
    assert end
    [batch] = run.stream.read_validation(1, 10**6)
    model = load(run.store.stage_folder(run.keys[1]) / "model").eval()
    with torch.no_grad():
        logits = model(batch.tokens, batch.domains, batch.positions).float().log_softmax(-1)
    losses = -logits.gather(-1, batch.targets[..., None])[..., 0].numpy()
    ids = np.asarray(run.corpus.domains[1].valid)
    length = run.stream.length
    starts = [*range(0, len(ids) - length, length), len(ids) - length]
    is_measured = np.zeros(losses.shape, bool)
    places = batch.positions.numpy() - (architecture == "bert") + np.array(starts)[:, None]
    is_measured[:-1] = True
    is_measured[-1] = places[-1] >= starts[-2] + length
    numbers = np.cumsum(ids == EOS) - (ids == EOS)
    by_document = np.bincount(numbers[places[is_measured]], losses[is_measured], numbers[-1] + 1)
    assert math.log(end.perplexity["b"] or 0) == pytest.approx(losses[is_measured].mean(), rel=1e-5)
    recorded = [nats for _, nats in end.documents["b"]]
    assert len(recorded) == run.corpus.domains[1].info["valid_documents"]
    assert recorded == pytest.approx(by_document, abs=2e-3)
    tokens = sum(count for count, _ in end.documents["b"])
    assert tokens == is_measured.sum()
    if architecture == "gpt":
        assert tokens == len(ids)


def test_only_the_last_losses_are_recorded_by_document(tmp_path: Path, monkeypatch) -> None:
    """Oracle: by hand: each stage's last evaluation has them, also where the budget's shares sum to
    a little less than the budget.
    """
    monkeypatch.setattr(
        Clock, "fraction", property(lambda clock: 0.999 * clock.spent / clock.limit)
    )
    run = train(TinyRuns("naive", methods.build, tmp_path), make_config(tmp_path, "drop", "gpt"))
    for key in run.keys:
        evaluations = select_kind(run.store.read_stage(key), EvaluationLine)
        has_documents = [bool(evaluation.documents) for evaluation in evaluations]
        assert has_documents == [False] * (len(evaluations) - 1) + [True]


def test_near_copies_are_left_out_of_what_is_measured_alone(tmp_path: Path) -> None:
    """Oracle: the same text without these documents, written by hand: the same ids, bytes, unigram
    perplexity and number of documents. The training ids and the domain's key are those of "keep".
    """
    kept_config = make_config(tmp_path, "keep")
    store = Store(tmp_path / "runs")
    kept = prepare_corpus(kept_config, store).domains[1]
    clean_corpus = prepare_corpus(make_config(tmp_path), store)
    clean = clean_corpus.domains[1]
    assert kept.info["near_copies"] == 40 and kept.info["valid_documents"] == 80
    assert clean.info["skipped"]["near copies of training text"] == 40
    assert clean.key == kept.key and np.array_equal(clean.train, kept.train)
    other = tmp_path / "by_hand"
    other.mkdir()
    by_hand_config = make_config(other, "keep", valid=sentences(2, 90, WORDS)[:40])
    by_hand = prepare_corpus(by_hand_config, Store(other / "runs")).domains[1]
    assert np.array_equal(clean.valid, by_hand.valid)
    for name in ("valid_bytes", "valid_documents"):
        assert clean.info[name] == by_hand.info[name]
    assert clean.valid_sizes == by_hand.valid_sizes
    size = clean_corpus.text_vocabulary
    counts = [np.bincount(np.asarray(ids), minlength=size) for ids in (clean.train, clean.valid)]
    expected = measure_unigram_perplexity(counts[0], counts[1])
    assert clean.info["unigram_perplexity"] == pytest.approx(expected)
    assert clean.info["unigram_perplexity"] == pytest.approx(by_hand.info["unigram_perplexity"])
    first = clean_corpus.domains[0]
    assert "near copies of training text" not in first.info["skipped"] and not first.valid_key


def test_a_text_of_which_too_little_is_left_is_refused(tmp_path: Path) -> None:
    """Oracle: by hand: all 40 documents stand in training text. The message must name the cure."""
    config = make_config(tmp_path, valid=[text.upper() for text in COPIED])
    with pytest.raises(DataError, match="'b'.*near_copies"):
        prepare_corpus(config, Store(tmp_path / "runs"))


def test_copies_that_were_kept_are_left_out_without_training_again(tmp_path: Path) -> None:
    """Oracle: the stages' old keys and records, and the saved model's perplexity on the clean text.

    Perplexities on another validation text do not count for a run, and `train` measures again.
    """
    tiny = TinyRuns("naive", methods.build, tmp_path)
    kept = train(tiny, make_config(tmp_path, "keep"))
    begun = find_last(kept.store.read_stage(kept.keys[1]), StageLine)
    config = make_config(tmp_path)
    clean = train(tiny, config)
    assert clean.keys == kept.keys
    again = find_last(clean.store.read_stage(clean.keys[1]), StageLine)
    assert begun == again
    [record] = open_ledger(clean.store, methods.build).read_suite(config.suite, [config])
    measure = record.matrix[-1]
    assert measure
    model = load(clean.store.stage_folder(clean.keys[1]) / "model")
    loss = measure_loss(model, clean.stream, 1, World(0, 1, torch.device("cpu")), "fp32")
    assert measure.perplexity["b"] == pytest.approx(loss.perplexity, rel=1e-6)
    assert measure.perplexity["b"] != pytest.approx(
        measure_loss(model, kept.stream, 1, World(0, 1, torch.device("cpu")), "fp32").perplexity,
        rel=1e-3,
    )
    file = clean.store.run_file(config)
    lines = read_lines(file)
    for line in lines:
        if line["kind"] == "run":
            line["texts"]["b"] = "of an earlier measure"
    write_lines(file, lines)
    view = open_ledger(clean.store, methods.build).view(config)
    assert view.why == MEASURED_OTHERWISE and view.keys == clean.keys
    clean = train(tiny, config)
    assert not open_ledger(clean.store, methods.build).view(config).why


def test_models_are_compared_again_on_another_validation_text(tmp_path: Path) -> None:
    """Oracle: the ARS of the same weights in a folder where only the clean text was measured.

    A record of an older version, which names no text, counts for any text.
    """
    similarity = ModelMeasure("similarity")

    def measure(folder: Path, near_copies: str) -> list[float | None]:
        """The last stage's ARS in the run's records, before and after measuring."""
        config = make_config(tmp_path, near_copies)
        run = train(TinyRuns("naive", methods.build, folder), config)
        found: list[float | None] = []
        for _ in range(2):
            [record] = open_ledger(run.store, methods.build).read_suite(config.suite, [config])
            is_done = similarity.is_done(config, run.store, run.keys[1])
            assert is_done == bool(record.ancestor_comparisons[1])
            lines = select_kind(record.ancestor_comparisons[1], SimilarityLine)
            found.append(lines[0].ars if lines else None)
            similarity(config, run.store)
        return found

    alone = measure(tmp_path / "alone", "drop")[1]
    kept = measure(tmp_path / "both", "keep")[1]
    before, clean = measure(tmp_path / "both", "drop")
    assert alone and kept and clean and before is None
    assert clean == pytest.approx(alone, rel=1e-6) and clean != pytest.approx(kept, rel=1e-3)
    [file] = (tmp_path / "both/store/similarity").glob("*.jsonl")
    content = file.read_bytes()
    assert measure(tmp_path / "both", "keep") == [kept, kept]
    assert file.read_bytes() == content
    lines = read_lines(file)
    del lines[0]["text"]
    write_lines(file, lines[:1])
    assert measure(tmp_path / "both", "drop") == [kept, kept]


def test_scores_of_clean_tests_are_found_again(tmp_path: Path) -> None:
    """Oracle: the keys of the tasks on which models are scored, one of which loses an example.

    There are no keys before the stream is prepared, and empty ones before leaks are searched for.
    """
    config = make_config(tmp_path)
    tasks = []
    for name, test in (("first", [COPIED[0], "new text"]), ("second", ["another", "more text"])):
        files = {}
        for split in ("train", "dev", "test"):
            texts = test if split == "test" else [f"{split} one", f"{split} two"]
            pairs = zip("xy", texts, strict=True)
            lines = [{"text": text, "label": label} for label, text in pairs]
            files[split] = tmp_path / f"{name}.{split}"
            write_lines(files[split], lines)
        paths = {split: str(path) for split, path in files.items()}
        tasks.append({"name": name, "domain": "python", **paths})
    suite = load_suite("demo", {"tasks": tasks})
    store = Store(tmp_path / "runs")
    assert find_example_keys(suite, [config], store) == {}
    prepare_corpus(config, store)
    assert find_example_keys(suite, [config], store) == {"first": "", "second": ""}
    scored = decontaminate_tasks(load_tasks(suite, store), config, store)
    assert [data.left_out for data in scored] == [1, 0]
    keys = {data.task.name: data.key for data in scored}
    assert find_example_keys(suite, [config], store) == keys
