"""The text of --dry-run: which runs, what the executor would do, and the budget before and after sharing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmark.jobs.executors import Executor
from benchmark.jobs.plan import Plan
from benchmark.jobs.states import RunState
from benchmark.jobs.sweep import seconds_left, sweep_line
from benchmark.settings.suite import RunConfig, per_stage
from benchmark.settings.units import UNITS, duration


def describe(plan: Plan, executor: Executor) -> str:
    """The runs of a plan with their budgets and states, the executor's jobs, and what is left to train."""
    lines = [f"{plan.suite.name}: {plan.suite.title}: {sweep_line(plan.states)}"]
    for one in plan.states:
        amounts = [per_stage(one.config.budget.amount, stage) for stage in range(len(one.config.domains))]
        stages = f"{one.trained.stages} of {len(amounts)} stages done"
        budget = UNITS[one.config.budget.unit].text(sum(amounts))
        lines.append(f"  {one.config.row}, seed {one.config.seed}: {budget}; {one.state}, {stages}")
    does = executor.describe(plan)
    lines += does
    apart, shared, saved = _amounts(plan, executor.gpus)
    lines.append(f"To train: {len(plan.wanted)} of {len(plan.states)} runs, {apart}")
    if saved:
        lines[-1] += f". Stages that they share are trained once: {shared}, which saves {saved}"
    if not all(UNITS[one.config.budget.unit].in_seconds for one in plan.states) and (left := seconds_left(plan.states)):
        lines[-1] += f"; about {duration(left)} at the pace of what has run"
    notes = (note for one in plan.states for note in (one.config.tokenizer_note, one.config.start_note))
    lines += filter(None, dict.fromkeys(notes))
    if plan.wanted:
        lines.append("next: the same command without --dry-run trains them, then renders the report")
    elif does:
        lines.append("next: the same command without --dry-run does that")
    elif all(one.state == "done" and not any(model.missing for model in one.trained.scored) for one in plan.states):
        lines.append(f"next: `python run_all.py report {plan.suite.called}` renders tables and figures")
    else:
        lines.append(f"next: `python run_all.py status {plan.suite.called}` says how they do")
    return "\n".join(lines)


def _amounts(plan: Plan, gpus: Callable[[Iterable[RunConfig]], float]) -> tuple[str, str, str]:
    """What the runs still need by themselves, with shared stages counted once, and the difference; unit by unit."""
    apart, shared, saved = [], [], []
    for name in dict.fromkeys(one.config.budget.unit for one in plan.states):
        stages: dict[str, tuple[float, list[RunConfig]]] = {}  # the amount of each, and the runs that need it
        every = gpu_seconds = 0.0
        for one in plan.wanted:
            missing = _missing(plan, one) if one.config.budget.unit == name else []
            for key, amount in missing:
                stages.setdefault(key, (amount, []))[1].append(one.config)
            its = sum(amount for _, amount in missing)
            every, gpu_seconds = every + its, gpu_seconds + its * gpus([one.config])
        once = sum(amount for amount, _ in stages.values())
        gpu_seconds_once = sum(amount * gpus(runs) for amount, runs in stages.values())
        apart.append(UNITS[name].text(every, gpu_seconds))
        shared.append(UNITS[name].text(once, gpu_seconds_once))
        saved += [UNITS[name].text(every - once, gpu_seconds - gpu_seconds_once)] if once < every else []
    return " and ".join(apart), " and ".join(shared), " and ".join(saved)


def _missing(plan: Plan, one: RunState) -> list[tuple[str, float]]:
    """The key and the budget of each stage that a run still needs."""
    keys = plan.keys[one.config.id]
    amounts = [per_stage(one.config.budget.amount, stage) for stage in range(len(keys))]
    return list(zip(keys, amounts, strict=True))[one.trained.stages :]
