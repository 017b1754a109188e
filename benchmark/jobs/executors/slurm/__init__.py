"""Slurm: each wave is an array of jobs, by submitit, that waits for the one before.

It waits however that one ends. What scores a run waits for this run alone. The suite's folder has a
file for each submitted array, written under a lock, and a later call leaves out work under way.
Nothing depends on the process that submitted. Units with resources of their own are an array of
their own. An array has as many tasks as the cluster allows, and a task as many runs as
`runs_per_job`. What is in Slurm's queue is under way. How a job ended that is not in it is in the
files that it left.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import logging
import re
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from benchmark.files import make_own_folder, write_json
from benchmark.interpreters import COMPUTES
from benchmark.jobs import executors
from benchmark.jobs.executors import Executor, Job
from benchmark.jobs.executors.slurm import commands
from benchmark.jobs.executors.slurm.commands import Queued, Refusal, SlurmError
from benchmark.jobs.executors.slurm.settings import KINDS, OF_ALL_ROWS, Slurm, find_section
from benchmark.jobs.pool import hold_signals
from benchmark.jobs.status import FAILED, name_next_step
from benchmark.jobs.waves import Plan, Wave, count_by_kind, drop_under_way, group_by_run
from benchmark.jobs.work import TRAINS, Kind, Unit
from benchmark.ledger.store import Store
from benchmark.locks import Lease
from benchmark.settings.base import ConfigError
from benchmark.settings.names import ROOT
from benchmark.settings.suite import RunConfig, Suite
from benchmark.training.batch_parts import check_method

ORDER = get_args(Kind)
PARTIAL = 3  # exit status
# in what sbatch says of too many jobs: names of limits, and its words for MaxJobCount
FULL = "SubmitJob|temporarily un"
# what to lower, by what is in a limit's name, or in the words for a partition's
KEYS = {
    "Wall|time limit is": "time",
    "Cpu": "cpus_per_task",
    "Mem": "mem",
    "Node": "nodes",
    "GRES": "gpus_per_node",
}
OF_SLURM = ("srun: ", "slurmstepd")  # how lines of Slurm in a job's log begin
# how a job ended, by its state in Slurm's accounts, or by what Slurm says in its log where nobody
# keeps accounts, or they are late; KIND is that of the job
ENDINGS = {
    "OUT_OF_MEMORY|oom.kill|exceeded memory limit": (
        "failed",
        "its job needed more memory than it asked for: raise slurm.KIND.mem",
    ),
    "TIMEOUT|DUE TO TIME LIMIT": (
        "interrupted",
        "its job could not save before its time limit: raise slurm.KIND.time",
    ),
    r"CANCELLED by|\*\*\* JOB": ("interrupted", "its job was cancelled"),
}
FAILED_THERE = ("FAILED", "NODE_FAIL", "BOOT_FAIL")  # how states of a bad node begin, in accounts
UNSAID = ("setup", "teardown", "srun_args")  # in a dry run
CODE = ("benchmark", "methods", "analysis", "paper_tables")
ANSWER = 10  # minutes for a job of `doctor` to start and to answer, of which it may take the half
SEES = "sees this folder, and has torch"
# imports nothing of the project, which the node may not see
PROBE = f"""\
import socket
import torch
count = torch.accelerator.device_count()
print(socket.gethostname(), "{SEES}", torch.__version__, count, "accelerators")
"""
# A signal that comes before Python has a handler would end it; a shell lets it begin deaf, and
# submitit sets handlers.
DEAF = """sh -c 'trap "" USR2 TERM; exec "$0" "$@"'"""


def find_notes(suite: Suite, store: Store) -> Path:
    """The folder of what is noted of a suite's jobs on Slurm."""
    return executors.find_notes(suite, store) / "slurm"


def count_gpus(suite: Suite, run: RunConfig) -> float:
    """The GPUs that train a run."""
    return Slurm.read(run.sections).resolve("train").gpus_of_a_run


def describe(plan: Plan) -> list[str]:
    """Lines that say how many units `execute` would submit, in how many jobs.

    They also say what these jobs ask for.
    """
    check_plan(plan)
    jobs = plan.survey.jobs
    waves = drop_under_way(plan.waves, jobs)
    if not waves:
        return []
    counts = count_by_kind(unit for wave in waves for unit in wave.units)
    lines = [f"  to submit, each line after the one before: {counts}"]
    for wave in [*waves, plan.report]:
        for request, units in _group_by_request(plan, wave):
            lines.append(_describe_jobs(wave.kind, request, units))
            if plan.names_units:
                lines += [f"    {unit.name}" for unit in units]
    under_way = sum(job.is_under_way for job in jobs)
    if under_way:
        lines.append(f"  {under_way} jobs are under way already")
    return lines


def _describe_jobs(kind: Kind, request: Slurm, units: Sequence[Unit]) -> str:
    """A line on the jobs of units with equal requests."""
    budget_units = {unit.config.budget.unit for unit in units}
    parameters = request.list_parameters(kind, budget_units)
    words = []
    for key, value in parameters.items():
        if value and key not in UNSAID:
            words.append(f"{key} {value}")
    jobs = _divide(kind, request, units)
    return f"  {kind}: {len(jobs)} jobs, {', '.join(words)}"


def check_plan(plan: Plan) -> None:
    """Raises ConfigError for what cannot be submitted."""
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
    """Submit missing work, and print its ids.

    When two calls come at once the second finds the first's jobs. Returns an exit status.
    """
    check_plan(plan)
    submission = Submission(plan)
    rest = submission.submit()
    for refusal in submission.refused:
        print(f"! Slurm refused {refusal}")
    if rest:
        print(f"! not submitted: {rest} units")
    if submission.sent:
        print(f"next: `python run_all.py status {plan.suite.called}` says how they do")
        return PARTIAL if rest else 0
    print("nothing to submit: all is done, under way or failed")
    print(name_next_step(plan.survey, plan.survey.read_states()))  # others may have submitted
    return FAILED if plan.left_out else 0


def _group_by_request(plan: Plan, wave: Wave) -> list[tuple[Slurm, list[Unit]]]:
    """The units of a wave by what they ask for."""
    is_of_suite = wave.kind in ("prepare", "report")
    groups: dict[Slurm, list[Unit]] = defaultdict(list)
    for unit in wave.units:
        sections = plan.suite.sections if is_of_suite else unit.config.sections
        groups[Slurm.read(sections)].append(unit)
    return list(groups.items())


def _divide(kind: Kind, request: Slurm, units: Sequence[Unit]) -> list[tuple[Unit, ...]]:
    """The units of each job: those of a run, or of several runs where the suite says so."""
    size = 1 if kind in ("prepare", "report") else request.resolve("train").runs_per_job
    return group_by_run(units, size)


def _name_cure(refusal: str, kind: str) -> str:
    """What to do where Slurm refuses a kind of job, by the limit that it names."""
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
        self.folder = find_notes(plan.suite, plan.survey.store)
        self.sent: list[str] = []  # ids of arrays
        self._arrays: dict[str, str] = {}  # kinds of those that others may wait for
        self._runs: dict[str, list[set[str]]] = {}  # by array, those that each job of it trains
        self._untrained: set[str] = set()  # runs whose jobs are refused
        self.refused: list[str] = []  # which jobs, and why

    def submit(self) -> int:
        """Submit what is missing and not under way.

        Returns how many units are left, as Slurm does not take them.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with Lease(self.folder / "lock"):
            queue = _ask_queue(self.folder)
            noted = {note["id"] for note in read_notes(self.folder)}
            # sbatch did not say that it took them, and submitit did not give them their work
            commands.cancel(_find_tagged(self.folder, queue) - noted)
            jobs = list_jobs(self.plan.suite, self.plan.survey.store, queue)
            waves = drop_under_way(self.plan.waves, jobs)
            if not (waves or self._lacks_report(jobs)):
                return 0
            # torch, for which who asks for states need not wait
            from benchmark.training.processes import copy_code

            self._logs = self.folder / getpass.getuser()
            make_own_folder(self._logs)
            self._code = copy_code(ROOT, CODE, self.plan.runs / "code")
            self._largest = commands.ask_largest_array()  # 0: Slurm takes no more jobs
            for job in jobs:
                if job.is_under_way and self.plan.needs(job):
                    self._arrays[job.id.partition("_")[0]] = job.kind
            rest = 0
            for wave in [*waves, self.plan.report]:
                kind = wave.kind
                if kind == "report":
                    if self.refused and not self.sent:
                        raise SlurmError(f"nothing is submitted: Slurm refused {self.refused[0]}")
                    # the new one waits for all that the report of an earlier call waits for
                    commands.cancel(
                        id
                        for id, queued in queue.items()
                        if self._name_jobs(kind) in queued.name and queued.state == "waiting"
                    )
                # stages may go on from those of the wave before
                order = ORDER.index(kind) + (kind in ("prepare", "stages"))
                dependencies = [
                    id for id, other in self._arrays.items() if ORDER.index(other) < order
                ]
                for request, units in _group_by_request(self.plan, wave):
                    if kind == "score":
                        rest += self._send_scores(request, units, dependencies)
                    else:
                        tasks = _divide(kind, request, units)
                        rest += self._send_all(kind, request, tasks, dependencies)
            return rest

    def _lacks_report(self, jobs: Sequence[Job]) -> bool:
        """Whether the report is still to be submitted.

        None was submitted after all else, as Slurm took no more, or the last came to nothing.
        """
        if any(note["kind"] != "report" for note in read_notes(self.folder)[-1:]):
            return True
        states = ("interrupted", "failed") if self.plan.retry_failed else ("interrupted",)
        return any(job.kind == "report" and job.state in states for job in jobs)

    def _send_scores(
        self, request: Slurm, units: Sequence[Unit], dependencies: Sequence[str]
    ) -> int:
        """Submit what scores runs, after the jobs that train these.

        Returns how many units are left.
        """
        count = len(units)
        units = [unit for unit in units if unit.config.id not in self._untrained]
        rest = count - len(units)
        for array, jobs in self._runs.items():
            tasks = [tuple(unit for unit in units if unit.config.id in runs) for runs in jobs]
            rest += self._send_all("score", request, tasks, [array])
            units = [unit for unit in units if not any(unit.config.id in runs for runs in jobs)]
        # runs that are trained, or that jobs of earlier calls train
        others = [id for id in dependencies if id not in self.sent or self._arrays[id] == "prepare"]
        return rest + self._send_all("score", request, _divide("score", request, units), others)

    def _send_all(
        self,
        kind: Kind,
        request: Slurm,
        tasks: Sequence[tuple[Unit, ...]],
        dependencies: Sequence[str],
    ) -> int:
        """Submit jobs with equal requests as arrays, as far as the cluster takes them.

        Returns how many units are left.
        """
        tasks = [task for task in tasks if task]
        while tasks and self._largest:
            piece = tasks[: self._largest]
            try:
                self._send(kind, request, piece, dependencies)
                tasks = tasks[len(piece) :]
            except Refusal as error:
                if re.search(FULL, str(error)):
                    self._largest = 0  # what waits for these would begin without them
                if kind == "train":
                    self._untrained |= {unit.config.id for task in tasks for unit in task}
                cure = _name_cure(str(error), kind)
                self.refused.append(f"{len(tasks)} jobs ({tasks[0][0].name}, ...): {error}; {cure}")
                break  # others may ask for what there is
        return sum(map(len, tasks))

    def _send(
        self,
        kind: Kind,
        request: Slurm,
        tasks: Sequence[tuple[Unit, ...]],
        dependencies: Sequence[str],
    ) -> None:
        """Submit an array, or where it is one task a job.

        Raises Refusal where Slurm does not take it.
        """
        # torch, for which who asks for states need not wait
        from benchmark.jobs.executors.slurm.job import Task
        from benchmark.training.processes import Sources

        parameters = self._list_parameters(kind, request, tasks, dependencies)
        settings = request.resolve(kind)
        side_by_side = 0
        if kind in TRAINS and settings.runs_per_job > 1:
            side_by_side = settings.processes
        python = f"{DEAF} {settings.python or shlex.quote(sys.executable)}"
        sources = Sources.read(ROOT, CODE[:2])
        work = [
            Task(
                units=task,
                gpus="gres" in parameters,
                exclusive=parameters.get("exclusive") is True,
                folder=Path.cwd(),
                sources=sources,
                side_by_side=side_by_side,
            )
            for task in tasks
        ]
        unit_ids = [[unit.id for unit in task] for task in tasks]
        with hold_signals():
            array = commands.submit(self._logs, python, parameters, Task.__call__, work)
            _write_note(self.folder, array, kind, unit_ids)
        self.sent.append(array)
        self._arrays[array] = kind
        if kind == "train":
            self._runs[array] = [{unit.config.id for unit in task} for task in tasks]
        order = f"  after {', '.join(dependencies[:3])}" if dependencies else ""
        if len(dependencies) > 3:
            order += f" and {len(dependencies) - 3} more"
        first = tasks[0][0]
        print(f"{array}  {kind}: {len(tasks)} jobs ({first.name}, ...){order}")

    def _name_jobs(self, kind: Kind) -> str:
        return f"{self.plan.suite.name}:{kind}:{_make_tag(self.folder)}"

    def _list_parameters(
        self,
        kind: Kind,
        request: Slurm,
        tasks: Sequence[tuple[Unit, ...]],
        dependencies: Sequence[str],
    ) -> dict[str, Any]:
        """The parameters of submitit for an array that runs the copy of the code."""
        budget_units = {unit.config.budget.unit for task in tasks for unit in task}
        parameters = request.list_parameters(kind, budget_units)
        parameters["job_name"] = self._name_jobs(kind)
        if dependencies:
            parameters["dependency"] = f"afterany:{':'.join(dependencies)}"
        if kind == "score" and len(dependencies) == 1:
            [array] = dependencies
            # task i begins once task i of the training has succeeded, or all of it has ended
            if len(tasks) > 1 and len(tasks) == len(self._runs.get(array, ())):
                parameters["dependency"] = f"aftercorr:{array}?afterany:{array}"
        code = shlex.quote(str(self._code))
        parameters["setup"] += [
            f"cd {code}",
            f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}",
            *(f"export {name}=${{{name}:-{value}}}" for name, value in COMPUTES.items()),
        ]
        return parameters


def _make_tag(folder: Path) -> str:
    """What is in the names of all jobs of this user whose notes are in a folder."""
    place = f"{getpass.getuser()} {folder.resolve()}"
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def _ask_queue(folder: Path) -> dict[str, Queued]:
    """The jobs of this user, and of those who have notes in a folder. Raises SlurmError."""
    return commands.ask_queue({getpass.getuser(), *(note["user"] for note in read_notes(folder))})


def _find_tagged(folder: Path, queue: Mapping[str, Queued]) -> set[str]:
    """The arrays in the queue that this user's calls have submitted, noted or not."""
    tag = _make_tag(folder)
    return {id.partition("_")[0] for id, queued in queue.items() if tag in queued.name}


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
    paths = sorted(folder.glob("[0-9]*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_bytes()) for path in paths]


def list_jobs(suite: Suite, store: Store, queue: Mapping[str, Queued] | None = None) -> list[Job]:
    """The last job of each unit whose work it has not done.

    The queue is asked for where it is not given. While Slurm does not answer their state is
    unknown.
    """
    folder = find_notes(suite, store)
    notes: dict[str, dict[str, Any]] = {}  # by the id of a job
    last_jobs: dict[str, str] = {}  # of each unit
    for note in read_notes(folder):
        for number, task_units in enumerate(note["units"]):
            id = f"{note['id']}_{number}" if len(note["units"]) > 1 else note["id"]
            notes[id] = note
            last_jobs |= dict.fromkeys(task_units, id)
    if queue is None:
        try:
            queue = _ask_queue(folder) if notes else {}
        except SlurmError as error:
            logging.warning("%s: what follows is from the records alone", error)
            queue = dict.fromkeys(notes, Queued("unknown", "Slurm does not answer"))
    units_by_job: dict[str, list[str]] = defaultdict(list)
    for unit, id in last_jobs.items():
        units_by_job[id].append(unit)
    logs: dict[str, Path] = {}
    for id in units_by_job:
        log = commands.find_log(folder / notes[id]["user"], id)
        if not commands.has_succeeded(log):
            logs[id] = log
    over = logs.keys() - queue
    accounts = commands.ask_accounts(over) if over else {}
    jobs = []
    for id, log in logs.items():
        note = notes[id]
        queued = queue.get(id) or _read_ending(log, note["kind"], accounts.get(id, Queued("")))
        job = Job(
            id=id,
            kind=note["kind"],
            units=tuple(units_by_job[id]),
            state=queued.state,
            detail=queued.detail,
            submitted=note["time"],
            log=str(log),
            node=queued.node,
            restarts=queued.restarts,
        )
        jobs.append(job)
    return jobs


def _read_ending(log: Path, kind: Kind, account: Queued) -> Queued:
    """How a job that is over and not done ended, by Slurm's accounts and its log."""
    if not log.exists():
        if not account.state.startswith(FAILED_THERE):
            reason = "its job ended, and left no log"
            return replace(account, state="interrupted", detail=reason)
        node = account.node
        reason = (
            f"failed on {node} before it could write its log ({account.detail}): does "
            f'{node} see this folder? Else leave it out: slurm.exclude = "{node}"'
        )
        return replace(account, state="failed", detail=reason)
    lines = commands.read_log(log)
    of_slurm = [line for line in lines if line.startswith(OF_SLURM)]
    for pattern, (state, reason) in ENDINGS.items():
        if re.search(pattern, "\n".join([account.state, *of_slurm])):
            return replace(account, state=state, detail=reason.replace("KIND", find_section(kind)))
    others = (*OF_SLURM, commands.OF_SUBMITIT)
    own = [line for line in lines if line.strip() and not line.startswith(others)]
    return replace(account, state="failed", detail=": ".join(["its job failed", *own[-1:]]))


def cancel(suite: Suite, store: Store) -> list[str]:
    """End all jobs of the suite that this user submitted, and return their ids.

    Raises SlurmError as `list_jobs` does.
    """
    folder = find_notes(suite, store)
    queue = commands.ask_queue({getpass.getuser()})
    # noted ids too: the tag is another where the folder is reached by another path
    arrays = _find_tagged(folder, queue) | {note["id"] for note in read_notes(folder)}
    ids = [id for id in queue if id.partition("_")[0] in arrays]
    commands.cancel({id.partition("_")[0] for id in ids})
    return ids


# What `run_all.py doctor` asks of Slurm


def examine(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[str]:
    """Ask `sbatch --test-only` of each kind of job, by each request of a row.

    Where none is refused one node is asked by a job.
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
    is_refused = False
    with tempfile.TemporaryDirectory(
        prefix=".doctor-", dir=runs.resolve(), ignore_cleanup_errors=True
    ) as folder:
        for request in requests:
            for kind in KINDS:
                parameters = request.list_parameters(kind, budget_units)
                script = commands.write_script(Path(folder), parameters, "true")
                try:
                    commands.ask("sbatch", "--test-only", str(script))
                    yield f"ok     a job to {kind} would be taken"
                except SlurmError as error:
                    is_refused = True
                    cure = _name_cure(str(error), kind)
                    yield f"wrong  a job to {kind} is refused ({error}): {cure}"
        if not is_refused:
            yield _check_node(of_suite, budget_units, Path(folder))


def _check_node(request: Slurm, budget_units: set[str], folder: Path) -> str:
    """Ask a node, by a job of one process, what torch finds there.

    Slurm itself ends a job that comes too late.
    """
    parameters = request.list_parameters("score", budget_units)
    parameters["time"] = ANSWER // 2
    python = request.resolve("score").python or shlex.quote(sys.executable)
    command = f"{python} -c {shlex.quote(PROBE)}"
    script = commands.write_script(folder, parameters, command)
    with contextlib.suppress(SlurmError):  # the answer says more
        commands.ask(
            "sbatch",
            "--wait",
            f"--deadline=now+{ANSWER}minutes",
            str(script),
            patience=60.0 * ANSWER,
        )
    lines: list[str] = []
    for log in folder.glob("*.out"):
        lines += log.read_text().splitlines()
    for line in lines:
        if SEES not in line:
            continue
        if "gres" in parameters and line.endswith(" 0 accelerators"):
            return f"wrong  {line}: look at its driver, and at torch's build for it"
        return f"ok     {line}"
    failure = f"gave no answer within {ANSWER} minutes, or before its job ended"
    if lines:
        failure = f"said {lines[-1]!r}"
    cure = "does it see this folder? see slurm.setup, slurm.python, slurm.partition"
    return f"wrong  a node {failure}: {cure}"


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
