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
from benchmark.jobs.executors.slurm.commands import Queued, Refusal, SlurmError
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
# how a job ended, by its state in Slurm's accounts; KIND is that of the job
ENDINGS = {
    "FAILED": ("failed", "its job failed"),
    "OUT_OF_MEMORY": ("failed", "raise slurm.KIND.mem, its job had no memory left"),
    "TIMEOUT": ("interrupted", "raise slurm.KIND.time, its job could not save before this limit"),
    "CANCELLED": ("interrupted", "its job was cancelled"),
}
# lost, preempted, or ended where nobody keeps accounts, or before they are written
OTHER = ("interrupted", "its job was ended")
FAILED_THERE = ("FAILED", "NODE_FAIL", "BOOT_FAIL")  # states of jobs of a bad node
# Slurm's words in a job's log where the accounts of the job say FAILED, or CANCELLED
OUT_OF_MEMORY = re.compile("^slurmstepd.*(oom.kill|exceeded memory limit)", re.MULTILINE)
NOT_OWN = ("srun: ", "slurmstepd", "submitit ")  # how lines that are no job's own begin, in its log
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
    submission.submit()
    for refusal in submission.refused:
        print(f"! Slurm refused {refusal}")
    if submission.refused:
        print("! not submitted: these, and what waits for them")
    if submission.sent:
        print(f"next: `python run_all.py status {plan.suite.called}` says how they do")
        return PARTIAL if submission.refused else 0
    print("nothing to submit: all is done, under way or failed")
    print(name_next_step(plan.survey, plan.survey.read_states()))  # others may have submitted
    return FAILED if plan.left_out else 0


def _group_by_request(plan: Plan, wave: Wave) -> ItemsView[Slurm, list[Unit]]:
    """The units of a wave by what they ask for."""
    is_of_suite = wave.kind in ("prepare", "report")
    groups: dict[Slurm, list[Unit]] = defaultdict(list)
    for unit in wave.units:
        sections = plan.suite.sections if is_of_suite else unit.config.sections
        groups[Slurm.read(sections)].append(unit)
    return groups.items()


def _divide(kind: Kind, request: Slurm, units: Sequence[Unit]) -> list[tuple[Unit, ...]]:
    """The units of each job: those of a run, or of several runs where the suite says so."""
    return group_by_run(units, request.resolve(kind).runs_per_job)


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
        self.refused: list[str] = []  # which jobs, and why
        self._is_full = False  # Slurm takes no more jobs
        self._arrays: dict[str, str] = {}  # kinds of those that others may wait for
        self._runs: dict[str, list[set[str]]] = {}  # by array, those that each job of it trains
        self._untrained: set[str] = set()  # runs whose jobs are refused

    def submit(self) -> None:
        """Submit what is missing and not under way, as far as Slurm takes it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with Lease(self.folder / "lock"):
            notes = read_notes(self.folder)
            queue = _ask_queue(notes)
            # sbatch did not say that it took them, and submitit did not give them their work
            commands.cancel(_find_tagged(self.folder, queue) - {note["id"] for note in notes})
            jobs = list_jobs(self.plan.suite, self.plan.survey.store, queue)
            waves = drop_under_way(self.plan.waves, jobs)
            if not (waves or _lacks_report(notes, jobs)):
                return
            # torch, for which who asks for states need not wait
            from benchmark.training.processes import copy_code

            self._logs = self.folder / getpass.getuser()
            make_own_folder(self._logs)
            self._code = copy_code(ROOT, CODE, self.plan.runs / "code")
            self._largest = commands.ask_largest_array()
            for job in jobs:
                if job.is_under_way and self.plan.needs(job):
                    self._arrays[job.id.partition("_")[0]] = job.kind
            for wave in waves:
                self._send_wave(wave)
            self._check_sent()
            # the new one waits for all that the report of an earlier call waits for
            name = self._name_jobs("report")
            commands.cancel(
                id for id, job in queue.items() if name in job.name and job.state == "waiting"
            )
            self._send_wave(self.plan.report)
            self._check_sent()

    def _check_sent(self) -> None:
        """Raises SlurmError where Slurm refused all that was sent."""
        if self.refused and not self.sent:
            raise SlurmError(f"nothing is submitted: Slurm refused {self.refused[0]}")

    def _send_wave(self, wave: Wave) -> None:
        """Submit arrays, after those of earlier kinds; what scores a run waits for this alone."""
        kind = wave.kind
        # stages may go on from those of the wave before
        order = ORDER.index(kind) + (kind in ("prepare", "stages"))
        earlier = [id for id, other in self._arrays.items() if ORDER.index(other) < order]
        for request, units in _group_by_request(self.plan, wave):
            if kind == "score":
                self._send_scores(request, units, earlier)
            else:
                self._send_all(kind, request, _divide(kind, request, units), earlier)

    def _send_scores(self, request: Slurm, units: Sequence[Unit], earlier: Sequence[str]) -> None:
        """Submit what scores runs, after the jobs that train these."""
        settled_runs = set(self._untrained)
        for array, jobs in self._runs.items():
            tasks = [tuple(unit for unit in units if unit.config.id in runs) for runs in jobs]
            self._send_all("score", request, [task for task in tasks if task], [array])
            settled_runs = settled_runs.union(*jobs)
        # runs that are trained, or that jobs of earlier calls train
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
        """Submit jobs with equal requests as arrays, as far as the cluster takes them."""
        # once it takes no more, what waits for these would begin without them
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
                return  # others may ask for what there is
            tasks = tasks[self._largest :]

    def _send(
        self,
        kind: Kind,
        request: Slurm,
        tasks: Sequence[tuple[Unit, ...]],
        dependencies: Sequence[str],
    ) -> None:
        """Submit an array that runs the copy of the code, or where it is one task a job.

        Raises Refusal where Slurm does not take it.
        """
        # torch, for which who asks for states need not wait
        from benchmark.jobs.executors.slurm.job import Task
        from benchmark.training.processes import Sources

        settings = request.resolve(kind)
        parameters = _list_parameters(kind, request, chain(*tasks))
        parameters["job_name"] = self._name_jobs(kind)
        if dependencies:
            parameters["dependency"] = f"afterany:{':'.join(dependencies)}"
            array = dependencies[0]
            # task i begins once task i of the training has succeeded, or all of it has ended
            if kind == "score" and len(self._runs.get(array, ())) == len(tasks) > 1:
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
            # an array that the disk does not take note of the next call ends, and sends again
            write_json(self.folder / f"{id}.json", {"id": id, **note})
        self.sent.append(id)
        self._arrays[id] = kind
        if kind == "train":
            self._runs[id] = [{unit.config.id for unit in task} for task in tasks]
        order = f"  after {', '.join(dependencies[:3])}" if dependencies else ""
        if len(dependencies) > 3:
            order += f" and {len(dependencies) - 3} more"
        print(f"{id}  {kind}: {_count_jobs(tasks)} ({tasks[0][0].name}, ...){order}")

    def _name_jobs(self, kind: Kind) -> str:
        return f"{self.plan.suite.name}:{kind}:{_make_tag(self.folder)}"


def _lacks_report(notes: Sequence[dict[str, Any]], jobs: Sequence[Job]) -> bool:
    """Whether the last report was submitted before other jobs, or came to nothing."""
    if any(note["kind"] != "report" for note in notes[-1:]):
        return True
    return any(job.kind == "report" and not job.is_under_way for job in jobs)


def _make_tag(folder: Path) -> str:
    """What is in the names of all jobs of this user whose notes are in a folder."""
    return digest([getpass.getuser(), str(folder.resolve())])


def _ask_queue(notes: Iterable[dict[str, Any]]) -> dict[str, Queued]:
    """The jobs of this user, and of those who wrote notes. Raises SlurmError."""
    return commands.ask_queue({getpass.getuser(), *(note["user"] for note in notes)})


def _find_tagged(folder: Path, queue: Mapping[str, Queued]) -> set[str]:
    """The arrays in the queue that this user's calls have submitted, noted or not."""
    tag = _make_tag(folder)
    return {id.partition("_")[0] for id, queued in queue.items() if tag in queued.name}


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
            queue = _ask_queue(notes.values())
        except SlurmError as error:
            logging.warning("%s: what follows is from the records alone", error)
            queue = dict.fromkeys(notes, Queued("unknown", "Slurm does not answer"))
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
    """How a job that is over and not done ended.

    It failed where it raised an exception, which submitit notes, or where Slurm's accounts say so.
    """
    node = account.node
    if log.exists():
        text = commands.read_log(log)
        word = account.state
        if commands.has_noted(log, b"error"):
            word = "FAILED"
        if OUT_OF_MEMORY.search(text):
            word = "OUT_OF_MEMORY"
        state, reason = ENDINGS.get(word, OTHER)
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
    """Ask a node, by a job of one process, what torch finds there.

    Slurm itself ends a job that comes too late.
    """
    parameters = request.list_parameters("score", ())
    parameters["time"] = ANSWER // 2
    python = request.resolve("score").python or shlex.quote(sys.executable)
    script = commands.write_script(folder, parameters, f"{python} -c {shlex.quote(PROBE)}")
    deadline = f"--deadline=now+{ANSWER}minutes"
    with contextlib.suppress(SlurmError):  # the answer says more
        commands.ask("sbatch", "--wait", deadline, str(script), patience=60.0 * ANSWER)
    lines = [f"nothing within {ANSWER} minutes, or before its job ended"]
    for log in folder.glob("*.out"):
        lines += log.read_text().splitlines()
    answer = ([line for line in lines if SEES in line] or lines)[-1]
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
