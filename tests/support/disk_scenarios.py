"""What the project writes, as scenarios for a faulty disk: one for each way in which it writes."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmark import locks, records
from benchmark.data.tokens import prepare
from benchmark.files import check_checksums, write_json
from benchmark.instruments.checkpoints import export_model, grow_checkpoint
from benchmark.models import build, load, weights_hash
from benchmark.models.transformer import load_network
from benchmark.settings.suite import Budget, Data, Domain, Tokenizer
from benchmark.training import checkpoint
from benchmark.training.clock import Clock
from benchmark.training.processes import World
from benchmark.training.progress import ProgressLine
from tests.support.faulty_disk import Scenario
from tests.support.stage_lines import STAGE

PIECES = ("red green", "blue cyan", "one two")
DATA = Data(sequence_length=18, memory_tokens=100, valid_share=0.3)


def nothing(folder: Path) -> None:
    pass


def is_subset(found: Sequence[Any], before: Any, after: Sequence[Any]) -> bool:
    return set(found) <= set(after)


def is_prefix(found: Sequence[Any], before: Any, after: Sequence[Any]) -> bool:
    return len(found) >= len(before) and list(found) == list(after[: len(found)])


# Records: lines that are appended


def begin_records(folder: Path) -> None:
    records.append(folder / "records.jsonl", STAGE)


def append_records(folder: Path) -> None:
    for step in (1, 2):
        records.append(
            folder / "records.jsonl", {"kind": "metrics", "phase": "adapt", "step": step, "values": {"x": step / 3}}
        )


def read_records(folder: Path) -> Any:
    lines: list[Any] = records.read_stage(folder / "records.jsonl")
    return [[line["kind"], line.get("step"), line.get("values")] for line in lines]


# A JSON file and a checkpoint, which replace what was there


def write_one(folder: Path) -> None:
    write_json(folder / "a.json", [1] * 100)


def write_two(folder: Path) -> None:
    write_json(folder / "a.json", [2] * 100)


def save_checkpoint(folder: Path, value: float) -> None:
    content = {"model": {str(i): torch.full((50,), value) for i in range(3)}, "position": {"step": value}}
    checkpoint.save(folder / "checkpoint.pt", content)


def read_checkpoint(folder: Path) -> Any:
    content = checkpoint.load(folder / "checkpoint.pt")
    return [content["position"]["step"], *(tensor.sum().item() for tensor in content["model"].values())]


# A model's folder


class Models:
    """Saves one of two models, and says which is there."""

    def __init__(self) -> None:
        domain = Domain(name="a", packages=("json",))
        with tempfile.TemporaryDirectory() as folder:
            corpus = prepare([domain], Tokenizer(vocabulary=300), DATA, Path(folder))
        self.tokenizer = corpus.tokenizer
        vocabulary = replace(corpus.vocabulary, domains=("a",))
        self.models = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            self.models.append(build("gpt", 1, 16, vocabulary, 18, head_size=16))

    def first(self, folder: Path) -> None:
        self.models[0].save(folder / "model", self.tokenizer)

    def second(self, folder: Path) -> None:
        self.models[1].save(folder / "model", self.tokenizer)

    def read(self, folder: Path, name: str = "model") -> Any:
        return weights_hash(load(folder / name)) if (folder / name).exists() else None

    def grow(self, folder: Path) -> None:
        self.into(folder / "large", lambda out: grow_checkpoint(folder / "model", 2, 32, out))

    def export(self, folder: Path) -> None:
        self.into(folder / "plain", lambda out: export_model(folder / "model", out))

    def into(self, out: Path, write: Callable[[Path], object]) -> None:
        """Write a new folder where there is none yet, as users do once the disk is whole."""
        if not out.exists():
            write(out)


def read_plain(folder: Path) -> Any:
    return weights_hash(load_network(folder)) if folder.exists() else None


# Text that is tokenised


def write_text(folder: Path) -> None:
    lines = [json.dumps({"text": f"{PIECES[i % 3]} {i} {PIECES[i % 2]} " * 4}) for i in range(60)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    os.utime(folder / "a.jsonl", (1, 1))  # prepared text is known by the time of its files


def tokenise(folder: Path) -> None:
    corpus = prepare([Domain(name="a", train=(str(folder / "a.jsonl"),))], Tokenizer(vocabulary=300), DATA, folder)
    corpus.domains[0].check()


def read_tokens(folder: Path) -> Any:
    found = [path for path in folder.glob("*/*") if path.is_dir() and path.suffix != ".unfinished"]
    for one in found:
        check_checksums(one, "")
    return sorted(f"{path.parent.name}/{path.name}: {sorted(p.name for p in path.iterdir())}" for path in found)


# How far a run is


def show(folder: Path) -> None:
    clock = Clock(Budget(unit="steps", amount=1.0), 0, World(0, 1, torch.device("cpu")))
    line = ProgressLine("run", folder / "run.json", io.StringIO())
    stage: Any = type("Stage", (), {"index": 0, "domains": ("a",), "outlook": type("Outlook", (), {"stages": 1})})
    line.show(stage, "adapt", clock, None)


def read_heartbeat(folder: Path) -> Any:
    path = folder / "run.json"
    return json.loads(path.read_text())["phase"] if path.exists() else None


# A lease


def own_twice(folder: Path) -> None:
    for _ in range(2):  # what was not given back is waited for
        with patch.object(locks, "BEAT", 0.01), locks.Lease(folder / "lock"):
            pass


def is_owned(folder: Path) -> bool:
    return locks.Lease(folder / "lock").is_taken()


def scenarios() -> list[Scenario]:
    models = Models()
    return [
        Scenario("records", begin_records, append_records, read_records, is_prefix),
        Scenario("json", write_one, write_two, lambda folder: json.loads((folder / "a.json").read_text())[0]),
        Scenario(
            "checkpoint",
            lambda folder: save_checkpoint(folder, 1.0),
            lambda folder: save_checkpoint(folder, 2.0),
            read_checkpoint,
        ),
        Scenario("model", nothing, models.second, models.read),
        # between two renames there is none: its stage is not done then, and trains on from its checkpoint
        Scenario("model_again", models.first, models.second, models.read, lambda found, *both: found in (None, *both)),
        Scenario("grow", models.first, models.grow, lambda folder: models.read(folder, "large")),
        Scenario("export", models.first, models.export, lambda folder: read_plain(folder / "plain")),
        Scenario("tokens", write_text, tokenise, read_tokens, is_subset),
        Scenario("heartbeat", nothing, show, read_heartbeat),
        Scenario("lease", nothing, own_twice, is_owned),
    ]
