"""Tasks of lm-evaluation-harness on our models, without a Hub. Oracle of all likelihoods:
transformers alone, on exported models.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lm_eval.tasks import TaskManager
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer

import run_all
from benchmark.downstream import harness
from benchmark.downstream.harness import Likelihoods
from benchmark.instruments.export import export_model
from benchmark.ledger.runs import load_runs
from benchmark.models import load
from benchmark.models.transformer import read_tokenizer
from tests.support import tiny_suite

QUESTIONS: list[dict[str, Any]] = [
    {"question": question, "choices": [first, "seven blue", "cyan"], "answer": place}
    for place, first in enumerate(["green", "two three", "four"])
    for question in ("red green", "one two", "blue cyan", "three four")
]


def write_questions(folder: Path) -> str:
    """Write the files of the task in docs/tasks.md, and return the section for a suite there."""
    [task] = re.findall(
        r"```yaml\n(.*?)```",
        (Path(__file__).parents[1] / "docs" / "tasks.md").read_text(),
        re.S,
    )
    (folder / "tasks").mkdir()
    (folder / "tasks" / "colours.yaml").write_text(task.replace("tasks/", f"{folder}/tasks/"))
    (folder / "tasks" / "questions.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in QUESTIONS)
    )
    return '[evaluate]\ntasks = ["colours"]\nfolder = "tasks"\n'


def likelihood(model, tokenizer, context: str, continuation: str) -> float:
    """The log-likelihood of the tokens after the context, each given all before it.

    An export's tokenizer adds `<s>` and the prompt.
    """
    ids, before = (
        tokenizer(context + continuation)["input_ids"],
        len(tokenizer(context)["input_ids"]),
    )
    with torch.no_grad():
        said = log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)
    return math.fsum(said[place - 1, ids[place]].item() for place in range(before, len(ids)))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("zero_shot")
    suite = tiny_suite.write(folder)
    head = 'methods = ["naive", "elle"]\ntables = ["zero_shot_by_stage"]\n'
    text = suite.read_text().replace('methods = ["naive", "er"]\n', head)
    suite.write_text(text + write_questions(folder))
    return folder


def call(place: Path, command: str, *options: str) -> int:
    out = ["--out", str(place / "report")] if command == "run" else []
    return run_all.main(
        [command, str(place / "tiny.toml"), "--runs", str(place / "runs"), *out, *options]
    )


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    """The place with its runs trained and their models exported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(place / "cache"))
        assert call(place, "run", "--parallel", "1") == 0
    for run in load_runs(place / "runs", "tiny"):
        for key in run.line.stages:
            export_model(place / "runs" / "stages" / key, place / f"export-{key}")
    return place


def test_each_model_has_the_scores_that_transformers_computes(
    trained: Path, monkeypatch, capsys
) -> None:
    """Scores are in records and table, `status` counts them, and no question is asked twice. A
    changed file of questions needs new scores.
    """
    monkeypatch.setenv("HF_DATASETS_CACHE", str(trained / "cache"))
    assert (
        "Nobody has looked for these tasks' examples"
        in (trained / "report/tiny/zero_shot_by_stage.md").read_text()
    )
    table = (trained / "report" / "tiny" / "zero_shot_by_stage.csv").read_text()
    for run in load_runs(trained / "runs", "tiny"):
        for stage, key in enumerate(run.line.stages):
            folder = trained / f"export-{key}"
            model, tokenizer = (
                AutoModelForCausalLM.from_pretrained(folder).eval(),
                AutoTokenizer.from_pretrained(folder),
            )
            right = 0
            for asked in QUESTIONS:
                said = [
                    likelihood(model, tokenizer, asked["question"], f" {choice}")
                    for choice in asked["choices"]
                ]
                right += said.index(max(said)) == asked["answer"]
            [line] = run.zero_shot[stage]
            assert line.values["acc"] == pytest.approx(right / len(QUESTIONS)), (run.row, stage)
            assert f"{run.row},M{stage + 1},,colours,{line.values['acc']:.6g}" in table
    capsys.readouterr()
    before = {path: path.read_bytes() for path in (trained / "runs" / "scores").glob("*.jsonl")}
    assert call(trained, "run") == 0 and call(trained, "status") == 0
    assert {
        path: path.read_bytes() for path in before
    } == before and "4 of 4 scores" in capsys.readouterr().out
    with monkeypatch.context() as patched:  # rendering a report does not need the harness
        patched.setattr("importlib.util.find_spec", lambda name: None)
        patched.setitem(sys.modules, "lm_eval", None)
        assert call(trained, "run") == 0
    with (trained / "tasks" / "questions.jsonl").open("a") as file:
        file.write(json.dumps(QUESTIONS[0]) + "\n")
    assert call(trained, "run", "--dry-run") == 0 and "4 models to score" in capsys.readouterr().out


def test_a_whole_text_is_as_likely_as_its_tokens(trained: Path) -> None:
    """Oracle: transformers on the export. The text is asked for as a whole ("rolling") and after an
    empty context: in both, `<s>` and the prompt predict its first token.
    """
    run = load_runs(trained / "runs", "tiny")[1]
    stage = trained / "runs" / "stages" / run.line.stages[1]
    model = load(stage / "model").eval()
    ours = Likelihoods(model, read_tokenizer(stage / "model", model.vocabulary))
    theirs = AutoModelForCausalLM.from_pretrained(trained / f"export-{stage.name}").eval()
    tokenizer = AutoTokenizer.from_pretrained(trained / f"export-{stage.name}")
    expected = likelihood(theirs, tokenizer, "", "red green one")
    requests = [SimpleNamespace(args=("red green one",))]
    assert ours.loglikelihood_rolling(requests) == [pytest.approx(expected, rel=1e-5)]
    [(value, _)] = ours.loglikelihood(
        [SimpleNamespace(args=("", "red green one"))], disable_tqdm=True
    )
    assert value == pytest.approx(expected, rel=1e-5)


def test_a_question_longer_than_a_row_keeps_what_stands_before_it(trained: Path) -> None:
    """Oracle: transformers on the tokens that docs/tasks.md says are kept: `<s>`, the prompt, and
    the last ones that fit after them.
    """
    run = load_runs(trained / "runs", "tiny")[1]
    stage = trained / "runs" / "stages" / run.line.stages[1]
    model = load(stage / "model").eval()
    ours = Likelihoods(model, read_tokenizer(stage / "model", model.vocabulary))
    folder = trained / f"export-{stage.name}"
    export = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = "seven" + " red green one two" * 40
    before = tokenizer("")["input_ids"]
    ids = tokenizer(f"{question} blue")["input_ids"]
    answer = len(ids) - len(tokenizer(question)["input_ids"])
    longest = export.config.n_positions
    assert len(before) == 2 and len(ids) > longest + 1  # `<s>` and the prompt
    kept = [*before, *ids[len(before) - longest :]]
    with torch.no_grad():
        said = log_softmax(export(torch.tensor([kept[:-1]])).logits[0].float(), -1)
    expected = sum(said[place - answer, token].item() for place, token in enumerate(kept[-answer:]))
    [(value, _)] = ours.loglikelihood(
        [SimpleNamespace(args=(question, " blue"))], disable_tqdm=True
    )
    assert value == pytest.approx(expected, rel=1e-5)


def test_a_task_that_nobody_knows_is_named(place: Path, monkeypatch, capsys) -> None:
    """Oracle: by hand: `run` fails, and `status` names the task. The library takes half a minute to
    go through its own tasks, so it has none here.
    """
    monkeypatch.setattr(
        harness,
        "TaskManager",
        lambda include_path, **_: TaskManager(include_path=include_path, include_defaults=False),
    )
    unknown = ["--set", 'evaluate.tasks=["colour"]', "--set", "evaluate.limit=1"]
    assert call(place, "run", "--methods", "naive", "--parallel", "1", *unknown) == 1
    capsys.readouterr()
    assert call(place, "status", *unknown) == 1
    assert " task colour: " in capsys.readouterr().out


@pytest.mark.parametrize("missing", [True, False])
def test_what_cannot_be_asked_is_refused_before_training(
    missing: bool, place: Path, monkeypatch, capsys
) -> None:
    """Oracle: by hand: the cure in one line, exit status 2 (a user's mistake), and no records."""
    if missing:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    masked = [] if missing else ["--set", "model.architecture=bert"]
    assert (
        run_all.main(["run", str(place / "tiny.toml"), "--runs", str(place / "other"), *masked])
        == 2
    )
    said = capsys.readouterr().err
    assert (".[lm-eval]" if missing else "(bert)") in said and said.count("\n") == 1
    assert not list((place / "other").rglob("*.jsonl"))
