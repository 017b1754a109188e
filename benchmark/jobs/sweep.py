"""How far a sweep is, in a line: its runs, its budget, the time that is left, and the best row so far."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from benchmark.jobs.states import RunState, Scored
from benchmark.settings.suite import RunConfig, per_stage
from benchmark.settings.units import UNITS, duration

OVER = ("done", "failed")  # states in which nothing more will be trained by itself
LAST = ("done", "todo")  # states of which a user wants to know after all others


def sweep_line(states: Sequence[RunState]) -> str:
    """Runs by state, the share of the budget that is spent, the time left as what ran tells, and the best row."""
    counts = Counter(one.state for one in states)
    runs = ", ".join([f"{len(states)} runs", *(f"{count} {state}" for state, count in counts.items())])
    models = _scored(states)
    there = sum(len(one.ran) for one in models)
    scores = f"{there:,} of {there + sum(one.missing for one in models):,} scores" if there else ""
    best = best_row(states)
    parts = [runs, f"{spent(states):.0%} of the budget", scores, time_left(states), best and f"best so far: {best}"]
    return "; ".join(filter(None, parts))


def time_left(states: Sequence[RunState]) -> str:
    """How long training and scoring still take; what nothing has timed yet is named, and so is what is not counted.

    Measuring what tables need and rendering them, which is the report's, are not.
    """
    left = seconds_left(states)
    missing = sum(one.missing for one in _scored(states))
    if left is None or not (left or missing):
        return ""
    pace = seconds_per_score(states) if missing else 0.0
    if pace is not None:
        return f"about {duration(left + missing * pace)} left before the report"
    return f"about {duration(left)} left before scoring and the report" if left else f"{missing:,} scores to come"


def seconds_per_score(states: Sequence[RunState]) -> float | None:
    """The time after which one more score was there, however many were computed at once; None where there is none."""
    spans = sorted([(ended - seconds, ended) for one in _scored(states) for ended, seconds in one.ran])
    covered, last = 0.0, -math.inf
    for begun, ended in spans:
        if ended > last:
            covered, last = covered + max(0.0, ended - max(begun, last)), ended
    return covered / len(spans) if spans else None


def _scored(states: Sequence[RunState]) -> list[Scored]:
    """The models that are or will be scored, shared ones once."""
    return list({one.model: one for state in states for one in state.trained.scored}.values())


def spent(states: Sequence[RunState]) -> float:
    """The share of the budget of all stages that is spent, 0 to 1; a stage that runs share counts once.

    Of budgets in several units each unit counts by its number of stages.
    """
    amounts: dict[str, dict[str, float]] = {}
    trained: dict[str, float] = {}
    for one in states:
        for key, amount, share in _stages(one):
            amounts.setdefault(one.config.budget.unit, {})[key] = amount
            trained[key] = max(trained.get(key, 0.0), amount * share)
    stages = sum(map(len, amounts.values()))
    return sum(len(of) * sum(map(trained.__getitem__, of)) / sum(of.values()) / stages for of in amounts.values())


def seconds_left(states: Sequence[RunState]) -> float | None:
    """How long the rest takes at the pace of finished stages, of the same row if there are some.

    To each stage comes what the middle one took beyond its charged time: evaluations, of which there are as many in a
    short stage as in a long one. None where nothing is known yet of a unit of budget.
    """
    missing: dict[str, tuple[float, float, RunConfig]] = {}  # the share of a stage that is left, and its amount
    for one in states:
        for key, amount, share in _stages(one) if one.state not in OVER else ():
            missing[key] = (min(1 - share, missing[key][0] if key in missing else 1.0), amount, one.config)
    if not missing:
        return 0.0
    paces: dict[tuple[str, str], list[float]] = {}  # of a row in a unit, and as row "" of all rows in it
    ran = [stage for one in states for stage in one.trained.finished]
    beyond = statistics.median([stage.wall - (stage.seconds - stage.before) for stage in ran]) if ran else 0.0
    for one in states:
        for (_, amount, _), stage in zip(_stages(one), one.trained.finished, strict=False):
            for row in (one.config.row, ""):
                paces.setdefault((row, one.config.budget.unit), []).append(stage.seconds / amount)
    seconds = 0.0
    for share, amount, config in missing.values():
        unit = config.budget.unit
        pace = paces.get((config.row, unit)) or paces.get(("", unit)) or ([1.0] if UNITS[unit].in_seconds else [])
        if share and not pace:
            return None
        seconds += share * (amount * statistics.fmean(pace) + beyond) if share else 0.0
    return seconds / max(1, sum(one.state == "running" for one in states))


def best_row(states: Sequence[RunState]) -> str:
    """The row of lowest AP among those that have come furthest, a geometric mean over seeds; nothing before that.

    One that was given more than its budget, as references are, is left out.
    """
    furthest = max((len(one.trained.finished) for one in states), default=0)
    rows: dict[str, list[float]] = {}
    for one in states:
        given = sum(stage.share for stage in one.trained.finished)
        if furthest and len(one.trained.finished) == furthest and given < 1.01 * furthest:
            rows.setdefault(one.config.row, []).append(one.trained.finished[-1].ap)
    if not rows:
        return ""
    means = {row: statistics.geometric_mean(aps) for row, aps in rows.items()}
    row = min(means, key=means.__getitem__)
    return f"{row}, AP {means[row]:,.1f} after {states[0].config.domains[furthest - 1].label}"


def to_show(states: Sequence[RunState], lines: int) -> tuple[list[RunState], str]:
    """The runs to show in so many lines, and how the others are, which takes one of them.

    What runs or failed comes before what is done, and that before what has not begun; their order stays.
    """
    if len(states) <= lines:
        return list(states), ""
    order = sorted(range(len(states)), key=lambda i: LAST.index(one) if (one := states[i].state) in LAST else -1)
    kept, left = order[: max(1, lines - 1)], order[max(1, lines - 1) :]
    others = Counter(states[i].state for i in left)
    more = ", ".join(f"{count} {state}" for state, count in others.items())
    return [states[i] for i in sorted(kept)], f"and {len(left)} runs more: {more}"


def _stages(one: RunState) -> list[tuple[str, float, float]]:
    """Key, budget and trained share of each stage; keys of text that is not tokenised yet are the run's own."""
    count, known, done = len(one.config.domains), one.trained.keys, one.trained.stages
    keys = known if len(known) == count else [f"{one.config.label}-{stage}" for stage in range(count)]
    shares = [*[1.0] * done, one.trained.fraction, *[0.0] * count][:count]
    return [(key, per_stage(one.config.budget.amount, i), shares[i]) for i, key in enumerate(keys)]
