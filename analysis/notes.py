"""Footnotes so that a table misleads nobody: differences between rows, missing cells, failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pandas as pd

from analysis.study import (
    ENOUGH_CORES,
    Study,
    average_by_domain,
    count_copies,
    count_leaks,
    find_header,
    find_other_texts,
)
from analysis.tables import Block
from benchmark.ledger.records import SECONDS_TO_MEASURE_CORES, StageDone, find_last
from benchmark.ledger.runs import RunRecords
from benchmark.settings.suite import describe_passes
from benchmark.settings.units import UNITS

TOLERANCE = 0.02  # of the budget: one step too many at the end of a stage is not unfair
NAMED = 6  # rows in a note at most, because some tables have many


def collect_notes(study: Study) -> list[str]:
    """The footnotes on a study's runs, none if all is equal and nothing failed.

    Tables of costs and perplexities also have those of `note_times`.
    """
    return note_suites(study, _collect_suite_notes)


def note_suites(study: Study, note: Callable[[Study], Iterable[str]]) -> list[str]:
    """The notes on each suite, which begin with its name if there are several suites."""
    lines = []
    for part in study.parts:
        where = f"{part.suite}: " if study.parts[1:] else ""
        lines += [f"{where}{line}" for line in note(part)]
    return lines


def _collect_suite_notes(part: Study) -> list[str]:
    titles = part.stage_titles
    return [
        *note_unequal_budgets(part),
        *note_unequal_texts(part),
        *note_told_domains(part.runs),
        *note_kept_copies(part),
        *note_fused_maps(part.runs),
        *note_differences(part.stages, "Hardware differs", "hardware"),
        *(note_contended_stages(part.stages, titles) if spends_seconds(part) else []),
        *note_changed_code(part.runs),
        *note_edited_code(part.stages),
        *note_differences(part.stages, "Packages differ", "packages"),
        *note_estimated_times(part.runs),
        *note_failures(part.runs, titles),
        *note_left_out_runs(part.runs),
        *note_tuning(part.runs),
    ]


def warn_of_counting(study: Study) -> list[str]:
    """Rows that predict text no better than the unigram distribution of its tokens."""

    def warn(part: Study) -> Iterator[str]:
        rows = []
        for row, stage, ap, unigram in part.above_unigram.itertuples(index=False):
            title = part.stage_titles[stage]
            rows.append(f"{row} (AP {ap:,.2f} after {title}, unigrams {unigram:,.2f})")
        if rows:
            yield f"Counting tokens predicts at least as well as {_shorten(rows)}."

    return note_suites(study, warn)


def warn_of_baselines(study: Study) -> list[str]:
    """Baselines without a model that score at least as high as rows' final models, by task."""

    def warn(part: Study) -> Iterator[str]:
        is_last = part.scores["stage"] == part.last_stage
        final = part.scores[is_last & part.scores["headline"]]
        if final.empty:
            return
        seeds = average_by_domain(final, ["row", "seed"])
        rows = dict.fromkeys(run.row for run in part.runs)
        order = [row for row in rows if row in seeds.index]
        models = seeds.groupby("row").mean().loc[order]
        titles = part.tasks | {"": part.whole_task}
        for name, scores in part.measured_baselines.groupby("name", sort=False):
            baseline = average_by_domain(scores, ["seed"]).iloc[0]
            phrases = _describe_rows_behind(models, baseline, titles)
            if phrases:
                listed = ", and ".join(phrases)
                yield f"The baseline {name} scores at least as high as {listed}."

    return note_suites(study, warn)


def group_names(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names that belong to each sentence, each once, in their order."""
    groups: dict[str, dict[str, None]] = {}
    for sentence, name in pairs:
        groups.setdefault(sentence, {})[name] = None
    return {sentence: list(names) for sentence, names in groups.items()}


def _describe_rows_behind(
    models: pd.DataFrame, baseline: pd.Series, titles: Mapping[str, str]
) -> list[str]:
    """Phrases with the rows that score no higher than a baseline, and the tasks on which they do.

    `models` has a line per row and a column per task. Tasks with the same rows share a phrase. If
    some are of all rows, their phrase comes first.
    """
    pairs = []
    for task, title in titles.items():
        if task in models and task in baseline:
            behind = models.index[models[task] <= baseline[task]]
            rows = "all rows" if len(behind) == len(models) else _shorten(list(behind))
            if len(behind):
                pairs.append((rows, title))
    pairs.sort(key=lambda pair: pair[0] != "all rows")
    return [f"{rows} on {', '.join(tasks)}" for rows, tasks in group_names(pairs).items()]


def spends_seconds(part: Study) -> bool:
    """Whether results depend on wall time, which other programs lengthen."""
    return any(UNITS[unit].is_wall_time for unit in part.stages["unit"].unique())


def note_passes(runs: Sequence[RunRecords]) -> list[str]:
    """Notes on how often stages read their domains, and how much of a domain the memory holds."""
    times = defaultdict[str, list[float]](list)
    held = defaultdict[str, list[float]](list)
    for run in runs:
        config = run.line.config
        memory = config.get("data", {}).get("memory_tokens", 0)
        share = 1 - (config.get("replay") or {}).get("share", 0)  # of a batch: the stage's domain
        for stage, domain in zip(run.stages[: run.finished], run.domains, strict=False):
            tokens = find_header(stage).data.get(domain.name, {}).get("tokens")
            if not tokens:
                continue
            end = find_last(stage, StageDone)
            charged = end.charged.get("tokens") if end else None
            if charged:
                times[domain.title].append(share * charged / tokens)
            if domain != run.domains[-1]:
                held[domain.title].append(min(1, memory / tokens))
    note = describe_passes(times, held)
    return [note] if note else []


def note_tuning(runs: Sequence[RunRecords]) -> list[str]:
    """Notes on how `run_all.py tune` chose the options of a suite's rows, if it did."""
    pairs = []
    for run in runs:
        way = run.line.config.get("tuned")
        if way:
            sentence = (
                f"Options are the best of {way['configurations']} configurations on the first "
                f"{way.get('domains', 2)} domains, whose search comes on top of the budget"
            )
            pairs.append((sentence, run.row))
    return _list_rows(pairs, runs=runs)


def note_missing_cells(study: Study, blocks: Sequence[Block]) -> list[str]:
    """Say how the missing cells get filled."""
    rows = [row for block in blocks for row in block.rows]
    if not any(cell.missing for row in rows for cell in row.cells):
        return []
    commands = []
    for suite in study.suites:
        name = study.command_arguments.get(suite, suite)
        commands.append(f"`python run_all.py run {name}`")
    return [f"-- is not measured yet. {' or '.join(commands)} fills it in."]


def note_times(
    study: Study, note_untimed: Callable[[Study], Sequence[str]] = lambda part: ()
) -> list[str]:
    """For each suite, a note if its budgets are in seconds of the reference machine.

    It also has what `note_untimed` says of runs that wall times leave out.
    """

    def note(part: Study) -> Iterator[str]:
        sentences = [
            f"Budgets are {UNITS[unit].full_name}: {UNITS[unit].meaning}. "
            "All other times are measured."
            for unit in part.stages["unit"].unique()
            if UNITS[unit].by_table
        ]
        sentences += note_untimed(part)
        if sentences:
            yield " ".join(sentences)

    return note_suites(study, note)


def note_unequal_budgets(part: Study) -> list[str]:
    """Rows whose charged amount in a stage is off the stage's median by more than TOLERANCE.

    Rows that spend the same sum in other stages have one note.
    """
    done = part.stages[part.stages["done"]]
    elsewhere = part.pooled - part.references
    compared = done[~done["row"].isin(elsewhere)]
    means = compared.groupby(["stage", "unit", "row"], sort=False)["charged"].mean()
    lines = []
    for (stage, unit), charged in means.groupby(["stage", "unit"], sort=False):
        typical = charged.median()
        off = charged[(charged / typical - 1).abs() > TOLERANCE]
        if off.empty:
            continue
        name = UNITS[unit].full_name or unit
        amounts = []
        for (_, _, row), amount in off.items():
            number = f"{amount:.4g}" if amount > 1e-3 * typical else "0"
            amounts.append(f"{row} {number}")
        lines.append(
            f"Budgets differ in stage {part.stage_titles[stage]}: typically {typical:.4g} "
            f"{name}, but {_shorten(amounts)}."
        )
    rows = [row for row in done["row"].unique() if row in elsewhere]
    if rows:
        lines.append(f"The same budget as others, but spent in other stages: {_shorten(rows)}.")
    if done["unit"].nunique() > 1:
        listed = ", ".join(sorted(done["unit"].unique()))
        lines.append(f"Budgets are in different units: {listed}.")
    return lines


def _shorten(parts: Sequence[str], separator: str = ", ", kind: str = "rows") -> str:
    """The first NAMED of some parts, and how many others there are."""
    text = separator.join(parts[:NAMED])
    rest = len(parts) - NAMED
    if rest > 0:
        return f"{text} and {rest} other {kind}"
    return text


def note_unequal_texts(part: Study) -> list[str]:
    """Rows whose text, tokens or masks are not those of most rows.

    A note says in which domains and probes they differ.
    """
    if not part.on_most_texts:
        return []
    shared = part.on_most_texts[0]
    pairs = []
    for run in part.runs:
        titles = find_other_texts(run, shared) if run.line.unigram else []
        if titles:
            pairs.append((_shorten(titles, kind="texts"), run.row))
    return [
        f"Texts differ in {texts}: {_shorten(rows)}. Their text, tokens or masks are not those of "
        f"{shared.row} and of a unigram row, so perplexities do not compare, bits per byte "
        "only where each token of a text is predicted, and nothing of these rows is marked, "
        "ranked or judged."
        for texts, rows in group_names(pairs).items()
    ]


def note_differences(stages: pd.DataFrame, title: str, column: str) -> list[str]:
    """The rows by their value in a column, if there is more than one value."""
    groups = group_names(zip(stages[column], stages["row"], strict=True))
    parts = [f"{value} ({_shorten(rows)})" for value, rows in groups.items()]
    return [f"{title}: {_shorten(parts, '; ', 'states')}."] if parts[1:] else []


def note_told_domains(runs: Sequence[RunRecords]) -> list[str]:
    """Rows whose models are told at evaluation which domain a text belongs to."""
    return _list_rows(
        ("Told each text's domain at evaluation", run.row) for run in runs if run.reads_domain
    )


def _list_rows(
    pairs: Iterable[tuple[str, str]], end: str = "", runs: Sequence[RunRecords] = ()
) -> list[str]:
    """A note for each sentence, with the rows for which it is true, followed by `end`.

    If they are all rows of `runs`, it says so.
    """
    all_rows = list(dict.fromkeys(run.row for run in runs))
    notes = []
    for sentence, rows in group_names(pairs).items():
        names = "all rows" if rows == all_rows else ", ".join(rows)
        notes.append(f"{sentence}: {names}.{end}")
    return notes


def note_fused_maps(runs: Sequence[RunRecords]) -> list[str]:
    """Rows whose Muon took matrices of several maps as one."""
    sentence = "Muon took matrices of several maps, such as fused query, key and value, as one"
    pairs = []
    for run in runs:
        training = run.line.config.get("training", {})
        # records that are older than the setting have such matrices
        is_whole = training.get("fused_maps", "whole") == "whole"
        if is_whole and training.get("optimizer") == "muon":
            pairs.append((sentence, run.row))
    return _list_rows(pairs, runs=runs)


def note_kept_copies(part: Study) -> list[str]:
    """How many validation documents and test examples have kept near copies in training text."""
    documents = count_copies(part)
    examples = count_leaks(part)
    if documents + examples == 0:
        return []
    return [
        "Near copies of training text are kept. "
        f"Validation documents: {documents:,}. Test examples: {examples:,}."
    ]


def note_changed_code(runs: Sequence[RunRecords]) -> list[str]:
    """Rows with stages that were trained with other code of their method than today's.

    The code was of the same version or of an earlier one.
    """
    changed = "Methods' code has changed since, their `version` has not"
    earlier = "Methods compute something else since"
    pairs = [(changed, run.row) for run in runs if run.other_code]
    pairs += [(earlier, run.row) for run in runs if run.earlier]
    return _list_rows(pairs, " Their numbers are of the old one.")


def note_edited_code(stages: pd.DataFrame) -> list[str]:
    """The states of the project's code that trained the stages, if there are several.

    If a record has a hash of the sources, only that counts, because commits may differ in other
    files.
    """
    states = stages["code"].map(lambda code: code.rpartition("+")[2])
    title = "The code that trains was edited in between"
    return note_differences(stages.assign(code=states), title, "code")


def note_estimated_times(runs: Sequence[RunRecords]) -> list[str]:
    """Rows whose steps nobody has timed on the reference machine."""
    headers = ((run.row, find_header(stage)) for run in runs for stage in run.stages if stage)
    rows = dict.fromkeys(row for row, header in headers if header.budget.estimated)
    if not rows:
        return []
    return [
        f"Step times are estimated, not measured: {_shorten(list(rows))}. "
        "A step takes its FLOPs over those of Naive's step, "
        "times Naive's time on the reference machine, at the nearest settings that were measured."
    ]


def note_contended_stages(stages: pd.DataFrame, titles: Sequence[str]) -> list[str]:
    """How many stages had less than ENOUGH_CORES of their cores, and which had least."""
    slowed = stages[stages["cores"] < ENOUGH_CORES]
    lines = []
    if len(slowed):
        least = slowed.loc[slowed["cores"].idxmin()]
        lines.append(
            f"Other programs took cores in {len(slowed)} of {len(stages)} stages, so wall times do "
            f"not compare. Fewest of its cores had {least['row']}, seed {least['seed']}, stage "
            f"{titles[least['stage']]} ({least['cores']:.0%})."
        )
    timed = stages["unit"].map(lambda unit: UNITS[unit].is_wall_time) & stages["done"]
    short = timed & stages["cores"].isna() & (stages["seconds"] < SECONDS_TO_MEASURE_CORES)
    if short.any():
        lines.append(
            f"Of {short.sum()} stages under {SECONDS_TO_MEASURE_CORES:g} s it is not known whether "
            "other programs took cores."
        )
    return lines


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
    groups = group_names((run.why, f"{run.row}, seed {run.seed}") for run in runs if run.why)
    return [
        f"Records are left out of {_shorten(names, '; ', 'runs')}: {reason}."
        for reason, names in groups.items()
    ]
