"""Runs that are killed at chosen steps and started again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmark import cancel
from benchmark.instruments.comparisons import Weights, load_weights
from benchmark.training.run import Run


class Killed(Exception):
    """Stands for SIGKILL: raised in the middle of a step, so nothing of the step is saved."""


def train_through_kills(start: Callable[[], Run], kills: Sequence[int]) -> list[Weights]:
    """The weights after each stage of a run that is killed at the steps `kills` and started again.

    Steps are counted from 1.
    """
    remaining_kills = [*kills]
    calls = 0

    def stop_here() -> bool:
        nonlocal calls
        calls += 1
        if calls in remaining_kills:
            remaining_kills.remove(calls)
            calls -= 1  # the killed step will be run again
            raise Killed
        return False

    while True:
        run = start()
        try:
            with cancel.heed(stop_here):
                run.train()
        except Killed:
            continue
        assert not remaining_kills, f"the run ended before it was killed at steps {remaining_kills}"
        return load_weights(run)
