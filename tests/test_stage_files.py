"""Files that a stage leaves: the next stage refuses damaged ones, and weights have a hash."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import methods
from benchmark.errors import UserError
from benchmark.instruments.conformance import TinyRuns
from benchmark.models import hash_weights, load
from benchmark.training.method import LifelongMethod, Phase
from tests.support.record_lines import read_lines


@dataclass
class Remembers(LifelongMethod):
    """Keeps the numbers of its stages, as EWC keeps what it has learned of each."""

    state = ("known",)
    known: list[int] = field(default_factory=list, init=False)

    def start_stage(self, model, stage):
        assert self.known == [*range(stage.index)]
        self.known = [*self.known, stage.index]
        return model


@dataclass
class CarriesOn(Remembers):
    """Continues with the previous stage's state of the optimizer."""

    def phases(self, stage):
        return [Phase("adapt", 1.0, optimizer="carry")]


@pytest.mark.parametrize(
    ("method", "file"),
    [(Remembers, "method.pt"), (CarriesOn, "method.pt"), (CarriesOn, "optimizer.pt")],
)
def test_no_stage_begins_without_what_its_method_knew(
    method: type[Remembers], file: str, tiny_folder: Path
) -> None:
    """Oracle: by hand: without the file, or with half of it, nothing is trained. Once the file is
    restored, the same run continues.
    """
    tiny = TinyRuns("remembers", lambda name, options: method(), tiny_folder)
    run = tiny.make_run(tiny.make_config(), "run")
    run.train(last_stage=0)
    memory = run.store.stage_folder(run.keys[0]) / file
    content = memory.read_bytes()
    for wrong in (lambda: memory.write_bytes(content[: len(content) // 2]), memory.unlink):
        wrong()
        with pytest.raises(UserError, match=rf"{memory} .*: restore "):
            run.train(last_stage=1)
        assert not (run.store.stage_file(run.keys[1])).exists()
    memory.write_bytes(content)
    run.train(last_stage=1)
    assert run.store.is_stage_done(run.keys[1])


def test_a_finished_stage_has_a_hash_of_its_weights(tiny_folder) -> None:
    """Oracle: the hash of the model in its folder. One changed bit of one number changes it."""
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    run = tiny.make_run(tiny.make_config(), "run")
    run.train(last_stage=0)
    folder = run.store.stage_folder(run.keys[0])
    [done] = [line for line in read_lines(folder / "records.jsonl") if line["kind"] == "done"]
    model = load(folder / "model")
    assert done["weights"] == hash_weights(model)
    last = [*model.parameters()][-1].data.view(torch.int32)
    last[0] ^= 1
    assert done["weights"] != hash_weights(model)
    last[0] ^= 1
    assert done["weights"] == hash_weights(model)
