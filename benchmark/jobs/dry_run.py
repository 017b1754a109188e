"""The text of --dry-run: which runs, what the executor would do, and the budget before and after sharing."""

from __future__ import annotations

from benchmark.jobs.executors import Executor
from benchmark.jobs.plan import Plan
from benchmark.jobs.states import RunState
from benchmark.settings.config import per_stage
from benchmark.settings.units import UNITS


def describe(plan: Plan, executor: Executor) -> str:
    """The runs of a plan with their budgets and states, the executor's jobs, and what is left to train."""
    lines = [f"{plan.suite.name}: {plan.suite.title}"]
    for one in plan.states:
        amounts = [per_stage(one.config.budget.amount, stage) for stage in range(len(one.config.domains))]
        stages = f"{one.trained.stages} of {len(amounts)} stages done"
        budget = UNITS[one.config.budget.unit].text(sum(amounts))
        lines.append(f"  {one.config.row}, seed {one.config.seed}: {budget}; {one.state}, {stages}")
    lines += executor.describe(plan)
    missing = [pair for one in plan.wanted for pair in _missing(plan, one)]
    unit, gpus = UNITS[plan.states[0].config.budget.unit], executor.gpus
    apart, shared = sum(amount for _, amount in missing), sum(dict(missing).values())
    lines.append(
        f"To train: {len(plan.wanted)} of {len(plan.states)} runs, {unit.text(apart, gpus)}. Stages that they "
        f"share are trained once: {unit.text(shared, gpus)}, which saves "
        f"{unit.text(apart - shared, gpus)}"
    )
    notes = dict.fromkeys(one.config.tokenizer_note for one in plan.states)
    return "\n".join([*lines, *filter(None, notes)])


def _missing(plan: Plan, one: RunState) -> list[tuple[str, float]]:
    """The key and the budget of each stage that a run still needs."""
    keys = plan.keys[one.config.id]
    amounts = [per_stage(one.config.budget.amount, stage) for stage in range(len(keys))]
    return list(zip(keys, amounts, strict=True))[one.trained.stages :]
