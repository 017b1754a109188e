"""The card of an exported model, and sending both to the Hub. No network: the Hub is a stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import methods
from benchmark.instruments.conformance import TinyRuns
from benchmark.instruments.export import export_model
from benchmark.store import Store, load_runs
from benchmark.training.run import Run

LAST = "logging"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    tiny = TinyRuns("elle", methods.build, tmp_path_factory.mktemp("run"))
    run = tiny.run(tiny.config("gpt"), "runs")
    run.train()
    return run


def test_the_card_says_what_the_records_say(run: Run, tmp_path: Path) -> None:
    """Oracle: the records, read apart: method, seed, sha256 of the domains, budget, sizes, perplexities."""
    export_model(run.store.run_file(run.config), tmp_path / "elle-gpt")
    records = load_runs(run.store.root, "conformance")[0]
    card = ModelCard.load(tmp_path / "elle-gpt" / "README.md")
    assert card.data.library_name == "transformers" and card.data.pipeline_tag == "text-generation"
    assert "elle" in card.data.tags
    [result] = card.data.eval_results  # what this folder computes; the others were read with other prompts
    measured = records.matrix[2].perplexity
    assert (result.dataset_type, result.metric_type) == (LAST, "perplexity")
    assert result.metric_value == pytest.approx(measured[LAST], abs=1e-4)
    for words in ("stage 3 of 3 of row elle", "method `elle`", "seed 3", "L1_D16", "L2_D32", "10 steps", "3 domains"):
        assert words in card.text
    begin: Any = records.stages[2][0]
    for domain in ("json", "email", LAST):
        assert begin.data[domain]["sha256"] in card.text
        assert f"| {domain} | {measured[domain]:.4f} |" in card.text
    assert begin.provenance.code in card.text and begin.provenance.hardware.cpu in card.text


def test_the_card_says_what_texts_and_start_model_are(run: Run, tmp_path: Path) -> None:
    """Oracle: by hand: a file without its folder, in a cell that it cannot leave, and a start model of the Hub."""
    stage = run.store.stage(run.keys[0])
    model = tmp_path / "runs" / "stages" / stage.name
    model.mkdir(parents=True)
    (model / "model").symlink_to(stage / "model")
    file = Store(tmp_path / "runs").run_file(run.config)
    file.parent.mkdir(parents=True)
    told = json.loads(run.store.run_file(run.config).read_text().splitlines()[0])
    told["config"] |= {"start": {"folder": "/hub/snapshots/1"}}
    told["config"]["model"]["start"] = "me/base"
    file.write_text(json.dumps(told) + "\n")
    begin, *lines = (stage / "records.jsonl").read_text().splitlines()
    first = json.loads(begin)
    first["data"]["json"] |= {"source": {"train": ["/home/me/a|b`<"]}}
    (model / "records.jsonl").write_text("\n".join([json.dumps(first), *lines]) + "\n")
    export_model(model, tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "me/base" and "as me/base" in card.text
    assert r"| a\|b'&lt; |" in card.text and "home" not in card.text
