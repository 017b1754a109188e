"""What a stage leaves to the next one, and to itself: files that are gone, or are another's, are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from benchmark.errors import UserError
from benchmark.instruments.tiny_runs import Lab
from benchmark.training import checkpoint
from benchmark.training.method import LifelongMethod, Phase
from benchmark.training.stage import Stopped


@dataclass
class Remembers(LifelongMethod):
    """It keeps what it has learned of each stage, as EWC does."""

    state = ("known",)
    known: list[int] = field(default_factory=list, init=False)

    def start_stage(self, model, stage):
        assert self.known == [*range(stage.index)]
        self.known = [*self.known, stage.index]
        return model


@dataclass
class CarriesOn(Remembers):
    """Its Adam goes on with the moments of the stage before."""

    def phases(self, stage):
        return [Phase("adapt", 1.0, optimizer="carry")]


@pytest.mark.parametrize(
    ("method", "file"), [(Remembers, "method.pt"), (CarriesOn, "method.pt"), (CarriesOn, "optimizer.pt")]
)
def test_no_stage_begins_without_what_its_method_knew(method: type[Remembers], file: str, tmp_path: Path) -> None:
    """Oracle: the file, put back: with it the same run goes on; without it or with half of it nothing is trained."""
    lab = Lab("remembers", lambda name, options: method(), tmp_path)
    run = lab.run(lab.config(), "run")
    run.train(last_stage=0)
    memory = run.store.stage(run.keys[0]) / file
    content = memory.read_bytes()
    for wrong in (lambda: memory.write_bytes(content[: len(content) // 2]), memory.unlink):
        wrong()
        with pytest.raises(UserError, match=rf"{memory} .*: restore it from a copy"):
            run.train(last_stage=1)
        assert not (run.store.stage(run.keys[1]) / "records.jsonl").exists()
    memory.write_bytes(content)
    run.train(last_stage=1)
    assert run.store.stage_done(run.keys[1])


@pytest.mark.parametrize("file", ["method.pt", "optimizer.pt", "checkpoint.pt"])
def test_no_stage_takes_the_file_of_another(file: str, tmp_path: Path) -> None:
    """Oracle: the files of the same stage with another seed, whose shapes fit. One without a key, as earlier versions
    wrote it, is read; one that no version wrote is an error with its name."""
    lab = Lab("carries on", lambda name, options: CarriesOn(), tmp_path)
    one, other = (lab.run(lab.config().model_copy(update={"seed": seed}), f"run-{seed}") for seed in (1, 2))
    for run in (one, other):
        run.train(last_stage=0)
        if file == "checkpoint.pt":
            run.asked_to_stop = lambda: True
            with pytest.raises(Stopped):
                run.train(last_stage=1)
            run.asked_to_stop = lambda: False
    index = 1 if file == "checkpoint.pt" else 0
    path, foreign = (run.store.stage(run.keys[index]) / file for run in (one, other))
    own = torch.load(path, weights_only=True)
    assert own.pop(checkpoint.OWNER) == one.keys[index]
    path.write_bytes(foreign.read_bytes())
    with pytest.raises(UserError, match=rf"{file} is of stage '{other.keys[index]}', not of {one.keys[index]}: a file"):
        one.train(last_stage=1)
    for content, message in (([1], "holds a list"), ({}, "is no checkpoint"), ({"position": 7}, "is no checkpoint")):
        torch.save(content, path)
        if file == "checkpoint.pt" or message == "holds a list":
            with pytest.raises(UserError, match=rf"{file} {message}.*: re(move|store)"):
                one.train(last_stage=1)
    torch.save(own, path)
    one.train(last_stage=1)
    assert one.store.stage_done(one.keys[1])
