"""Where a suite's runs stand, by their records and by what executors say of their jobs. It trains nothing."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filelock

from benchmark import records
from benchmark.data.run_corpus import corpus_if_prepared
from benchmark.data.tokens import Corpus
from benchmark.jobs import executors
from benchmark.jobs.plan import data_key
from benchmark.jobs.states import JobState, RunState, Trained
from benchmark.settings.config import RunConfig, Suite
from benchmark.store import Heartbeat, Store, recorded_stages
from benchmark.training.method import Build
from benchmark.training.stage_keys import check_memory_shares, stage_keys

FRESH = 60  # seconds in which a run in progress gives a sign of life, see `benchmark.training.progress`


class Survey:
    """The states of a suite's runs. `jobs` are the last ones that did each thing, by their keys.

    Raises ConfigError for a run whose batches cannot hold the share of memory that its method asks for.
    """

    def __init__(self, suite: Suite, configs: Sequence[RunConfig], build: Build, store: Store) -> None:
        self.suite, self.configs, self.build, self.store = suite, configs, build, store
        self.jobs: dict[str, JobState] = {}
        self._starts: dict[str | None, int] = {}
        for config in configs:
            check_memory_shares(config, build(config.method, config.options))
        corpora = {data_key(config): config for config in configs}
        self._corpora = {data: corpus_if_prepared(config, store) for data, config in corpora.items()}

    def states(self) -> list[RunState]:
        """The state of each run now."""
        known = [job for executor in executors.of(self.suite, self.store) for job in executor.jobs()]
        self.jobs = {job.key: job for job in known}
        self._starts = {}
        for job in known:
            self._starts[job.run] = self._starts.get(job.run, 0) + len(job.history.nodes)
        return [self._state(config) for config in self.configs]

    def under_way(self) -> bool:
        """Whether a job of the suite was under way when `states` was last asked for."""
        return any(job.under_way for job in self.jobs.values())

    def failed_jobs(self) -> list[JobState]:
        """Jobs that are no run, and ended with an error."""
        return [job for job in self.jobs.values() if not job.run and job.state == "failed"]

    def _state(self, config: RunConfig) -> RunState:
        corpus = self._corpora[data_key(config)]
        keys, recorded = self._stage_keys(config, corpus), recorded_stages(config, self.store)
        done = 0
        while done < len(keys) and self.store.stage_done(keys[done]):
            done += 1
        trained = Trained(tuple(keys), done, sum(_charged(self.store, key) for key in keys), corpus is not None)
        if done == len(config.domains) and recorded == keys:
            found = RunState(config, "done", "", trained, self.jobs.get(config.id))
        else:
            found = self._unfinished(config, trained)
        return dataclasses.replace(found, restarts=max(0, self._starts.get(config.id, 0) - 1))

    def _unfinished(self, config: RunConfig, trained: Trained) -> RunState:
        job, so_far = self.jobs.get(config.id), f"{trained.stages} of {len(config.domains)} stages done"
        path = self.store.run_file(config)
        lines = records.read(path) if path.exists() else []
        failed = lines[-1] if lines and lines[-1]["kind"] == "failed" else None
        stage = trained.keys[trained.stages : trained.stages + 1]
        if job and job.state == "running":
            return RunState(config, "running", _progress(self.store, config) or "starting", trained, job)
        if job and job.state == "waiting":
            return RunState(config, "waiting", _join(job.detail, so_far), trained, job)
        if failed and not (job and job.history.submitted > failed["time"]):
            return RunState(config, "failed", failed["error"].strip().rpartition("\n")[2], trained, job)
        if job:  # one that is done has trained what the run was then
            state = "interrupted" if job.state == "done" else job.state
            return RunState(config, state, _join(job.detail, so_far), trained, job)
        if lines and any(is_locked(self.store.stage(key)) for key in stage):
            return RunState(config, "running", _progress(self.store, config) or so_far, trained)
        return RunState(config, "interrupted", so_far, trained) if lines else RunState(config, "todo", "", trained)

    def _stage_keys(self, config: RunConfig, corpus: Corpus | None) -> list[str]:
        """The keys of the run's stages; without its text, those that its records name."""
        if corpus is None:
            return recorded_stages(config, self.store)
        return stage_keys(config, self.build(config.method, config.options), corpus.texts)


def is_locked(stage: Path) -> bool:
    """Whether a process trains this stage, or waits for it."""
    lock = filelock.FileLock(stage / "lock")
    try:
        with lock.acquire(timeout=0):
            return False
    except filelock.Timeout:
        return True


def stage_lines(store: Store, key: str, kind: str) -> list[Any]:
    """The records of one kind of a stage; none if it has not started."""
    file = store.stage(key) / "records.jsonl"
    return [line for line in records.read(file) if line["kind"] == kind] if file.exists() else []


def _charged(store: Store, key: str) -> float:
    """Seconds that a stage has taken so far."""
    ends = stage_lines(store, key, "done") or stage_lines(store, key, "evaluation")
    return float(ends[-1]["charged"]["seconds"]) if ends else 0.0


def _progress(store: Store, config: RunConfig) -> str:
    """What a run in progress said last, or nothing if that is long ago."""
    path = store.heartbeat(config)
    if not path.exists():
        return ""
    last: Heartbeat = json.loads(path.read_text(encoding="utf-8"))
    if time.time() - last["time"] > FRESH:
        return ""
    return (
        f"stage {last['stage'] + 1} of {len(config.domains)}: {last['domain']}, {last['phase']}, "
        f"{last['fraction']:.0%}, {last['tokens_per_second']:,.0f} tokens/s"
    )


def _join(*parts: str) -> str:
    return "; ".join(filter(None, parts))
