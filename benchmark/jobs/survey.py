"""Where a suite's runs stand, by their records and by what executors say of their jobs. It trains nothing."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from itertools import takewhile

from benchmark.data.tokens import Corpus, corpus_if_prepared
from benchmark.jobs import executors
from benchmark.jobs.known_stages import KnownStage, read_stage
from benchmark.jobs.plan import data_key, plan_keys
from benchmark.jobs.scored import Known, scored
from benchmark.jobs.stale import Rest, Wants
from benchmark.jobs.states import JobState, RecordedStage, RunState, Trained
from benchmark.jobs.wanted import is_wanted
from benchmark.locks import Lease
from benchmark.records import EndedLine, FailedLine, LineOfRun, RunLine, last, of_kind
from benchmark.settings.suite import RunConfig, Suite
from benchmark.settings.units import UNITS
from benchmark.store import Heartbeat, Store, read_heartbeat
from benchmark.training.keys import check_memory_shares, stage_keys
from benchmark.training.method import Build, once

PAUSE = 30.0  # seconds between two questions to executors
FRESH = 60  # seconds in which a run in progress gives a sign of life, see `benchmark.training.progress`


class Survey:
    """The states of a suite's runs. `jobs` are the last ones that did each thing, by their keys.

    `rest` is what the suite has besides these runs; without it no job counts as stale.

    Raises ConfigError for a run whose batches cannot hold the share of memory that its method asks for.
    """

    def __init__(
        self, suite: Suite, configs: Sequence[RunConfig], build: Build, store: Store, rest: Rest | None = None
    ) -> None:
        self.suite, self.configs, self.build, self.store = suite, configs, build, store
        self.jobs: dict[str, JobState] = {}
        self.asked = False  # whether an executor asked for them elsewhere
        self._asked_at = -math.inf
        self._known: list[JobState] = []
        self._stale: tuple[list[JobState], list[JobState]] | None = None
        self._starts: dict[str | None, int] = {}
        self._trains = False
        self._states: dict[str, RunState] = {}
        self._stages: dict[tuple[str, tuple[str, ...]], KnownStage] = {}
        self._scores: Known = {}
        self._begun: set[str] = set()
        self._begun_stages: set[str] = set()
        self._method = method = once(build)
        keys = lambda config: plan_keys(config, method)  # noqa: E731 - without `self`, which would be in a cycle
        self._wants = Wants(suite, configs, keys, rest) if rest else None
        for config in {(config.row, str(config.options)): config for config in configs}.values():  # seeds are alike
            check_memory_shares(config, self._method(config.method, config.options))
        self._made_from = [data_key(config) for config in configs]
        self._of_data = dict(zip(self._made_from, configs, strict=True))
        self._prepared: dict[str, Corpus] = {}

    def states(self, lately: bool = False) -> list[RunState]:
        """The state of each run now; of jobs, what executors said `lately` will do for who looks at it often."""
        self._stages, self._scores = {}, {}
        self._begun, self._begun_stages = self.store.begun_runs(self.suite.name), self.store.begun_stages()
        if not lately or time.monotonic() - self._asked_at > PAUSE:
            self._ask()
        for data, config in self._of_data.items():  # what is prepared stays so
            if data not in self._prepared and (corpus := corpus_if_prepared(config, self.store)):
                self._prepared[data] = corpus
        corpora = [self._prepared.get(data) for data in self._made_from]
        states = [self._state(*one) for one in zip(self.configs, corpora, strict=True)]
        self._trains = any(state.state == "running" for state in states)
        self._states = {state.config.id: state for state in states}
        return states

    def _ask(self) -> None:
        """Ask executors for their jobs."""
        everywhere = executors.of(self.suite, self.store)
        known = [job for one in everywhere for job in one.jobs()]
        self.jobs, self._known, self._stale = _last_of_each(known), known, None
        self.asked = any(one.asks for one in everywhere)
        self._starts = {}
        for job in known:
            self._starts[job.run] = self._starts.get(job.run, 0) + len(job.history.nodes)
        self._asked_at = time.monotonic()

    def under_way(self) -> bool:
        """Whether a job of the suite was under way at the last `states`, or a run trained here."""
        jobs = self.jobs.values()
        return self._trains or any(job.under_way and job.state != "held" and not job.history.elsewhere for job in jobs)

    def other_jobs(self, *states: str) -> list[JobState]:
        """Jobs in these states that end no run's training: they prepare, train what runs share, score, or report.

        Not those that do, or failed to do, what nobody wants any more.
        """
        stale = {job.id for job in self.stale_jobs()[0]}
        jobs = [job for job in self.jobs.values() if not job.run and job.state in states and job.id not in stale]
        return [job for job in jobs if job.under_way or is_wanted(job, self.suite, self._states, self._method)]

    def stale_jobs(self) -> tuple[list[JobState], list[JobState]]:
        """Jobs under way that the suite, as it is now, does not want; and those of calls with other settings."""
        if self._stale is None:
            self._stale = self._wants.sort(self._known) if self._wants else ([], [])
        return self._stale

    def stale(self, known: Sequence[JobState]) -> set[str]:
        """The ids of those of these jobs that the suite does not want."""
        return {job.id for job in self._wants.sort(known)[0]} if self._wants else set()

    def _state(self, config: RunConfig, corpus: Corpus | None) -> RunState:
        run, path = config.id, self.store.run_file(config)
        lines = self.store.run_lines(config) if path.name in self._begun else []
        told = last(lines, RunLine)
        recorded = told.stages if told else []
        keys = recorded  # without its text, those that its records name
        if corpus is not None:
            keys = stage_keys(config, self._method(config.method, config.options), corpus.texts)
        names = tuple(domain.name for domain in config.domains)
        stages = [self._stage(key, names[: index + 1]) for index, key in enumerate(keys)]
        done = sum(1 for _ in takewhile(lambda stage: stage.done, stages))
        finished = tuple(stage.finished for stage in stages[:done] if stage.finished)
        seconds = sum(stage.seconds for stage in stages)
        trained = Trained(tuple(keys), done, seconds, corpus is not None, finished)
        # a kill may come between the last stage's end and the run's
        if done == len(config.domains) and recorded == keys and of_kind(lines, EndedLine):
            found = RunState(config, "done", "", trained, self.jobs.get(run))
        else:
            found = self._unfinished(config, trained, lines, self.jobs.get(run))
        known = stages if keys == recorded else [self._stage(key, ()) for key in recorded]
        restarts, noted, trained = max(0, self._starts.get(run, 0) - 1), _noted(config, known), found.trained
        if self.suite.tasks:
            evaluated = [stage.evaluated for stage in stages]
            scores = scored(self.suite, found, self.store, evaluated, self._scores)
            trained = dataclasses.replace(trained, scored=scores)
        return dataclasses.replace(found, trained=trained, restarts=restarts, stages=noted)

    def _unfinished(
        self, config: RunConfig, trained: Trained, lines: Sequence[LineOfRun], job: JobState | None
    ) -> RunState:
        """`lines` are the run's own."""
        so_far = f"{trained.stages} of {len(config.domains)} stages done"
        failed = lines[-1] if lines and isinstance(lines[-1], FailedLine) else None
        stage = trained.keys[trained.stages : trained.stages + 1]
        if job and job.state == "running":
            return self._running(config, trained, so_far if job.detail else "starting", job)
        if job and job.under_way:
            if job.state == "unknown":
                trained, so_far = self._last_known(config, trained, so_far, job)
            return RunState(config, job.state, _join(job.detail, so_far), trained, job)
        if failed and not (job and job.history.submitted > failed.time):
            return RunState(config, "failed", failed.error.strip().rpartition("\n")[2], trained, job)
        if job:  # one that is done has trained what the run was then
            state = "interrupted" if job.state == "done" else job.state
            return RunState(config, state, _join(job.detail, so_far), trained, job)
        if lines and any(Lease(self.store.stage(key) / "lock").is_taken() for key in stage):
            return self._running(config, trained, so_far)
        return RunState(config, "interrupted", so_far, trained) if lines else RunState(config, "todo", "", trained)

    def _running(self, config: RunConfig, trained: Trained, otherwise: str, job: JobState | None = None) -> RunState:
        last, said = _heartbeat(self.store, config, FRESH), job.detail if job else ""
        if not last:
            otherwise = _join(said, otherwise, self._waits_for(trained, job))
            return RunState(config, "running", otherwise, trained, job)
        return RunState(config, "running", _join(said, _progress(last, config)), _with_a_part(trained, last), job)

    def _last_known(self, config: RunConfig, trained: Trained, otherwise: str, job: JobState) -> tuple[Trained, str]:
        """How far a run is of whose job nobody says anything: by its last sign of life, however long ago; in words."""
        last = _heartbeat(self.store, config, math.inf)
        if not last or last.stage != trained.stages:
            return trained, _join(otherwise, self._waits_for(trained, job))
        when = "" if _heartbeat(self.store, config, FRESH) else "last known: "
        return _with_a_part(trained, last), f"{when}{_progress(last, config)}"

    def _waits_for(self, trained: Trained, job: JobState | None) -> str:
        """Who has the next stage of a run, such as a job of another suite, and what ends that."""
        stage = trained.keys[trained.stages : trained.stages + 1]
        owner = Lease(self.store.stage(stage[0]) / "lock").owner() if stage else None
        if not owner or (job and owner.job == job.id) or owner.is_dead():
            return ""
        ends = f"`scancel {owner.job}`" if owner.job else f"`kill {owner.pid}` there"
        if not job:  # it may be the run's own process, which has just begun
            return f"its next stage is trained by {owner}; {ends} ends that"
        return f"waits for its next stage, which {owner} trains; {ends} ends that"

    def _stage(self, key: str, learned: tuple[str, ...]) -> KnownStage:
        """What is known of a stage, see `read_stage`; runs that share it ask once."""
        if (key, learned) not in self._stages:
            is_there = key in self._begun_stages
            self._stages[key, learned] = read_stage(self.store, key, learned) if is_there else KnownStage()
        return self._stages[key, learned]


def _last_of_each(known: Sequence[JobState]) -> dict[str, JobState]:
    """The last job of each key; of reports that are over only the last of all, which shows what those before did."""
    reports = [job for job in known if job.is_report]
    return {job.key: job for job in known if job.under_way or not job.is_report or job is reports[-1]}


def _heartbeat(store: Store, config: RunConfig, most: float) -> Heartbeat | None:
    """What a run said last, unless that is more seconds ago than `most`, or to come: then a clock was set back."""
    last = read_heartbeat(store.heartbeat(config))
    return last if last and 0 <= time.time() - last.time <= most else None


def _with_a_part(trained: Trained, last: Heartbeat) -> Trained:
    """What is trained, with what of the stage in progress is."""
    return dataclasses.replace(trained, fraction=last.fraction if last.stage == trained.stages else 0.0)


def _progress(last: Heartbeat, config: RunConfig) -> str:
    return (
        f"stage {last.stage + 1} of {len(config.domains)}: {last.domain}, {last.phase}, "
        f"{last.fraction:.0%}, {last.tokens_per_second:,.0f} tokens/s"
    )


def _noted(config: RunConfig, stages: Sequence[KnownStage]) -> tuple[RecordedStage, ...]:
    """The stages of a run that `status` may have a note on: where they spend wall time all that have begun."""
    found, all_of_them = [stage.recorded for stage in stages], UNITS[config.budget.unit].is_wall_time
    return tuple(one for one in found if one and (all_of_them or one.micro_batch_size))


def _join(*parts: str) -> str:
    return "; ".join(filter(None, parts))
