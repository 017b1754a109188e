"""What a suite will run and what it has run: the plan of --dry-run, and `status`. Reads records; trains nothing."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from benchmark import records
from benchmark.data.tokens import Corpus
from benchmark.jobs import job_files, slurm
from benchmark.jobs.job_files import Job, Task, graph
from benchmark.settings.config import RunConfig, Suite, digest, per_stage
from benchmark.settings.units import UNITS, duration
from benchmark.store import Store, recorded_stages
from benchmark.training.run import Build, corpus_if_prepared, stage_keys

UNPREPARED = "unprepared"  # stands for the corpus in stage keys that only have to differ or agree
FRESH = 60  # seconds in which a run in progress gives a sign of life, see `progress.Line`
FAILURES = ("FAILED", "OUT_OF_MEMORY")  # of a job, which are its own fault; all others are the cluster's or a user's


@dataclass(frozen=True)
class RunState:
    """Where a run stands. `state`: done, running, waiting, failed, interrupted, or todo (never started)."""

    config: RunConfig
    state: str
    detail: str
    stages_done: int
    prepared: bool  # its text is tokenised
    seconds: float = 0.0  # charged so far, shared stages included
    job: Job | None = None  # the last one
    restarts: int = 0  # how often it was preempted, stopped or lost and then went on
    keys: tuple[str, ...] = ()  # of its stages, as far as they are known


class Survey:
    """The states of a suite's runs, by what records, job files and Slurm say."""

    def __init__(self, suite: Suite, configs: Sequence[RunConfig], build: Build, store: Store) -> None:
        self.suite, self.configs, self.build, self.store = suite, configs, build, store
        corpora = {data_key(config): config for config in configs}
        self._corpora = {data: corpus_if_prepared(config, store) for data, config in corpora.items()}

    def states(self) -> list[RunState]:
        known = job_files.read(job_files.folder_of(self.store.root, self.suite.name))
        self.jobs = {job.key: job for job in known}  # the last one that did it
        self._starts = Counter({job.run: 0 for job in known})
        for job in known:
            self._starts[job.run] += len(job.starts)
        self.queue = _ask_slurm(slurm.queue) if known else {}
        left = [job.id for job in self.jobs.values() if job.id not in self.queue and not job.end]
        self._endings = _ask_slurm(lambda: slurm.endings(left))
        return [self._state(config) for config in self.configs]

    def under_way(self) -> bool:
        """Whether Slurm had a job of the suite when `states` was last asked for."""
        return any(job.id in self.queue for job in self.jobs.values())

    def failed_jobs(self) -> list[Job]:
        """Jobs that are no run, and ended with an error."""
        ended = [job for job in self.jobs.values() if not job.run and job.id not in self.queue and job.end]
        return [job for job in ended if job.end and job.end["state"] == "failed"]

    def _state(self, config: RunConfig) -> RunState:
        corpus = self._corpora[data_key(config)]
        keys = self._stage_keys(config, corpus)
        finished = 0
        while finished < len(keys) and self.store.stage_done(keys[finished]):
            finished += 1
        recorded = recorded_stages(config, self.store)
        seconds = sum(_charged(self.store, key) for key in keys)
        job = self.jobs.get(config.id)
        if finished == len(config.domains) and recorded == keys:
            state, detail = "done", ""
        else:
            so_far = f"{finished} of {len(config.domains)} stages done"
            state, detail = self._unfinished(config, job, so_far, keys[finished : finished + 1])
        restarts = max(0, self._starts.get(config.id, 0) - 1)
        return RunState(config, state, detail, finished, corpus is not None, seconds, job, restarts, tuple(keys))

    def _unfinished(self, config: RunConfig, job: Job | None, so_far: str, stage: list[str]) -> tuple[str, str]:
        queued = self.queue.get(job.id) if job else None
        path = self.store.run_file(config)
        lines = records.read(path) if path.exists() else []
        progress = _progress(self.store, config)
        if queued and queued.waits:
            return "waiting", f"{queued.reason}; {so_far}" if job and job.starts else queued.reason
        if queued:
            return "running", progress or "starting"
        if lines and lines[-1]["kind"] == "failed" and not (job and job.time > lines[-1]["time"]):
            return "failed", last_line(lines[-1]["error"])
        if job and job.end:
            state = "failed" if job.end["state"] == "failed" else "interrupted"
            return state, last_line(job.end.get("error", so_far))
        if job:
            how = self._endings.get(job.id, "sacct does not say how")
            return ("failed" if how in FAILURES else "interrupted"), f"ended without a word ({how}); {so_far}"
        if lines and any(is_locked(self.store.stage(key)) for key in stage):
            return "running", progress or so_far
        return ("interrupted", so_far) if lines else ("todo", "")

    def _stage_keys(self, config: RunConfig, corpus: Corpus | None) -> list[str]:
        """What the run consists of; without its text, what its records say."""
        if corpus is None:
            return recorded_stages(config, self.store)
        return stage_keys(config, self.build(config.method, config.options), corpus.key)


def to_train(states: Iterable[RunState], retry_failed: bool) -> list[RunState]:
    """The runs that `run` is to train: not those that are done or under way, and failed ones only when asked."""
    wanted = ("todo", "interrupted", "failed") if retry_failed else ("todo", "interrupted")
    return [state for state in states if state.state in wanted]


def tasks(states: Sequence[RunState], build: Build) -> list[Task]:
    """The training that these runs lack, what they share once and first."""
    done = {state.config.id: state.stages_done for state in states}
    runs = [(state.config, plan_keys(state.config, build)) for state in states]
    return graph(runs, lambda config, stage: done[config.id] > stage)


def plan_keys(config: RunConfig, build: Build) -> list[str]:
    """Stage keys that can be known before the text is tokenised: they agree where the real ones do."""
    return stage_keys(config, build(config.method, config.options), UNPREPARED)


def describe(
    suite: Suite,
    states: Sequence[RunState],
    build: Build,
    executor: str,
    retry_failed: bool,
    measures: Sequence[object] = (),
) -> str:
    """The text of --dry-run: the runs, the jobs if they go to Slurm, and the budget before and after sharing.

    `measures`: what looks into models after training, if anything does.
    """
    wanted = to_train(states, retry_failed)
    lines = [f"{suite.name}: {suite.title}"]
    for one in states:
        amounts = [per_stage(one.config.budget.amount, stage) for stage in range(len(one.config.domains))]
        stages = f"{one.stages_done} of {len(amounts)} stages done"
        budget = UNITS[one.config.budget.unit].text(sum(amounts))
        lines.append(f"  {one.config.row}, seed {one.config.seed}: {budget}; {one.state}, {stages}")
    if executor == "slurm" and wanted:
        lines += _describe_jobs(suite, wanted, build, bool(measures))
    missing = [pair for one in wanted for pair in _missing(one, build)]
    apart, shared = sum(amount for _, amount in missing), sum(dict(missing).values())
    unit = UNITS[states[0].config.budget.unit]
    gpus = suite.slurm.gpus if executor == "slurm" else 0
    lines.append(
        f"To train: {len(wanted)} of {len(states)} runs, {unit.text(apart, gpus)}. Stages that they share are "
        f"trained once: {unit.text(shared, gpus)}, which saves {unit.text(apart - shared, gpus)}"
    )
    return "\n".join(lines)


def _describe_jobs(suite: Suite, wanted: Sequence[RunState], build: Build, measured: bool) -> list[str]:
    units = {one.config.budget.unit for one in wanted}
    asked = suite.slurm.for_training(*units)
    shown = {key: value for key, value in asked.items() if value and key not in ("srun_args", "additional_parameters")}
    found = tasks(wanted, build)
    names = {task.key: task.name for task in found}
    prepare = [] if all(one.prepared for one in wanted) else [f"{suite.name}:prepare"]
    lines = [f"  jobs: {', '.join(f'{key} {value}' for key, value in shown.items())}"]
    lines += [f"    {name}" for name in prepare]
    for task in found:
        after = [names[task.after]] if task.after else prepare
        lines.append(f"    {task.name}" + (f" after {after[0]}" if after else ""))
    scored = "every stage" if suite.finetuning.stages == "every" else "the last stage"
    if suite.tasks:
        lines.append(f"    {suite.name}:score-... of each model after {scored}, if that was trained")
    if measured:
        lines.append(f"    {suite.name}:similarity-... of the models of each run, if all were trained")
    return [*lines, f"    {suite.name}:report after all of these"]


def _missing(one: RunState, build: Build) -> list[tuple[str, float]]:
    """(key, amount) of each stage that a run still needs."""
    keys = plan_keys(one.config, build)
    amounts = [per_stage(one.config.budget.amount, stage) for stage in range(len(keys))]
    return list(zip(keys, amounts, strict=True))[one.stages_done :]


def table(suite: Suite, states: Sequence[RunState], others: Sequence[str] = ()) -> str:
    """The text of `status`: a line a run, and what else has to be known."""
    rows = [("run", "state", "job", "node", "charged", "", "log")]
    for one in states:
        detail = one.detail + (f"; started again {one.restarts} times" if one.restarts else "")
        job, node, log = (one.job.id, one.job.node, one.job.log) if one.job else ("", "", "")
        rows.append((job_files.label(one.config), one.state, job, node, duration(one.seconds), detail, log))
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    counts = Counter(one.state for one in states)
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    return "\n".join([f"{suite.name}: {suite.title}: {len(states)} runs, {summary}", *lines, *others])


def notes(survey: Survey, states: Sequence[RunState]) -> list[str]:
    """What else `status` has to say: jobs that are no run, and hardware that makes wall times incomparable."""
    others = [job for job in survey.jobs.values() if not job.run and job.id in survey.queue]
    running = [job for job in others if not survey.queue[job.id].waits]
    found = [f"{job.name}  running  {job.id}  {survey.queue[job.id].node}" for job in running]
    if len(running) < len(others):
        found.append(f"{len(others) - len(running)} other jobs wait")
    for job in survey.failed_jobs():
        found.append(f"{job.name}  failed  {job.id}  {last_line((job.end or {})['error'])}; log {job.log}")
    return [*found, *different_hardware(survey.store, states)]


def different_hardware(store: Store, states: Sequence[RunState]) -> list[str]:
    """A warning if runs under a budget of wall time did not have the same machines to themselves."""
    rows: dict[str, list[str]] = {}
    for one in states:
        for key in recorded_stages(one.config, store) if UNITS[one.config.budget.unit].is_wall_time else []:
            for line in _stage_lines(store, key, "stage")[-1:]:
                machine = line["provenance"]["hardware"]
                name = f"{machine['count']} x {machine['device']}"
                name += " beside others" if machine.get("exclusive") is False else ""
                rows.setdefault(name, []).append(one.config.row)
    if len(rows) < 2:
        return []
    parts = [f"{name} ({', '.join(dict.fromkeys(labels))})" for name, labels in rows.items()]
    return [f"! wall times cannot be compared, hardware differs: {'; '.join(parts)}"]


def _charged(store: Store, key: str) -> float:
    """Seconds that a stage has taken so far."""
    ends = _stage_lines(store, key, "done") or _stage_lines(store, key, "evaluation")
    return float(ends[-1]["charged"]["seconds"]) if ends else 0.0


def _stage_lines(store: Store, key: str, kind: str) -> list[records.Record]:
    file = store.stage(key) / "records.jsonl"
    return [line for line in records.read(file) if line["kind"] == kind] if file.exists() else []


def is_locked(stage: Path) -> bool:
    """Whether a process trains this stage, or waits for it."""
    lock = filelock.FileLock(stage / "lock")
    try:
        with lock.acquire(timeout=0):
            return False
    except filelock.Timeout:
        return True


def _progress(store: Store, config: RunConfig) -> str:
    """What a run in progress said last, or nothing if that is long ago."""
    path = store.beacon(config)
    if not path.exists():
        return ""
    last = json.loads(path.read_text(encoding="utf-8"))
    if time.time() - last["time"] > FRESH:
        return ""
    return (
        f"stage {last['stage'] + 1} of {len(config.domains)}: {last['domain']}, {last['phase']}, "
        f"{last['fraction']:.0%}, {last['tokens_per_second']:,.0f} tokens/s"
    )


def data_key(config: RunConfig) -> str:
    """What a corpus is made from."""
    return f"data-{digest(config.model_dump(mode='json', include={'domains', 'tokenizer', 'data'}))}"


def _ask_slurm(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Without an answer there are still the records."""
    try:
        return question()
    except slurm.SlurmError as error:
        logging.warning("%s: what follows is from the records alone", error)
        return {}


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
