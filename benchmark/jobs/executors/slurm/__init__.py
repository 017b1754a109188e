"""Slurm: submitit submits each wave as an array of jobs, which waits for the wave before.

An array starts even if jobs of the wave before failed. A job that scores runs waits only for the
job that trains them, or for all jobs of that array if some have nothing to score. Units that ask
for other resources are an array of their own. An array has at most as many tasks as the cluster
allows, and a task has `runs_per_job` runs. The suite's folder has a file for each submitted array,
written under a lock, so that a later call leaves out work under way. Nothing depends on the process
that submitted. Jobs in Slurm's queue are under way. How other jobs ended is read from the files
that they left and from Slurm's accounts.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import re
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any, get_args

from benchmark.files import make_own_folder, write_json
from benchmark.interpreters import COMPUTES
from benchmark.jobs import executors
from benchmark.jobs.executors import Executor, Job
from benchmark.jobs.executors.slurm import commands
from benchmark.jobs.executors.slurm.commands import Refusal, SlurmError, SlurmJob
from benchmark.jobs.executors.slurm.settings import KINDS, OF_ALL_ROWS, Slurm, find_section
from benchmark.jobs.pool import hold_signals
from benchmark.jobs.status import FAILED, name_next_step
from benchmark.jobs.waves import Plan, Wave, count_by_kind, drop_under_way, group_by_run
from benchmark.jobs.work import TRAINS, Kind, Unit
from benchmark.ledger.store import Store
from benchmark.locks import Lease
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.names import ROOT
from benchmark.settings.suite import RunConfig, Suite
from benchmark.training.batch_parts import check_method

ORDER = get_args(Kind)
PARTIAL = 3  # exit status if Slurm refused some of the jobs
# parts of sbatch's message if there are too many jobs: names of limits, its words for MaxJobCount
FULL = "SubmitJob|temporarily un"
# the key to lower, by a part of a limit's name, or of the message on a partition's limit
KEYS = {
    "Wall|time limit is": "time",
    "Cpu": "cpus_per_task",
    "Mem": "mem",
    "Node": "nodes",
    "GRES": "gpus_per_node",
}
# how a job ended, by its state in Slurm's accounts. KIND stands for the job's kind
ENDINGS = {
    "FAILED": ("failed", "its job failed"),
    "OUT_OF_MEMORY": ("failed", "raise slurm.KIND.mem, its job had no memory left"),
    "TIMEOUT": ("interrupted", "raise slurm.KIND.time, its job could not save before this limit"),
    "CANCELLED": ("interrupted", "its job was cancelled"),
}
# lost, preempted, or ended without accounts, or before the accounts were written
OTHER = ("interrupted", "its job was ended")
FAILED_THERE = ("FAILED", "NODE_FAIL", "BOOT_FAIL")  # states of jobs that a bad node may have ended
# Slurm's words in a job's log if memory ran out. Accounts may say only FAILED or CANCELLED then
OUT_OF_MEMORY = re.compile("^slurmstepd.*(oom.kill|exceeded memory limit)", re.MULTILINE)
# beginnings of lines in a job's log that are not the job's own
NOT_OWN = ("srun: ", "slurmstepd", "submitit ")
UNSAID = ("setup", "teardown", "srun_args")  # parameters that a dry run does not show
CODE = ("benchmark", "methods", "analysis", "paper_tables")
ANSWER = 10  # minutes for a job of `doctor` to start and answer. It may run for half of them
SEES = "sees this folder, and has torch"
# imports nothing of the project, which the node may not see
PROBE = f"""\
import socket
import torch
count = torch.accelerator.device_count()
print(socket.gethostname(), "{SEES}", torch.__version__, count, "accelerators")
"""
# A signal that comes before Python has a handler would end Python. So a shell starts it with these
# signals ignored, and submitit sets handlers.
DEAF = """sh -c 'trap "" USR2 TERM; exec "$0" "$@"'"""


def find_notes_folder(suite: Suite, store: Store) -> Path:
    """The folder of notes on a suite's jobs on Slurm."""
    return executors.find_notes_folder(suite, store) / "slurm"


def count_gpus(suite: Suite, run: RunConfig) -> float:
    """The number of GPUs that train a run."""
    return Slurm.read(run.sections).resolve("train").gpus_of_a_run


def describe(plan: Plan) -> list[str]:
    """Lines that say which units `execute` would submit, in how many jobs, with what resources."""
    check_plan(plan)
    waves = drop_under_way(plan.waves, plan.survey.jobs)
    if not waves:
        return []
    counts = count_by_kind(unit for wave in waves for unit in wave.units)
    lines = [f"  to submit: {counts}. Each line below waits for the line before it:"]
    for wave in [*waves, plan.report]:
        for request, units in _group_by_request(plan, wave):
            words = []
            for key, value in _list_parameters(wave.kind, request, units).items():
                if value and key not in UNSAID:
                    words.append(f"{key} {value}")
            jobs = _divide(wave.kind, request, units)
            lines.append(f"  {wave.kind}: {_count_jobs(jobs)}, {', '.join(words)}")
            if plan.names_units:
                lines += [f"    {unit.name}" for unit in units]
    return lines


def _count_jobs(jobs: Sized) -> str:
    return "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"


def _list_parameters(kind: Kind, request: Slurm, units: Iterable[Unit]) -> dict[str, Any]:
    return request.list_parameters(kind, {unit.config.budget.unit for unit in units})


def check_plan(plan: Plan) -> None:
    """Raise ConfigError for what cannot be submitted."""
    if plan.parallel is not None or plan.processes is not None:
        raise ConfigError(
            "--parallel and --processes are for one machine: on Slurm set slurm.array_parallelism, "
            "slurm.gpus_per_node or slurm.exclusive instead"
        )
    for state in plan.wanted:
        config = state.config
        request = Slurm.read(config.sections).resolve("train")
        if request.runs_per_job == 1 and request.processes > 1:
            method = plan.survey.build(config.method, config.options)
            check_method(config, method, request.processes)


def execute(plan: Plan) -> int:
    """Submit the missing work, and print the ids of its jobs.

    If two calls come at once, the second finds the jobs of the first. Returns an exit status.
    """
    check_plan(plan)
    submission = Submission(plan)
    submission.submit()
    for refusal in submission.refused:
        print(f"! Slurm refused {refusal}")
    if submission.refused:
        print("! not submitted: these, and what waits for them")
    if submission.sent:
        print(f"next: `python run_all.py status {plan.suite.command_arguments}` says how they do")
        return PARTIAL if submission.refused else 0
    print("nothing to submit: all is done, under way or failed")
    # read again, because others may have submitted
    print(name_next_step(plan.survey, plan.survey.read_states()))
    return FAILED if plan.not_retried else 0


def _group_by_request(plan: Plan, wave: Wave) -> ItemsView[Slurm, list[Unit]]:
    """The units of a wave, grouped by the resources that they ask for."""
    is_of_suite = wave.kind in ("prepare", "report")
    groups: dict[Slurm, list[Unit]] = defaultdict(list)
    for unit in wave.units:
        sections = plan.suite.sections if is_of_suite else unit.config.sections
        groups[Slurm.read(sections)].append(unit)
    return groups.items()


def _divide(kind: Kind, request: Slurm, units: Sequence[Unit]) -> list[tuple[Unit, ...]]:
    """The units of each job: those of one run, or of `runs_per_job` runs."""
    return group_by_run(units, request.resolve(kind).runs_per_job)


def _name_cure(refusal: str, kind: str) -> str:
    """What to do if Slurm refuses a kind of job, by the limit that its message names."""
    if re.search(FULL, refusal):
        return (
            "ask for fewer jobs by slurm.runs_per_job or --seeds; where other jobs fill the queue, "
            "call `run` again as they end"
        )
    for pattern, key in KEYS.items():
        if re.search(pattern, refusal):
            section = f"slurm.{find_section(kind)}"
            return f"lower {section}.{key}, or name another {section}.qos or partition"
    return "change what [slurm] asks for"


class Submission:
    """Submits waves, each after the one before and after work under way of earlier kinds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.folder = find_notes_folder(plan.suite, plan.survey.store)
        self.sent: list[str] = []  # ids of arrays
        self.refused: list[str] = []  # which jobs, and why
        self._is_full = False  # Slurm takes no more jobs
        self._arrays: dict[str, str] = {}  # kinds of the arrays that others may wait for, by id
        # by array that trains: ids of the runs of each of its jobs
        self._trained: dict[str, list[set[str]]] = {}
        self._untrained: set[str] = set()  # ids of runs whose training Slurm refused

    def submit(self) -> None:
        """Submit what is missing and not under way, as far as Slurm accepts it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with Lease(self.folder / "lock"):
            notes = read_notes(self.folder)
            queue = _ask_queue(notes)
            # end jobs without a note: sbatch gave no answer, so submitit did not give them their
            # work
            commands.cancel(_find_tagged(self.folder, queue) - {note["id"] for note in notes})
            jobs = list_jobs(self.plan.suite, self.plan.survey.store, queue)
            waves = drop_under_way(self.plan.waves, jobs)
            if not (waves or _lacks_report(notes, jobs)):
                return
            # imports torch, for which a command that asks for states need not wait
            from benchmark.training.processes import copy_code

            self._logs = self.folder / getpass.getuser()
            make_own_folder(self._logs)
            self._code = copy_code(ROOT, CODE, self.plan.runs / "code")
            self._largest = commands.ask_largest_array()
            for job in jobs:
                if job.is_under_way:
                    self._arrays[job.id.partition("_")[0]] = job.kind
            for wave in waves:
                self._send_wave(wave)
            self._check_sent()
            # end an earlier call's report: the new one waits for all that it waits for
            name = self._name_jobs("report")
            commands.cancel(
                id for id, job in queue.items() if name in job.name and job.state == "waiting"
            )
            self._send_wave(self.plan.report)
            self._check_sent()

    def _check_sent(self) -> None:
        """Raise SlurmError if Slurm refused everything."""
        if self.refused and not self.sent:
            raise SlurmError(f"nothing is submitted: Slurm refused {self.refused[0]}")

    def _send_wave(self, wave: Wave) -> None:
        """Submit a wave's arrays, to begin after those of earlier kinds (see `_send_scores`)."""
        kind = wave.kind
        earlier_kinds = list(ORDER[: ORDER.index(kind)])
        # several waves have these kinds: stages may continue those of the wave before, and tasks
        # are compared with prepared text
        if kind in ("prepare", "stages"):
            earlier_kinds.append(kind)
        earlier = [id for id, other in self._arrays.items() if other in earlier_kinds]
        for request, units in _group_by_request(self.plan, wave):
            if kind == "score":
                self._send_scores(request, units, earlier)
            else:
                self._send_all(kind, request, _divide(kind, request, units), earlier)

    def _send_scores(self, request: Slurm, units: Sequence[Unit], earlier: Sequence[str]) -> None:
        """Submit jobs that score runs, each after the job that trains its runs."""
        settled_runs = set(self._untrained)
        for array, runs_by_job in self._trained.items():
            tasks = []
            for runs in runs_by_job:
                task = tuple(unit for unit in units if unit.config.id in runs)
                if task:
                    tasks.append(task)
                settled_runs |= runs
            self._send_all("score", request, tasks, [array])
        # Runs that are trained, or that jobs of earlier calls train. They need not wait for the
        # training that this call has submitted.
        rest = [unit for unit in units if unit.config.id not in settled_runs]
        arrays = [id for id in earlier if id not in self.sent or self._arrays[id] == "prepare"]
        self._send_all("score", request, _divide("score", request, rest), arrays)

    def _send_all(
        self,
        kind: Kind,
        request: Slurm,
        tasks: Sequence[tuple[Unit, ...]],
        dependencies: Sequence[str],
    ) -> None:
        """Submit jobs with equal requests as arrays, as far as the cluster accepts them."""
        # once Slurm is full, jobs that wait for these are not submitted: they would begin without
        # them
        while tasks and not self._is_full:
            try:
                self._send(kind, request, tasks[: self._largest], dependencies)
            except Refusal as error:
                self._is_full = bool(re.search(FULL, str(error)))
                if kind == "train":
                    self._untrained |= {unit.config.id for task in tasks for unit in task}
                cure = _name_cure(str(error), kind)
                self.refused.append(
                    f"{_count_jobs(tasks)} ({tasks[0][0].name}, ...): {error}; {cure}"
                )
                return  # other requests may be accepted
            tasks = tasks[self._largest :]

    def _send(
        self,
        kind: Kind,
        request: Slurm,
        tasks: Sequence[tuple[Unit, ...]],
        dependencies: Sequence[str],
    ) -> None:
        """Submit an array, or a single job for a single task, that runs the copy of the code.

        Raises Refusal if Slurm refuses it.
        """
        # imports torch, for which a command that asks for states need not wait
        from benchmark.jobs.executors.slurm.job import Task
        from benchmark.training.processes import Sources

        settings = request.resolve(kind)
        parameters = _list_parameters(kind, request, chain(*tasks))
        parameters["job_name"] = self._name_jobs(kind)
        if dependencies:
            parameters["dependency"] = f"afterany:{':'.join(dependencies)}"
            array = dependencies[0]
            # task i begins once task i of the training has succeeded, or all its tasks have ended
            if kind == "score" and len(self._trained.get(array, ())) == len(tasks) > 1:
                parameters["dependency"] = f"aftercorr:{array}?afterany:{array}"
        code = shlex.quote(str(self._code))
        parameters["setup"] += [
            f"cd {code}",
            f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}",
            *(f"export {name}=${{{name}:-{value}}}" for name, value in COMPUTES.items()),
        ]
        sources = Sources.read(ROOT, CODE[:2])
        is_shared = kind in TRAINS and settings.runs_per_job > 1
        work = [
            Task(
                units=task,
                gpus="gres" in parameters,
                exclusive=parameters.get("exclusive") is True,
                folder=Path.cwd(),
                sources=sources,
                side_by_side=settings.processes if is_shared else 0,
            )
            for task in tasks
        ]
        python = f"{DEAF} {settings.python or shlex.quote(sys.executable)}"
        note = {
            "kind": kind,
            "user": getpass.getuser(),
            "time": time.time(),
            "units": [[unit.id for unit in task] for task in tasks],
        }
        with hold_signals():
            id = commands.submit(self._logs, python, parameters, Task.__call__, work)
            # if the note cannot be written, the next call ends the array and submits it again
            write_json(self.folder / f"{id}.json", {"id": id, **note})
        self.sent.append(id)
        self._arrays[id] = kind
        if kind == "train":
            self._trained[id] = [{unit.config.id for unit in task} for task in tasks]
        order = f"  after {', '.join(dependencies[:3])}" if dependencies else ""
        if len(dependencies) > 3:
            order += f" and {len(dependencies) - 3} more"
        print(f"{id}  {kind}: {_count_jobs(tasks)} ({tasks[0][0].name}, ...){order}")

    def _name_jobs(self, kind: Kind) -> str:
        return f"{self.plan.suite.name}:{kind}:{_make_tag(self.folder)}"


def _lacks_report(notes: Sequence[dict[str, Any]], jobs: Sequence[Job]) -> bool:
    """Whether jobs were submitted after the last report, or the report's job did not succeed."""
    if any(note["kind"] != "report" for note in notes[-1:]):
        return True
    return any(job.kind == "report" and not job.is_under_way for job in jobs)


def _make_tag(folder: Path) -> str:
    """The tag in the names of all jobs of this user whose notes are in a folder."""
    return digest([getpass.getuser(), str(folder.resolve())])


def _ask_queue(notes: Iterable[dict[str, Any]]) -> dict[str, SlurmJob]:
    """The queued jobs of this user and of all users who wrote notes. Raises SlurmError."""
    return commands.ask_queue({getpass.getuser(), *(note["user"] for note in notes)})


def _find_tagged(folder: Path, queue: Mapping[str, SlurmJob]) -> set[str]:
    """The arrays in the queue that this user's calls have submitted, noted or not."""
    tag = _make_tag(folder)
    return {id.partition("_")[0] for id, slurm_job in queue.items() if tag in slurm_job.name}


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """The notes on submitted arrays, in the order of their ids."""
    paths = sorted(folder.glob("[0-9]*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_bytes()) for path in paths]


def list_jobs(suite: Suite, store: Store, queue: Mapping[str, SlurmJob] | None = None) -> list[Job]:
    """The last job of each unit, without jobs that have done their work.

    If `queue` is not given, Slurm is asked. If Slurm does not answer, the jobs' state is `unknown`.
    """
    folder = find_notes_folder(suite, store)
    notes: dict[str, dict[str, Any]] = {}  # by the id of a job
    last_jobs: dict[str, str] = {}  # of each unit
    for note in read_notes(folder):
        for number, task_units in enumerate(note["units"]):
            id = f"{note['id']}_{number}" if len(note["units"]) > 1 else note["id"]
            notes[id] = note
            last_jobs |= dict.fromkeys(task_units, id)
    if queue is None:
        try:
            queue = _ask_queue(notes.values())
        except SlurmError as error:
            logging.warning("%s: what follows is from the records alone", error)
            queue = dict.fromkeys(notes, SlurmJob("unknown", "Slurm does not answer"))
    units_by_job: dict[str, list[str]] = defaultdict(list)
    for unit, id in last_jobs.items():
        units_by_job[id].append(unit)
    logs: dict[str, Path] = {}
    for id in units_by_job:
        log = commands.find_log(folder / notes[id]["user"], id)
        if not commands.has_noted(log, b"success"):
            logs[id] = log
    ended_jobs = logs.keys() - queue
    accounts = commands.ask_accounts(ended_jobs) if ended_jobs else {}
    jobs = []
    for id, log in logs.items():
        note = notes[id]
        slurm_job = queue.get(id) or _read_ending(log, note["kind"], accounts.get(id, SlurmJob("")))
        job = Job(
            id=id,
            kind=note["kind"],
            units=tuple(units_by_job[id]),
            state=slurm_job.state,
            detail=slurm_job.detail,
            submitted=note["time"],
            log=str(log),
            node=slurm_job.node,
            restarts=slurm_job.restarts,
        )
        jobs.append(job)
    return jobs


def _read_ending(log: Path, kind: Kind, account: SlurmJob) -> SlurmJob:
    """How a job ended that is not in the queue and has not done its work.

    It failed if submitit noted an exception, if its log says that memory ran out, or if Slurm's
    accounts say so.
    """
    node = account.node
    if log.exists():
        text = commands.read_log(log)
        slurm_state = account.state
        if commands.has_noted(log, b"error"):
            slurm_state = "FAILED"
        if OUT_OF_MEMORY.search(text):
            slurm_state = "OUT_OF_MEMORY"
        state, reason = ENDINGS.get(slurm_state, OTHER)
        own_lines = [line for line in text.splitlines() if line and not line.startswith(NOT_OWN)]
        reason = ": ".join([reason.replace("KIND", find_section(kind)), *own_lines[-1:]])
    elif account.state in FAILED_THERE:
        state = "failed"
        reason = (
            f"failed on {node} before it could write its log ({account.detail}): does "
            f'{node} see this folder? Else leave it out: slurm.exclude = "{node}"'
        )
    else:
        state = "interrupted"
        reason = "its job ended, and left no log"
        if account.state == "CANCELLED":
            reason = "its job was cancelled before it began"
    return replace(account, state=state, detail=reason)


def cancel(suite: Suite, store: Store) -> list[str]:
    """End all jobs of the suite that this user submitted, and return their ids.

    Raises SlurmError if Slurm does not answer.
    """
    folder = find_notes_folder(suite, store)
    queue = commands.ask_queue({getpass.getuser()})
    # noted ids, too: the tag is another one if the folder is reached by another path
    arrays = _find_tagged(folder, queue) | {note["id"] for note in read_notes(folder)}
    ids = [id for id in queue if id.partition("_")[0] in arrays]
    commands.cancel({id.partition("_")[0] for id in ids})
    return ids


# What `run_all.py doctor` asks of Slurm


def examine(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[str]:
    """Ask `sbatch --test-only` about each kind of job, with each row's request.

    If none is refused, submit a job that checks one node.
    """
    try:
        commands.ask("sinfo", "--noheader")
    except SlurmError as error:
        reason = str(error).replace("\n", " ")
        yield (
            f"none   Slurm gives no answer ({reason}): runs train on this machine; for a cluster, "
            "call this where jobs are submitted"
        )
        return
    budget_units = {config.budget.unit for config in configs}
    of_suite = Slurm.read(suite.sections)
    requests = {of_suite, *(Slurm.read(config.sections) for config in configs)}
    refused = []
    with tempfile.TemporaryDirectory(
        prefix=".doctor-", dir=runs.resolve(), ignore_cleanup_errors=True
    ) as folder:
        for request, kind in product(requests, KINDS):
            parameters = request.list_parameters(kind, budget_units)
            script = commands.write_script(Path(folder), parameters, "true")
            try:
                commands.ask("sbatch", "--test-only", str(script))
                yield f"ok     Slurm would accept a job to {kind}"
            except SlurmError as error:
                refused.append(kind)
                cure = _name_cure(str(error), kind)
                yield f"wrong  a job to {kind} is refused ({error}): {cure}"
        if not refused:
            yield _check_node(of_suite, Path(folder))


def _check_node(request: Slurm, folder: Path) -> str:
    """Submit a job of one process that says what torch finds on its node.

    Slurm itself ends a job that would be too late.
    """
    parameters = request.list_parameters("score", ())
    parameters["time"] = ANSWER // 2
    python = request.resolve("score").python or shlex.quote(sys.executable)
    script = commands.write_script(folder, parameters, f"{python} -c {shlex.quote(PROBE)}")
    deadline = f"--deadline=now+{ANSWER}minutes"
    with contextlib.suppress(SlurmError):  # the job's log says more
        commands.ask("sbatch", "--wait", deadline, str(script), patience=60.0 * ANSWER)
    lines = [f"nothing within {ANSWER} minutes, or before its job ended"]
    for log in folder.glob("*.out"):
        lines += log.read_text().splitlines()
    own_answers = [line for line in lines if SEES in line]
    answer = own_answers[-1] if own_answers else lines[-1]
    lacks_gpus = "gres" in parameters and answer.endswith(" 0 accelerators")
    if SEES in answer and not lacks_gpus:
        return f"ok     {answer}"
    return (
        f"wrong  a node said {answer!r}: does it see this folder, and its GPUs? look at "
        "slurm.setup, slurm.python, slurm.partition, and at torch's build"
    )


EXECUTOR = Executor(
    settings=Slurm,
    of_all_rows=OF_ALL_ROWS,
    describe=describe,
    execute=execute,
    count_gpus=count_gpus,
    list_jobs=list_jobs,
    cancel=cancel,
    examine=examine,
)
