"""What claims are checked on: one value for each metric, row, stage, column and seed, ours or the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from analysis import metrics
from analysis.printed import PrintedValue
from analysis.study import Study
from benchmark.settings.names import slug

AVERAGE = "AVG"
LAST = -1
PROMPT_ROWS = {"none": "no prompt", "wrong": "wrong prompt", "right": "right prompt"}


class Key(NamedTuple):
    metric: str  # AP, AP⁺, area, score, positive, ARS, fall (of ARS), attention
    row: str  # its slug
    stage: int  # from 0
    column: str = ""  # a task's domain, or AVERAGE


@dataclass
class Measurements:
    """The values of one suite (or of one printed block), by seed. The paper's have the single seed 0.

    `stages` are what the stages are called, `tasks` the titles of the domains' tasks, by the domain's name.
    """

    stages: Sequence[str]
    tasks: Mapping[str, str]
    values: dict[Key, dict[int, float]] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The last stage, from 0."""
        return len(self.stages) - 1

    def get(self, key: Key) -> Mapping[int, float]:
        stage = self.last if key.stage == LAST else key.stage
        return self.values.get(key._replace(stage=stage), {})

    def put(self, metric: str, row: str, stage: int, seed: int, value: float, column: str = "") -> None:
        self.values.setdefault(Key(metric, slug(row), stage, column), {})[seed] = value


def measured(study: Study, suite: str) -> Measurements:
    """All numbers of a suite's runs."""
    tasks = {domain["name"]: domain["title"] for domain in study.of(suite)[0].domains}
    found = Measurements(study.stage_titles(suite), tasks)
    ends = study.ends[study.ends["suite"] == suite]
    for row, stage, seed, ap, ap_plus in ends[["row", "stage", "seed", "ap", "ap_plus"]].itertuples(index=False):
        found.put("AP", row, stage, seed, ap)
        if stage:
            found.put("AP⁺", row, stage, seed, ap_plus)
    _put_areas(found, study, suite)
    _put_scores(found, study, suite)
    _put_products(found, study, suite)
    _put_similarities(found, study, suite)
    _put_failures(found, study, suite)
    return found


def as_printed(values: Iterable[PrintedValue], block: str) -> Measurements:
    """The paper's (corrected) numbers of one block of a table of perplexities or scores."""
    chosen = [(v, v.number.value) for v in values if v.block == block and v.stage]
    titles = {v.column: v.column for v, _ in chosen if v.column != AVERAGE}
    found = Measurements(list(titles), titles)
    for v, value in chosen:
        if value is not None:
            score = v.metric == "F1"
            row = PROMPT_ROWS.get(v.row, v.row)
            metric, column = ("score", v.column) if score else (v.metric, "")
            found.put(metric, row, int(v.stage) - 1, 0, value, column)
    return found


def _put_areas(found: Measurements, study: Study, suite: str) -> None:
    """Mean height of the AP curve from the second domain on, of runs that finished."""
    for (row, seed), curve in study.curves(suite).items():
        later = curve["stage"] > 0
        area = metrics.area_under_curve(curve["charged"][later], curve["ap"][later])
        found.put("area", row, found.last, seed, area)


def _put_scores(found: Measurements, study: Study, suite: str) -> None:
    """Mean over fine-tuning seeds in percent, and the average of all tasks; of each prompt under a row of its own."""
    scores = study.scores[study.scores["suite"] == suite]
    final = scores[scores["stage"] == found.last]
    with_prompts = final[final["row"].isin(_prompted(study, suite))]
    named = with_prompts.assign(row=with_prompts["prompt"].map(PROMPT_ROWS)).dropna(subset=["row"])
    for shown in (scores[scores["headline"]], named):
        means = shown.groupby(["row", "stage", "seed", "domain"])["test"].mean().mul(100).unstack("domain")
        means = means.reindex(columns=list(found.tasks))
        means[AVERAGE] = means.mean(axis=1, skipna=False)
        for (row, stage, seed), line in zip(means.index, means.to_dict("records"), strict=True):
            for column, value in line.items():
                if value == value:
                    found.put("score", row, stage, seed, value, str(column))


def _prompted(study: Study, suite: str) -> set[str]:
    """The rows whose models have domain prompts."""
    return set(study.scores.loc[(study.scores["suite"] == suite) & (study.scores["prompt"] == "right"), "row"])


def _put_failures(found: Measurements, study: Study, suite: str) -> None:
    """An infinite number for a run that failed, wherever another one has a number from that stage on.

    It must not be left out: what it was about cannot be decided.
    """
    places = {(key.metric, key.stage, key.column) for key in found.values}
    prompted = _prompted(study, suite)
    for run in study.of(suite):
        if run.failure:
            rows = [run.row, *(PROMPT_ROWS.values() if run.row in prompted else ())]
            for row, (metric, stage, column) in product(rows, places):
                if stage >= run.failure["stage"]:
                    found.put(metric, row, stage, run.seed, math.inf, column)


def _put_products(found: Measurements, study: Study, suite: str) -> None:
    """Share of A-GEM's steps whose gradient did not conflict with the memory's, in percent, over all stages."""
    for run in study.of(suite):
        last = {}
        for index, stage in enumerate(run.stages):
            for line in stage:
                if line["kind"] == "metrics" and (conflicts := line["values"].get("conflicts")) is not None:
                    counted = line["values"].get("steps")
                    last[index, line["phase"]] = (line["step"] if counted is None else counted, conflicts)
        steps = sum(steps for steps, _ in last.values())
        if steps:
            share = 100 * (1 - sum(steps * conflicts for steps, conflicts in last.values()) / steps)
            found.put("positive", run.row, found.last, run.seed, share)


def _put_similarities(found: Measurements, study: Study, suite: str) -> None:
    """ARS; how much it falls a stage, by least squares; how much more a head attends as its ancestor than as others."""
    ars = study.similarities[study.similarities["suite"] == suite].dropna(subset=["ars"])
    for row, stage, seed, value in ars[["row", "stage", "seed", "ars"]].itertuples(index=False):
        found.put("ARS", row, stage, seed, value)
    # of runs that have it after each stage; a line a stage, a column a run
    values = ars["ars"].astype(float).groupby([ars["stage"], ars["row"], ars["seed"]]).mean()
    whole = values.unstack(["row", "seed"]).dropna(axis=1)
    if whole.size and len(whole) == found.last > 1:
        slopes = np.polyfit(whole.index, whole, 1)[0]
        for (row, seed), slope in zip(whole.columns, slopes, strict=True):
            found.put("fall", row, found.last, seed, -slope)
    heads = study.attentions[study.attentions["suite"] == suite].dropna(subset=["own", "others"])
    for row, stage, seed, own, others in heads[["row", "stage", "seed", "own", "others"]].itertuples(index=False):
        found.put("attention", row, stage, seed, own - others)
