"""The scorecard: each of the paper's claims with its verdict on a study's runs, and the order of
the methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import scipy.stats

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
Judged = Sequence[tuple[str, Verdict]]  # each with its suite


def build_scorecard(study: Study, load: Callable[[str], Exhibit]) -> Table:
    """Verdicts on all claims about rows that the study has, a block a topic (and suite, where there
    are several).

    `load` gives the paper's tables by name.
    """
    papers = {part.suite: _convert_papers(part, load) for part in study.parts}
    ours = {part.suite: collect_measurements(part) for part in study.parts}
    judged = _judge(ours, papers)
    seeds = max((verdict.seeds for _, verdict in judged), default=0)
    if seeds < count_fewest_seeds(2 * len(judged) or 1):
        blocks = [
            Block(
                "",
                (
                    TableRow(
                        _describe_undecided(len(judged), seeds), tuple(Cell() for _ in COLUMNS)
                    ),
                ),
            )
        ]
        below = _describe_rules(ours, len(judged))[1:] if judged else []
    else:
        blocks, below = list(_list_blocks(study, ours, judged)), _describe_rules(ours, len(judged))
    if any(comparison.text_variance for _, verdict in judged for comparison in verdict.comparisons):
        below.append(
            "An interval of AP also holds the error that the choice of validation documents brings."
        )
    for part in study.parts:
        mine, theirs = ours[part.suite], papers[part.suite]
        below += _compare_order(mine, theirs["main_pretraining"], "AP", "", "final AP")
        below += _compare_order(
            mine, theirs["main_downstream"], "score", AVERAGE, "final average score"
        )
        tables = dict.fromkeys(
            verdict.claim.table for of, verdict in judged if of == part.suite and verdict.printed
        )
        below += _note_printed(part, load, tables)
    if not any(notes.note_tuning(part.runs) for part in study.parts):
        below.append("Options are the suite's own, not tuned.")
    if leaks := [note for part in study.parts for note in notes.note_leaks(part)]:
        clean = {part.suite: collect_measurements(part) for part in study.without_leaks.parts}
        below += [*leaks, *_note_other_verdicts(judged, _judge(clean, papers, len(judged)))]
    below += notes.collect_notes(study)
    columns = tuple(map(Column, COLUMNS))
    return Table(
        NAME,
        "table:scorecard",
        "The paper's findings on these runs.",
        "Claim",
        columns,
        tuple(blocks),
        tuple(below),
        (*notes.warn_of_counting(study), *notes.warn_of_baselines(study)),
    )


def _judge(
    ours: Mapping[str, Measurements],
    papers: Mapping[str, Mapping[str, Measurements]],
    least: int = 0,
) -> Judged:
    """The verdicts on all claims that suites have anything of; corrected for `least` claims, or for
    all if more.
    """
    compared = [
        (suite, (claim, comparisons, compare(claim, papers[suite][claim.table])))
        for suite in ours
        for claim in CLAIMS
        if (comparisons := compare(claim, ours[suite]))
    ]
    verdicts = judge([claim for _, claim in compared], max(0, least - len(compared)))
    return [(suite, verdict) for (suite, _), verdict in zip(compared, verdicts, strict=True)]


def _note_other_verdicts(judged: Judged, clean: Judged) -> list[str]:
    """Verdicts that are others without test examples that models have seen."""
    states = {(suite, now.claim): now.state for suite, now in clean}
    pairs = [(was, states.get((suite, was.claim), "not decidable")) for suite, was in judged]
    listed = "; ".join(
        f"{was.claim.text.rstrip('.')}: {now} instead of {was.state}"
        for was, now in pairs
        if now != was.state
    )
    return [f"Without leaked test examples: {listed}."] if listed else []


def _describe_undecided(claims: int, seeds: int) -> str:
    """The sentence in the place of all claims where none can be decided."""
    if not claims:
        return "No run has finished what a claim is about."
    have = "one seed" if seeds == 1 else f"{seeds} seeds"
    needed = count_fewest_seeds(2 * claims)
    return (
        f"None of {claims} claims can be decided with {have}; together they need at least {needed}."
    )


def _list_blocks(study: Study, ours: Mapping[str, Measurements], judged: Judged) -> Iterator[Block]:
    for part in study.parts:
        place = f"{describe_growth(part.runs[0])}: " if len(study.parts) > 1 else ""
        for topic in dict.fromkeys(claim.topic for claim in CLAIMS):
            chosen = [
                verdict
                for of, verdict in judged
                if of == part.suite and verdict.claim.topic == topic
            ]
            if chosen:
                yield Block(
                    place + topic, tuple(_make_row(verdict, ours[part.suite]) for verdict in chosen)
                )


def _make_row(verdict: Verdict, ours: Measurements) -> TableRow:
    comparison, metric = verdict.weakest, METRICS[verdict.claim.metric]
    state = f"{verdict.state}: {verdict.reason}" if verdict.reason else verdict.state
    from_ = verdict.decidable_from
    effect = ("--", "", "")
    if comparison.changes.size:
        shown = show_mean(comparison.changes, metric.show, comparison.text_variance)
        effect = (*shown, str(len(comparison.changes)))
    texts = (
        state,
        _name_comparison(comparison, ours),
        *effect,
        "" if verdict.reason else _format_p(verdict.p),
        "" if math.isnan(from_) else metric.show(from_).replace("+", "±"),
        metric.show(float(find_weakest(verdict.printed).changes.mean())) if verdict.printed else "",
    )
    return TableRow(verdict.claim.text, tuple(Cell(text=text) for text in texts))


def _name_comparison(comparison: Comparison, ours: Measurements) -> str:
    against = "" if comparison.other == ZERO else f" against {comparison.other}"
    task = {"": "", AVERAGE: ", average"}.get(
        comparison.column, f", {ours.tasks.get(comparison.column)} task"
    )
    return f"{comparison.row}{against} after {ours.stages[comparison.stage]}{task}"


def _format_p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _describe_rules(ours: Mapping[str, Measurements], claims: int) -> list[str]:
    """Notes on how the card decides, and what claims on the best row are about."""
    titles = dict.fromkeys(title for study in ours.values() for title in study.stages[1:])
    return [
        "Held: every comparison of the claim is significant. Not held: one is significantly the "
        "other way. Both are "
        f"corrected for all comparisons and {claims} claims, so that a card has a wrong verdict in "
        f"{'about' if claims == 1 else 'at most'} {ERRORS:.0%} of cases, if seeds are independent: "
        "what they "
        "share, such as an order of domains, a memory or a test text, is not covered "
        "(docs/statistics.md). Effect, "
        "interval and seeds are those of the weakest comparison, paired by pre-training seed and "
        "not corrected; Paper "
        "is the weakest one in the printed numbers. Decidable from: the true distance from the "
        "bound at which these "
        "seeds would have decided the weakest comparison, taken alone, with probability "
        f"{POWER:.0%}.",
        f"Claims on the best or lowest of all are judged against {', '.join(PAPER)}; after every "
        "domain or stage means "
        f"after {', '.join(titles)}.",
    ]


def _compare_order(
    ours: Measurements, theirs: Measurements, metric: str, column: str, words: str
) -> list[str]:
    """Kendall's tau between our order of the paper's methods and the printed one; nothing for less
    than three.
    """
    ends = [
        [side.get(Key(metric, make_slug(row), side.last, column)) for side in (ours, theirs)]
        for row in PAPER
    ]
    both = [(mine, printed[0]) for mine, printed in ends if mine and printed]
    seeds = sorted(set.intersection(*(set(mine) for mine, _ in both))) if len(both) > 2 else []
    if not seeds:
        return []
    printed = [value for _, value in both]
    taus = [
        scipy.stats.kendalltau([mine[seed] for mine, _ in both], printed).statistic
        for seed in seeds
    ]
    low, high = compute_interval(taus)
    between = "" if math.isnan(low) else f", 95% interval {max(low, -1):.2f} to {min(high, 1):.2f}"
    text = f"Order of {len(both)} methods by {words}: Kendall's τ with the paper's is {np.mean(taus):.2f}"
    over = f" (mean over {len(seeds)} seeds{between})" if len(seeds) > 1 else " (one seed)"
    return [(text + over + ".").replace("-", "−")]


def _convert_papers(part: Study, load: Callable[[str], Exhibit]) -> dict[str, Measurements]:
    """The printed numbers to hold a suite against, by table."""
    blocks = {
        table: _find_block(part, load, table)
        for table in dict.fromkeys(claim.table for claim in CLAIMS)
    }
    return {
        table: convert_printed(exhibit.printed, block) for table, (exhibit, block) in blocks.items()
    }


def _note_printed(part: Study, load: Callable[[str], Exhibit], tables: Iterable[str]) -> list[str]:
    """Whose numbers stand under "Paper" beside a suite that the paper prints none of, in these
    tables.
    """
    blocks = (_find_block(part, load, table) for table in tables)
    own = part.printed.get(part.suite, part.suite)
    others = " and ".join(
        dict.fromkeys(repr(exhibit.blocks[block]) for exhibit, block in blocks if block != own)
    )
    return (
        [f"Paper: where it prints nothing of {part.suite}, its numbers of {others} stand."]
        if others
        else []
    )


def _find_block(part: Study, load: Callable[[str], Exhibit], table: str) -> tuple[Exhibit, str]:
    """The table's printed block of a suite, else the first of its architecture: the paper's
    findings are of these.

    The paper's suites of other budgets have a table of their own.
    """
    own = part.printed.get(part.suite, part.suite)
    exhibit = next(
        (e for e in (load(table), load(table.replace("main", "budgets"))) if own in e.blocks),
        load(table),
    )
    architecture = part.runs[0].line.config["model"]["architecture"]
    alike = [
        own,
        *(block for block in exhibit.blocks if block.startswith(architecture[:3])),
        *exhibit.blocks,
    ]
    return exhibit, next(block for block in alike if block in exhibit.blocks)
