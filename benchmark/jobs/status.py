"""The progress of a suite in words: the line of a sweep, a table of runs, the text of `status`."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmark.jobs.executors import Executor, Job
from benchmark.jobs.state import RunState, Scored, Survey
from benchmark.jobs.text_table import align
from benchmark.jobs.waves import Plan
from benchmark.ledger.ledger import name_further_seeds
from benchmark.ledger.runs import list_charges, measure_wall_time
from benchmark.settings.suite import LISTED, RunConfig, pick_for_stage
from benchmark.settings.units import UNITS, format_duration
from benchmark.training.evaluation_time import FORWARD, count_evaluations, count_parameters

# exit statuses of commands by the states of runs and jobs
FAILED = 1
UNKNOWN = 3
# seconds between two looks: at records only, and if executors are also asked for jobs
PAUSE = 5.0
PAUSE_OF_JOBS = 30.0
ENDED = ("done", "failed")  # states in which nothing more will be trained by itself
TITLES = ("run or job", "kind", "state", "job", "starts", "node", "charged", "ap", "")
# columns in which runs or jobs that share a line may differ
DIFFERING = ("run or job", "job", "node")


def show(
    survey: Survey,
    watch: bool = False,
    why: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Print the text of `status`.

    With `watch`, print it again and again until nothing of the suite is under way. With `why`, also
    print how the records of other settings differ from the suite's runs. Returns 1 if a run, a job
    or a score has failed, 3 if a state is unknown, else 0.
    """
    states = survey.read_states()
    while watch and is_under_way(survey, states):
        if sys.stdout.isatty():
            print("\033[H\033[2J", end="")  # to the top left corner of an empty screen
        print("\n".join(describe_suite(survey, states)), flush=True)
        sleep(PAUSE_OF_JOBS if survey.jobs else PAUSE)
        states = survey.read_states()
    lines = describe_suite(survey, states)
    if why:
        lines += list_differences(states)
    lines.append(name_next_step(survey, states))
    print("\n".join(lines), flush=True)
    if _has_failed(survey, states):
        return FAILED
    words = {state.state for state in states}
    words |= {job.state for job in survey.jobs}
    return UNKNOWN if "unknown" in words else 0


def list_differences(states: Sequence[RunState]) -> list[str]:
    """For runs without records: how records of the same row and seed differ from them.

    Runs with the same differences share their lines.
    """
    labels: dict[tuple[str, ...], list[str]] = {}  # of runs, by what differs
    for run in states:
        if run.view.differences:
            labels.setdefault(tuple(run.view.differences), []).append(run.config.label)
    lines = []
    for differences, names in labels.items():
        lines.append(f"records of other settings, {', '.join(names)}:")
        for difference in differences:
            lines.append(f"  {difference}")
    return lines or ["no run lacks records that are here with other settings"]


def is_under_way(survey: Survey, states: Sequence[RunState]) -> bool:
    """Whether anything of the suite is being done, or is waiting in a queue."""
    if any(state.state == "running" for state in states):
        return True
    if any(job.is_under_way for job in survey.jobs):
        return True
    return survey.in_progress.is_taken()


def _has_failed(survey: Survey, states: Sequence[RunState]) -> bool:
    """Whether a run, a score or another job has failed, and its work is still missing."""
    words: list[str] = [state.state for state in states]
    for job in find_lost_jobs(survey, states):
        words.append(job.state)
    return "failed" in words or any(model.failed for model in _find_scored_models(states))


def find_lost_jobs(survey: Survey, states: Sequence[RunState]) -> list[Job]:
    """The ended jobs whose work is still missing, without jobs that train runs."""
    jobs = [job for job in survey.jobs if not job.is_under_way and job.kind != "train"]
    if not jobs:
        return []
    # as if all runs that are not done were interrupted, so that the plan has all missing work
    ended = []
    for run in states:
        if run.state != "done":
            run = dataclasses.replace(run, state="interrupted")
        ended.append(run)
    plan = Plan(survey, ended, retry_failed=True)
    missing = {unit.id for wave in plan.waves for unit in wave.units}
    # the waves do not include the report
    return [job for job in jobs if job.kind == "report" or missing & {*job.units}]


def name_next_step(survey: Survey, states: Sequence[RunState]) -> str:
    """A line with the command to call next if runs are in these states."""
    suite = survey.suite.command_arguments
    if is_under_way(survey, states):
        return (
            f"next: `python run_all.py status {suite} --watch` shows it again and again until "
            "nothing is under way"
        )
    reports = [job for job in survey.jobs if job.kind == "report"]
    lacks_report = any(job.state == "interrupted" for job in reports)
    is_missing = Plan(survey, states).waves or lacks_report
    failed = _has_failed(survey, states)
    if not (is_missing or failed) or survey.store.is_archive:
        return f"next: `python run_all.py report {suite}` renders tables and figures"
    executor = " (with --executor as before)" if survey.jobs else ""
    if not is_missing:
        return (
            f"next: `python run_all.py run {suite} --retry-failed`{executor} tries what failed "
            "again, from checkpoints"
        )
    retry = ", with --retry-failed also what failed, from its checkpoints" if failed else ""
    return f"next: `python run_all.py run {suite}`{executor} does the rest{retry}"


def describe_suite(survey: Survey, states: Sequence[RunState]) -> list[str]:
    """The lines of `status`: rows, runs that have begun and are not done, and other jobs.

    Runs or jobs that are alike share a line.
    """
    runs = []
    for run in states:
        is_untouched = run.state == "todo" and not run.detail
        if run.state != "done" and not is_untouched:
            runs.append(run)
    # jobs from before the suite was edited may be of no run
    run_jobs = {run.job.id for run in states if run.job}
    jobs = []
    for job in survey.jobs:
        is_of_run = job.kind == "train" and job.id in run_jobs
        if job.is_under_way and not is_of_run:
            jobs.append(job)
    jobs += find_lost_jobs(survey, states)
    rows = [TITLES, *map(_describe_run, runs)]
    for job in jobs:
        starts = _count_starts(job)
        rows.append((job.id, job.kind, job.state, "", starts, job.node, "", "", job.detail))
    logged_jobs = [run.job for run in runs if run.job] + jobs
    logs = [Path(job.log) for job in logged_jobs]
    folders = dict.fromkeys(str(log.parent) for log in logs if log.is_file())
    suite = survey.suite
    lines = [f"{suite.name}: {suite.title}: {describe_sweep(states)}"]
    lines += summarize_rows(states)
    if runs or jobs:
        lines += _align(rows)
    if folders:
        lines.append(f"logs are in {', '.join(folders)}, by job")
    lines += list_notes(survey, states)
    return lines


def summarize_rows(states: Sequence[RunState]) -> list[str]:
    """A line of titles, and one for each row of the suite.

    Each has the number of the row's runs in each state, and the mean AP of the runs that are done.
    """
    rows: dict[str, list[RunState]] = {}
    for run in states:
        rows.setdefault(run.config.row, []).append(run)
    kinds = list(dict.fromkeys(run.state for run in states))
    lines = [("row", *kinds, "ap")]
    for row, runs in rows.items():
        counts = Counter(run.state for run in runs)
        cells = [str(counts[kind] or "") for kind in kinds]
        lines.append((row, *cells, _average_ap(runs)))
    return _align(lines)


def _average_ap(runs: Sequence[RunState]) -> str:
    """The mean AP of the runs that are done, in words, empty if there is none."""
    values = []
    for run in runs:
        if run.state == "done" and run.view.ap is not None:
            values.append(run.view.ap)
    if values:
        return f"{statistics.fmean(values):,.1f}"
    return ""


def _describe_run(run: RunState) -> tuple[str, ...]:
    """The cells of a run, in the order of TITLES.

    `ap` is AP after the last domain that the run has finished.
    """
    unit = UNITS[run.config.budget.unit]
    amount = sum(list_charges(stage).get(unit.name, 0.0) for stage in run.view.stages)
    charged = format_duration(amount) if unit.is_wall_time else unit.format(amount)
    ap = run.view.ap
    job = run.job
    return (
        run.config.label,
        "",
        run.state,
        job.id if job else "",
        _count_starts(job) if job else "",
        job.node if job else "",
        charged,
        f"{ap:,.1f}" if ap else "",
        run.detail,
    )


def _count_starts(job: Job) -> str:
    """How often a job has started, empty if at most once (a waiting job will start again)."""
    starts = job.restarts
    if job.state != "waiting":
        starts += 1
    if starts > 1:
        return str(starts)
    return ""


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of text, below their titles, without columns that are otherwise empty.

    Rows that differ only in the columns DIFFERING share a line.
    """
    titles = rows[0]
    groups: dict[tuple[str, ...], list[Sequence[str]]] = defaultdict(list)
    for row in rows:
        group = tuple(
            cell for cell, title in zip(row, titles, strict=True) if title not in DIFFERING
        )
        groups[group].append(row)
    merged = []
    for group_rows in groups.values():
        name, *cells = group_rows[0]
        count = len(group_rows) - 1
        if count:
            name += f" and {count} more"
        merged.append((name, *cells))
    return align(merged)


def list_notes(survey: Survey, states: Sequence[RunState]) -> list[str]:
    """Notes on what a reader of a suite's state should know.

    They name scores that could not be computed, methods whose code was changed since their
    training, and seeds that are trained and not shown.
    """
    notes = _note_failed_scores(states)
    counts = Counter(state.config.method for state in states if state.view.other_code)
    if counts:
        runs = f"of {len(states)} runs"
        methods = ", ".join(f"{method} ({count} {runs})" for method, count in counts.items())
        notes.append(
            f"! code was changed since training: {methods}: if a method computes something else "
            "now, raise its `version`"
        )
    configs = [state.config for state in states]
    notes += name_further_seeds(configs, survey.ledger)
    return notes


def _note_failed_scores(states: Sequence[RunState]) -> list[str]:
    """A note on how many models have failed scores, with the error of the first of these models.

    For a model that several runs share, it names the first run.
    """
    failures: dict[str, str] = {}  # by the key of a model's stage
    for state in states:
        for model in state.scored:
            if model.failed:
                place = f"{state.config.label}, stage {model.model}"
                failures.setdefault(model.model, f"{place}: {model.failed}")
    if not failures:
        return []
    first_failure = next(iter(failures.values()))
    return [
        f"! {len(failures)} models lack scores, as computing them failed ({first_failure}): "
        "`run --retry-failed` tries again"
    ]


def describe_sweep(states: Sequence[RunState]) -> str:
    """Runs by state, the share of their stages that is trained, scores, and the time left.

    The time left is estimated from the pace so far.
    """
    parts = [_describe_states(states)]
    share, time_left = measure_progress(states)
    parts.append(f"{share:.0%} trained")
    models = _find_scored_models(states)
    score_count = sum(model.score_count for model in models)
    missing = sum(model.missing for model in models)
    if score_count:
        parts.append(f"{score_count:,} of {score_count + missing:,} scores")
    if time_left:
        parts.append(f"about {format_duration(time_left)} left")
    return "; ".join(parts)


def _describe_states(states: Sequence[RunState]) -> str:
    """The number of runs, and how many of them are in which state."""
    counts = Counter(state.state for state in states)
    parts = [f"{len(states)} runs"]
    for word, count in counts.items():
        parts.append(f"{count} {word}")
    return ", ".join(parts)


def _find_scored_models(states: Iterable[RunState]) -> list[Scored]:
    """The trained models that the suite's tasks score, each once, even if runs share it."""
    return list({model.model: model for state in states for model in state.scored}.values())


def measure_progress(states: Sequence[RunState]) -> tuple[float, float]:
    """The share of all stages that is trained, 0 to 1, and the seconds left at the pace so far.

    The pace includes evaluation and checkpoints. A stage that several runs share counts once. The
    time left is without stages that failed runs lack, and 0 (not known) before a stage has ended.
    """
    # by stage
    shares: dict[str, float] = {}  # how much of it is trained, 0 to 1
    budgets_left: dict[str, float] = {}
    seconds_of_ended: dict[str, float] = {}
    budgets_of_ended: dict[str, float] = {}
    for run in states:
        budgets = _list_budgets(run.config)
        for index, (key, amount) in enumerate(zip(run.planned, budgets, strict=True)):
            if index < run.finished:
                stage = run.view.stages[index]
                charged = list_charges(stage)["seconds"]
                seconds_of_ended[key] = max(measure_wall_time(stage), charged)
                budgets_of_ended[key] = amount
                shares[key] = 1.0
                continue
            share = run.fraction if index == run.finished else 0.0
            # of the runs that share a stage, the one that trains it is furthest
            shares[key] = max(share, shares.get(key, 0.0))
            if run.state not in ENDED:
                budget_left = amount * (1 - share)
                budgets_left[key] = min(budget_left, budgets_left.get(key, amount))
    mean_share = statistics.fmean(shares.values())
    if not seconds_of_ended:
        return mean_share, 0.0
    parallel = max(1, sum(run.state == "running" for run in states))
    amount_left = sum(budgets_left.values())
    time_spent = sum(seconds_of_ended.values())
    amount_spent = sum(budgets_of_ended.values())
    time_left = amount_left * time_spent / amount_spent / parallel
    return mean_share, time_left


def _list_budgets(config: RunConfig) -> list[float]:
    """The budget of each stage of a run."""
    amount = config.budget.amount
    return [pick_for_stage(amount, stage) for stage in range(len(config.domains))]


def describe(plan: Plan, executor: Executor) -> list[str]:
    """The text of --dry-run: the rows' runs by state, what the executor does, and the work left."""
    states = plan.states
    suite = plan.suite
    lines = [f"{suite.name}: {suite.title}: {describe_sweep(states)}"]
    lines += summarize_rows(states)
    executor_lines = executor.describe(plan)
    lines += executor_lines
    units = dict.fromkeys(state.config.budget.unit for state in states)
    missing = " and ".join(_describe_missing(plan, unit, executor) for unit in units)
    lines.append(f"To train: {len(plan.wanted)} of {len(states)} runs, {missing}")
    notes = [state.config.tokenizer_note for state in states]
    for state in states:
        notes.append(state.config.describe_expected_passes(state.view.texts.sizes))
    notes += _describe_evaluation(plan, executor)
    notes += _describe_unprepared(plan)
    lines += filter(None, dict.fromkeys(notes))
    if plan.wanted or executor_lines:
        lines.append("next: the same command without --dry-run does that, then renders the report")
    else:
        lines.append(name_next_step(plan.survey, states))
    return lines


def _describe_unprepared(plan: Plan) -> Iterator[str]:
    """Sentences on what is not known before text is tokenised."""
    unprepared = [state for state in plan.wanted if not state.is_prepared]
    if not unprepared:
        return
    missing: dict[str, None] = {}  # names of domains, in their order
    for state in unprepared:
        names = [domain.name for domain in state.config.domains]
        missing |= dict.fromkeys(names[len(state.view.keys) :])
    if 0 < len(missing) <= LISTED:
        yield f"Not tokenised yet: {', '.join(missing)}."
    yield (
        "How often domains are read, the memory's share of them, and how long evaluation takes, "
        "is known once text is prepared."
    )


def _describe_evaluation(plan: Plan, executor: Executor) -> Iterator[str]:
    """A sentence on the evaluation that comes on top of the budgets of missing stages.

    Stages that runs share count once.
    """
    tokens: dict[str, float] = {}  # by stage
    flops: dict[str, float] = {}
    for run in plan.wanted:
        config = run.config
        ladder = config.model.ladder
        for stage in range(run.finished, len(config.domains)):
            size = ladder[min(stage, len(ladder) - 1)]
            parameters = count_parameters(size, config.tokenizer.vocabulary)
            count = count_evaluations(config.training.evaluations, stage)
            key = run.planned[stage]
            tokens[key] = run.view.texts.valid_tokens * count
            flops[key] = FORWARD * parameters * run.view.texts.valid_tokens * count
    token_count = sum(tokens.values())
    if not token_count:
        return
    seconds = _measure_time_off_clock(plan.states) * len(tokens)
    if not seconds:
        speed = executor.guess_flops_per_second()
        if speed:
            seconds = sum(flops.values()) / speed
    reading = f"reads {token_count:,.0f} tokens of validation text"
    if seconds:
        duration = f"about {format_duration(seconds)}, and {reading}"
    else:
        duration = f"a time not known yet: it {reading}"
    yield f"Evaluation, which no budget counts, takes {duration}."


def _measure_time_off_clock(states: Sequence[RunState]) -> float:
    """The mean seconds that stages took beyond what they charge, 0 if none has ended."""
    seconds: dict[str, float] = {}  # by stage
    for run in states:
        stages = run.view.stages[: run.finished]
        for key, stage in zip(run.view.keys, stages, strict=False):
            charged = list_charges(stage).get("seconds", 0.0)
            seconds[key] = max(0.0, measure_wall_time(stage) - charged)
    if seconds:
        return statistics.fmean(seconds.values())
    return 0.0


def _describe_missing(plan: Plan, unit: str, executor: Executor) -> str:
    """The sum of the missing stages' budgets in this unit, in words, shared stages once."""
    amounts: dict[str, float] = {}  # by stage
    gpu_seconds: dict[str, float] = {}
    for run in plan.wanted:
        config = run.config
        if config.budget.unit != unit:
            continue
        gpus = executor.count_gpus(plan.suite, config)
        budgets = _list_budgets(config)
        for stage in range(run.finished, len(run.planned)):
            key = run.planned[stage]
            amounts[key] = budgets[stage]
            gpu_seconds[key] = budgets[stage] * gpus
    return UNITS[unit].format(sum(amounts.values()), sum(gpu_seconds.values()))
