"""Equal tuning: as many configurations for each row, on the first two domains, judged by their
validation text.

A configuration is a learning rate and a method's options out of its `space`. A search is a suite of
trials. The best trial of each row then makes a suite of tuned rows. Both run as any other suite.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.files import replace_file
from benchmark.jobs.state import Survey
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.load import expand, load_suite
from benchmark.settings.suite import PerStage, Row, RunConfig, Suite, Tuned, pick_for_stage
from benchmark.store import Store
from benchmark.training.batch_parts import check_method
from benchmark.training.method import Build

DOMAINS = 2  # that configurations are tried on
RATES = (1.0, 0.5, 2.0, 0.25, 4.0)  # factors of the suite's learning rate, for every method
RATE = "training.learning_rate"
OF_STAGES = (
    "domains",
    "model.ladder",
    RATE,
    "training.warmup",
    "budget.amount",
)  # an entry for each stage

Space = Mapping[str, Sequence[Any]]  # option -> values to try
Check = Callable[[RunConfig], None]  # raises ConfigError for a run that cannot be trained


def tune(
    suite: Suite,
    rows: Sequence[Row],
    spaces: Mapping[str, Space],
    count: int,
    runs_of: Callable[[Suite], Sequence[RunConfig]],
    build: Build,
    runs: Path,
) -> Iterator[str]:
    """Write SUITE-tune.toml, a suite of trials; once they are trained, SUITE-tuned.toml, with the
    best of each row.

    Says what comes next. `spaces` are those of the methods, by name. Raises ConfigError if a method
    has not `count` configurations that can be trained.
    """
    trials, tuned = Path(f"{suite.name}-tune.toml"), Path(f"{suite.name}-tuned.toml")
    again = f"`python run_all.py tune {suite.called}` picks the best"
    if not trials.exists():
        fits = lambda run: check_method(run, build(run.method, run.options))  # noqa: E731
        searching = make_search(suite, rows, spaces, count, fits)
        _write(
            trials,
            searching,
            f"{count} configurations of each row of {suite.name}, written by `run_all.py tune`",
        )
        yield f"wrote {trials}, a suite of {len(searching.rows)} trials; remove it to search anew"
        yield f"next: `python run_all.py run {trials}` trains them, here or with --executor; then {again}"
        return
    searching = load_suite(str(trials))
    perplexities = judge(Survey(searching, runs_of(searching), build, Store(runs)))
    left = len(searching.rows) - len(perplexities)
    if left:
        yield f"{left} of the {len(searching.rows)} trials in {trials} have not ended below {runs}"
        yield f"next: `python run_all.py run {trials} --runs {shlex.quote(str(runs))}` trains them; then {again}"
        return
    chosen = pick(suite, rows, searching, perplexities)
    for row in chosen.rows:
        yield f"{row.name}: {row.options}, {row.set}"
    _write(
        tuned,
        chosen,
        f"{suite.name} with the best configuration of {trials}, written by `run_all.py tune`",
    )
    yield f"wrote {tuned}; next: `python run_all.py run {tuned}` trains with what was chosen"


def make_search(
    suite: Suite, rows: Sequence[Row], spaces: Mapping[str, Space], count: int, check: Check
) -> Suite:
    """The suite of `count` trials for each row, with the first seed: a row a trial, on the first
    domains.
    """
    if not 1 <= count <= len(RATES):
        raise ConfigError(
            f"--configurations {count}: give 1 to {len(RATES)}; a method without options has no "
            "more"
        )
    trials = []
    for row in rows:
        [run] = expand(suite, [row], suite.seeds[:1])
        for number, trial in enumerate(
            _sample_trials(suite, row, run, spaces[row.method], count, check)
        ):
            changes = {
                key: _take_first(value) if key in OF_STAGES else value
                for key, value in trial.set.items()
            }
            trials.append(trial.model_copy(update={"name": f"{row.name} {number}", "set": changes}))
    content = suite.model_dump()
    for path in OF_STAGES:
        section, _, key = path.rpartition(".")
        place = content[section] if section else content
        place[key] = _take_first(place[key])
    names = [domain["name"] for domain in content["domains"]]
    content["tokenizer"]["domains"] = [
        name for name in content["tokenizer"]["domains"] if name in names
    ]
    content |= {
        "name": f"{suite.name}-tune",
        "title": f"Tuning {suite.name}",
        "seeds": suite.seeds[:1],
    }
    content |= {"methods": (), "rows": [trial.model_dump() for trial in trials], "options": {}}
    replayed = [
        probe for probe in content["probes"] if suite.replay and probe["name"] == suite.replay.text
    ]
    content |= {"tasks": (), "probes": replayed, "tables": ("main_pretraining",), "paper": False}
    return Suite.model_validate(content)


def _sample_trials(
    suite: Suite, row: Row, run: RunConfig, space: Space, count: int, check: Check
) -> list[Row]:
    """The row's own configuration, and a random sample of all others, the same at each call."""
    names = sorted(space)
    others: list[Row] = []
    for rate, *values in itertools.product(RATES, *(space[name] for name in names)):
        options = {**row.options, **dict(zip(names, values, strict=True))}
        scaled = {RATE: _scale_rate(run.training.learning_rate, rate)} if rate != 1 else {}
        trial = row.model_copy(update={"options": options, "set": {**row.set, **scaled}})
        [tried] = expand(suite, [trial], suite.seeds[:1])
        if tried != run:
            with contextlib.suppress(ConfigError):
                check(tried)
                others.append(trial)
    if len(others) < count - 1:
        raise ConfigError(
            f"--configurations {count}: row {row.name!r} has only {len(others) + 1} that can be "
            "trained: give fewer"
        )
    return [row, *random.Random(digest([row.name, names])).sample(others, count - 1)]


def judge(survey: Survey) -> dict[str, float]:
    """The average perplexity (AP) over the domains of each trial that has ended, by its name;
    infinite if it failed.
    """
    perplexities = {}
    for run in survey.read_states():
        if run.state in ("done", "failed"):
            ap = run.stages[-1].ap if run.state == "done" else None
            perplexities[run.config.row] = math.inf if ap is None else ap
    return perplexities


def pick(
    suite: Suite, rows: Sequence[Row], searching: Suite, perplexities: Mapping[str, float]
) -> Suite:
    """The suite with the best trial of each row. Raises ConfigError for a row that no trial of
    could be trained.
    """
    chosen = []
    for row in rows:
        trials = [trial for trial in searching.rows if trial.name.rpartition(" ")[0] == row.name]
        best = min(trials, key=lambda trial: perplexities[trial.name], default=None)
        if best is None or perplexities[best.name] == math.inf:
            raise ConfigError(
                f"no configuration of row {row.name!r} in {searching.name}.toml could be trained: "
                "`run_all.py run "
                f"{searching.name}.toml --retry-failed` tries again; or leave the row out with "
                "--methods"
            )
        rate = {RATE: _find_rate(suite, row, best)} if RATE in best.set else {}
        chosen.append(row.model_copy(update={"options": best.options, "set": {**row.set, **rate}}))
    count = len(searching.rows) // len(rows)
    amounts = [
        pick_for_stage(searching.budget.amount, stage) for stage in range(len(searching.domains))
    ]
    tuned = Tuned(configurations=count, spent=count * sum(amounts), unit=searching.budget.unit)
    changes = {
        "name": f"{suite.name}-tuned",
        "methods": (),
        "rows": tuple(chosen),
        "options": {},
        "tuned": tuned,
    }
    return suite.model_copy(update=changes)


def _find_rate(suite: Suite, row: Row, best: Row) -> PerStage:
    """The row's learning rate in every stage, by the factor that the best trial has in its first
    stage.
    """
    [run] = expand(suite, [row], suite.seeds[:1])
    own, tried = run.training.learning_rate, best.set[RATE]
    first = tried[0] if isinstance(tried, (list, tuple)) else tried
    return _scale_rate(own, first / pick_for_stage(own, 0))


def _take_first(value: Any) -> Any:
    return value[:DOMAINS] if isinstance(value, (list, tuple)) else value


def _scale_rate(value: PerStage, factor: float) -> PerStage:
    return tuple(rate * factor for rate in value) if isinstance(value, tuple) else value * factor


def _write(path: Path, suite: Suite, comment: str) -> None:
    content = suite.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    lines = [f"# {comment}"]
    for key, value in content.items():
        if key == "rows":
            lines += ["rows = [", *(f"  {_to_toml(row)}," for row in value), "]"]
        else:
            lines.append(f"{key} = {_to_toml(value)}")
    with replace_file(path) as file:
        file.write("\n".join([*lines, ""]).encode())


def _to_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{json.dumps(key)} = {_to_toml(inner)}" for key, inner in value.items())
            + " }"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_to_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
