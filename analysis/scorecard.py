"""The scorecard: each of the paper's claims with its verdict on a study's runs.

A note below it says how close the order of the methods is to the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from analysis import notes
from analysis.claims import CLAIMS, PAPER, ZERO
from analysis.exhibits import AVERAGE, Exhibit, describe_growth
from analysis.inference import ERRORS, POWER, compute_interval, count_fewest_seeds, show_mean
from analysis.metrics import METRICS
from analysis.study import Study
from analysis.tables import Block, Cell, Column, Table, TableRow
from analysis.verdicts import (
    Comparison,
    Key,
    Measurements,
    Verdict,
    collect_measurements,
    compare,
    convert_printed,
    find_weakest,
    judge,
)
from benchmark.settings.names import make_slug

NAME = "scorecard"
COLUMNS = (
    "Verdict",
    "Weakest comparison",
    "Effect",
    "95% interval",
    "Seeds",
    "p",
    "Decidable from",
    "Paper",
)
Judged = Sequence[tuple[str, Verdict]]  # pairs of a suite and a verdict
Numbers = Mapping[str, Measurements]  # by suite, or by table of the paper
Load = Callable[[str], Exhibit]  # gives the paper's tables by name


def build_scorecard(study: Study, load: Load) -> Table:
    """Verdicts on all claims about rows that the study has.

    Each topic of each suite has a block. `load` gives the paper's tables by name.
    """
    papers = {part.suite: _convert_papers(part, load) for part in study.parts}
    numbers = {part.suite: collect_measurements(part) for part in study.parts}
    judged = _judge(numbers, papers)
    seeds = max((verdict.seeds for _, verdict in judged), default=0)
    if seeds < count_fewest_seeds(2 * len(judged) or 1):
        blocks = [_make_undecided_block(len(judged), seeds)]
        footnotes = []
    else:
        blocks = list(_list_blocks(study, numbers, judged))
        footnotes = _describe_rules(numbers, judged)
        if not any(notes.note_tuning(part.runs) for part in study.parts):
            footnotes.append("Options are the suite's own, not tuned.")
    for part in study.parts:
        sentences = _compare_orders(numbers[part.suite], papers[part.suite])
        if sentences:
            footnotes.append(" ".join(sentences))
    footnotes += notes.collect_notes(study)
    return Table(
        name=NAME,
        label="table:scorecard",
        caption="The paper's findings on these runs.",
        reading=(
            "The paper's numbers are those printed for the same suite, else for the first of its "
            "architecture."
        ),
        stub="Claim",
        columns=tuple(map(Column, COLUMNS)),
        blocks=tuple(blocks),
        notes=tuple(footnotes),
        warnings=(*notes.warn_of_counting(study), *notes.warn_of_baselines(study)),
    )


def _judge(numbers: Numbers, papers: Mapping[str, Numbers]) -> Judged:
    """The verdicts on all claims for which a suite has a measured comparison."""
    suites = []
    compared = []
    for suite, measured in numbers.items():
        for claim in CLAIMS:
            comparisons = compare(claim, measured)
            if comparisons:
                printed = compare(claim, papers[suite][claim.table])
                suites.append(suite)
                compared.append((claim, comparisons, printed))
    verdicts = judge(compared)
    return list(zip(suites, verdicts, strict=True))


def _make_undecided_block(claims: int, seeds: int) -> Block:
    """The block in place of all claims if none can be decided: a row that says so."""
    label = "No seed has finished two rows that a claim is about."
    if claims:
        present = "one seed" if seeds == 1 else f"{seeds} seeds"
        fewest = count_fewest_seeds(2 * claims)
        label = (
            f"None of {claims} claims can be decided with {present}. Together they need at least "
            f"{fewest}, such as --seeds {','.join(map(str, range(fewest)))}."
        )
    cells = tuple(Cell() for _ in COLUMNS)
    return Block("", (TableRow(label, cells),))


def _list_blocks(study: Study, numbers: Numbers, judged: Judged) -> Iterator[Block]:
    """The verdicts of each suite, a block per topic."""
    topics = dict.fromkeys(claim.topic for claim in CLAIMS)
    for part in study.parts:
        place = ""
        if len(study.parts) > 1:
            place = f"{describe_growth(part.runs)}: "
        verdicts = [verdict for suite, verdict in judged if suite == part.suite]
        for topic in topics:
            rows = [
                _make_row(verdict, numbers[part.suite])
                for verdict in verdicts
                if verdict.claim.topic == topic
            ]
            if rows:
                yield Block(place + topic, tuple(rows))


def _make_row(verdict: Verdict, numbers: Measurements) -> TableRow:
    """The line of a claim, with a text for each of COLUMNS."""
    comparison = verdict.weakest
    changes = comparison.changes
    metric = METRICS[verdict.claim.metric]
    state = f"{verdict.state}: {verdict.reason}" if verdict.reason else verdict.state
    effect = "--"
    interval = ""
    seeds = ""
    if changes.size:
        effect, interval = show_mean(changes, metric.show, comparison.text_variance)
        seeds = str(len(changes))
    distance = verdict.decidable_from
    printed = ""
    if verdict.printed:
        weakest = find_weakest(verdict.printed)
        printed = metric.show(float(weakest.changes.mean()))
    texts = (
        state,
        _name_comparison(comparison, numbers),
        effect,
        interval,
        seeds,
        "" if verdict.reason else _format_p(verdict.p),
        "" if math.isnan(distance) else metric.show(distance).replace("+", "±"),
        printed,
    )
    return TableRow(verdict.claim.text, tuple(Cell(text=text) for text in texts))


def _name_comparison(comparison: Comparison, numbers: Measurements) -> str:
    """A comparison in words: its rows, its stage, and its task."""
    against = "" if comparison.other == ZERO else f" against {comparison.other}"
    stage = numbers.stages[comparison.stage]
    column = comparison.column
    task = f", {numbers.tasks.get(column)} task" if column else ""
    if column == AVERAGE:
        task = ", average"
    return f"{comparison.row}{against} after {stage}{task}"


def _format_p(p: float) -> str:
    if p < 0.001:
        return "<0.001"
    return f"{p:.3f}"


def _describe_rules(numbers: Numbers, judged: Judged) -> list[str]:
    """Notes on how the scorecard decides, and with which rows claims on the best row compare."""
    claims = len(judged)
    stages = (stage for measured in numbers.values() for stage in measured.stages[1:])
    rules = [
        "Held: every comparison of the claim is significant. Not held: one is significantly the "
        "other way. Both are "
        f"corrected for all comparisons and {claims} claims, so that a card has a wrong verdict in "
        f"{'about' if claims == 1 else 'at most'} {ERRORS:.0%} of cases, if seeds are independent. "
        "What they share, such as an order of domains, a memory or a test text, is not covered "
        "(docs/statistics.md).",
        "Effect, interval and seeds are those of the weakest comparison, which has the largest p. "
        "It is paired by pre-training seed. The interval is not corrected, and "
        "p is. Paper is the weakest comparison in the printed numbers. Decidable from: the true "
        "distance from the bound at which these seeds would have decided the weakest comparison, "
        f"taken alone, with probability {POWER:.0%}.",
        f"Claims on the best or lowest of all are judged against {', '.join(PAPER)}. After every "
        f"domain or stage means after {', '.join(dict.fromkeys(stages))}.",
    ]
    comparisons = [comparison for _, verdict in judged for comparison in verdict.comparisons]
    if any(comparison.text_variance for comparison in comparisons):
        rules.append(
            "An interval of AP, and its p, also hold the error that the choice of validation "
            "documents brings."
        )
    return rules


def _compare_orders(numbers: Measurements, papers: Numbers) -> list[str]:
    """How close the order of methods is to the paper's, by AP and by downstream score."""
    ap = _compare_order(numbers, papers["main_pretraining"], "AP", "", "final AP")
    scores = papers["main_downstream"]
    return ap + _compare_order(numbers, scores, "score", AVERAGE, "final average score")


def _compare_order(
    numbers: Measurements, paper: Measurements, metric: str, column: str, words: str
) -> list[str]:
    """Kendall's tau between our order of the paper's methods and the printed one.

    Empty for fewer than three methods, or if no seed has all that are measured.
    """
    measured = {}
    printed = {}
    for row in PAPER:
        slug = make_slug(row)
        values = numbers.get(Key(metric, slug, numbers.last, column))
        paper_values = paper.get(Key(metric, slug, paper.last, column))
        if values and paper_values:
            measured[row] = values
            printed[row] = paper_values[0]  # the paper's only seed
    seeds = pd.DataFrame(measured).dropna()
    if len(measured) < 3 or seeds.empty:
        return []
    taus = seeds.corrwith(pd.Series(printed), axis="columns", method="kendall").to_numpy()
    low, high = compute_interval(taus)
    interval = ""
    if not math.isnan(low):
        interval = f", 95% interval {max(low, -1):.2f} to {min(high, 1):.2f}"
    tau = f"Kendall's τ with the paper's is {np.mean(taus):.2f}"
    seeds_in_words = f"mean over {len(seeds)} seeds{interval}" if len(seeds) > 1 else "one seed"
    order = f"Order by {words} of the {len(measured)} methods that the paper prints"
    text = f"{order}: {tau} ({seeds_in_words})."
    return [text.replace("-", "−")]


def _convert_papers(part: Study, load: Load) -> dict[str, Measurements]:
    """The printed numbers to compare a suite with, by table."""
    papers = {}
    for table in dict.fromkeys(claim.table for claim in CLAIMS):
        exhibit, block = _find_block(part, load, table)
        papers[table] = convert_printed(exhibit.printed, block)
    return papers


# by the paper's main table, the table of its suites with other budgets
OF_OTHER_BUDGETS = {
    "main_pretraining": "budgets_pretraining",
    "main_downstream": "budgets_downstream",
}


def _find_block(part: Study, load: Load, table: str) -> tuple[Exhibit, str]:
    """The table, and its printed block with which to compare a suite.

    It is the suite's own block, else the first of its architecture, because the paper's findings
    are about these. The paper's suites of other budgets have a table of their own.
    """
    own_block = part.printed.get(part.suite, part.suite)
    exhibit = load(table)
    budgets = OF_OTHER_BUDGETS.get(table)
    if budgets and own_block not in exhibit.suites and own_block in load(budgets).suites:
        exhibit = load(budgets)
    if own_block in exhibit.suites:
        return exhibit, own_block
    architecture = part.runs[0].line.config["model"]["architecture"]
    family = architecture.partition("_")[0]  # "bert" of bert_preln, as of the suite bert_base
    of_family = [block for block in exhibit.suites if block.partition("_")[0] == family]
    return exhibit, [*of_family, *exhibit.suites][0]
