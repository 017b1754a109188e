"""Which jobs under way a suite no longer wants: it was edited after they were submitted.

Wanted is what the suite, as it is now, would ask for: with the words of the present call, and with those of the calls
that submitted the jobs; and whatever a wanted job waits for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from benchmark.downstream.tasks import scored_stages
from benchmark.jobs.payloads import Measure
from benchmark.jobs.plan import data_key, measure_key, report_key, score_key
from benchmark.jobs.states import JobState
from benchmark.settings.command_line import chosen_in, settings_in
from benchmark.settings.load import parse_methods, parse_seeds
from benchmark.settings.names import label_of
from benchmark.settings.suite import RunConfig, Suite


@dataclass(frozen=True)
class Rest:
    """What a suite has besides the runs that a call is about; asked for where a job is for none of these.

    `runs` gives those of all rows with some seeds, of the suite's own without any; `measures` are those of its tables.
    """

    runs: Callable[[tuple[int, ...]], Sequence[RunConfig]]
    measures: Callable[[], Sequence[Measure]]


class Wants:
    """What a suite wants. `configs` are the runs of a call, `keys` those of a run's stages as plans know them."""

    def __init__(
        self, suite: Suite, configs: Sequence[RunConfig], keys: Callable[[RunConfig], Sequence[str]], rest: Rest
    ) -> None:
        self._suite, self._configs, self._keys = suite, configs, keys
        self._settings, self._chosen = settings_in(suite.called), chosen_in(suite.called)
        # a watch asks again and again
        self._runs, self._measures, self._is_ours = cache(rest.runs), cache(rest.measures), cache(self._is_of_settings)
        self._report = cache(self._report_of)

    def sort(self, known: Sequence[JobState]) -> tuple[list[JobState], list[JobState]]:
        """Jobs under way that nobody wants, and those of other settings; of what is known, in the order of submission.

        The latter were submitted with another `--set` or `--options`: whether these still want them is not known here.
        A bundle is wanted if one in it is. Not among them is what nobody here can ask about.
        """
        going = [job for job in known if job.under_way and not job.history.elsewhere]
        left = self._unwanted(going, self._configs)
        if not left:
            return [], []
        runs = self._asked_for(going)
        left = self._unshared(self._unwanted(left, runs), runs)
        others = [job for job in left if not self._is_ours(job.history.called)]
        stale = _without(left, {job.id for job in others})
        return self._with_their_waits(known, self._waited_for_by_none(going, stale)), others

    def _is_of_settings(self, called: str) -> bool:
        """Whether this call has the settings of another, whichever rows and seeds; files of old versions do not say."""
        return not called or settings_in(called) == self._settings

    def _asked_for(self, going: Iterable[JobState]) -> list[RunConfig]:
        """The runs that this call and those that have submitted jobs ask of the suite as it is now.

        All rows: of one that `--methods` left out there is no job. An old file does not say which seeds were named.
        """
        ours = [job for job in going if self._is_ours(job.history.called)]
        chosen = {chosen_in(called)[1] for called in {job.history.called for job in ours} if called}
        named = {parse_seeds(seeds) for seeds in chosen}
        of_old = {run for job in ours if not job.history.called for run in job.serves}
        if of_old:
            found = (re.search(r"-s(\d+)$", label_of(run)) for run in of_old)
            named.add(tuple(sorted({int(seed[1]) for seed in found if seed})))
        methods, seeds = self._chosen
        if not methods:
            named -= {parse_seeds(seeds)}  # they are those of this call
        every = [*self._configs, *(config for seeds in sorted(named) for config in self._runs(seeds))]
        return list({config.id: config for config in every}.values())

    def _unwanted(self, jobs: Sequence[JobState], runs: Iterable[RunConfig]) -> list[JobState]:
        """Jobs that are for none of these runs."""
        ids, texts = {run.id for run in runs}, {data_key(run) for run in runs}
        return _without(jobs, {job.id for job in jobs if self._is_for(job, ids, texts)})

    def _is_for(self, job: JobState, runs: Collection[str], texts: Collection[str]) -> bool:
        """Whether a job is for some of these runs and texts."""
        kind = job.key.partition("-")[0]
        if job.is_report:
            return job.key == "report" or self._report(job.history.called) == job.key  # an old one does not say what
        if not job.serves:
            return kind != "data" or job.key in texts
        if not job.run and kind in ("score", "similarity") and not self._is_made_today(job.key):
            return False
        return any(run in runs for run in job.serves)

    def _is_made_today(self, key: str) -> bool:
        """Whether a job scores a model on the tasks, or measures it by the measures, that the suite has."""
        kind, _, rest = key.partition("-")
        model = rest.rpartition("-")[0]
        return key == (score_key(self._suite, model) if kind == "score" else measure_key(self._measures(), model))

    def _report_of(self, called: str) -> str:
        """The key of the report that the suite, as it is now, has for such words."""
        if not self._is_ours(called):
            return ""
        methods, seeds = chosen = chosen_in(called)
        if chosen == self._chosen:
            return report_key(self._suite, self._configs)
        rows = parse_methods(methods)
        runs = [run for run in self._runs(parse_seeds(seeds)) if not rows or run.method in rows]
        return report_key(self._suite, runs)

    def _unshared(self, left: Sequence[JobState], runs: Iterable[RunConfig]) -> list[JobState]:
        """The jobs that train, score or measure no stage that these runs have too."""
        if all(job.run for job in left):
            return list(left)
        shared: set[str] = set()
        measures = self._measures() if any(job.key.startswith("similarity-") for job in left) else ()
        for run in runs:
            keys = self._keys(run)
            shared.update(f"stage-{key}" for key in keys)
            shared.update(score_key(self._suite, keys[stage]) for stage in scored_stages(self._suite, run))
            if measures:
                shared.add(measure_key(measures, keys[-1]))
        return _without(left, {job.id for job in left if job.key in shared})

    def _waited_for_by_none(self, going: Iterable[JobState], stale: Sequence[JobState]) -> list[JobState]:
        """The jobs that no other waits for; a report waits for all that there were, wanted or not."""
        apart = {job.id for job in stale}
        waits = {job.id: job.waits_for for job in going if not job.is_report}
        needed, new = set[str](), [id for job, before in waits.items() if job not in apart for id in before]
        while new:
            needed.update(new)
            new = [id for one in new for id in waits.get(one, ()) if id not in needed]
        return _without(stale, needed)

    def _with_their_waits(self, known: Sequence[JobState], stale: Sequence[JobState]) -> list[JobState]:
        """These jobs, and those that do nothing but wait in the place of a report among them."""
        apart, found, before = {job.id for job in stale}, list(stale), list[JobState]()
        for job in known:
            if job.key.startswith("wait-") and not job.serves:
                before.append(job)
            elif job.is_report:
                found += [one for one in before if one.under_way and job.id in apart]
                before = []
        return found


def _without(jobs: Iterable[JobState], ids: Collection[str]) -> list[JobState]:
    return [job for job in jobs if job.id not in ids]
