"""The scorecard: each of the paper's claims with its verdict on a study's runs, and the order of the methods."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from analysis import metrics
from analysis.claims import CLAIMS, PAPER
from analysis.exhibits import Exhibit, growth
from analysis.measurements import AVERAGE, LAST, Key, Measurements, as_printed, measured
from analysis.printed import slug
from analysis.study import Study
from analysis.tables import Block, Cell, Column, Table, TableRow
from analysis.verdicts import Verdict, judge

NAME = "scorecard"
COLUMNS = ("Verdict", "Effect", "95% interval", "Seeds", "Paper")


def scorecard(study: Study, exhibits: Mapping[str, Exhibit]) -> Table:
    """Verdicts on all claims about rows that the study has, a block a topic (and suite, where there are several).

    `exhibits`: all of the paper's tables, by name.
    """
    blocks, notes = [], []
    for suite in study.suites:
        ours = measured(study, suite)
        papers = {table: _paper(study, suite, exhibits, table) for table in {claim.table for claim in CLAIMS}}
        judged = [judge(claim, ours, papers[claim.table]) for claim in CLAIMS]
        place = f"{growth(study.of(suite)[0])}: " if len(study.suites) > 1 else ""
        for topic in dict.fromkeys(claim.topic for claim in CLAIMS):
            rows = [_row(verdict) for verdict in judged if verdict and verdict.claim.topic == topic]
            blocks += [Block(place + topic, tuple(rows))] if rows else []
        notes += [
            *_order(ours, papers["main_pretraining"], "AP", "", "final AP"),
            *_order(ours, papers["main_downstream"], "score", AVERAGE, "final average score"),
        ]
    notes.append(
        "A claim is as strong as its weakest comparison, whose mean over seeds is the effect: what the better row "
        "changes. Held: the 95% bootstrap interval over pre-training seeds is all on the claim's side. Not held: all "
        "on the other. Paper: the same effect in the printed numbers."
    )
    caption = "The paper's findings on these runs."
    return Table(NAME, "table:scorecard", caption, ("Claim",), tuple(map(Column, COLUMNS)), tuple(blocks), tuple(notes))


def _order(ours: Measurements, theirs: Measurements, metric: str, column: str, words: str) -> list[str]:
    """Kendall's tau between our order of the paper's methods and the printed one; nothing for less than three."""
    keys = [Key(metric, slug(row), LAST, column) for row in PAPER]
    both = [(ours.get(key), theirs.get(key)[0]) for key in keys if ours.get(key) and theirs.get(key)]
    seeds = sorted(set.intersection(*(set(mine) for mine, _ in both))) if len(both) > 2 else []
    if not seeds:
        return []
    values = np.array([[mine[seed] for mine, _ in both] for seed in seeds])
    printed = np.array([value for _, value in both])

    def taus(draws: np.ndarray, axis: int) -> np.ndarray:
        return np.array([metrics.kendall_tau(line, printed) for line in np.atleast_2d(draws.mean(axis))])

    low, high = metrics.bootstrap_interval(values, taus)
    interval = "" if math.isnan(low) else f", 95% interval {low:.2f} to {high:.2f}"
    text = (
        f"Order of {len(both)} methods by {words}: Kendall's τ with the paper's is {taus(values, 0)[0]:.2f}{interval}."
    )
    return [text.replace("-", "−")]


def _paper(study: Study, suite: str, exhibits: Mapping[str, Exhibit], table: str) -> Measurements:
    """The printed numbers to hold a suite against: the budget suites have tables of their own."""
    budgets = exhibits[table.replace("main", "budgets")]
    exhibit = budgets if suite in budgets.blocks and suite not in exhibits[table].blocks else exhibits[table]
    return as_printed(exhibit.printed, exhibit.printed_block(study, suite))


def _row(verdict: Verdict) -> TableRow:
    state = f"{verdict.state}: {verdict.reason}" if verdict.reason else verdict.state
    texts = (state, verdict.effect, verdict.interval, str(verdict.seeds or ""), verdict.printed)
    return TableRow((verdict.claim.text,), tuple(Cell(text=text) for text in texts))
