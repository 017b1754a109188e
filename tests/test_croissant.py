"""A stream as a data set with a Croissant card."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

import run_all
from benchmark.data import corpus
from benchmark.data.croissant import FILE, write_stream
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.suite import Suite
from tests.support import tiny_suite

ALPHA = {"name": "alpha", "packages": ["json"]}


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return load_suite(str(tiny_suite.write(tmp_path)), {"probes": [ALPHA]})


def test_the_files_hold_what_runs_read(suite: Suite, tmp_path: Path) -> None:
    """Oracles: the documents as training reads them; sha256 of the files; the stream's order."""
    write_stream(suite, tmp_path / "out")
    card = json.loads((tmp_path / "out" / FILE).read_text())
    assert [file["name"] for file in card["distribution"][:3]] == ["a/train.jsonl", "a/valid.jsonl", "b/train.jsonl"]
    assert card["name"] == "tiny" and card["license"] == "unknown" and "order: a, b." in card["description"]
    for file in card["distribution"]:
        content = (tmp_path / "out" / file["contentUrl"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        name, _, split = file["name"].removesuffix(".jsonl").partition("/")
        domain = next(one for one in (*suite.domains, *suite.probes) if one.name == name)
        expected = [d.text for d in corpus.read(domain, suite.data.valid_share, Counter()) if d.split == split]
        assert expected and [json.loads(line)["text"] for line in content.splitlines()] == expected


def test_the_command_writes_it_once(suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the documents of the two made-up domains, 200 each; a folder that exists is refused."""
    arguments = ["export", "--data", str(tmp_path / "tiny.toml"), str(tmp_path / "out")]
    assert run_all.main(arguments) == 0
    *files, told = capsys.readouterr().out.splitlines()
    assert sum(int(line.split()[-2]) for line in files) == 400 and str(tmp_path / "out") in told
    with pytest.raises(ConfigError, match="exists already"):
        write_stream(suite, tmp_path / "out")
    assert run_all.main(arguments) == 2


@pytest.mark.filterwarnings("ignore")  # of that library's dependencies
def test_the_formats_own_library_reads_it(suite: Suite, tmp_path: Path) -> None:
    """Oracle: MLCommons' library, which checks the card and the files' hashes: no error, and the documents."""
    mlcroissant = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed")
    write_stream(suite, tmp_path / "out")
    found = mlcroissant.Dataset(tmp_path / "out" / FILE)
    assert not found.metadata.ctx.issues.errors
    lines = (tmp_path / "out" / "b" / "valid.jsonl").read_text().splitlines()
    texts = [record["b/valid/text"].decode() for record in found.records("b/valid")]
    assert texts == [json.loads(line)["text"] for line in lines]
