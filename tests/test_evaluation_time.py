"""The time of evaluation, which no budget counts: how much `new-suite` allows, and how commands
estimate it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

import methods
import run_all
from benchmark.data import corpus
from benchmark.data.prepared import find_prepared_corpus
from benchmark.instruments.new_suite import write_suite
from benchmark.jobs.executors import local
from benchmark.jobs.state import RunState
from benchmark.jobs.status import _measure_time_off_clock
from benchmark.ledger.records import ResumedLine
from benchmark.ledger.store import Store
from benchmark.settings.load import load_suite
from benchmark.settings.suite import Suite
from benchmark.settings.texts import Domain
from benchmark.training.progress import EvaluationTimes
from tests.support import tiny_suite
from tests.support.run_states import make_ended_stage, make_view
from tests.support.texts import sentences, write

BYTES_PER_TOKEN = 2.6  # of a vocabulary of 1,024


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text of a domain of one big file, beside two domains of small documents."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("letters", "notes")):
        write(tmp_path / "texts" / name / "all.jsonl", sentences(number, 900))
    text = "\n\n".join(sentences(7, 12_000, [f"w{number}" for number in range(500)]))
    (tmp_path / "texts" / "novel").mkdir()
    (tmp_path / "texts" / "novel" / "book.txt").write_text(text)
    return text


def read_book(**settings: object) -> list[str]:
    domain = Domain.model_validate({"name": "novel", "train": ["texts/novel"], **settings})
    return [document.text for document in corpus.drop_repeats(domain, Counter())]


def test_a_big_file_is_cut_into_documents_at_blank_lines(book: str) -> None:
    """Oracle: the file. Its pages add up to it, and each page but the last ends at the first blank
    line after 2,000 characters. Without the setting, each piece ends at the last line end before
    100,000 characters.
    """
    pages = read_book(cut_at_blank_lines=True)
    assert "".join(pages) == book
    assert all(page.endswith("\n\n") and "\n\n" not in page[2000:-2] for page in pages[:-1])
    assert len(pages) > 300
    before = read_book()
    assert "".join(before) == book and all(90_000 < len(piece) <= 100_000 for piece in before[:-1])


def test_a_file_without_blank_lines_has_pages_too(tmp_path: Path) -> None:
    """Oracle: the file, to which pages of at most ten times 2,000 characters add up."""
    text = " ".join(f"word{number}" for number in range(60_000))
    (tmp_path / "a.txt").write_text(text)
    domain = Domain(name="a", train=(str(tmp_path / "a.txt"),), cut_at_blank_lines=True)
    pages = [document.text for document in corpus.read(domain, 0.05, Counter())]
    assert "".join(pages) == text and max(map(len, pages)) <= 20_000


def test_shares_are_set_by_domain(book: str) -> None:
    """Oracle: by hand: the smallest listed share that holds out 30 documents: 5% of 900 documents
    or of 1,000 pages, 30% of 100 documents. No domain changes the share of another.
    """
    lines = Path("texts/letters/all.jsonl").read_text().splitlines(keepends=True)
    Path("texts/letters/all.jsonl").write_text("".join(lines[:100]))
    write_suite("mine", [Path("texts")], 5e10)
    suite = load_suite("mine")
    shares = {domain.name: domain.valid_share or suite.data.valid_share for domain in suite.domains}
    assert shares == {"letters": 0.3, "notes": 0.05, "novel": 0.05}
    assert [domain.cut_at_blank_lines for domain in suite.domains] == [False, False, True]
    documents = [*corpus.read(suite.domains[0], suite.data.valid_share, Counter())]
    held = sum(document.split == "valid" for document in documents)
    lowest = [document for document in documents if document.split_fingerprint < 0.3 * 2**64]
    assert held == len(lowest) and held > 15


def measure_share(suite: Suite, speed: float) -> float:
    """The time of a stage's evaluations divided by the time of its training, on a machine with
    `speed` FLOPs per second.
    """
    size = suite.model.ladder[-1]
    parameters = 12 * size.layers * size.hidden_size**2 + 1024 * size.hidden_size
    held = 0.0
    for domain in suite.domains:
        documents = [*corpus.read(domain, suite.data.valid_share, Counter())]
        texts = [len(document.text.encode()) for document in documents if document.split == "valid"]
        held += min(sum(texts), suite.data.max_valid_bytes)
    tokens = held / BYTES_PER_TOKEN * (suite.training.evaluations + 1)  # one before the first step
    amount = suite.budget.amount
    assert isinstance(amount, float)
    return 2 * parameters * tokens / (speed / 10) / amount


@pytest.mark.parametrize("speed", [3e9, 2e10, 1e11])
def test_evaluation_takes_a_fifth_of_training_at_most(book: str, speed: float) -> None:
    """Oracle: two FLOPs per parameter and token, at a tenth of the machine's speed, for the
    validation text that `prepare` reads.
    """
    write_suite("mine", [Path("texts")], speed)
    suite = load_suite("mine")
    assert 0.01 < measure_share(suite, speed) <= 0.2
    assert suite.budget.amount * 12 * 1.2 <= 610, "of four methods on three domains"


def call(*words: object) -> int:
    return run_all.main([*map(str, words)])


def test_a_dry_run_counts_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: by hand: Naive and ER share the first of two stages, with five evaluations. A later
    stage has one more, at its start. A token costs two FLOPs per parameter.
    """
    suite = tiny_suite.write(tmp_path)
    places = ["--runs", tmp_path / "runs", "--methods", "naive,er"]
    speed = 1e6
    monkeypatch.setattr(
        local, "EXECUTOR", dataclasses.replace(local.EXECUTOR, guess_flops_per_second=lambda: speed)
    )
    assert call("run", suite, *places, "--dry-run") == 0
    assert "Evaluation, which" not in capsys.readouterr().out
    assert call("prepare", suite, *places) == 0
    capsys.readouterr()
    [config] = methods.list_runs(load_suite(str(suite)), ("naive",))
    prepared = find_prepared_corpus(config, Store(tmp_path / "runs"))
    assert prepared
    held = sum(len(domain.valid) for domain in prepared.domains)
    assert call("run", suite, *places, "--dry-run") == 0
    told = capsys.readouterr().out
    stages = [5, 6, 6]
    parameters = [12 * 16**2 + 300 * 16, *[12 * 2 * 32**2 + 300 * 32] * 2]
    seconds = (
        sum(2 * size * held * count for size, count in zip(parameters, stages, strict=True)) / speed
    )
    minutes = f"{round(seconds) // 60}:{round(seconds) % 60:02}"
    assert f"takes about {minutes}, and reads {held * sum(stages):,} tokens" in told


def test_what_is_left_counts_evaluation() -> None:
    """Oracle: by hand: at 10%, all five evaluations are left. Each reads 6,000 tokens, at three
    times the 100 tokens per second of training. Then two have taken 3 s on average, and at 45%
    three are left.
    """
    times = EvaluationTimes(5, 6000)
    assert times.estimate_rest(0.1, 100.0) == pytest.approx(5 * 20.0)
    times._seconds = [2.0, 4.0]
    assert times.estimate_rest(0.45, 100.0) == pytest.approx(9.0)
    assert times.estimate_rest(1.0, 100.0) == 0.0


def test_time_off_the_clock_is_known_from_stages_that_ended() -> None:
    """By hand: two stages took 3 and 5 s beyond the 10 s that they charge, 4 s on average."""
    stages = []
    for wall_time in (13.0, 15.0):
        begun = ResumedLine(time=0.0, phase="adapt", step=0, charged={})
        stages.append([begun, *make_ended_stage({"seconds": 10.0}, wall_time=wall_time)])
    config = methods.list_runs(load_suite("demo"))[0]
    ended = RunState(config, make_view(config, stages, keys=["a", "b"]), "done")
    assert _measure_time_off_clock([ended, ended]) == pytest.approx(4.0)
    assert _measure_time_off_clock([RunState(config, make_view(config), "todo")]) == 0.0
