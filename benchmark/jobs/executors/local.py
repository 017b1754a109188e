"""This machine, and whatever processes torchrun has started here: runs are trained side by side, or in turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmark.jobs.plan import Plan
from benchmark.jobs.slots import slots_for
from benchmark.jobs.states import JobState
from benchmark.settings.suite import RunConfig, Suite
from benchmark.store import Store


class LocalExecutor:
    """Returns when everything is done. It has no jobs of its own: runs under way are known by their locks."""

    asks = False

    def __init__(self, suite: Suite, store: Store) -> None:
        self.suite, self.store = suite, store

    def gpus(self, runs: Iterable[RunConfig]) -> float:
        return 0

    def describe(self, plan: Plan) -> list[str]:
        slots = slots_for([state.config for state in plan.wanted], plan.options.parallel)
        lines = (
            [f"  {len(slots)} side by side, {slots[0].threads} cores each"] if len(slots) > 1 and plan.wanted else []
        )
        missing = {model.model: model.missing for state in plan.states for model in state.trained.scored}
        return [*lines, *([f"  {sum(missing.values()):,} scores to compute"] if any(missing.values()) else [])]

    def execute(self, plan: Plan) -> int:
        from benchmark.jobs.local.work import work_through  # torch, which `describe` and `jobs` need not wait for

        return work_through(plan)

    def jobs(self) -> list[JobState]:
        return []

    def cancel(self, jobs: Sequence[JobState]) -> None:
        pass


EXECUTOR = LocalExecutor
