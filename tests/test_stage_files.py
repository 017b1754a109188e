"""Files that a stage leaves: the next stage refuses damaged ones, and weights have a hash."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmark.errors import UserError
from benchmark.instruments.conformance import TinyRuns
from benchmark.training.method import LifelongMethod, Phase


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
