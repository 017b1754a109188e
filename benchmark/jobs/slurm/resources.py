"""What jobs ask of the cluster: what the rows say that they are for, else what the suite says. No torch here."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from benchmark.jobs.plan import Plan, PlannedJob
from benchmark.settings.slurm_settings import Slurm
from benchmark.settings.suite import RunConfig, Suite

AS_GIVEN = ("srun_args", "additional_parameters")  # of these a dry run shows what the suite says, without our own
WCKEY = "#SBATCH --wckey=submitit\n"  # that submitit gives to jobs without one, which sites that track them refuse
Alike = tuple[list[PlannedJob], Mapping[str, Any]]  # jobs, and the parameters of submitit's executor for each of them


def asked_by(runs: Iterable[RunConfig], suite: Suite) -> Slurm:
    """What a job asks for that is for these runs: what all of their rows say, or else what the suite does."""
    said = {run.slurm or suite.slurm for run in runs}
    return said.pop() if len(said) == 1 else suite.slurm


def parameters_of(kind: str, asked: Slurm, units: Iterable[str]) -> Mapping[str, Any]:
    """Parameters of submitit's executor for a kind of job; `units` are those of the budgets that are trained under."""
    return asked.for_training(*units) if kind == "train" else asked.for_one_process(kind)


class Resources:
    """Says what each job of a plan asks for: one for rows that differ in it asks for what the suite does."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def of(self, job: PlannedJob) -> Slurm:
        """What a job asks for."""
        return asked_by((self._runs[key] for key in job.serves), self._plan.suite)

    def alike(self, jobs: Sequence[PlannedJob]) -> list[Alike]:
        """Jobs that ask for the same, in their order.

        Those come first that ask for what the suite does: they wait for none of the others, whose rows agree.
        """
        found: dict[tuple[str, Slurm], list[PlannedJob]] = defaultdict(list)
        for job in jobs:
            found[job.kind, self.of(job)].append(job)
        own = self._plan.suite.slurm
        ordered = sorted(found.items(), key=lambda item: item[0][1] != own)
        return [(group, parameters_of(kind, asked, self._units)) for (kind, asked), group in ordered]

    def told(self, jobs: Sequence[PlannedJob]) -> list[str]:
        """What each kind of job asks for, those together that ask for the same.

        And a line for each kind of job of rows that ask for something else, with that.
        """
        suite = self._plan.suite.slurm
        own = {kind: self._shown(kind, suite) for kind in dict.fromkeys(job.kind for job in jobs)}
        lines: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for job in jobs if any(config.slurm for config in self._plan.configs) else []:
            asked = self._shown(job.kind, self.of(job))
            more = {key: asked.get(key, "none") for key in {**own[job.kind], **asked}}
            if told := _listed({key: value for key, value in more.items() if value != own[job.kind].get(key)}):
                lines[job.kind, told] |= dict.fromkeys(self._runs[key].row for key in job.serves)
        found = [f"  jobs to {kind} {', '.join(rows)}: {told}" for (kind, told), rows in lines.items()]
        alike: list[tuple[dict[str, Any], list[str]]] = []
        for kind, asked in own.items():
            same = next((kinds for given, kinds in alike if given == asked), None)
            alike += [] if same else [(asked, [])]
            (same or alike[-1][1]).append(kind)
        return [*(f"  jobs to {', '.join(kinds)}: {_listed(given)}" for given, kinds in alike), *found]

    @cached_property
    def _runs(self) -> dict[str, RunConfig]:
        return {config.id: config for config in self._plan.configs}

    @cached_property
    def _units(self) -> set[str]:
        """The units of the budgets of the runs to train."""
        return {state.config.budget.unit for state in self._plan.wanted}

    def _shown(self, kind: str, asked: Slurm) -> dict[str, Any]:
        """What a dry run shows of a kind of job: options of sbatch, and what of the job is no option of it."""
        every = parameters_of(kind, asked, self._units)
        given = {key: value for key, value in every.items() if value and key not in AS_GIVEN}
        given |= asked.additional_parameters  # they win over the others
        if asked.srun_args:
            given["srun_args"] = shlex.join(asked.srun_args)
        if asked.python:
            given["python"] = asked.python
        if kind == "train" and asked.scratch:
            given["scratch"] = asked.scratch
        if kind == "train" and asked.runs_per_job > 1:
            given["runs_per_job"] = asked.runs_per_job
        return given


def _listed(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in given.items())
