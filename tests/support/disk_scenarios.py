"""What the project writes, as scenarios for a faulty disk: one for each way in which it writes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmark import locks, records
from benchmark.data.tokens import prepare
from benchmark.files import check_checksums, write_json
from benchmark.models import build, load, weights_hash
from benchmark.settings.suite import Data, Domain, Tokenizer
from benchmark.training import checkpoint
from tests.support.faulty_disk import Scenario
from tests.support.record_lines import read_stage_lines
from tests.support.stage_lines import STAGE

PIECES = ("red green", "blue cyan", "one two")
DATA = Data(sequence_length=18, memory_tokens=100, valid_share=0.3)


def nothing(folder: Path) -> None:
    pass


def is_subset(seen: Sequence[Any], before: Any, after: Sequence[Any]) -> bool:
    return set(seen) <= set(after)


def is_prefix(seen: Sequence[Any], before: Any, after: Sequence[Any]) -> bool:
    return len(seen) >= len(before) and list(seen) == list(after[: len(seen)])


# Records: lines that are appended


def begin_records(folder: Path) -> None:
    records.append(folder / "records.jsonl", STAGE)


def append_records(folder: Path) -> None:
    for step in (1, 2):
        line = {"kind": "metrics", "phase": "adapt", "step": step, "values": {"x": step / 3}}
        records.append(folder / "records.jsonl", line)


def read_records(folder: Path) -> Any:
    lines: list[Any] = read_stage_lines(folder / "records.jsonl")
    return [[line["kind"], line.get("step"), line.get("values")] for line in lines]


# A JSON file and a checkpoint, which replace what was there


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

    def read(self, folder: Path) -> Any:
        return weights_hash(load(folder / "model")) if (folder / "model").exists() else None


# Text that is tokenised


def write_text(folder: Path) -> None:
    lines = [json.dumps({"text": f"{PIECES[i % 3]} {i} {PIECES[i % 2]} " * 4}) for i in range(60)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    os.utime(folder / "a.jsonl", (1, 1))  # prepared text is known by the time of its files


def tokenise(folder: Path) -> None:
    corpus = prepare([Domain(name="a", train=(str(folder / "a.jsonl"),))], Tokenizer(vocabulary=300), DATA, folder)
    corpus.domains[0].check()


def read_tokens(folder: Path) -> Any:
    whole = [path for path in folder.glob("*/*") if path.is_dir() and not path.name.startswith(".")]
    for path in whole:
        check_checksums(path, "")
    return sorted(f"{path.parent.name}/{path.name}: {sorted(p.name for p in path.iterdir())}" for path in whole)


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
        Scenario(
            "json",
            lambda folder: write_json(folder / "a.json", [1] * 100),
            lambda folder: write_json(folder / "a.json", [2] * 100),
            lambda folder: json.loads((folder / "a.json").read_text())[0],
        ),
        Scenario(
            "checkpoint",
            lambda folder: save_checkpoint(folder, 1.0),
            lambda folder: save_checkpoint(folder, 2.0),
            read_checkpoint,
        ),
        Scenario("model", nothing, models.second, models.read),
        # between two renames there is none: its stage is not done then, and trains on from its checkpoint
        Scenario("model_again", models.first, models.second, models.read, lambda seen, *both: seen in (None, *both)),
        Scenario("tokens", write_text, tokenise, read_tokens, is_subset),
        Scenario("lease", nothing, own_twice, is_owned),
    ]
