"""Several processes that train together: what one does while the others wait, and what they say when all fail."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import patch

import torch

from benchmark.instruments import conformance
from benchmark.training.processes import World, join

TALKS = 5  # words that a connection needs to live, in the test below


def _let_the_first_act(rank: int, port: int, folder: Path) -> None:
    conformance.be_one_of_two(rank, port)
    talked: list[float] = []
    plain = World.maximum

    def maximum(world: World, *values: float) -> list[float]:
        talked.extend(values)
        return plain(world, *values)

    def act() -> None:
        while len(talked) < TALKS:
            time.sleep(0.01)
        (folder / str(rank)).touch()

    with join() as world, patch.object(World, "maximum", maximum):
        world.let_first(act)
    assert len(talked) >= TALKS


def test_processes_talk_while_the_first_prepares(tmp_path: Path) -> None:
    """Oracle: the first one's work ends only once both have talked five times; were the other waiting for its end in
    one collective, as long as a backend's limit lets it, it never would. It alone does the work."""
    torch.multiprocessing.spawn(_let_the_first_act, (conformance.free_port(), tmp_path), nprocs=2)  # type: ignore
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
