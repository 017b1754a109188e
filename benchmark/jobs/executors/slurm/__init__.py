"""Slurm: each wave is an array of jobs, by submitit, that waits for the one before, however that ends.

The suite's folder has a line for each submitted array, written under a lock; a later call leaves out work under way.
Nothing depends on the process that submitted. Units with resources of their own are an array of their own. An array has
as many tasks as the cluster allows, and a task as many runs as `runs_per_job`.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
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
from benchmark.files import naming, whole_folder
from benchmark.jobs import executors
from benchmark.jobs.executors import Executor, Finding, Job
from benchmark.jobs.executors.slurm import commands
from benchmark.jobs.executors.slurm.commands import Queued, Refusal, SlurmError
from benchmark.jobs.state import is_timed
from benchmark.jobs.waves import Plan, Wave, count_by_kind, drop_units
from benchmark.jobs.work import TRAINS, Kind, Unit
from benchmark.locks import Lease
from benchmark.settings.base import ConfigError
from benchmark.settings.slurm import KINDS, Slurm, find_section
from benchmark.settings.suite import RunConfig, Suite
from benchmark.store import Store

NAME = "slurm"
ORDER = get_args(Kind)
NOTES = "waves.jsonl"
PARTIAL = 3  # exit status
MOST_TASKS = 1000  # of an array, where the cluster takes so many: MaxArraySize is 1001 if a site does not set it
LIMITS = ("SubmitJob", "job submit limit", "job array specification", "MaxJobCount")  # in what sbatch says of too many
SILENT = "no answer"  # for how a job ended
ENDINGS = {  # in words; KIND is that of the job
    "CANCELLED": "its job was cancelled",
    "FAILED": "its job failed",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "its job needed more memory than it asked for: raise slurm.KIND.mem",
    "TIMEOUT": "its job could not save before its time limit: raise slurm.KIND.time",
}
UNENDED = ("", "PENDING", "RUNNING", "REQUEUED", "SUSPENDED")  # for sacct, of a job that has left the queue
LATE = 300.0  # seconds without a sign of life after which such a job is over
FAILURES = ("FAILED", "OUT_OF_MEMORY")  # of a job, which are its own fault; all others are the cluster's or a user's
UNSAID = ("setup", "teardown", "srun_args")  # in a dry run
CODE = ("benchmark", "methods", "analysis", "paper_tables")
ROOT = Path(__file__).parents[4]
ANSWER = 10  # minutes for a job of `doctor` to start and to answer, of which it may take the half
PROBE = """\
import socket
print(socket.gethostname(), flush=True)
import torch
print("torch", torch.__version__, torch.accelerator.device_count())
"""  # imports nothing of the project, which the node may not see
# A signal that comes before Python has a handler would end it; a shell lets it begin deaf, and submitit sets handlers.
DEAF = """sh -c 'trap "" USR2 TERM; exec "$0" "$@"'"""


def find_request(run: RunConfig, suite: Suite) -> Slurm:
    """What a job for a run asks for: what its row says, or else what the suite does."""
    return run.slurm or suite.slurm


def gpus(suite: Suite, run: RunConfig) -> float:
    return find_request(run, suite).of("train").gpus_of_a_run


def describe(plan: Plan) -> list[str]:
    """How many units `execute` would submit in how many jobs, and what these ask for."""
    check(plan)
    under_way = _find_units_under_way(jobs(plan.suite, plan.survey.store))
    waves = drop_units(plan.waves, under_way)
    if not waves:
        return []
    lines = [
        f"  to submit, each wave after the one before: {count_by_kind(unit for wave in waves for unit in wave.units)}"
    ]
    for wave in [*waves, plan.report]:
        for asked, units in _group_by_request(plan, wave):
            given = asked.parameters(wave.kind, {unit.config.budget.unit for unit in units})
            said = ", ".join(f"{key} {value}" for key, value in given.items() if value and key not in UNSAID)
            lines.append(f"  {wave.kind}: {len(_tasks(wave.kind, asked, units))} jobs, {said}")
            lines += [f"    {unit.name}" for unit in units]
    return lines + [f"  {len(under_way)} units are under way already"] * bool(under_way)


def check(plan: Plan) -> None:
    """Raises ConfigError for what cannot be submitted."""
    if plan.parallel is not None or plan.processes is not None:
        raise ConfigError(
            "--parallel and --processes are for one machine: on Slurm set slurm.array_parallelism, "
            "slurm.gpus_per_node or slurm.exclusive instead"
        )
    for state in plan.wanted:
        train, rows = find_request(state.config, plan.suite).of("train"), state.config.training.batch_size
        several = train.runs_per_job > 1 and train.processes > 1
        if several and is_timed(state.config) and train.takes_whole_nodes(state.config.budget.unit) is not True:
            raise ConfigError(
                f"slurm.exclusive = {json.dumps(train.exclusive)}: under a budget in seconds the {train.processes} "
                "runs at a time of a job need cores of their own: leave slurm.exclusive out, or set "
                "slurm.ntasks_per_node = 1"
            )
        if train.runs_per_job == 1 and rows % train.processes:
            raise ConfigError(
                f"training.batch_size {rows} cannot be split over {train.processes} processes ({train.nodes} nodes of "
                f"{train.processes_per_node}): change one of them"
            )


def execute(plan: Plan) -> int:
    """Submit missing work, and print its ids. When two calls come at once the second finds the first's jobs."""
    check(plan)
    folder = executors.notes(NAME, plan.suite, plan.survey.store)
    sent, left = list[str](), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with Lease(folder / "lock"):
            known = jobs(plan.suite, plan.survey.store, patient=False)
            waves = drop_units(plan.waves, _find_units_under_way(known))
            if waves or _lacks_report(plan, folder, known):
                submission = Submission(plan, folder, known, sent)
                left = sum(submission.submit(wave) for wave in [*waves, plan.report])
                if left:
                    print(f"! Slurm took no more: {left} units are left; `run` submits them ({submission.refusal})")
            else:
                print("nothing to submit: all is done or under way")
    except OSError as error:
        said = f"{', '.join(sent)} were submitted, and no more" if sent else "nothing was submitted"
        raise SlurmError(f"{error}: {said}; make room there, or repair it, and call `run` again") from None
    print(f"next: `python run_all.py status {plan.suite.called}` says how they do")
    return PARTIAL if left else 0


def _find_units_under_way(known: Sequence[Job]) -> set[str]:
    """The ids of units that a job does, or will do."""
    return {unit for job in known if job.is_under_way for unit in job.units}


def _lacks_report(plan: Plan, folder: Path, known: Sequence[Job]) -> bool:
    """Whether none was submitted after all else, as Slurm took no more, or the last came to nothing."""
    notes, again = read_notes(folder), ("interrupted", *["failed"] * plan.retry_failed)
    lost = any(job.kind == "report" and job.state in again for job in known)
    return lost or bool(notes and notes[-1]["kind"] != "report")


def _group_by_request(plan: Plan, wave: Wave) -> list[tuple[Slurm, list[Unit]]]:
    """The units of a wave by what they ask for."""
    groups: dict[Slurm, list[Unit]] = defaultdict(list)
    for unit in wave.units:
        of_suite = wave.kind in ("prepare", "report")
        groups[plan.suite.slurm if of_suite else find_request(unit.config, plan.suite)].append(unit)
    return list(groups.items())


def _tasks(kind: Kind, asked: Slurm, units: Sequence[Unit]) -> list[tuple[Unit, ...]]:
    """What each job does: several units where they train and the suite says so."""
    size = asked.of("train").runs_per_job if kind in TRAINS else 1
    return [tuple(units[start : start + size]) for start in range(0, len(units), size)]


class Submission:
    """Submits waves, each after the one before and work under way of its kind or of earlier ones."""

    def __init__(self, plan: Plan, folder: Path, known: Sequence[Job], sent: list[str]) -> None:
        self.plan, self.folder, self.known = plan, folder, [job for job in known if job.is_under_way]
        self.refusal = ""
        self._sent, self._before = sent, list[str]()
        self._largest = MOST_TASKS
        self._logs = folder / getpass.getuser()
        _make_own(self._logs)
        self._code = snapshot(plan.runs / "code")

    def submit(self, wave: Wave) -> int:
        """Submit a wave as arrays, or what the cluster takes of it. Returns how many units are left."""
        earlier = [job for job in self.known if ORDER.index(job.kind) < ORDER.index(wave.kind)]
        after = dict.fromkeys([*(job.id.partition("_")[0] for job in earlier), *self._before])
        sent, left = len(self._sent), 0
        for asked, units in _group_by_request(self.plan, wave):
            tasks = _tasks(wave.kind, asked, units)
            while tasks and not self.refusal:
                piece = tasks[: self._largest]
                if self._send(wave.kind, asked, piece, [*after]):
                    tasks = tasks[len(piece) :]
            left += sum(map(len, tasks))
        self._before = self._sent[sent:] or self._before
        return left

    def _send(self, kind: Kind, asked: Slurm, tasks: Sequence[tuple[Unit, ...]], after: Sequence[str]) -> bool:
        """Submit an array, or where it is one task a job. Returns whether Slurm takes it, or no more, or fewer.

        Raises SlurmError where it takes nothing at all.
        """
        from benchmark.jobs.executors.slurm.job import Task  # torch, for which who asks for states need not wait

        parameters = asked.parameters(kind, {unit.config.budget.unit for task in tasks for unit in task})
        own, exclusive = asked.of(kind), parameters.get("exclusive", False)
        many = own.processes if kind in TRAINS and own.runs_per_job > 1 else 0
        rest = ("gres" in parameters, exclusive, many)
        parameters["job_name"] = f"{self.plan.suite.name}:{kind}"
        parameters |= {"dependency": f"afterany:{':'.join(after)}"} if after else {}
        code = shlex.quote(str(self._code))
        find_code = [f"cd {code}", f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}"]
        parameters["setup"] = [*parameters["setup"], *find_code]
        python = f"{DEAF} {own.python or shlex.quote(sys.executable)}"
        try:
            array = commands.submit(
                self._logs, python, parameters, Task.__call__, [Task(task, *rest) for task in tasks]
            )
        except Refusal as error:
            if len(tasks) > 1 and any(limit in str(error) for limit in LIMITS):
                self._largest = -(-len(tasks) // 2)
                return False
            self.refusal = str(error)
            if not self._sent:
                raise SlurmError(f"Slurm refused the jobs, and none is submitted: {self.refusal}") from None
            return False
        _write_note(self.folder, array, kind, [[unit.id for unit in task] for task in tasks])
        self._sent.append(array)
        waits = f"  after {', '.join(after[:3])}" if after else ""
        print(f"{array}  {kind}: {len(tasks)} jobs ({tasks[0][0].name}, ...){waits}")
        return True


def _write_note(folder: Path, array: str, kind: Kind, units: Sequence[Sequence[str]]) -> None:
    """Write down what was submitted; whoever does so has the lock. What cannot be written down is cancelled."""
    line = {"id": array, "kind": kind, "user": getpass.getuser(), "time": time.time(), "units": units}
    notes = folder / NOTES
    size = notes.stat().st_size if notes.exists() else 0
    try:
        with naming(notes), open(notes, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError:
        commands.cancel([array])
        os.truncate(notes, size)
        raise


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """What was submitted, an array a line; without half a line, which somebody writes now."""
    lines = (folder / NOTES).read_text(encoding="utf-8").split("\n")[:-1] if (folder / NOTES).exists() else []
    return [json.loads(line) for line in lines]


def _make_own(folder: Path) -> None:
    """Make a folder from which jobs load pickles. Raises UserError where others can put something there."""
    folder.mkdir(mode=0o755, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            f"{folder} may be written by others, and jobs load pickles from there: look into it, then "
            f"`chmod go-w {folder}` if all of it is yours, else give another --runs"
        )


def snapshot(folder: Path) -> Path:
    """A copy of the code as it is now, for jobs that start later, or start again."""
    from benchmark.training.processes import COMMIT_FILE, code_version, commit

    copy = folder / code_version().replace("/", "_")
    if not copy.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), whole_folder(copy) as unfinished:
            try:
                for name in CODE:
                    shutil.copytree(ROOT / name, unfinished / name, ignore=shutil.ignore_patterns("__pycache__"))
            except shutil.Error as errors:  # it goes on to the end, and has one of each file
                raise OSError(errors.args[0][0][-1]) from None
            (unfinished / COMMIT_FILE).write_text(commit(), encoding="utf-8")
    return copy


def jobs(suite: Suite, store: Store, patient: bool = True) -> list[Job]:
    """The last job of each unit that has not done it; unknown, where it is `patient`, while Slurm does not answer.

    Raises SlurmError where it is not.
    """
    folder = executors.notes(NAME, suite, store)
    waves = {wave["id"]: wave for wave in read_notes(folder)}
    last: dict[str, tuple[str, int]] = {}  # the array and the task of each unit
    for wave in waves.values():
        last.update((unit, (wave["id"], number)) for number, task in enumerate(wave["units"]) for unit in task)
    units: dict[tuple[str, int], list[str]] = defaultdict(list)
    for unit, place in last.items():
        units[place].append(unit)
    ids = {place: f"{place[0]}_{place[1]}" if len(waves[place[0]]["units"]) > 1 else place[0] for place in units}
    try:
        queue = commands.queue({wave["user"] for wave in waves.values()}) if ids else {}
        gone = [id for id in ids.values() if id not in queue]
        ended = commands.endings(gone) if gone else {}
    except SlurmError as error:
        if not patient:
            raise
        logging.warning("%s: what follows is from the records alone", error)
        queue, ended = {}, dict.fromkeys(ids.values(), (SILENT, 0))
    jobs_of_suite = []
    for place, id in ids.items():
        wave, queued = waves[place[0]], queue.get(id)
        log = commands.find_log(folder / wave["user"], id)
        ending, restarts = ended.get(id, ("", 0))
        state, detail = _state_in_queue(queued) if queued else _state_after(ending, wave, log)
        node, restarts = (queued.node, queued.restarts) if queued else ("", restarts)
        job = Job(id, wave["kind"], tuple(units[place]), state, detail, wave["time"], str(log), node, restarts)
        jobs_of_suite += [job] if state != "done" else []
    return jobs_of_suite


def _state_in_queue(job: Queued) -> tuple[Any, str]:
    """The state of a job that has not ended, and why."""
    if job.waits:  # Slurm sets a time before which a job that is queued again does not begin
        return "waiting", "Slurm starts it again soon" if job.restarts and job.reason == "BeginTime" else job.reason
    return "running", job.state.lower() if job.state in ("SUSPENDED", "STOPPED") else ""


def _state_after(ending: str, wave: dict[str, Any], log: Path) -> tuple[Any, str]:
    """The state of a job that has left the queue, by what sacct says of it, and how it ended."""
    if ending in UNENDED:
        ending = commands.read_result(log) or ending
    if ending in ("COMPLETED", SILENT):
        return ("done", "") if ending == "COMPLETED" else ("unknown", "Slurm does not answer")
    if ending in UNENDED:  # sacct is late, has forgotten it, or knows nothing at all
        sign = log.stat().st_mtime if log.exists() else wave["time"]
        detail = "its job has left the queue, and sacct does not say how it ended"
        return "unknown" if time.time() - sign < LATE else "interrupted", detail
    said = ENDINGS.get(ending, f"its job ended ({ending})").replace("KIND", find_section(wave["kind"]))
    lines = log.read_text(errors="replace").splitlines() if ending in FAILURES and log.exists() else []
    last = [line for line in lines if line.strip() and not line.startswith(("srun: ", "slurmstepd: "))][-1:]
    return "failed" if ending in FAILURES else "interrupted", ": ".join([said, *last])


def cancel(suite: Suite, store: Store, dry_run: bool) -> list[str]:
    """End all jobs of the suite that this user has submitted; their ids. Raises SlurmError where Slurm is silent."""
    known = [job for job in jobs(suite, store, patient=False) if job.state in ("waiting", "running")]
    mine = [job.id for job in known if Path(job.log).parent.name == getpass.getuser()]
    if not dry_run:
        commands.cancel(dict.fromkeys(id.partition("_")[0] for id in mine))
    return mine


# What `run_all.py doctor` asks of Slurm


def examine(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[Finding]:
    """Ask `sbatch --test-only` of each kind of job, by each request of a row, and then one node by a job."""
    if not shutil.which("sbatch"):
        yield Finding("no sbatch here: runs train on this machine; for a cluster call this where jobs are submitted")
        return
    units = {config.budget.unit for config in configs}
    try:
        yield Finding(commands.ask("sbatch", "--version").strip())
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=runs.resolve(), ignore_cleanup_errors=True) as folder:
            for asked in {suite.slurm, *(find_request(config, suite) for config in configs)}:
                for kind in KINDS:
                    yield _check_request(kind, asked.parameters(kind, units), Path(folder))
            yield _check_node(suite.slurm, units, Path(folder))
    except SlurmError as error:
        yield Finding(str(error), "no job can be submitted before this is right")


def _check_request(kind: str, parameters: dict[str, Any], folder: Path) -> Finding:
    try:
        commands.ask("sbatch", "--test-only", str(commands.write_script(folder, parameters, "true")))
    except SlurmError as error:
        return Finding(f"a job to {kind} is refused ({error})", "change what [slurm] asks for")
    return Finding(f"a job to {kind} would be taken")


def _check_node(asked: Slurm, units: set[str], folder: Path) -> Finding:
    """Ask a node, by a job of one process, what torch finds there; Slurm itself ends one that comes too late."""
    parameters = {**asked.parameters("score", units), "time": ANSWER // 2}
    python = asked.of("score").python or shlex.quote(sys.executable)
    script = commands.write_script(folder, parameters, f"{python} -c {shlex.quote(PROBE)}")
    with contextlib.suppress(SlurmError):  # the answer says more
        commands.ask("sbatch", "--wait", f"--deadline=now+{ANSWER}minutes", str(script), patience=60.0 * ANSWER)
    lines = [line for log in folder.glob(commands.find_log(folder, "*").name) for line in log.read_text().splitlines()]
    if not lines:
        cure = "do nodes see this folder? see slurm.setup, slurm.python, slurm.partition"
        return Finding(f"no node gave an answer within {ANSWER} minutes, or before its job ended", cure)
    node, (word, *facts) = lines[0], lines[-1].split()
    if word != "torch":
        return Finding(f"{node}: torch cannot be imported ({lines[-1]})", "see slurm.setup and slurm.python")
    lacks = "gres" in parameters and facts[1] == "0"
    cure = "look at its driver, and at torch's build for it" if lacks else ""
    return Finding(f"{node}: sees this folder, and has torch {facts[0]}, {facts[1]} accelerators", cure)


EXECUTOR = Executor(describe, execute, gpus, jobs, cancel, examine)
