"""Jobs become pickles that Slurm starts: by submitit, with a copy of the code as it is now.

Few calls do much: an array a call, as large as the cluster takes. Where it takes no more (MaxSubmitJobs, MaxJobCount),
less is tried, and what then is left is for the next `run`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission, JobPaths

from benchmark.files import naming
from benchmark.jobs.payloads import Wait, WriteReport
from benchmark.jobs.plan import PlannedJob
from benchmark.jobs.slurm import commands, job_files, snapshot
from benchmark.jobs.slurm.commands import SlurmError
from benchmark.jobs.slurm.job import SlurmJob
from benchmark.jobs.slurm.private import for_the_user_alone, make_private
from benchmark.jobs.slurm.process import PREEMPTION
from benchmark.jobs.slurm.resources import WCKEY, Resources
from benchmark.jobs.slurm.waves import divided
from benchmark.settings.slurm_settings import asks_for_gpus
from benchmark.settings.suite import Suite

AFTER = "afterany:"
WHOLE = (AFTER, "afterok:")  # what says that all of a job or array must have ended
# Slurm signals all processes of a job. A container's runtime that stays beside Python (bubblewrap with --unshare-pid)
# would die of what asks Python to save, and take that along: it begins deaf, and `process.py` lets Python hear again.
DEAF = f"""sh -c 'trap "" {signal.Signals(PREEMPTION).name[3:]} TERM; exec "$0" "$@"'"""
# in what sbatch says of too large a submission; of other limits too, which it then names
LIMITS = ("MaxSubmitJob", "job submit limit", "job array specification", "MaxJobCount")


@dataclass(frozen=True)
class SubmitCall:
    """Jobs that one call submits. `tasks` are their numbers in an array, None for a job that is in none."""

    jobs: Sequence[PlannedJob]
    tasks: Sequence[int] | None
    parameters: Mapping[str, Any]
    dependency: str = ""
    parallelism: int = 1
    unwired: frozenset[str] = frozenset()  # keys of those that wait for more than `dependency`


@dataclass(frozen=True)
class Destination:
    """Where jobs of a suite are submitted to, and noted."""

    cluster: str
    largest: int  # array
    folder: Path  # of job files
    logs: Path  # of what jobs say and are made from, the user's alone
    code: Path  # of its copies, likewise


class Submission:
    """Submits jobs held, and notes each in its file. `ids` are those of jobs under way by their keys."""

    def __init__(self, suite: Suite, destination: Destination, resources: Resources, ids: Mapping[str, str]) -> None:
        self.suite, self.destination, self.resources, self.ids = suite, destination, resources, dict(ids)
        self.sent: list[str] = []
        self.left: list[PlannedJob] = []
        self.noted: list[Path] = []  # files of jobs
        self.refusal: SlurmError | None = None
        make_private(destination.logs)
        self._largest = destination.largest
        self._behind: dict[str, frozenset[str]] = {}  # the arrays that all of an array waits for
        self._program = snapshot.take(destination.code) / "benchmark" / "jobs" / "slurm" / "process.py"

    def train(self, jobs: Sequence[PlannedJob]) -> None:
        """Submit training: all at once, with dependencies of single tasks, where these take few calls; else in waves.

        At most `array_parallelism` tasks of a wave run at a time, however many arrays it takes. Where a call submits
        one job it says what that waits for.
        """
        if self._largest == 1:
            self._in_lanes(jobs, None)
            return
        found = divided(jobs, self.ids)
        if len(found.waves) == 1:
            unwired = frozenset(job.key for job in jobs if found.waits[job.key] != found.common)
            self._in_lanes(jobs, [self.ids[key] for key in sorted(found.common)], unwired)
            return
        new = {job.key for job in jobs}
        before: list[str] = []
        for wave in found.waves:
            earlier = {self.ids[key] for job in wave for key in found.waits[job.key] if key not in new}
            start = len(self.sent)
            self._in_lanes(wave, [*before, *sorted(earlier)])
            before = self.sent[start:]

    def follow(self, jobs: Sequence[PlannedJob]) -> None:
        """Submit jobs that need another's success: each task of an array waits for the same one of the other's."""
        for alike, parameters in self.resources.alike(jobs):
            self._follow(alike, parameters)

    def _follow(self, jobs: Sequence[PlannedJob], parameters: Mapping[str, Any]) -> None:
        groups: dict[tuple[str, int], dict[int, PlannedJob]] = defaultdict(dict)
        for job in jobs:
            if any(key not in self.ids for key in job.needs):
                self.left.append(job)
                continue
            array, _, task = self.ids[job.needs[0]].partition("_") if job.needs else ("", "", "")
            number = int(task) if task else len(groups[array, 0])
            nth = next(n for n in range(len(jobs)) if number not in groups[array, n])
            groups[array, nth][number] = job
        for (array, _), members in groups.items():
            single = any(self.ids[key] == array for job in members.values() for key in job.needs)
            dependency = f"{'afterok' if single else 'aftercorr'}:{array}" if array else ""
            cap = self.suite.slurm.array_parallelism
            for numbers in commands.pieces(sorted(members), self._largest):
                several = len(numbers) > 1 or (array and not single)
                self._send(
                    SubmitCall([members[n] for n in numbers], numbers if several else None, parameters, dependency, cap)
                )

    def after_all(self, job: PlannedJob) -> None:
        """Submit a job that waits until others have ended.

        Where they are too many for Slurm it waits for jobs that do nothing, each after a part of them.
        """
        [(_, parameters)] = self.resources.alike([job])
        ids = self._ending_last(self._before(job))
        while len(ids) > commands.PIECE and not self.left:
            part, ids = ids[: commands.PIECE], ids[commands.PIECE :]
            waits = PlannedJob(f"wait-{part[0]}", "report", f"{self.suite.name}:wait", Wait())
            self._send(SubmitCall([waits], None, parameters, self._after(part)))
            ids += self.sent[-1:]
        self._send(SubmitCall([job], None, parameters, self._after(ids)))

    def _before(self, job: PlannedJob) -> list[str]:
        """The ids of those that a job waits for; what is not under way has ended."""
        return [self.ids[key] for key in job.after if key in self.ids]

    def _in_lanes(
        self, jobs: Sequence[PlannedJob], after: Sequence[str] | None, unwired: frozenset[str] = frozenset()
    ) -> None:
        """Submit arrays, of jobs that ask for the same, of which together at most `array_parallelism` tasks run.

        They wait until `after` have ended; None stands for what the first of an array waits for.
        """
        alike, cap = self.resources.alike(jobs), self.suite.slurm.array_parallelism
        pieces = [(piece, given) for group, given in alike for piece in commands.pieces(group, self._largest)]
        # an array runs several at a time, so that few will do, whose ids Slurm takes
        lanes = min(len(pieces), cap if self._largest == 1 else min(cap, commands.PIECE))
        last: list[str] = []
        for number, (piece, parameters) in enumerate(pieces):
            share = cap // lanes + (number % lanes < cap % lanes)
            waits = [*(self._before(piece[0]) if after is None else after)]
            waits += last[number - lanes : number - lanes + 1] if number >= lanes else []
            tasks = range(len(piece)) if len(piece) > 1 else None
            self._send(SubmitCall(piece, tasks, parameters, self._after(waits), share, unwired))
            last += self.sent[-1:]

    def _after(self, ids: Sequence[str]) -> str:
        """A dependency on the end of jobs, and of the whole arrays that they are of."""
        return f"{AFTER}{':'.join(arrays)}" if (arrays := self._ending_last(ids)) else ""

    def _ending_last(self, ids: Sequence[str]) -> list[str]:
        """The arrays that jobs are of; where they are too many for Slurm, without those that another waits for."""
        arrays = list(dict.fromkeys(id.partition("_")[0] for id in ids))
        if len(arrays) <= commands.PIECE:
            return arrays
        covered = frozenset[str]().union(*(self._behind.get(array, ()) for array in arrays))
        return [array for array in arrays if array not in covered]

    def _send(self, batch: SubmitCall) -> None:
        """Submit and note a batch, in smaller parts where it is too large; what is refused even so is left.

        Raises SlurmError where the first batch is refused for another reason.
        """
        if self.left:
            self.left += batch.jobs
            return
        try:
            array = self._submit(batch)
        except SlurmError as error:
            too_large = _is_too_large(str(error))
            if not too_large and not self.sent:
                raise
            if too_large and len(batch.jobs) == 1 and batch.tasks is not None:  # a site without arrays
                return self._send(_part(batch, slice(None), None))
            if not too_large or len(batch.jobs) == 1:
                self.left, self.refusal = list(batch.jobs), error
                return
            self._largest = half = -(-len(batch.jobs) // 2)
            for part in (slice(half), slice(half, None)):
                self._send(_part(batch, part, batch.tasks[part] if batch.tasks else None))
            return
        ids = [array if batch.tasks is None else f"{array}_{task}" for task in batch.tasks or [0]]
        self.sent += [array]
        # not those of "aftercorr", where a task waits for one alone
        self._behind[array] = frozenset(_arrays(batch.dependency) if batch.dependency.startswith(WHOLE) else ())
        self.ids |= {one.key: id for job, id in zip(batch.jobs, ids, strict=True) for one in job.each}
        self._dump(batch, ids)
        self.note(batch, ids)

    def note(self, batch: SubmitCall, ids: Sequence[str]) -> None:
        """Write down what was submitted."""
        lines = {}
        for job, id in zip(batch.jobs, ids, strict=True):
            after = self._before(job)
            wired = job.key not in batch.unwired
            if not wired:  # a task's own dependency takes the place of its array's
                after += [id for id in _arrays(batch.dependency) if id not in after]
            waits = {"after": after, "needs": [self.ids[key] for key in job.needs], "wired": wired}
            how = {"log": str(self._paths(id).stdout), "exclusive": batch.parameters.get("exclusive", False)}
            how |= {"page": str(job.payload.page)} if isinstance(job.payload, WriteReport) else {}
            where = {"user": os.getuid(), "cluster": self.destination.cluster, "called": self.suite.called}
            lines[self.file(id)] = [
                {"kind": "job", "id": id, "key": one.key, "name": one.name, "run": one.run, "serves": one.serves}
                | {**waits, **how, **where, "bundled": bool(job.members)}
                for one in job.each
            ]
        job_files.append_each(lines)
        self.noted += lines

    def file(self, id: str) -> Path:
        """The file of a job that it has submitted."""
        return job_files.file_of(self.destination.folder, id)

    def _submit(self, batch: SubmitCall) -> str:
        """The id of a held job or array."""
        own = self.suite.slurm.python
        interpreter = f"{DEAF} {own}" if own else shlex.quote(sys.executable)
        python = f"{interpreter} -u {shlex.quote(str(self._program))}"
        logs, limit = self.destination.logs, self.suite.slurm.max_num_timeout
        try:
            executor = submitit.SlurmExecutor(logs, max_num_timeout=limit, python=python)
        except RuntimeError:
            raise SlurmError("no srun here: run this on a machine of the cluster, or use --executor local") from None
        more = {**batch.parameters["additional_parameters"], "hold": True}
        if batch.dependency:
            more["dependency"] = batch.dependency
        if batch.tasks is not None:
            more["array"] = f"{commands.ranges(batch.tasks)}%{batch.parallelism}"
            executor.parameters["map_count"] = len(batch.tasks)  # names logs after arrays
        name = batch.jobs[0].name if batch.tasks is None else f"{self.suite.name}:{batch.jobs[0].kind}"
        executor.update_parameters(
            **{**batch.parameters, "additional_parameters": more}, job_name=name, stderr_to_stdout=True
        )
        script = logs / f"submission-{uuid.uuid4().hex}.sh"
        text = executor._make_submission_file_text(executor._submitit_command_str, "")
        if not self.suite.slurm.wckey:
            text = text.replace(WCKEY, "")
        with for_the_user_alone(), naming(script):
            script.write_text(text, encoding="utf-8")
        return commands.submit(script)

    def _dump(self, batch: SubmitCall, ids: Sequence[str]) -> None:
        """What the jobs do; they are held until it is there."""
        gpus, exclusive = asks_for_gpus(batch.parameters), batch.parameters.get("exclusive", False)
        grace = self.suite.slurm.signal_delay_s
        for job, id in zip(batch.jobs, ids, strict=True):
            delayed = DelayedSubmission(SlurmJob(job.payload, self.destination.folder, gpus, exclusive, grace))
            delayed.set_timeout(batch.parameters["time"], self.suite.slurm.max_num_timeout)
            path = self._paths(id).submitted_pickle
            with for_the_user_alone(), naming(path):
                delayed.dump(path)

    def _paths(self, id: str) -> JobPaths:
        return JobPaths(self.destination.logs, job_id=id)


def _part(batch: SubmitCall, part: slice, tasks: Sequence[int] | None) -> SubmitCall:
    return SubmitCall(batch.jobs[part], tasks, batch.parameters, batch.dependency, batch.parallelism, batch.unwired)


def _is_too_large(refusal: str) -> bool:
    named = re.findall(r"\b(?:QOS|Assoc)\w+Limit\b", refusal)
    return any(("SubmitJob" in limit) if named else (limit in refusal) for limit in named or LIMITS)


def _arrays(dependency: str) -> list[str]:
    return dependency.split(":")[1:]
