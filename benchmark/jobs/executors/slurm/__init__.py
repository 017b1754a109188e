"""Slurm: each wave is an array of jobs, by submitit, that waits for the one before, however that
ends.

The suite's folder has a file for each submitted array, written under a lock; a later call leaves
out work under way. Nothing depends on the process that submitted. Units with resources of their own
are an array of their own. An array has as many tasks as the cluster allows, and a task as many runs
as `runs_per_job`. What is in Slurm's queue is under way; how a job ended that is not is in the
files that it left.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from benchmark.errors import UserError
from benchmark.files import replace_folder, write_json
from benchmark.interpreters import COMPUTES
from benchmark.jobs import executors
from benchmark.jobs.executors import Executor, Job
from benchmark.jobs.executors.slurm import commands
from benchmark.jobs.executors.slurm.commands import Queued, Refusal, SlurmError
from benchmark.jobs.status import FAILED, name_next_step
from benchmark.jobs.waves import Plan, Wave, count_by_kind, drop_units
from benchmark.jobs.work import TRAINS, Kind, Unit
from benchmark.locks import Lease
from benchmark.settings.base import ConfigError
from benchmark.settings.names import ROOT
from benchmark.settings.slurm import KINDS, Slurm, find_section
from benchmark.settings.suite import RunConfig, Suite
from benchmark.store import Store

ORDER = get_args(Kind)
PARTIAL = 3  # exit status
# of an array, where the cluster takes so many: MaxArraySize is 1001 if a site does not set it
MOST_TASKS = 1000
LIMITS = (
    "SubmitJob",
    "job submit limit",
    "job array specification",
    "MaxJobCount",
)  # in what sbatch says of too many
OF_SLURM = ("srun: ", "slurmstepd")  # how lines in a job's log begin that are not its own
ENDINGS = {  # how a job ended, by what Slurm says in its log; KIND is that of the job
    r"oom.kill|exceeded memory limit": (
        "failed",
        "its job needed more memory than it asked for: raise slurm.KIND.mem",
    ),
    r"\*\*\* JOB .* DUE TO TIME LIMIT": (
        "interrupted",
        "its job could not save before its time limit: raise slurm.KIND.time",
    ),
    r"\*\*\* JOB .* CANCELLED": ("interrupted", "its job was cancelled"),
}
UNSAID = ("setup", "teardown", "srun_args")  # in a dry run
CODE = ("benchmark", "methods", "analysis", "paper_tables")
ANSWER = 10  # minutes for a job of `doctor` to start and to answer, of which it may take the half
SEES = "sees this folder, and has torch"
PROBE = f"""\
import socket
import torch
print(socket.gethostname(), "{SEES}", torch.__version__, torch.accelerator.device_count(), "accelerators")
"""  # imports nothing of the project, which the node may not see
# A signal that comes before Python has a handler would end it; a shell lets it begin deaf, and
# submitit sets handlers.
DEAF = """sh -c 'trap "" USR2 TERM; exec "$0" "$@"'"""


def find_notes(suite: Suite, store: Store) -> Path:
    return executors.find_notes(suite, store) / "slurm"


def find_request(run: RunConfig, suite: Suite) -> Slurm:
    """The resources that a job for a run asks for: those of its row, or else of the suite."""
    return run.slurm or suite.slurm


def count_gpus(suite: Suite, run: RunConfig) -> float:
    return find_request(run, suite).resolve("train").gpus_of_a_run


def describe(plan: Plan) -> list[str]:
    """Lines that say how many units `execute` would submit, in how many jobs, and what these ask
    for.
    """
    check_plan(plan)
    under_way = _find_units_under_way(list_jobs(plan.suite, plan.survey.store))
    waves = drop_units(plan.waves, under_way)
    if not waves:
        return []
    count = count_by_kind(unit for wave in waves for unit in wave.units)
    lines = [f"  to submit, each wave after the one before: {count}"]
    for wave in [*waves, plan.report]:
        for asked, units in _group_by_request(plan, wave):
            given = asked.list_parameters(wave.kind, {unit.config.budget.unit for unit in units})
            said = ", ".join(
                f"{key} {value}" for key, value in given.items() if value and key not in UNSAID
            )
            lines.append(f"  {wave.kind}: {len(_divide(wave.kind, asked, units))} jobs, {said}")
            lines += [f"    {unit.name}" for unit in units if plan.names_units]
    if under_way:
        lines.append(f"  {len(under_way)} units are under way already")
    return lines


def check_plan(plan: Plan) -> None:
    """Raises ConfigError for what cannot be submitted."""
    if plan.parallel is not None or plan.processes is not None:
        raise ConfigError(
            "--parallel and --processes are for one machine: on Slurm set slurm.array_parallelism, "
            "slurm.gpus_per_node or slurm.exclusive instead"
        )
    for state in plan.wanted:
        train, rows = (
            find_request(state.config, plan.suite).resolve("train"),
            state.config.training.batch_size,
        )
        if train.runs_per_job == 1 and rows % train.processes:
            raise ConfigError(
                f"training.batch_size {rows} cannot be split over {train.processes} processes "
                f"({train.nodes} nodes of "
                f"{train.processes_per_node}): change one of them"
            )


def execute(plan: Plan) -> int:
    """Submit missing work, and print its ids. When two calls come at once the second finds the
    first's jobs.
    """
    check_plan(plan)
    submission = Submission(plan)
    try:
        left = submission.submit()
    except OSError as error:
        sent = submission.sent
        said = f"{', '.join(sent)} were submitted, and no more" if sent else "nothing was submitted"
        raise SlurmError(
            f"{error}: {said}; make room there, or repair it, and call `run` again"
        ) from None
    for refusal in submission.refused:
        print(f"! Slurm refused {refusal}")
    if submission.why_no_more:
        print(
            f"! Slurm took no more: {left} units are left; `run` submits them "
            f"({submission.why_no_more})"
        )
    if submission.sent:
        print(f"next: `python run_all.py status {plan.suite.called}` says how they do")
        return PARTIAL if left else 0
    print("nothing to submit: all is done, under way or failed")
    print(name_next_step(plan.survey, plan.states))
    return FAILED if plan.left_out else 0


def _find_units_under_way(known: Sequence[Job]) -> set[str]:
    """The ids of units that a job does, or will do."""
    return {unit for job in known if job.is_under_way for unit in job.units}


def _group_by_request(plan: Plan, wave: Wave) -> list[tuple[Slurm, list[Unit]]]:
    """The units of a wave by what they ask for."""
    groups: dict[Slurm, list[Unit]] = defaultdict(list)
    for unit in wave.units:
        of_suite = wave.kind in ("prepare", "report")
        groups[plan.suite.slurm if of_suite else find_request(unit.config, plan.suite)].append(unit)
    return list(groups.items())


def _divide(kind: Kind, asked: Slurm, units: Sequence[Unit]) -> list[tuple[Unit, ...]]:
    """The units of each job: several where they train and the suite says so."""
    size = asked.resolve("train").runs_per_job if kind in TRAINS else 1
    return [tuple(units[start : start + size]) for start in range(0, len(units), size)]


class Submission:
    """Submits waves, each after the one before and after work under way of earlier kinds."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.folder = plan, find_notes(plan.suite, plan.survey.store)
        self.sent: list[str] = []  # ids of arrays
        self.refused: list[str] = []  # which jobs, and why
        self.why_no_more = ""  # why Slurm takes no more
        self._largest = MOST_TASKS

    def submit(self) -> int:
        """Submit what is missing and not under way. Returns how many units are left, as Slurm does
        not take them.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with Lease(self.folder / "lock"):
            known = list_jobs(self.plan.suite, self.plan.survey.store, patient=False)
            waves = drop_units(self.plan.waves, _find_units_under_way(known))
            if not (waves or self._lacks_report(known)):
                return 0
            self._logs = self.folder / getpass.getuser()
            _make_own(self._logs)
            self._code = copy_code(self.plan.runs / "code")
            left, before = 0, list[str]()
            for wave in [*waves, self.plan.report]:
                if wave.kind == "report" and self.refused and not self.sent:
                    raise SlurmError(f"nothing is submitted, as Slurm refused {self.refused[0]}")
                earlier = [
                    job
                    for job in known
                    if job.is_under_way and ORDER.index(job.kind) < ORDER.index(wave.kind)
                ]
                after, sent = (
                    [*(job.id.partition("_")[0] for job in earlier), *before],
                    len(self.sent),
                )
                left += sum(
                    self._send_all(wave, *group, after)
                    for group in _group_by_request(self.plan, wave)
                )
                before = self.sent[sent:] or before
            return left

    def _lacks_report(self, known: Sequence[Job]) -> bool:
        """Whether none was submitted after all else, as Slurm took no more, or the last came to
        nothing.
        """
        notes, again = read_notes(self.folder), ["interrupted"]
        if self.plan.retry_failed:
            again.append("failed")
        lost = any(job.kind == "report" and job.state in again for job in known)
        return lost or bool(notes and notes[-1]["kind"] != "report")

    def _send_all(
        self, wave: Wave, asked: Slurm, units: Sequence[Unit], after: Sequence[str]
    ) -> int:
        """Submit units with equal requests as arrays, as far as the cluster takes them. Returns how
        many are left.
        """
        tasks = _divide(wave.kind, asked, units)
        while tasks and not self.why_no_more:
            piece = tasks[: self._largest]
            try:
                self._send(wave.kind, asked, piece, list(dict.fromkeys(after)))
                tasks = tasks[len(piece) :]
            except Refusal as error:
                too_many = any(limit in str(error) for limit in LIMITS)
                if too_many and len(piece) > 1:
                    self._largest = -(-len(piece) // 2)
                elif too_many and not self.sent:
                    raise SlurmError(
                        f"nothing is submitted, as Slurm takes no more: {error}"
                    ) from None
                elif too_many:
                    self.why_no_more = str(error)
                else:  # others may ask for what there is
                    self.refused.append(f"{len(tasks)} jobs ({tasks[0][0].name}, ...): {error}")
                    break
        return sum(map(len, tasks))

    def _send(
        self, kind: Kind, asked: Slurm, tasks: Sequence[tuple[Unit, ...]], after: Sequence[str]
    ) -> None:
        """Submit an array, or where it is one task a job. Raises Refusal where Slurm does not take
        it.
        """
        from benchmark.jobs.executors.slurm.job import (
            Task,
        )  # torch, for which who asks for states need not wait
        from benchmark.training.processes import Sources

        parameters = asked.list_parameters(
            kind, {unit.config.budget.unit for task in tasks for unit in task}
        )
        own, exclusive = asked.resolve(kind), parameters.get("exclusive", False)
        many = own.processes if kind in TRAINS and own.runs_per_job > 1 else 0
        parameters["job_name"] = f"{self.plan.suite.name}:{kind}"
        parameters |= {"dependency": f"afterany:{':'.join(after)}"} if after else {}
        code = shlex.quote(str(self._code))
        find_code = [f"cd {code}", f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}"]
        variables = [f"export {name}=${{{name}:-{value}}}" for name, value in COMPUTES.items()]
        parameters["setup"] = [*parameters["setup"], *find_code, *variables]
        python = f"{DEAF} {own.python or shlex.quote(sys.executable)}"
        sources = Sources.read(ROOT, CODE[:2])
        work = [
            Task(task, "gres" in parameters, exclusive, Path.cwd(), sources, many) for task in tasks
        ]
        array = commands.submit(self._logs, python, parameters, Task.__call__, work)
        _write_note(self.folder, array, kind, [[unit.id for unit in task] for task in tasks])
        self.sent.append(array)
        waits = f"  after {', '.join(after[:3])}" if after else ""
        print(f"{array}  {kind}: {len(tasks)} jobs ({tasks[0][0].name}, ...){waits}")


def _write_note(folder: Path, array: str, kind: Kind, units: Sequence[Sequence[str]]) -> None:
    """Write down what was submitted; what cannot be written down is cancelled."""
    note = {
        "id": array,
        "kind": kind,
        "user": getpass.getuser(),
        "time": time.time(),
        "units": units,
    }
    try:
        write_json(folder / f"{array}.json", note)
    except OSError:
        commands.cancel([array])
        raise


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """The notes of what was submitted, array by array."""
    return [
        json.loads(path.read_bytes())
        for path in sorted(folder.glob("[0-9]*.json"), key=lambda path: int(path.stem))
    ]


def _make_own(folder: Path) -> None:
    """Make a folder from which jobs load pickles. Raises UserError where others can put something
    there.
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            f"{folder} may be written by others, and jobs load pickles from there: look into it, "
            "then "
            f"`chmod go-w {folder}` if all of it is yours, else give another --runs"
        )


def copy_code(folder: Path) -> Path:
    """A copy of the code as it is now, for jobs that start later, or start again."""
    from benchmark.training.processes import COMMIT_FILE, find_code_version, find_commit

    copy = folder / find_code_version().replace("/", "_")
    if not copy.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), replace_folder(copy) as unfinished:
            try:
                for name in CODE:
                    shutil.copytree(
                        ROOT / name, unfinished / name, ignore=shutil.ignore_patterns("__pycache__")
                    )
            except shutil.Error as errors:  # it goes on to the end, and has one of each file
                raise OSError(errors.args[0][0][-1]) from None
            (unfinished / COMMIT_FILE).write_text(find_commit(), encoding="utf-8")
    return copy


def list_jobs(suite: Suite, store: Store, patient: bool = True) -> list[Job]:
    """The last job of each unit whose work it has not done.

    While Slurm does not answer their state is unknown; where this is not `patient` SlurmError is
    raised instead.
    """
    folder, waves = find_notes(suite, store), dict[str, dict[str, Any]]()
    last: dict[str, str] = {}  # the job of each unit
    for wave in read_notes(folder):
        for number, of_task in enumerate(wave["units"]):
            id = f"{wave['id']}_{number}" if len(wave["units"]) > 1 else wave["id"]
            waves[id] = wave
            last |= dict.fromkeys(of_task, id)
    units: dict[str, list[str]] = defaultdict(list)
    for unit, id in last.items():
        units[id].append(unit)
    try:
        queue, is_silent = (
            commands.ask_queue({wave["user"] for wave in waves.values()}) if waves else {},
            False,
        )
    except SlurmError as error:
        if not patient:
            raise
        logging.warning("%s: what follows is from the records alone", error)
        queue, is_silent = {}, True
    not_done = []
    for id, of_job in units.items():
        kind, log = waves[id]["kind"], commands.find_log(folder / waves[id]["user"], id)
        queued = queue.get(id) or _read_ending(log, kind, is_silent)
        if queued.state != "done":
            given = (
                queued.state,
                queued.detail,
                waves[id]["time"],
                str(log),
                queued.node,
                queued.restarts,
            )
            not_done.append(Job(id, kind, tuple(of_job), *given))
    return not_done


def _read_ending(log: Path, kind: Kind, is_silent: bool) -> Queued:
    """The state of a job that is not in the queue, by what it left; unknown where Slurm was silent."""
    if commands.has_succeeded(log):
        return Queued("done")
    if is_silent:
        return Queued("unknown", "Slurm does not answer")
    if not log.exists():
        return Queued("interrupted", "its job was ended before it began")
    restarts, lines = commands.read_log(log)
    by_slurm = "\n".join(line for line in lines if line.startswith(OF_SLURM))
    for sign, (state, said) in ENDINGS.items():
        if re.search(sign, by_slurm):
            return Queued(state, said.replace("KIND", find_section(kind)), restarts=restarts)
    own = [
        line
        for line in lines
        if line.strip() and not line.startswith((*OF_SLURM, commands.OF_SUBMITIT))
    ]
    return Queued("failed", ": ".join(["its job failed", *own[-1:]]), restarts=restarts)


def cancel(suite: Suite, store: Store) -> list[str]:
    """End all jobs of the suite that this user submitted; returns their ids. Raises SlurmError as
    `list_jobs` does.
    """
    known = [job for job in list_jobs(suite, store, patient=False) if job.is_under_way]
    mine = [job.id for job in known if Path(job.log).parent.name == getpass.getuser()]
    commands.cancel(dict.fromkeys(id.partition("_")[0] for id in mine))
    return mine


# What `run_all.py doctor` asks of Slurm


LOCAL = "runs train on this machine; for a cluster, call this where jobs are submitted"


def examine(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[str]:
    """Ask `sbatch --test-only` of each kind of job, by each request of a row, and then one node by
    a job.
    """
    if not shutil.which("sbatch"):
        yield f"ok     no sbatch here: {LOCAL}"
        return
    try:
        commands.ask("sinfo", "--noheader")
    except SlurmError as error:
        reason = str(error).replace("\n", " ")
        yield f"none   Slurm gives no answer ({reason}): {LOCAL}"
        return
    units, refused = {config.budget.unit for config in configs}, False
    with tempfile.TemporaryDirectory(
        prefix=".doctor-", dir=runs.resolve(), ignore_cleanup_errors=True
    ) as folder:
        for asked in {suite.slurm, *(find_request(config, suite) for config in configs)}:
            for kind in KINDS:
                script = commands.write_script(
                    Path(folder), asked.list_parameters(kind, units), "true"
                )
                try:
                    commands.ask("sbatch", "--test-only", str(script))
                    yield f"ok     a job to {kind} would be taken"
                except SlurmError as error:
                    refused = True
                    yield f"wrong  a job to {kind} is refused ({error}): change what [slurm] asks for"
        if not refused:
            yield _check_node(suite.slurm, units, Path(folder))


def _check_node(asked: Slurm, units: set[str], folder: Path) -> str:
    """Ask a node, by a job of one process, what torch finds there; Slurm itself ends one that comes
    too late.
    """
    parameters = {**asked.list_parameters("score", units), "time": ANSWER // 2}
    python = asked.resolve("score").python or shlex.quote(sys.executable)
    script = commands.write_script(folder, parameters, f"{python} -c {shlex.quote(PROBE)}")
    with contextlib.suppress(SlurmError):  # the answer says more
        commands.ask(
            "sbatch",
            "--wait",
            f"--deadline=now+{ANSWER}minutes",
            str(script),
            patience=60.0 * ANSWER,
        )
    lines = [
        line
        for log in folder.glob(commands.find_log(folder, "*").name)
        for line in log.read_text().splitlines()
    ]
    said = next((line for line in lines if SEES in line), "")
    if not said:
        why = (
            f"said {lines[-1]!r}"
            if lines
            else f"gave no answer within {ANSWER} minutes, or before its job ended"
        )
        cure = "does it see this folder? see slurm.setup, slurm.python, slurm.partition"
        return f"wrong  a node {why}: {cure}"
    lacks = "gres" in parameters and said.endswith(" 0 accelerators")
    return (
        f"wrong  {said}: look at its driver, and at torch's build for it"
        if lacks
        else f"ok     {said}"
    )


EXECUTOR = Executor(
    describe=describe,
    execute=execute,
    count_gpus=count_gpus,
    list_jobs=list_jobs,
    cancel=cancel,
    examine=examine,
)
