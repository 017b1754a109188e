"""The job files of a suite: which jobs were submitted to Slurm, and what they said.

Each job has a file `runs/suites/<suite>/jobs/<cluster>/<id>.jsonl`, of earlier versions in `jobs` itself (one writer a
file: appending from several machines at once is not safe on every file system), begun by who submits it and continued
by the job itself:

    job       what was submitted, see Submitted
    released  (its name and dependencies are set)
    started   at each start, so that a second one means that it was queued again, see Started
    begun     of a bundle: which of its jobs it does now
    ended     why it ended, see Ended

A bundle does several jobs of the plan: each has a line `job`, and `key` says of which one a line is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from msgspec.json import Decoder

from benchmark import records
from benchmark.files import names_in
from benchmark.jobs.states import History

if sys.version_info >= (3, 11):
    from typing import NotRequired
else:
    from typing_extensions import NotRequired

AT_ONCE = 16  # files that wait for the disk
LINES: Decoder[dict[str, Any]] = Decoder(dict[str, Any])


class Submitted(TypedDict):
    """What was submitted: ids of Slurm, except for `key` (what the job does) and those of runs.

    `run` is the run whose training it ends, `serves` are those that it is for (in older files that one).
    """

    id: str
    key: str
    name: str
    run: str | None
    after: list[str]  # jobs that must have ended before
    needs: list[str]  # jobs that must have succeeded before
    log: str
    exclusive: bool | str
    serves: NotRequired[list[str]]
    wired: NotRequired[bool]  # whether the submission itself said what it waits for
    user: NotRequired[int | None]  # who submitted it; None in older files
    cluster: NotRequired[str]  # where; empty in older files
    bundled: NotRequired[bool]  # whether it is in a bundle
    called: NotRequired[str]  # the suite, by the command line that submitted it; empty in older files
    page: NotRequired[str]  # of a report: the file that it writes last; none in older files
    time: float


class Started(TypedDict):
    """Where a job began."""

    node: str
    gpus: NotRequired[str | None]  # CUDA_VISIBLE_DEVICES
    restarts: NotRequired[int]
    time: float


class Ended(TypedDict):
    """Why a job ended, as it said itself."""

    state: Literal["done", "stopped", "failed"]
    error: NotRequired[str]
    traceback: NotRequired[str]
    rank: NotRequired[int]
    restarts: NotRequired[int]  # as in Started; of one that failed
    key: NotRequired[str]
    time: float


@dataclass
class Job:
    """One job that was submitted, and what it has said. Those of a bundle have the same id."""

    file: Path
    submitted: Submitted
    released: bool = False
    begun: bool = False  # of a bundle, since its last start
    starts: list[Started] = field(default_factory=list)
    end: Ended | None = None  # why it ended, as it said itself since its last start

    @property
    def id(self) -> str:
        return self.submitted["id"]

    @property
    def key(self) -> str:
        return self.submitted["key"]

    @property
    def name(self) -> str:
        return self.submitted["name"]

    @property
    def run(self) -> str | None:
        return self.submitted["run"]

    @property
    def bundled(self) -> bool:
        return self.submitted["bundled"]

    @property
    def is_over(self) -> bool:
        """Whether its bundle will not do it again, however often that is queued again."""
        return self.bundled and self.end is not None and self.end["state"] != "stopped"

    @property
    def array(self) -> str:
        """The id without the number of the array's task."""
        return self.id.partition("_")[0]

    @property
    def is_own(self) -> bool:
        """Whether this user submitted it."""
        return self.submitted["user"] in (None, os.getuid())

    def history(self, ended: float | None = None) -> History:
        """When and where it was."""
        nodes = tuple(start["node"] for start in self.starts)
        started = self.starts[-1]["time"] if self.starts else None
        told = History(self.submitted["log"], self.submitted["time"], nodes, ended, started, self.submitted["called"])
        return told if self.is_own or os.getuid() == 0 else replace(told, whose="another user's")


def folder_of(runs: Path, suite: str) -> Path:
    """The folder of a suite's job files, below the folder of `--runs`."""
    return runs / "suites" / suite / "jobs"


def file_of(folder: Path, job: str) -> Path:
    """The file of one job."""
    return folder / f"{job}.jsonl"


def read(folder: Path) -> list[Job]:
    """The jobs of a suite in the order of submission. Raises OSError for a folder that cannot be read.

    Else what is under way would be submitted again.
    """
    names = [name for name in names_in(folder) if not name.endswith(".jsonl")]  # older files, above those of clusters
    clusters = [path for name in names if (path := folder / name).is_dir()]
    found = [job for one in (folder, *clusters) for path in sorted(one.glob("*.jsonl")) for job in read_one(path)]
    return sorted(found, key=lambda job: (job.submitted["time"], *map(int, job.id.split("_"))))


def read_one(path: Path) -> list[Job]:
    """The jobs of one file; none if whoever submitted it was killed before saying so, and only the job itself wrote.

    A file that has not grown since this process read it is not opened again: `status --watch` asks for thousands.
    """
    size = os.stat(path).st_size
    if path not in _read or _read[path][0] != size:
        _read[path] = size, _jobs(path)
    return _read[path][1]


_read: dict[Path, tuple[int, list[Job]]] = {}  # the sizes of files, and what was in them


def _jobs(path: Path) -> list[Job]:
    lines = records.read(path, LINES)
    jobs: dict[str, Job] = {}
    for line in lines:
        if line["kind"] == "job":
            older = {"serves": [line["run"]] if line["run"] else [], "wired": False, "user": None, "cluster": ""}
            job = Job(path, cast(Submitted, {**older, "bundled": False, "called": "", **_fields(line)}))
            jobs.setdefault(job.key, job)
    for line in lines:
        for job in jobs.values() if line["kind"] != "job" else ():
            if line.get("key", job.key) == job.key and not job.is_over:
                _apply(line, job)
    return list(jobs.values())


def _apply(line: dict[str, Any], job: Job) -> None:
    if line["kind"] == "released":
        job.released = True
    elif line["kind"] == "started":
        job.starts.append(cast(Started, _fields(line)))
        # of its processes another may fail before the first has said that it starts
        if not job.end or job.end.get("restarts") != line["restarts"]:
            job.end, job.begun = None, False
    elif line["kind"] == "begun":
        job.begun = True
    # the first process that fails is the cause, the others follow from it
    elif line["kind"] == "ended" and job.end is None:
        job.end = cast(Ended, _fields(line))


def append_each(lines: Mapping[Path, Sequence[dict[str, Any]]]) -> None:
    """Append lines to each of many files, so that waiting for the disk costs once and not for every file."""

    def append(file: Path) -> None:
        for line in lines[file]:
            records.append(file, line)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(append, lines))


def _fields(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "kind"}
