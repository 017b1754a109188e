"""The progress of a suite in words: the line of a sweep, a table of its runs, and the text of
`status`.
"""

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
from benchmark.settings.suite import LISTED, RunConfig, pick_for_stage
from benchmark.settings.units import UNITS, format_duration
from benchmark.training.evaluation_time import FORWARD, count_evaluations, count_parameters
from benchmark.training.identity import Identities, name_further_seeds

FAILED, UNKNOWN = 1, 3  # exit statuses of commands by the states of runs and jobs
HERE, ASKED = (
    5.0,
    30.0,
)  # seconds between two looks: at records alone, and where executors are asked for jobs
OVER = ("done", "failed")  # states in which nothing more will be trained by itself
TITLES = ("run or job", "kind", "state", "job", "starts", "node", "charged", "ap", "")
OWN = ("run or job", "job", "node")  # what differs among runs, and jobs, that are alike


def show(survey: Survey, watch: bool = False, sleep: Callable[[float], None] = time.sleep) -> int:
    """Print the text of `status`; where asked to `watch` again and again until nothing of the suite
    is under way.

    Returns 1 if a run, a job or a score has failed, 3 if a state is unknown, else 0.
    """
    while is_under_way(survey, states := survey.read_states()) and watch:
        if sys.stdout.isatty():
            print("\033[H\033[2J", end="")  # to the top left corner of an empty screen
        print("\n".join(describe_suite(survey, states)), flush=True)
        sleep(ASKED if survey.jobs else HERE)
    print("\n".join([*describe_suite(survey, states), name_next_step(survey, states)]), flush=True)
    if _has_failed(survey, states):
        return FAILED
    words = {state.state for state in states} | {job.state for job in survey.jobs}
    return UNKNOWN if "unknown" in words else 0


def is_under_way(survey: Survey, states: Sequence[RunState]) -> bool:
    words = {state.state for state in states}
    return (
        "running" in words
        or any(job.is_under_way for job in survey.jobs)
        or survey.in_progress.is_taken()
    )


def _has_failed(survey: Survey, states: Sequence[RunState]) -> bool:
    """Whether a run, a score or another job has failed, whose work nobody has done since."""
    ends = [
        *(state.state for state in states),
        *(job.state for job in find_lost_jobs(survey, states)),
    ]
    return "failed" in ends or any(model.failed for model in _find_scored_models(states))


def find_lost_jobs(survey: Survey, states: Sequence[RunState]) -> list[Job]:
    """The jobs that are over and no run's, without those whose work others have done."""
    over = [job for job in survey.jobs if not job.is_under_way and job.kind != "train"]
    left = [
        run if run.state == "done" else dataclasses.replace(run, state="interrupted")
        for run in states
    ]
    waves = (
        Plan(survey, left, retry_failed=True).waves if over else []
    )  # also what those that are under way lack
    missing = {unit.id for wave in waves for unit in wave.units}
    return [job for job in over if job.kind == "report" or missing & {*job.units}]


def name_next_step(survey: Survey, states: Sequence[RunState]) -> str:
    """The command that goes on from runs in these states."""
    called = survey.suite.called
    if is_under_way(survey, states):
        return f"next: `python run_all.py status {called} --watch` shows it again and again until nothing is under way"
    lacks_report = any(job.kind == "report" and job.state == "interrupted" for job in survey.jobs)
    is_missing, failed = Plan(survey, states).waves or lacks_report, _has_failed(survey, states)
    if not (is_missing or failed) or survey.store.is_archive:
        return f"next: `python run_all.py report {called}` renders tables and figures"
    alike = " (with --executor as before)" if survey.jobs else ""
    if not is_missing:
        return f"next: `python run_all.py run {called} --retry-failed`{alike} tries what failed again, from checkpoints"
    also = ", with --retry-failed also what failed, from its checkpoints" if failed else ""
    return f"next: `python run_all.py run {called}`{alike} does the rest{also}"


def describe_suite(survey: Survey, states: Sequence[RunState]) -> list[str]:
    """The lines of `status`: one for each row, each run that is not done, and other jobs; some
    share one.
    """
    head = f"{survey.suite.name}: {survey.suite.title}: {describe_sweep(states)}"
    runs = [
        state
        for state in states
        if state.state != "done" and (state.state, state.detail) != ("todo", "")
    ]
    of_runs = {run.job.id for run in states if run.job}  # those of an edited suite are of none
    others = [
        job
        for job in survey.jobs
        if job.is_under_way and not (job.kind == "train" and job.id in of_runs)
    ]
    others += find_lost_jobs(survey, states)
    rows = [TITLES, *map(_describe_run, runs)]
    rows += [
        (job.id, job.kind, job.state, "", _count_starts(job), job.node, "", "", job.detail)
        for job in others
    ]
    logs = [Path(job.log) for job in [*(run.job for run in runs), *others] if job]
    folders = dict.fromkeys(str(log.parent) for log in logs if log.is_file())
    places = [f"logs are in {', '.join(folders)}, by job"] if folders else []
    return [
        head,
        *summarize_rows(states),
        *(_align(rows) if rows[1:] else []),
        *places,
        *write_notes(survey, states),
    ]


def summarize_rows(states: Sequence[RunState]) -> list[str]:
    """A line of titles, and one for each row of the suite: its runs by state, the mean AP of those
    that are done.
    """
    rows: dict[str, list[RunState]] = {}
    for run in states:
        rows.setdefault(run.config.row, []).append(run)
    kinds = list(dict.fromkeys(run.state for run in states))
    cells = [("row", *kinds, "ap")]
    for row, runs in rows.items():
        counts = Counter(run.state for run in runs)
        values = [run.stages[-1].ap for run in runs if run.state == "done" and run.stages]
        known = [value for value in values if value is not None]
        ap = f"{statistics.fmean(known):,.1f}" if known else ""
        cells.append((row, *(str(counts[kind] or "") for kind in kinds), ap))
    return _align(cells)


def _describe_run(run: RunState) -> tuple[str, ...]:
    """`ap` is AP after the last domain that the run has finished."""
    unit, job = UNITS[run.config.budget.unit], run.job
    amount = sum(stage.charged.get(unit.name, 0.0) for stage in run.stages)
    charged = format_duration(amount) if unit.is_wall_time else unit.format(amount)
    ap = f"{run.finished[-1].ap:,.1f}" if run.finished and run.finished[-1].ap else ""
    of_job = (job.id, _count_starts(job), job.node) if job else ("", "", "")
    return (run.config.label, "", run.state, *of_job, charged, ap, run.detail)


def _count_starts(job: Job) -> str:
    """The number of its starts, if more than one; one that waits is to start again."""
    starts = job.restarts + (job.state != "waiting")
    return str(starts) if starts > 1 else ""


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, below titles; without columns that are empty but for these. Those that are
    alike are one line.
    """
    alike: dict[tuple[str, ...], list[Sequence[str]]] = defaultdict(list)
    for row in rows:
        alike[
            tuple(cell for cell, title in zip(row, rows[0], strict=True) if title not in OWN)
        ].append(row)
    rows = [
        (f"{row[0]} and {len(more)} more" if more else row[0], *row[1:])
        for row, *more in alike.values()
    ]
    return align(rows)


def write_notes(survey: Survey, states: Sequence[RunState]) -> list[str]:
    """Notes on scores that could not be computed, on code that was changed since, and on seeds that
    are not here.
    """
    lost = {
        model.model: f"! {state.config.label}: the model of stage {model.model} lacks scores ({model.missing}), as "
        f"computing them failed: {model.failed}; `run --retry-failed` tries again"
        for state in reversed(states)
        for model in state.scored
        if model.failed
    }
    changed = Counter(state.config.method for state in states if state.other_code)
    others = [
        f"! {method}: its code was changed since it was trained ({count} of {len(states)} runs): "
        "if it computes "
        "something else now, raise its `version`"
        for method, count in changed.items()
    ]
    return [
        *lost.values(),
        *others,
        *name_further_seeds(
            [state.config for state in states], Identities(survey.store, survey.build)
        ),
    ]


def describe_sweep(states: Sequence[RunState]) -> str:
    """Runs by state, the share of their stages that is trained, scores, and the time left by what
    ran.
    """
    counts = Counter(state.state for state in states)
    runs = ", ".join(
        [f"{len(states)} runs", *(f"{count} {state}" for state, count in counts.items())]
    )
    models = _find_scored_models(states)
    there, missing = sum(model.there for model in models), sum(model.missing for model in models)
    scores = f"{there:,} of {there + missing:,} scores" if there else ""
    share, left = measure_progress(states)
    time_left = f"about {format_duration(left)} left" if left else ""
    return "; ".join(filter(None, [runs, f"{share:.0%} trained", scores, time_left]))


def _find_scored_models(states: Iterable[RunState]) -> list[Scored]:
    """The models that are or will be scored, shared ones once."""
    return list({model.model: model for state in states for model in state.scored}.values())


def measure_progress(states: Sequence[RunState]) -> tuple[float, float]:
    """The share of all stages that is trained, 0 to 1, and the time that is left at the pace of
    those that ended.

    Their time is that of training, evaluation and checkpoints. A stage that runs share counts once.
    Nothing is left of runs that have failed, nor known before a stage has ended.
    """
    shares, left = dict[str, float](), dict[str, float]()
    ended = dict[str, tuple[float, float]]()  # seconds and budgets
    for state in states:
        for place, (key, amount) in enumerate(
            zip(state.planned, _list_budgets(state.config), strict=True)
        ):
            is_next = place == len(state.finished)
            share = 1.0 if place < len(state.finished) else state.fraction * is_next
            shares[key] = max(share, shares.get(key, 0.0))
            if place < len(state.finished):
                stage = state.stages[place]
                ended[key] = max(stage.wall, stage.charged["seconds"]), amount
            elif state.state not in OVER:
                left[key] = min(amount * (1 - share), left.get(key, amount))
    seconds, amounts = map(sum, zip(*ended.values(), strict=True)) if ended else (0.0, 1.0)
    at_a_time = max(1, sum(state.state == "running" for state in states))
    return statistics.fmean(shares.values()), sum(left.values()) * seconds / amounts / at_a_time


def _list_budgets(config: RunConfig) -> list[float]:
    return [pick_for_stage(config.budget.amount, stage) for stage in range(len(config.domains))]


def describe(plan: Plan, executor: Executor) -> list[str]:
    """The text of --dry-run: the rows' runs by state, what the executor does, and the work left."""
    does = executor.describe(plan)
    units = dict.fromkeys(state.config.budget.unit for state in plan.states)
    missing = " and ".join(_describe_missing(plan, unit, executor) for unit in units)
    notes = [state.config.tokenizer_note for state in plan.states]
    notes += [state.config.describe_expected_passes(state.tokens) for state in plan.states]
    notes += [*_describe_evaluation(plan, executor), *_describe_unprepared(plan)]
    does_more = "next: the same command without --dry-run does that, then renders the report"
    return [
        f"{plan.suite.name}: {plan.suite.title}: {describe_sweep(plan.states)}",
        *summarize_rows(plan.states),
        *does,
        f"To train: {len(plan.wanted)} of {len(plan.states)} runs, {missing}",
        *filter(None, dict.fromkeys(notes)),
        does_more if plan.wanted or does else name_next_step(plan.survey, plan.states),
    ]


def _describe_unprepared(plan: Plan) -> Iterator[str]:
    """Sentences on what is not known before text is tokenised, and which stages stay."""
    unprepared = [state for state in plan.wanted if not state.prepared]
    if not unprepared:
        return
    missing = {
        domain.name: None
        for state in unprepared
        for domain in state.config.domains[len(state.keys) :]
    }
    trained = {
        domain.name: None
        for run in unprepared
        for domain in run.config.domains[: len(run.finished)]
    }
    if 0 < len(missing) <= LISTED:
        yield f"Not tokenised yet: {', '.join(missing)}."
    if trained:
        yield f"What is trained of {', '.join(trained)} stays: no stage depends on later domains."
    unknown = (
        "How often domains are read, the memory's share of them, and how long evaluation takes"
    )
    yield f"{unknown}, is known once text is prepared."
    begun = any(plan.survey.store.run_file(unprepared[0].config).parent.glob("*.jsonl"))
    if begun and not all(state.keys for state in unprepared):
        yield "Whether trained stages stay is known then, too."


def _describe_evaluation(plan: Plan, executor: Executor) -> Iterator[str]:
    """A sentence on the evaluation that comes on top of the budgets of missing stages; stages that
    runs share once.
    """
    reads: dict[str, tuple[float, float]] = {}  # tokens by stage, and FLOPs
    for state in plan.wanted:
        config = state.config
        for stage in range(len(state.finished), len(config.domains)):
            size = config.model.ladder[min(stage, len(config.model.ladder) - 1)]
            count = count_evaluations(config.training.evaluations, stage)
            parameters = count_parameters(size, config.tokenizer.vocabulary)
            flops = FORWARD * parameters * state.valid_tokens * count
            reads[state.planned[stage]] = (state.valid_tokens * count, flops)
    tokens = sum(count for count, _ in reads.values())
    if not tokens:
        return
    seconds = _measure_time_off_clock(plan.states) * len(reads)
    if not seconds and (speed := executor.guess_flops_per_second()):
        seconds = sum(flops for _, flops in reads.values()) / speed
    often = f"reads {tokens:,.0f} tokens of validation text"
    took = (
        f"about {format_duration(seconds)}, and {often}"
        if seconds
        else f"a time not known yet: it {often}"
    )
    yield f"Evaluation, which no budget counts, takes {took}."


def _measure_time_off_clock(states: Sequence[RunState]) -> float:
    """The mean seconds that stages took beside what they charge; 0 where none has ended."""
    ended = {
        key: stage
        for state in states
        for key, stage in zip(state.keys, state.finished, strict=False)
    }
    seconds = [max(0.0, stage.wall - stage.charged.get("seconds", 0.0)) for stage in ended.values()]
    return statistics.fmean(seconds) if seconds else 0.0


def _describe_missing(plan: Plan, unit: str, executor: Executor) -> str:
    """The budgets in a unit of missing work; what runs share counts once."""
    stages: dict[str, tuple[float, RunConfig]] = {}
    for state in plan.wanted:
        if state.config.budget.unit == unit:
            of_stages = list(zip(state.planned, _list_budgets(state.config), strict=True))
            stages |= {
                key: (amount, state.config) for key, amount in of_stages[len(state.finished) :]
            }
    gpu_seconds = sum(
        amount * executor.count_gpus(plan.suite, config) for amount, config in stages.values()
    )
    return UNITS[unit].format(sum(amount for amount, _ in stages.values()), gpu_seconds)
