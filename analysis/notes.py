"""Footnotes so that a table misleads nobody: differences between rows, missing cells, failures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.study import (
    Study,
    average_by_domain,
    count_copies,
    find_header,
    find_other_texts,
    select_measure,
)
from analysis.tables import Block, format_number
from benchmark.records import DoneLine, find_last
from benchmark.settings.suite import describe_passes
from benchmark.settings.units import UNITS
from benchmark.store import ENOUGH_CORES, MEASURABLE, RunRecords

TOLERANCE = 0.02  # of the budget; one step too many at the end of a stage is no unfairness
NAMED = 6  # rows or stages in a note, of which some tables have many


def collect_notes(study: Study) -> list[str]:
    """The footnotes on a study's runs; none where all is equal and nothing failed."""
    lines = []
    for part in study.parts:
        titles = part.stage_titles
        notes = [
            *note_budget(part.stages),
            *note_unequal_budgets(part),
            *note_unequal_texts(part),
            *note_near_copies(part),
            *note_told_domains(part.runs),
            *note_differences(part.stages, "Hardware differs", ["hardware"]),
            *note_contended_stages(part.stages, titles),
            *note_changed_code(part.runs),
            *note_estimated_times(part.runs),
            *note_failures(part.runs, titles),
            *note_left_out_runs(part.runs),
            *note_tuning(part.runs),
            *note_passes(part.runs),
        ]
        lines += [f"{part.suite}: {note}" if study.parts[1:] else note for note in notes]
    return lines


def warn_of_counting(study: Study) -> list[str]:
    """Rows that predict text no better than the unigram distribution of its tokens."""
    lines = []
    for part in study.parts:
        worse = [
            f"{row} (AP {ap:,.2f} after {part.stage_titles[stage]}, unigrams {unigram:,.2f})"
            for row, stage, ap, unigram in part.above_unigram.itertuples(index=False)
        ]
        where = f"{part.suite}: " if study.parts[1:] else ""
        if worse:
            listed = _shorten(worse, ", ", "rows")
            lines.append(f"{where}Counting tokens predicts at least as well as {listed}.")
    return lines


def warn_of_baselines(study: Study) -> list[str]:
    """Baselines without a model that score at least as high as rows' final models, by task."""
    lines = []
    for part in study.parts:
        last = part.scores["stage"] == len(part.runs[0].domains) - 1
        final = part.scores[last & part.scores["headline"]]
        if final.empty:
            continue
        seeds = average_by_domain(final, ["row", "seed"])
        order = [row for row in dict.fromkeys(run.row for run in part.runs) if row in seeds.index]
        models = seeds.groupby("row").mean().loc[order]
        titles = part.tasks | {"": part.whole_task}
        where = f"{part.suite}: " if study.parts[1:] else ""
        for name, scores in part.measured_baselines.groupby("name", sort=False):
            baseline = average_by_domain(scores, ["seed"]).iloc[0]
            behind = {
                titles[task]: list(models.index[models[task] <= baseline[task]])
                for task in titles
                if task in models and task in baseline
            }
            every = [task for task, rows in behind.items() if len(rows) == len(models)]
            told = [f"all rows on {', '.join(every)}"] if every else []
            told += [
                f"{_shorten(rows, ', ', 'rows')} on {task}"
                for task, rows in behind.items()
                if rows and task not in every
            ]
            if told:
                lines.append(
                    f"{where}The baseline {name} scores at least as high as {'; '.join(told)}."
                )
    return lines


def note_passes(runs: Sequence[RunRecords]) -> list[str]:
    """Notes on how often the finished stages of runs read their domains, and how much of these the
    memory holds.
    """
    times: dict[str, list[float]] = {}
    held: dict[str, list[float]] = {}
    for run in runs:
        memory = run.line.config.get("data", {}).get("memory_tokens", 0)
        own = 1 - (run.line.config.get("replay") or {}).get("share", 0)  # of a batch
        for stage, domain in zip(run.stages[: run.finished], run.domains, strict=False):
            tokens, end = (
                find_header(stage).data.get(domain.name, {}).get("tokens"),
                find_last(stage, DoneLine),
            )
            if tokens and end and end.charged.get("tokens"):
                times.setdefault(domain.title, []).append(own * end.charged["tokens"] / tokens)
            if tokens and domain != run.domains[-1]:
                held.setdefault(domain.title, []).append(min(1, memory / tokens))
    return list(filter(None, [describe_passes(times, held)]))


def note_tuning(runs: Sequence[RunRecords]) -> list[str]:
    """Notes on how `run_all.py tune` chose the options of a suite's rows, where it did."""
    ways: dict[str, list[str]] = {}
    for run in runs:
        if way := run.line.config.get("tuned"):
            text = f"the best of {way['configurations']} configurations, whose search comes on top of the budget"
            ways.setdefault(text, []).append(run.row)
    if not ways:
        return []
    rows = {run.row for run in runs}
    parts = [
        text if {*of} == rows else f"{text} ({', '.join(dict.fromkeys(of))})"
        for text, of in ways.items()
    ]
    return [f"Options are tuned: {'; '.join(parts)}."]


def note_probes(study: Study) -> list[str]:
    """The perplexity of each probe, text that nothing is trained on, after the last domain; a mean
    over seeds.

    A start model's own comes first: a higher one was forgotten.
    """
    perplexities: dict[str, dict[str, list[float]]] = {}
    for part in study.parts:
        untouched = [(name, run, run.start) for name, runs in part.starts.items() for run in runs]
        trained = [
            (run.row, run, run.matrix[-1]) for run in part.runs if run.finished == len(run.domains)
        ]
        for label, run, measured in untouched + trained:
            for probe in run.line.probes:
                value = select_measure(measured, probe.name)
                if not np.isnan(value):  # of a text that nobody has measured it on yet
                    whose = f"{label} ({part.suite})" if study.parts[1:] else label
                    perplexities.setdefault(probe.title, {}).setdefault(whose, []).append(value)
    said = []
    for title, rows in perplexities.items():
        means = ", ".join(f"{row} {np.mean(values):.2f}" for row, values in rows.items())
        said.append(f"Probe {title}, perplexity after the last domain: {means}.")
    return said


def note_missing_cells(study: Study, blocks: Sequence[Block]) -> list[str]:
    """Say how the missing cells get filled."""
    commands = " or ".join(
        f"`python run_all.py run {study.called.get(suite, suite)}`" for suite in study.suites
    )
    is_missing = any(cell.missing for block in blocks for row in block.rows for cell in row.cells)
    return [f"-- is not measured yet; {commands} fills it in."] if is_missing else []


def note_budget(stages: pd.DataFrame) -> list[str]:
    """Whose seconds the budgets are, where they are not those that runs took."""
    return [
        f"Budgets are {UNITS[unit].amounts}: {UNITS[unit].meaning}. All other times are measured."
        for unit in stages["unit"].unique()
        if UNITS[unit].by_table
    ]


def note_unequal_budgets(part: Study) -> list[str]:
    """Rows whose charged amount in a stage is off the stage's median by more than TOLERANCE.

    Rows that spend the same sum in other stages have one note.
    """
    done, elsewhere = part.stages[part.stages["done"]], part.pooled - part.references
    means = (
        done[~done["row"].isin(elsewhere)]
        .groupby(["stage", "unit", "row"], sort=False)["charged"]
        .mean()
    )
    lines = []
    for (stage, unit), charged in means.groupby(["stage", "unit"], sort=False):
        typical = charged.median()
        off = charged[(charged / typical - 1).abs() > TOLERANCE]
        if len(off):
            name = UNITS[unit].amounts or unit
            who = [
                f"{row} {amount:.4g}" if amount > 1e-3 * typical else f"{row} 0"
                for (_, _, row), amount in off.items()
            ]
            shown = _shorten(who, ", ", "rows")
            lines.append(
                f"Budgets differ in stage {part.stage_titles[stage]}: typically {typical:.4g} "
                f"{name}, but {shown}."
            )
    if elsewhere:
        rows = [row for row in done["row"].unique() if row in elsewhere]
        lines.append(
            f"The same budget as others, but spent in other stages: {_shorten(rows, ', ', 'rows')}."
        )
    if done["unit"].nunique() > 1:
        lines.append(f"Budgets are in different units: {', '.join(sorted(done['unit'].unique()))}.")
    return lines


def _shorten(parts: Sequence[str], between: str, what: str) -> str:
    """The first NAMED of them, and how many others there are."""
    others = len(parts) - NAMED
    return between.join(parts[:NAMED]) + (f" and {others} other {what}" if others > 0 else "")


def note_unequal_texts(part: Study) -> list[str]:
    """Rows whose text, tokens or masks are not those of most rows, and in which domains and probes."""
    shared = part.on_most_texts
    rows_of: dict[tuple[str, ...], list[str]] = {}
    for run in part.runs if shared else ():
        if run.line.unigram and (titles := find_other_texts(run, shared[0])):
            rows_of.setdefault(tuple(titles), []).append(run.row)
    return [
        f"Texts differ in {_shorten(titles, ', ', 'texts')}: "
        f"{_shorten(list(dict.fromkeys(who)), ', ', 'rows')}. Their "
        f"text, tokens or masks are not those of {shared[0].row} and of a unigram row, so "
        "perplexities do not compare, "
        "bits per byte only where each token of a text is predicted, and nothing of these rows is "
        "marked, ranked or "
        "judged."
        for titles, who in rows_of.items()
    ]


def note_differences(stages: pd.DataFrame, what: str, columns: Sequence[str]) -> list[str]:
    """The rows by their value in the first of these columns, where any of them differs."""
    rows = stages.groupby([*columns], sort=False)["row"].unique().reset_index()
    parts = [f"{value} ({', '.join(names)})" for value, *_, names in rows.itertuples(index=False)]
    return [f"{what}: {'; '.join(parts)}."] if len(parts) > 1 else []


def note_leaks(part: Study) -> list[str]:
    """Tasks with test examples that stand in their train set."""
    lines = (line for run in part.runs for stage in run.scores for line in stage)
    leaks: dict[str, dict[str, int]] = {
        "the train set of their task": {},
        "the training text of the stream": {},
    }
    for line in lines:
        for counts, count in zip(leaks.values(), (line.leaks, line.in_stream), strict=True):
            counts |= {line.task: count} if count else {}
    counted = {
        where: ", ".join(f"{count} of {task}" for task, count in of.items())
        for where, of in leaks.items()
    }
    return [
        f"Test examples stand in {where}, too: {counts}."
        for where, counts in counted.items()
        if counts
    ]


def note_near_copies(part: Study) -> list[str]:
    """Domains and probes whose validation text stands nearly in training text."""
    counts = {}
    for run in part.runs:
        titles = {domain.name: domain.title for domain in (*run.line.domains, *run.line.probes)}
        for head in (find_header(stage) for stage in run.stages if stage):
            for name, info in head.data.items():
                for other, near in count_copies(head, name).items():
                    if name in titles:
                        whose = f" in that of {titles.get(other, other)}" if other != name else ""
                        counts[name, other] = (
                            f"{near:,} of {info['valid_documents']:,} documents of "
                            f"{titles[name]}{whose}"
                        )
    if not counts:
        return []
    shares = ", ".join(counts.values())
    final = note_without_copies(part, "the last domain", len(part.runs[0].domains) - 1)
    return [
        f"Validation text nearly stands in training text: {shares}.",
        *(
            [f"{note} Other numbers include them." for note in final]
            or ["No number without them is known."]
        ),
    ]


def note_without_copies(part: Study, title: str, stage: int) -> list[str]:
    """AP and AP⁺ after a stage less those documents, where known of all seeds; means over them."""
    ends, columns = (
        part.without_copies.ends,
        ["ap", "ap_plus"][: stage + 1],
    )  # the first stage has no AP⁺
    means = (
        ends[ends["stage"] == stage]
        .groupby("row", sort=False)[columns]
        .agg(lambda values: values.mean(skipna=False))
    )
    means = means.dropna(how="all")
    said = means.map(lambda value: format_number(value, 2)).where(means.notna(), "not known")
    listed = ", ".join(f"{row} {' and '.join(values)}" for row, *values in said.itertuples())
    of = "AP and AP⁺" if stage else "AP"
    return [f"{of} after {title} without near copies: {listed}."] if listed else []


def note_told_domains(runs: Sequence[RunRecords]) -> list[str]:
    """Rows whose models are told at evaluation which domain a text is of, where others are not."""
    told = list(dict.fromkeys(run.row for run in runs if run.reads_domain))
    return [f"Told each text's domain at evaluation: {', '.join(told)}."] if told else []


def note_changed_code(runs: Sequence[RunRecords]) -> list[str]:
    """Rows with stages that their methods trained with other code than today's, of the same version
    or an earlier.
    """
    notes = {
        "Methods' code has changed since, their `version` has not": [
            run.row for run in runs if run.other_code
        ],
        "Methods compute something else since": [run.row for run in runs if run.earlier],
    }
    return [
        f"{what}: {', '.join(dict.fromkeys(rows))}. Their numbers are of the old one."
        for what, rows in notes.items()
        if rows
    ]


def note_estimated_times(runs: Sequence[RunRecords]) -> list[str]:
    """Rows whose steps nobody has timed on the reference machine."""
    stages = ((run.row, find_header(stage)) for run in runs for stage in run.stages if stage)
    rows = list(dict.fromkeys(row for row, head in stages if head.budget.estimated))
    if not rows:
        return []
    return [
        f"Step times are estimated, not measured: {_shorten(rows, ', ', 'rows')}. A step takes its "
        "FLOPs over those of "
        "Naive's step, times Naive's time on the reference machine."
    ]


def note_contended_stages(stages: pd.DataFrame, titles: Sequence[str]) -> list[str]:
    """Stages that had less than ENOUGH_CORES of their cores, those that had least first."""
    slowed = stages[stages["cores"] < ENOUGH_CORES].sort_values("cores", kind="stable")
    where = [
        f"{row}, seed {seed}, in stage {titles[stage]} ({share:.0%})"
        for row, seed, stage, share in slowed[["row", "seed", "stage", "cores"]].itertuples(
            index=False
        )
    ]
    listed = _shorten(where, "; ", "stages")
    notes = [f"Other programs took cores, so wall times do not compare: {listed}."] if where else []
    timed = stages["unit"].map(lambda unit: UNITS[unit].is_wall_time) & stages["done"]
    short = timed & stages["cores"].isna() & (stages["seconds"] < MEASURABLE)
    if short.any():
        notes.append(
            f"Of {short.sum()} stages under {MEASURABLE:g} s it is not known whether other "
            "programs took cores."
        )
    return notes


def note_failures(runs: Sequence[RunRecords], titles: Sequence[str]) -> list[str]:
    """Runs that stopped with an error."""
    return [
        f"{run.row}, seed {run.seed}, failed in stage {titles[run.failure.stage]}: "
        f"{run.failure.error}"
        for run in runs
        if run.failure
    ]


def note_left_out_runs(runs: Sequence[RunRecords]) -> list[str]:
    """Runs whose records are not shown, by the reason."""
    reasons: dict[str, list[str]] = {}
    for run in runs:
        if run.why:
            reasons.setdefault(run.why, []).append(f"{run.row}, seed {run.seed}")
    return [
        f"Records are left out of {_shorten(left_out, '; ', 'runs')}: {why}."
        for why, left_out in reasons.items()
    ]
