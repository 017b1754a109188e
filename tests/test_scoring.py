"""Scores of a whole suite from the command line: the grid, failures, titles and baselines."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import methods
import run_all
from analysis.report import load_study
from benchmark.ledger.records import append
from benchmark.ledger.runs import make_run_line
from benchmark.ledger.store import Store
from benchmark.settings.load import load_suite
from tests.support import tiny_suite
from tests.support.record_lines import read_lines

SUITE = """
extends = "{base}"
methods = ["er", "elle"]
tables = ["main_downstream", "prompt_finetuning"]
tasks = [
  {{ name = "last_a", domain = "a", {files_a}, max_epochs = 2, batch_size = 20, \
learning_rate = 1e-3 }},
  {{ name = "last_b", domain = "b", {files_b}, max_epochs = 2, batch_size = 20, \
learning_rate = 1e-3 }},
]
finetuning = {{ stages = "every", seeds = 2, prompts = ["right", "none", "wrong", "picked"] }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scoring")
    files = {}
    for name in tiny_suite.WORDS:
        chosen = tiny_suite.words(name)
        rows = [{"text": " ".join(chosen[i : i + 8]), "label": chosen[i + 7]} for i in range(300)]
        for split, some in (("train", rows[:80]), ("dev", rows[80:120]), ("test", rows[120:])):
            (folder / f"{name}_{split}.jsonl").write_text("\n".join(map(json.dumps, some)) + "\n")
        paths = {
            split: f'{split} = "{folder}/{name}_{split}.jsonl"'
            for split in ("train", "dev", "test")
        }
        files[f"files_{name}"] = ", ".join(paths.values())
    (folder / "scored.toml").write_text(SUITE.format(base=tiny_suite.write(folder), **files))
    assert run_all.main(["run", *arguments(folder)]) == 0
    return folder


def arguments(folder: Path) -> list[str]:
    return [
        str(folder / "scored.toml"),
        "--runs",
        str(folder / "runs"),
        "--out",
        str(folder / "report"),
    ]


def scores(folder: Path) -> list[dict[str, Any]]:
    return [
        line
        for path in sorted((folder / "runs" / "scores").glob("*[!s].jsonl"))
        for line in read_lines(path)
    ]


def test_every_cell_of_the_grid_has_a_score(folder):
    """By hand: models with prompts are scored with the right one, after the last stage with all
    four. Models without prompts are scored with none.
    """
    counts = Counter((line["task"], line["prompt"]) for line in scores(folder))
    assert counts == {
        **{
            (task, "right"): 2 * 2 for task in ("last_a", "last_b")
        },  # ELLE after either stage, two seeds
        **{
            (task, "none"): 2 * 2 + 2 for task in ("last_a", "last_b")
        },  # ER after either, ELLE after the last
        **{(task, prompt): 2 for task in ("last_a", "last_b") for prompt in ("wrong", "picked")},
    }


def test_status_says_why_a_score_failed(folder, capsys):
    """Oracle: the record of a failed score, which the test writes. A report is rendered all the
    same. Once the score is computed, `status` says nothing of a failure.
    """
    [path, *_] = sorted((folder / "runs" / "scores").glob("*[!s].jsonl"))
    kept = path.read_bytes()
    [*lines, last] = read_lines(path)
    names = ("key", "task", "prompt", "seed")
    failed = {
        "kind": "unscored",
        "time": 1.0,
        "error": "of this test",
        **{name: last[name] for name in names},
    }
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, failed]))
    command = ["status", *arguments(folder)[:3]]
    capsys.readouterr()
    assert run_all.main(command) == 1
    told = capsys.readouterr().out
    assert "! 1 models " in told and f" stage {path.stem}: of this test" in told
    assert run_all.main(["report", *arguments(folder)]) == 0
    assert run_all.main(["run", *arguments(folder), "--retry-failed"]) == 0
    capsys.readouterr()
    assert run_all.main(command) == 0 and "failed" not in capsys.readouterr().out
    path.write_bytes(kept)


def test_a_title_that_was_changed_shows_in_reports(tmp_path) -> None:
    """Oracle: the suite's present title. Titles are no part of a run's identity, so records keep
    the old one.
    """
    suite = load_suite("demo")
    first, *others = suite.domains
    changed = suite.model_copy(
        update={"domains": (first.model_copy(update={"title": "New"}), *others)}
    )
    old, new = (methods.list_runs(each)[0] for each in (suite, changed))
    append(Store(tmp_path).run_file(old), make_run_line(old))
    assert old.id == new.id and load_study([(changed, [new])], tmp_path).stage_titles[0] == "New"


def test_baselines_are_of_the_domain_that_the_suite_gives_a_task(folder) -> None:
    """Oracle: the domains that the suite gives its tasks. The baselines were recorded before the
    second suite swapped them.
    """
    for overrides, swapped in (
        ({}, "ab"),
        ({"tasks.last_a.domain": "b", "tasks.last_b.domain": "a"}, "ba"),
    ):
        suite = load_suite(str(folder / "scored.toml"), overrides)
        baselines = load_study([(suite, methods.list_runs(suite))], folder / "runs").baselines
        expected = {("last_a", swapped[0]), ("last_b", swapped[1])}
        assert {*zip(baselines["task"], baselines["domain"], strict=True)} == expected
