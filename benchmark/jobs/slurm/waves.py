"""How training is divided: one piece whose jobs wait for their own, or waves where that would take many calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmark.jobs.plan import PlannedJob

FEW = 20  # calls that wire single tasks, whatever their number; beyond it one for every
TASKS = 200  # tasks, so that with the arrays' own it is one for 100


@dataclass(frozen=True)
class Division:
    """Jobs in waves, and keys of what they wait for that is not among them.

    A wave waits until all of the one before has ended; in a single one each job waits for its own.
    """

    waves: Sequence[Sequence[PlannedJob]]
    common: frozenset[str]  # of those that all wait for
    waits: Mapping[str, frozenset[str]]  # of each job


def divided(jobs: Sequence[PlannedJob], ids: Mapping[str, str]) -> Division:
    """The waves of training jobs, where `ids` are those of jobs under way by their keys.

    A wave is what needs as many shared stages before it.
    """
    new = {job.key for job in jobs}
    waits = {job.key: frozenset(key for key in job.after if key in new or key in ids) for job in jobs}
    # not tasks under way: an array's own dependency would be on all of theirs
    common = frozenset(key for key in frozenset.intersection(*waits.values()) - new if "_" not in ids[key])
    if len(set(waits.values()) - {common}) <= max(FEW, len(jobs) // TASKS):
        return Division([jobs], common, waits)
    depth: dict[str, int] = {}
    waves: dict[int, list[PlannedJob]] = defaultdict(list)
    for job in jobs:  # those that others wait for come first
        depth[job.key] = 1 + max((depth[key] for key in waits[job.key] if key in depth), default=-1)
        waves[depth[job.key]].append(job)
    return Division([wave for _, wave in sorted(waves.items())], common, waits)
