"""Results do not change: keys, weights, perplexities and scores on toy text, and studies' reports.

For each method and architecture, `golden.json` has the keys of two stages on toy text, and for the
last stage the hash of its weights, its perplexities and its last loss. Two methods have one more
row each, and two have downstream scores. When a method is meant to change,

    .venv/bin/python -m tests.test_golden

writes the file again. Its diff names the methods whose results changed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import run_all
from tests.support import tiny_suite
from tests.support.thorough import one_in, these_of

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden.json"
METHODS = [
    "naive",
    "ewc",
    "mas",
    "agem",
    "er",
    "logit_kd",
    "pnn",
    "elle",
    "elle_exact",
    "lora",
    "lifelong_moe",
    "gstack",
]
STUDIES = sorted(path.parent.name for path in (ROOT / "results").glob("*/records"))
ARCHITECTURES = ("bert", "gpt", "llama")
FORCED = (
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
SUITE = """
extends = "tiny.toml"
title = "{architecture}"
methods = {methods}
tables = []
tokenizer = {{ vocabulary = 300, sample_bytes = 20_000 }}
model = {{ architecture = "{architecture}" }}
"""
ROWS = ("Logit-KD, cold", "G_stack, two layers")
OPTIONS = """
# so cold that the temperature shows
[[rows]]
name = "Logit-KD, cold"
method = "logit_kd"
options = { replay_ratio = 0.5, temperature = 0.25 }
# two layers, whose order shows what was copied
[[rows]]
name = "G_stack, two layers"
method = "gstack"
options = { factor = 2 }
[rows.set]
"model.ladder" = [{ layers = 2, hidden_size = 16 }, { layers = 4, hidden_size = 16 }]
# so strong that six steps show them: each, a twentieth stronger, changes perplexities by over 1e-4
[options]
ewc = { strength = 10.0 }
mas = { strength = 1.0 }
logit_kd = { replay_ratio = 0.5 }
lifelong_moe = { distillation = 30.0 }
"""
TASK = """
finetuning = { seeds = 1, stages = "last", precision = "fp32" }
[[tasks]]
name = "first_word"
domain = "a"
metric = "accuracy"
learning_rate = 1e-2
batch_size = 16
max_epochs = 3
train = "train.jsonl"
dev = "dev.jsonl"
test = "test.jsonl"
"""


def train(folder: Path, architecture: str) -> dict[str, Any]:
    """The results of all methods and ROWS on toy text, by the name of the method or row."""
    tiny_suite.write(folder)
    suite = folder / f"{architecture}.toml"
    suite.write_text(SUITE.format(architecture=architecture, methods=json.dumps(METHODS)) + OPTIONS)
    run(folder, suite)
    return results(folder, architecture)


def score(folder: Path) -> dict[str, list[float]]:
    """Scores of two methods on a task of toy text, by the name of the method."""
    tiny_suite.write(folder)
    for split, count in (("train", 60), ("dev", 20), ("test", 40)):
        words = tiny_suite.words("a")
        lines = [
            json.dumps({"text": " ".join(words[i * 9 : i * 9 + 6]), "label": words[i * 9]})
            for i in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    suite = folder / "scored.toml"
    suite.write_text(SUITE.format(architecture="gpt", methods='["naive", "elle"]') + TASK)
    run(folder, suite)
    keys = {method: known["keys"][-1] for method, known in results(folder, "scored").items()}
    scored = {
        method: read(folder / "runs" / "scores" / f"{key}.jsonl") for method, key in keys.items()
    }
    return {
        method: [line["test"] for line in lines if line["kind"] == "score"]
        for method, lines in scored.items()
    }


def run(folder: Path, suite: Path) -> None:
    arguments = ["--runs", str(folder / "runs"), "--out", str(folder / "report"), "--parallel", "1"]
    assert run_all.main(["run", str(suite), *arguments]) == 0


def results(folder: Path, suite: str) -> dict[str, Any]:
    """The keys of each run, and the measurements and weights' hash of its last stage."""
    by_method: dict[str, Any] = {}
    for path in (folder / "runs" / "suites" / suite).glob("*.jsonl"):
        described = read(path)[0]
        stage = read(folder / "runs" / "stages" / described["stages"][-1] / "records.jsonl")
        evaluations = [line for line in stage if line["kind"] == "evaluation"]
        losses = [line["loss"] for line in evaluations if "loss" in line]
        row = described["row"]
        by_method[row if row in ROWS else described["method"]] = {
            "keys": described["stages"],
            "measured": evaluations[-1]["perplexity"] | {"loss": losses[-1]},
            "weights": next(line["weights"] for line in stage if line["kind"] == "done"),
        }
    return by_method


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def describe_arithmetic() -> dict[str, Any]:
    """What decides the last bits of a weight: CPU, threads, torch, and the instructions that its
    libraries are forced to use.
    """
    vendor = re.search(
        r"^vendor_id\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {
        "vendor": vendor[1] if vendor else platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "forced": {name: os.environ[name] for name in FORCED if name in os.environ},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "mkl": torch.backends.mkl.is_available(),
    }


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("architecture", these_of({"bert", "gpt"}, ARCHITECTURES))
def test_what_is_trained_stays(architecture: str, golden: dict[str, Any], tmp_path: Path) -> None:
    """Oracle: golden.json. Another kind of CPU sums in another order, which changes perplexities by
    less than 1e-4 (relative) after twelve steps. On the kind of CPU that wrote the file, the
    weights are the same bit for bit.
    """
    trained, expected = train(tmp_path, architecture), golden[architecture]
    assert select(trained, "keys") == select(expected, "keys")
    for name in (*METHODS, *ROWS):
        assert trained[name]["measured"] == pytest.approx(expected[name]["measured"], rel=1e-4), (
            name
        )
    if golden["arithmetic"] == describe_arithmetic():
        assert select(trained, "weights") == select(expected, "weights")


def select(by_method: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: known[field] for name, known in by_method.items()}


def test_scores_stay(golden: dict[str, Any], tmp_path: Path) -> None:
    """Oracle: golden.json. On another kind of CPU, one of the 40 answers may differ."""
    tolerance = 0 if golden["arithmetic"] == describe_arithmetic() else 1.5 / 40
    for name, scores in score(tmp_path).items():
        assert scores == pytest.approx(golden["scores"][name], abs=tolerance), name


@pytest.mark.parametrize("study", STUDIES)
def test_reports_of_studies_stay(study: str, tmp_path: Path) -> None:
    """Oracle: `verify`: the committed records give the committed report byte for byte. Every sixth
    suite of a study is rendered, in a copy that has only the records of these suites.
    """
    folder = ROOT / "results" / study
    copy = tmp_path / study
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("records", "report"))
    (copy / "records").mkdir()
    for report in one_in(6, sorted((folder / "report").iterdir())):
        shutil.copytree(report, copy / "report" / report.name)
        for archive in (folder / "records").glob(f"{report.name}-s*.tar.gz"):
            shutil.copy(archive, copy / "records")
    assert run_all.main(["verify", str(copy)]) == 0


def main() -> None:
    """Write golden.json again, with the results of this code on this machine."""
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")  # for the processes that train
    torch.set_num_threads(1)
    written: dict[str, Any] = {"arithmetic": describe_arithmetic()}
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ARCHITECTURES:
            written[architecture] = train(Path(folder), architecture)
        written["scores"] = score(Path(folder))
    GOLDEN.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
