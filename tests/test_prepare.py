"""Prepared data: made once for all processes, named by its content, and whole or not there."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import methods
from benchmark import cancel
from benchmark.data import tokenizer, tokens
from benchmark.data.documents import DataError, Row
from benchmark.data.tokenizer import encode_texts
from benchmark.instruments.conformance import TinyRuns
from benchmark.locks import Lease
from benchmark.settings.suite import Tokenizer
from benchmark.settings.texts import Domain, HubDataset
from benchmark.training.run import Run
from tests.support.texts import DATA, assert_same, gpt2_files, prepare, two_domains

ROOT = Path(__file__).parent.parent


def test_a_second_call_does_nothing(tmp_path, monkeypatch) -> None:
    """Oracle: the first call's data. The second call reports nothing, although no text can be read.
    Another sequence length is the same corpus.
    """
    lines: list[str] = []
    domains = two_domains(tmp_path)
    first = prepare(domains, tmp_path / "data", report=lines.append)
    assert [line.partition(": ")[0] for line in lines] == ["tokenizer", "a", "b"]
    lines.clear()
    monkeypatch.setattr("benchmark.data.corpus.read", None)
    longer = DATA.model_copy(update={"sequence_length": 20, "memory_tokens": 1})
    for data in (DATA, longer):
        assert_same(first, prepare(domains, tmp_path / "data", data=data, report=lines.append))
    assert not lines


def test_keys_follow_the_content(tmp_path) -> None:
    """Oracle: the same text has the same keys under other paths, names and times, and divided into
    other files. One changed letter changes the key of its domain.
    """
    first = prepare(two_domains(tmp_path / "here"), tmp_path / "data")
    for name in ("a", "b"):
        content = (
            (tmp_path / f"here/{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        )
        for part, lines in enumerate((content[:50], content[50:])):
            path = tmp_path / f"there/{name}/{part}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines), encoding="utf-8")
            os.utime(path, (1, 1))
    moved = [Domain(name=name, train=(str(tmp_path / "there" / name),)) for name in ("a", "b")]
    elsewhere = prepare(moved, tmp_path / "other data")
    assert elsewhere.keys == first.keys
    assert [d.info["sha256"] for d in elsewhere.domains] == [
        d.info["sha256"] for d in first.domains
    ]
    changed = tmp_path / "there/b/0.jsonl"
    changed.write_text(
        changed.read_text(encoding="utf-8").replace("other", "Other", 1), encoding="utf-8"
    )
    again = prepare(moved, tmp_path / "data", tokenizer=Tokenizer(vocabulary=320, domains=("a",)))
    before = prepare(
        two_domains(tmp_path / "here"),
        tmp_path / "data",
        tokenizer=Tokenizer(vocabulary=320, domains=("a",)),
    )
    assert again.domains[0].key == before.domains[0].key
    assert again.domains[1].key != before.domains[1].key
    assert before.domains[0].key != first.domains[0].key  # another tokenizer


CHILD = """
import json, os, signal, sys
from pathlib import Path
from benchmark.data import tokens
from benchmark.settings.suite import Data, RunConfig, Tokenizer
from benchmark.settings.texts import Domain, HubDataset
tokens.BATCH, tokens.REPORT_EVERY = 10, 1000
def progress(line):
    print(line, flush=True)
    if line.startswith(os.environ.get("KILL_AT", "never")):
        os.kill(os.getpid(), signal.SIGKILL)
    if line.startswith(os.environ.get("WAIT_AT", "never")):
        sys.stdin.readline()
config = RunConfig.model_construct(
    domains=tuple(Domain(**d) for d in json.loads(sys.argv[1])),
    tokenizer=Tokenizer(vocabulary=320),
    data=Data(sequence_length=18, valid_share=0.2),
)
cache = tokens.DataCache(Path(sys.argv[2]), progress)
print(tokens.prepare(config, cache).keys, flush=True)
"""


def child(domains: tuple[Domain, ...], folder: Path, **environment: str) -> subprocess.Popen:
    arguments = [json.dumps([domain.model_dump() for domain in domains]), str(folder)]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CHILD, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "at", ["tokenizer: training", "a: 0 MB of text tokenised", "b: tokenising"]
)
def test_killed_and_started_again(tmp_path, at: str) -> None:
    """Oracle: data that were prepared in another folder without a kill."""
    domains = two_domains(tmp_path)
    process = child(domains, tmp_path / "data", KILL_AT=at)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL
    assert output.splitlines()[-1].startswith(at)
    assert_same(
        prepare(domains, tmp_path / "data"),
        prepare(domains, tmp_path / "undisturbed"),
    )


@pytest.mark.parametrize("change", ["", "later", "before"])
def test_what_was_tokenised_stays_where_the_source_fails(
    change: str, tmp_path, monkeypatch
) -> None:
    """Oracle: the same text prepared without a failure, and a count of the texts that are
    tokenised.

    If the text changes after the part that is tokenised, this part is kept. If it changes within
    this part, all is tokenised again.
    """
    monkeypatch.setattr(tokens, "REPORT_EVERY", 1000)
    monkeypatch.setattr(tokenizer, "BATCH", 10)
    monkeypatch.setattr(tokenizer, "THREADS", 1)
    texts = [f"{number} of the other documents, which the model reads" for number in range(300)]
    ends, tokenised = 170, 0

    def rows(dataset: HubDataset) -> Iterator[tuple[str, Row]]:
        yield from ((f"hub:{number}", text) for number, text in enumerate(texts[:ends]))
        if ends < len(texts):
            raise DataError("the connection is lost")

    def counted(bpe: Any, asked: Sequence[str]) -> list[list[int]]:
        nonlocal tokenised
        tokenised += len(asked)
        return encode_texts(bpe, asked)

    monkeypatch.setattr("benchmark.data.corpus._read_dataset", rows)
    monkeypatch.setattr("benchmark.data.tokenizer.encode_texts", counted)
    domains = (Domain(name="hub", datasets=(HubDataset(path="hub"),)),)
    folder, bpe = tmp_path / "data", Tokenizer(folder=str(gpt2_files(tmp_path / "bpe")))
    for _ in range(2):  # the part also stays after a second failure
        with pytest.raises(DataError, match="the connection is lost"):
            prepare(domains, folder, tokenizer=bpe)
    if change:
        texts[299 if change == "later" else 3] += "!"
    ends, tokenised = 300, 0
    assert_same(
        prepare(domains, folder, tokenizer=bpe),
        prepare(domains, tmp_path / "undisturbed", tokenizer=bpe),
    )
    assert tokenised > 600 if change == "before" else 450 < tokenised < 540
    assert [path.name for path in (folder / "domains").glob(".*")] == []


def test_what_a_tokenizer_is_trained_on_stays_where_training_ends(tmp_path, monkeypatch) -> None:
    """Oracle: data that were prepared without an interruption. No text is sampled a second time."""
    domains = two_domains(tmp_path)
    undisturbed = prepare(domains, tmp_path / "undisturbed")
    with monkeypatch.context() as patch, pytest.raises(cancel.Stopped):
        patch.setattr(tokens, "train_bpe", Mock(side_effect=cancel.Stopped))
        prepare(domains, tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "_sample_texts", Mock(side_effect=AssertionError))
        assert_same(prepare(domains, tmp_path / "data"), undisturbed)


def test_it_can_be_stopped(tmp_path) -> None:
    """Stops in the tokenizer's sample and in both domains. Oracle: data prepared without a stop."""
    domains = two_domains(tmp_path)
    for polls in (30, 430, 230):
        left = iter(range(polls))
        is_over = lambda left=left: next(left, None) is None  # noqa: E731
        with pytest.raises(cancel.Stopped), cancel.heed(is_over):
            prepare(domains, tmp_path / "data")
        # now, because the reader's database may only be closed by this thread
        gc.collect()
    assert_same(
        prepare(domains, tmp_path / "data"),
        prepare(domains, tmp_path / "undisturbed"),
    )


def test_a_run_stops_and_waits_for_nobody_where_it_makes_its_text(tmp_path) -> None:
    """Oracle: the rule for stages: a process stops when it is asked to. With `waits=False`, it
    leaves (`Taken`) what another process is making.
    """
    tiny = TinyRuns("naive", methods.build, tmp_path)
    with pytest.raises(cancel.Stopped), cancel.heed(lambda: True):
        tiny.make_run(tiny.make_config(), "stopped")
    run = tiny.make_run(tiny.make_config(), "made")
    text = run.corpus.domains[1].folder
    assert text is not None
    shutil.rmtree(text)
    with Lease(text.with_name(f"{text.name}.lock")):
        given = (run.config, run.make_method, run.store, run.world, run.progress)
        with pytest.raises(cancel.Taken):
            Run(*given, waits=False)
        asked = iter([False, False])
        with pytest.raises(cancel.Stopped) as stopped, cancel.heed(lambda: next(asked, True)):
            Run(*given)
    assert stopped.type is cancel.Stopped and not text.exists()
    assert Run(*given, waits=False).keys == run.keys


def test_two_processes_at_once(tmp_path) -> None:
    """Oracle: data that one process prepared alone. The second starts while the first holds the
    lock, and finds the work done.
    """
    domains = two_domains(tmp_path)
    first = child(domains, tmp_path / "data", WAIT_AT="a: tokenising")
    assert first.stdout is not None
    begun = [first.stdout.readline(), first.stdout.readline()]
    second = child(domains, tmp_path / "data")
    assert second.stdout is not None
    assert second.stdout.readline().startswith(f"waiting for process {first.pid} ")
    output, errors = first.communicate("go\n", timeout=100)
    rest, more_errors = second.communicate(timeout=100)
    alone = prepare(domains, tmp_path / "alone")
    assert output.splitlines()[-1] == rest.splitlines()[-1] == str(alone.keys)
    assert "a: tokenising\n" in begun
    assert "a: tokenising" not in rest
    assert (output + rest).count("b: tokenising") == 1
    assert errors == more_errors == ""
    assert_same(prepare(domains, tmp_path / "data"), alone)
