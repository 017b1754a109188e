"""The jobs of a suite: which there should be, which there are, and what they said.

Each job has a file `runs/suites/<suite>/jobs/<id>.jsonl` (one writer a file: appending from several machines at once is
not safe on every file system), begun by who submits it and continued by the job itself:

    job       id, key (what it does), name, run (its id, or null), after [ids], needs [ids], log, exclusive
    released  (its name and dependencies are set)
    started   node, gpus, restarts: at each start, so that a second one means that it was queued again
    ended     state ("done"|"stopped"|"failed"), error, traceback
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmark import records
from benchmark.settings.config import RunConfig

RunAndKeys = tuple[RunConfig, Sequence[str]]  # a run, and a key of each of its stages


@dataclass(frozen=True)
class Task:
    """Training that one job does: a run to its end, or stages that several runs share."""

    key: str
    name: str
    config: RunConfig
    last_stage: int | None = None  # None: to the end
    after: str | None = None  # key of the task that trains the shared stages before it
    stages: tuple[str, ...] = ()  # keys of the stages that it trains


def graph(runs: Iterable[RunAndKeys], done: Callable[[RunConfig, int], bool]) -> list[Task]:
    """The tasks that train some runs: shared stages first, then each run after those that it needs.

    `done(config, stage)` says that a run's stages up to this one are trained: then there is nothing to share.
    """
    return _branch(list(runs), 0, None, done)


def _branch(
    runs: list[RunAndKeys], depth: int, after: str | None, done: Callable[[RunConfig, int], bool]
) -> list[Task]:
    """The tasks of runs that are alike before stage `depth`, which `after` trains."""
    groups: dict[str, list[RunAndKeys]] = {}
    for config, keys in runs:
        groups.setdefault(keys[depth] if depth < len(keys) else config.id, []).append((config, keys))
    tasks: list[Task] = []
    for members in groups.values():
        config = members[0][0]
        if len(members) == 1:
            stages = tuple(members[0][1][depth:])
            tasks.append(Task(config.id, f"{config.suite}:{label(config)}", config, after=after, stages=stages))
            continue
        columns = zip(*(keys for _, keys in members), strict=True)
        shared = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
        last, needed = len(shared) - 1, after
        if not done(config, last):
            domains = "+".join(domain.name for domain in config.domains[depth : last + 1])
            name = f"{config.suite}:{domains}-of-{len(members)}-s{config.seed}"
            needed = f"stage-{shared[last]}"
            tasks.append(Task(needed, name, config, last, after, tuple(shared[depth:])))
        tasks += _branch(members, len(shared), needed, done)
    return tasks


def label(config: RunConfig) -> str:
    """`elle-s0`: row and seed."""
    return config.id.rpartition("-")[0]


@dataclass
class Job:
    """One job that was submitted, and what it has said."""

    id: str
    key: str
    name: str
    run: str | None
    after: list[str]  # jobs that must have ended before
    needs: list[str]  # jobs that must have succeeded before
    log: str
    exclusive: bool | str
    time: float
    released: bool = False
    starts: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None  # why it ended, as it said itself since its last start

    @property
    def array(self) -> str:
        """The id without the number of the task."""
        return self.id.partition("_")[0]

    @property
    def node(self) -> str:
        return self.starts[-1]["node"] if self.starts else ""


def folder_of(runs: Path, suite: str) -> Path:
    return runs / "suites" / suite / "jobs"


def read(folder: Path) -> list[Job]:
    """The jobs of a suite in the order of submission."""
    found = filter(None, map(read_one, folder.glob("*.jsonl")))
    return sorted(found, key=lambda job: (job.time, *map(int, job.id.split("_"))))


def read_one(path: Path) -> Job | None:
    """The job of one file; None if whoever submitted it was killed before saying so, and only the job itself wrote."""
    lines = records.read(path)
    first = next((line for line in lines if line["kind"] == "job"), None)
    if first is None:
        return None
    job = Job(**{name: value for name, value in first.items() if name != "kind"})
    for line in lines:
        if line["kind"] == "released":
            job.released = True
        elif line["kind"] == "started":
            job.starts.append(line)
            job.end = None
        # the first process that fails is the cause, the others follow from it
        elif line["kind"] == "ended" and job.end is None:
            job.end = line
    return job
