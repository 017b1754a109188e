"""Equal tuning: every row tries the same number of configurations, on the first domains.

Validation text of these domains decides which is best. A configuration is a learning rate and a
method's options out of its `space`. A search is a suite of trials. The best trials of all rows then
make a suite of tuned rows. Both suites run like any other.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from benchmark.files import replace_file
from benchmark.jobs.state import Survey
from benchmark.ledger.store import Store
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.load import load_suite
from benchmark.settings.suite import PerStage, Row, RunConfig, Suite, Tuned, pick_for_stage
from benchmark.training.batch_parts import check_method
from benchmark.training.method import Build

# factors of the suite's learning rate, for every method: powers of 2, or of its square root if more
# configurations are asked for than RATES has
RATES = (1.0, 0.5, 2.0, 0.25, 4.0)
FINE_RATES = tuple(2 ** (step / 2) for step in range(-6, 7))
RATE = "training.learning_rate"
# settings that may have an entry for each stage
OF_STAGES = ("domains", "model.ladder", RATE, "training.warmup", "budget.amount")

Space = Mapping[str, Sequence[Any]]  # option -> values to try
RunsOf = Callable[[Suite], Sequence[RunConfig]]
Check = Callable[[RunConfig], None]  # raises ConfigError for a run that cannot be trained


def tune(
    suite: Suite,
    rows: Sequence[Row],
    spaces: Mapping[str, Space],
    count: int,
    domain_count: int,
    runs_of: RunsOf,
    build: Build,
    runs: Path,
) -> Iterator[str]:
    """Write SUITE-tune.toml, a suite of trials, or, once these are trained, SUITE-tuned.toml.

    The second file has the best trial of each row. Yields what was written and what comes next.
    `spaces` has the space of each method, by its name. Raises ConfigError if a method has fewer
    than `count` configurations that can be trained.
    """
    trials_file = Path(f"{suite.name}-tune.toml")
    tuned_file = Path(f"{suite.name}-tuned.toml")
    author = "written by `run_all.py tune`"
    next_step = f"`python run_all.py tune {suite.command_arguments}` picks the best"
    if not trials_file.exists():
        check = lambda run: check_method(run, build(run.method, run.options))  # noqa: E731
        search = make_search(suite, rows, spaces, count, domain_count, runs_of, check)
        _write(trials_file, search, f"{count} configurations of each row of {suite.name}, {author}")
        yield f"wrote {trials_file}, a suite of {len(search.rows)} trials; remove it to search anew"
        command = f"python run_all.py run {trials_file}"
        yield f"next: `{command}` trains them, here or with --executor; then {next_step}"
        return
    search = load_suite(str(trials_file))
    perplexities = judge(Survey(search, runs_of(search), build, Store(runs)))
    unfinished = len(search.rows) - len(perplexities)
    if unfinished:
        total = len(search.rows)
        yield f"{unfinished} of the {total} trials in {trials_file} have not ended below {runs}"
        yield f"  they search {len(search.domains)} domains; remove {trials_file} to search anew"
        command = f"python run_all.py run {trials_file} --runs {shlex.quote(str(runs))}"
        yield f"next: `{command}` trains them; then {next_step}"
        return
    tuned_suite = pick(suite, rows, search, perplexities, runs_of)
    for row in tuned_suite.rows:
        yield f"{row.name}: {row.options}, {row.set}"
    comment = f"{suite.name} with the best configuration of {trials_file}, {author}"
    _write(tuned_file, tuned_suite, comment)
    command = f"python run_all.py run {tuned_file}"
    yield f"wrote {tuned_file}; next: `{command}` trains with what was chosen"


def make_search(
    suite: Suite,
    rows: Sequence[Row],
    spaces: Mapping[str, Space],
    count: int,
    domain_count: int,
    runs_of: RunsOf,
    check: Check,
) -> Suite:
    """The suite of `count` trials for each row, with the first seed.

    It has a row for each trial, on the first `domain_count` domains.
    """
    if not 1 <= count <= len(FINE_RATES):
        raise ConfigError(
            f"--configurations {count}: give 1 to {len(FINE_RATES)}; a method without options has "
            "no more"
        )
    trials = []
    for row in rows:
        find_run = partial(_find_run, suite, runs_of)
        samples = _sample_trials(row, find_run, spaces[row.method], count, check)
        for number, trial in enumerate(samples):
            settings = dict(trial.set)
            for key in OF_STAGES:
                if key in settings:
                    settings[key] = _take_first(domain_count, settings[key])
            update = {"name": f"{row.name} {number}", "set": settings}
            trials.append(trial.model_copy(update=update))
    content = suite.model_dump()
    content["training"] = suite.training.model_dump(exclude_unset=True)
    for path in OF_STAGES:
        section, _, key = path.rpartition(".")
        place = content[section] if section else content
        if key in place:
            place[key] = _take_first(domain_count, place[key])
    names = [domain["name"] for domain in content["domains"]]
    tokenizer = content["tokenizer"]
    tokenizer["domains"] = [name for name in tokenizer["domains"] if name in names]
    replay_text = suite.replay.text if suite.replay else None
    content |= {
        "name": f"{suite.name}-tune",
        "title": f"Tuning {suite.name}",
        "seeds": suite.seeds[:1],
        "methods": (),
        "rows": [trial.model_dump() for trial in trials],
        "options": {},
        "tasks": (),
        "probes": [probe for probe in content["probes"] if probe["name"] == replay_text],
        "tables": ("main_pretraining",),
        "paper": False,
    }
    return Suite.model_validate(content)


def _find_run(suite: Suite, runs_of: RunsOf, row: Row) -> RunConfig:
    """The run of a row with the suite's first seed."""
    alone = {"methods": (), "rows": (row,), "options": {}, "seeds": suite.seeds[:1]}
    [run] = runs_of(suite.model_copy(update=alone))
    return run


def _sample_trials(
    row: Row, find_run: Callable[[Row], RunConfig], space: Space, count: int, check: Check
) -> list[Row]:
    """The row's own configuration, and a random sample of all others, the same at each call."""
    run = find_run(row)
    names = sorted(space)
    choices = [space[name] for name in names]
    candidates: list[Row] = []
    rates = RATES if count <= len(RATES) else FINE_RATES
    for factor, *values in itertools.product(rates, *choices):
        options = dict(row.options)
        options |= dict(zip(names, values, strict=True))
        settings = dict(row.set)
        if factor != 1:
            rate = run.training.learning_rate
            settings[RATE] = _scale_rate(rate, factor)
        trial = row.model_copy(update={"options": options, "set": settings})
        trial_run = find_run(trial)
        if trial_run == run:
            continue
        with contextlib.suppress(ConfigError):
            check(trial_run)
            candidates.append(trial)
    if len(candidates) < count - 1:
        raise ConfigError(
            f"--configurations {count}: row {row.name!r} has only {len(candidates) + 1} that can "
            "be trained: give fewer"
        )
    generator = random.Random(digest([row.name, names]))
    return [row, *generator.sample(candidates, count - 1)]


def judge(survey: Survey) -> dict[str, float]:
    """The average perplexity (AP) over the domains of each trial that has ended, by its name.

    It is infinite if the trial failed.
    """
    perplexities = {}
    for run in survey.read_states():
        if run.state in ("done", "failed"):
            ap = run.view.ap if run.state == "done" else None
            perplexities[run.config.row] = math.inf if ap is None else ap
    return perplexities


def pick(
    suite: Suite,
    rows: Sequence[Row],
    search: Suite,
    perplexities: Mapping[str, float],
    runs_of: RunsOf,
) -> Suite:
    """The suite with the best trial of each row.

    Raises ConfigError if no trial of a row could be trained.
    """
    tuned_rows = []
    for row in rows:
        trials = [trial for trial in search.rows if trial.name.rpartition(" ")[0] == row.name]
        best = min(trials, key=lambda trial: perplexities[trial.name], default=None)
        if best is None or perplexities[best.name] == math.inf:
            raise ConfigError(
                f"no configuration of row {row.name!r} in {search.name}.toml could be trained: "
                f"`run_all.py run {search.name}.toml --retry-failed` tries again; "
                "or leave the row out with --methods"
            )
        settings = dict(row.set)
        if RATE in best.set:
            run = _find_run(suite, runs_of, row)
            settings[RATE] = _find_rate(run, best)
        update = {"options": best.options, "set": settings}
        tuned_rows.append(row.model_copy(update=update))
    configurations = len(search.rows) // len(rows)
    budget = search.budget
    stages = range(len(search.domains))
    amount = sum(pick_for_stage(budget.amount, stage) for stage in stages)
    tuned = Tuned(
        configurations=configurations,
        domains=len(stages),
        spent=configurations * amount,
        unit=budget.unit,
    )
    return suite.model_copy(
        update={
            "name": f"{suite.name}-tuned",
            "methods": (),
            "rows": tuple(tuned_rows),
            "options": {},
            "tuned": tuned,
        }
    )


def _find_rate(run: RunConfig, best: Row) -> PerStage:
    """The learning rate of a row's run in every stage.

    It is scaled by the factor that the best trial has in its first stage.
    """
    rate = run.training.learning_rate
    trial_rate = best.set[RATE]
    first_rate = trial_rate[0] if isinstance(trial_rate, (list, tuple)) else trial_rate
    return _scale_rate(rate, first_rate / pick_for_stage(rate, 0))


def _take_first(count: int, value: Any) -> Any:
    """The first `count` entries of a list, or a value that is no list as it is."""
    if isinstance(value, (list, tuple)):
        return value[:count]
    return value


def _scale_rate(value: PerStage, factor: float) -> PerStage:
    """A learning rate, or those of all stages, times a factor."""
    if isinstance(value, tuple):
        return tuple(rate * factor for rate in value)
    return value * factor


def _write(path: Path, suite: Suite, comment: str) -> None:
    """Write a suite's file, with a comment at its head."""
    content = suite.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    # keep all settings that were given: if one that equals the default is left out, an optimizer's
    # recipe replaces it
    said = suite.training.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    content["training"] = said
    text = f"# {comment}\n{tomli_w.dumps(content)}"
    with replace_file(path) as file:
        file.write(text.encode())
