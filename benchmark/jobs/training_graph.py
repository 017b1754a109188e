"""Which stages are trained together: runs that begin alike share stages, which are trained once and first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from benchmark.settings.suite import RunConfig

RunAndKeys = tuple[RunConfig, Sequence[str]]  # a run, and a key of each of its stages


@dataclass(frozen=True)
class Segment:
    """Stages in a row that one job trains: a run to its end, or what several runs share."""

    key: str
    name: str
    config: RunConfig  # of the run, or of one of those that share the stages
    last_stage: int | None = None  # None: to the end
    after: str | None = None  # key of the segment that trains the shared stages before it
    stages: tuple[str, ...] = ()  # keys of the stages that it trains
    serves: tuple[str, ...] = ()  # ids of the runs that need them


def training_graph(runs: Iterable[RunAndKeys], done: Callable[[RunConfig, int], bool]) -> list[Segment]:
    """The segments that train some runs: shared stages first, then each run after those that it needs.

    `done(config, stage)` says that a run's stages up to this one are trained: then there is nothing to share.
    """
    return _branch(list(runs), 0, None, done)


def _branch(
    runs: list[RunAndKeys], depth: int, after: str | None, done: Callable[[RunConfig, int], bool]
) -> list[Segment]:
    """The segments of runs that are alike before stage `depth`, which `after` trains."""
    groups: dict[str, list[RunAndKeys]] = {}
    for config, keys in runs:
        groups.setdefault(keys[depth] if depth < len(keys) else config.id, []).append((config, keys))
    segments: list[Segment] = []
    for members in groups.values():
        config = members[0][0]
        if len(members) == 1:
            stages = tuple(members[0][1][depth:])
            name, serves = f"{config.suite}:{config.label}", (config.id,)
            segments.append(Segment(config.id, name, config, after=after, stages=stages, serves=serves))
            continue
        columns = zip(*(keys for _, keys in members), strict=True)
        shared = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
        last, needed = len(shared) - 1, after
        if not done(config, last):
            domains = "+".join(domain.name for domain in config.domains[depth : last + 1])
            name = f"{config.suite}:{domains}-of-{len(members)}-s{config.seed}"
            needed = f"stage-{shared[last]}"
            both = tuple(member.id for member, _ in members)
            segments.append(Segment(needed, name, config, last, after, tuple(shared[depth:]), both))
        segments += _branch(members, len(shared), needed, done)
    return segments
