"""Equal tuning: as many configurations for each row, on the first two domains, judged by their validation text.

A configuration is a learning rate and a method's options out of its `space`. A search is a suite of its own, so that
it is planned, shared, resumed and executed like any other; its report is the file of what it chose.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from benchmark import records
from benchmark.files import Refused, read_text, write_json
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.load import parse_seeds
from benchmark.settings.suite import PerStage, RunConfig, Suite, Suites, Tuned, per_stage
from benchmark.settings.units import UNITS

DOMAINS = 2  # that configurations are tried on
MOST_RATE = 1000  # times the suite's, in a file of a search
RATES = (1.0, 0.5, 2.0, 0.25, 4.0)  # factors of the suite's learning rate, for every method

Space = Mapping[str, Sequence[Any]]  # option -> values to try
Check = Callable[[RunConfig], None]  # raises ConfigError for a run that cannot be trained


class Choice(TypedDict):
    """A configuration: a factor of the learning rate, and options that differ from the row's."""

    rate: float
    options: dict[str, Any]


class Judged(Choice):
    perplexity: float | None  # average over the domains tried on (AP); None: training failed


class Chosen(Judged):
    tried: list[Judged]


class Options(TypedDict):
    """The file of a search; `amounts` is the budget of each stage in `unit`, for each configuration."""

    suite: str
    domains: list[str]
    seed: int
    configurations: int
    unit: str
    amounts: list[float]
    rows: dict[str, Chosen]


@dataclass(frozen=True)
class Trial:
    """One configuration of a row, and the run that tries it."""

    row: str
    choice: Choice
    run: RunConfig


@dataclass(frozen=True)
class Search:
    """All trials of a suite's rows. `suite` is the one that they are runs of."""

    suite: Suite
    trials: tuple[Trial, ...]

    @property
    def runs(self) -> list[RunConfig]:
        return [trial.run for trial in self.trials]

    def next_step(self, out: Path) -> str:
        """What uses what was chosen, or where that is not there yet what writes it."""
        path = _file(out, self.suite.name)
        uses = shlex.join(["--options", str(path)])
        use = f"`python run_all.py run {self.suite.called} {uses}` trains with what it chose"
        return use if path.exists() else "the same command without --dry-run writes what it chose"

    def write(self, suites: Suites, runs: Path, out: Path) -> None:
        """Write what was chosen to `out/SUITE-tune/options.json`, once all trials have ended; else say what is left."""
        known = {run.id: run for run in records.load_runs(runs, self.suite.name)}
        rows: dict[str, Chosen] = {}
        left, hopeless = 0, list[str]()
        for row, trials in itertools.groupby(self.trials, key=lambda trial: trial.row):
            tried = [_judge(trial, known.get(trial.run.id)) for trial in trials]
            ended = [one for one in tried if one]
            left += len(tried) - len(ended)
            best = min(ended, key=lambda one: one["perplexity"] or math.inf, default=None)
            if best and best["perplexity"]:
                rows[row] = {**best, "tried": ended}
                print(f"{row}: learning rate x {best['rate']:g}, {best['options']}: AP {best['perplexity']:.2f}")
            elif len(ended) == len(tried):
                hopeless.append(row)
        if left:
            print(f"{left} of {len(self.trials)} trials have not ended; call `tune` again")
            return
        if hopeless:
            names = ", ".join(hopeless)
            print(
                f"no configuration of {names} could be trained, so nothing is written: `python run_all.py tune "
                f"{self.suite.called} --retry-failed` tries again; or leave them out with --methods"
            )
            return
        first = self.trials[0].run
        content: Options = {
            "suite": self.suite.name.removesuffix("-tune"),
            "domains": [domain.name for domain in first.domains],
            "seed": first.seed,
            "configurations": sum(trial.row == self.trials[0].row for trial in self.trials),
            "unit": first.budget.unit,
            "amounts": [per_stage(first.budget.amount, stage) for stage in range(len(first.domains))],
            "rows": rows,
        }
        path = _file(out, self.suite.name)
        write_json(path, content, indent=1)
        print(f"wrote {path}; `run --options {path}` uses it")


def _judge(trial: Trial, run: records.RunRecords | None) -> Judged | None:
    """What came of a trial; None if it has not ended."""
    if run is None or (run.finished < len(trial.run.domains) and not run.failure):
        return None
    judged: Judged = {**trial.choice, "perplexity": None}
    if run.finished == len(trial.run.domains):
        last = [line for line in run.stages[-1] if line["kind"] == "evaluation"][-1]["perplexity"]
        values = [last[domain.name] for domain in trial.run.domains]
        finite = [value for value in values if value]
        if len(finite) == len(values):
            judged["perplexity"] = math.exp(sum(map(math.log, finite)) / len(finite))
    return judged


def refuse_seeds(text: str | None) -> None:
    """Raise ConfigError where `--seeds` names several: a configuration is tried with one."""
    if len(seeds := parse_seeds(text)) > 1:
        raise ConfigError(f"--seeds {text}: a search has one seed: choose one of them, as --seeds {seeds[0]}")


def searching(suite: Suite) -> Suite:
    """The suite that the runs of a search for `suite` are of, whatever the search is asked to try."""
    changes = {"name": f"{suite.name}-tune", "title": f"Tuning {suite.name}", "tasks": (), "tables": ()}
    return suite.model_copy(update=changes)


def search(suite: Suite, runs: Sequence[RunConfig], spaces: Mapping[str, Space], count: int, check: Check) -> Search:
    """`count` trials for each row, with the first seed. `spaces` are those of the methods, by name.

    Raises ConfigError if a method has not so many configurations that `check` lets pass.
    """
    if not 1 <= count <= len(RATES):
        raise ConfigError(f"--configurations {count}: give 1 to {len(RATES)}; a method without options has no more")
    own, trials = searching(suite), list[Trial]()
    for run in (run for run in runs if run.seed == runs[0].seed):
        for number, choice in enumerate(_configurations(run, spaces[run.method], count, check)):
            changes = {"suite": own.name, "row": f"{run.row} {number}", "row_index": len(trials)}
            trials.append(Trial(run.row, choice, _shorten(apply(run, choice)).model_copy(update=changes)))
    return Search(own, tuple(trials))


def _configurations(run: RunConfig, space: Space, count: int, check: Check) -> list[Choice]:
    """The run's own configuration, and a random sample of all others, the same at each call."""
    names = sorted(space)
    others: list[Choice] = []
    for rate, *values in itertools.product(RATES, *(space[name] for name in names)):
        choice: Choice = {"rate": rate, "options": dict(zip(names, values, strict=True))}
        tried = apply(run, choice)
        if tried != run and _passes(tried, check):
            others.append(choice)
    if len(others) < count - 1:
        raise ConfigError(
            f"--configurations {count}: row {run.row!r} has only {len(others) + 1} that can be trained: give fewer"
        )
    return [{"rate": 1.0, "options": {}}, *random.Random(digest([run.row, names])).sample(others, count - 1)]


def _passes(run: RunConfig, check: Check) -> bool:
    try:
        check(run)
    except ConfigError:
        return False
    return True


def apply(run: RunConfig, choice: Choice) -> RunConfig:
    """The run with the options and the learning rate of a configuration."""
    rate = _scaled(run.training.learning_rate, choice["rate"])
    training = run.training.model_copy(update={"learning_rate": rate})
    return run.model_copy(update={"options": {**run.options, **choice["options"]}, "training": training})


def tuned(suite: Suite, runs: Sequence[RunConfig], file: Path, charge_search: bool) -> tuple[Suite, list[RunConfig]]:
    """A suite and its runs with the options that a search chose; `charge_search` takes its cost off their budget.

    They are runs of a suite of another name, so that its reports stand beside those of the default options. Raises
    ConfigError for a file that is none of a search, lacks a row, or cost more than there is.
    """
    try:
        content: Options = json.loads(read_text(file))
        count, unit = content["configurations"], content["unit"]
        cost = count * sum(content["amounts"])
        choices = [(row, float(one["rate"]), dict(one["options"])) for row, one in content["rows"].items()]
        if wrong := [rate for _, rate, _ in choices if not 0 < rate <= MOST_RATE]:
            raise ValueError(f"the learning rate times {wrong[0]:g}")
        rows: dict[str, Choice] = {row: {"rate": rate, "options": options} for row, rate, options in choices}
        if not isinstance(count, int) or unit not in UNITS or not 0 < cost < math.inf:
            raise ValueError(f"{count!r:.20} configurations that took {cost!r:.20} {unit!r:.60}")
        mark = Tuned(configurations=count, spent=cost, unit=unit, charged=charge_search)
    except Refused:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"--options {file}: not a file that `run_all.py tune` wrote ({type(error).__name__}: {error})"
        ) from None
    name = f"{suite.name}-tuned" + ("-charged" if charge_search else "")
    changed = []
    for run in runs:
        if run.row not in rows:
            raise ConfigError(f"--options {file}: no row {run.row!r}; it has {', '.join(rows)}: call `tune` again")
        changes: dict[str, Any] = {"suite": name, "tuned": mark}
        if charge_search:
            changes["budget"] = run.budget.model_copy(update={"amount": _what_is_left(run, cost, mark.unit, file)})
        changed.append(apply(run, rows[run.row]).model_copy(update=changes))
    return suite.model_copy(update={"name": name}), changed


def both_ways(suite: Suite, runs: Sequence[RunConfig], out: Path) -> list[tuple[Suite, list[RunConfig]]]:
    """The suite as tuned by its search, the cost of the search apart and charged; none without a search in `out`.

    What the file of the search does not allow is left out, and said.
    """
    found: list[tuple[Suite, list[RunConfig]]] = []
    file = _file(out, searching(suite).name)
    for charge_search in (False, True) if file.exists() else ():
        try:
            found.append(tuned(suite, runs, file, charge_search))
        except ConfigError as error:
            print(f"not beside the others: {error}", file=sys.stderr)
    return found


def _file(out: Path, suite: str) -> Path:
    """Where a search writes what it chose."""
    return out / suite / "options.json"


def _what_is_left(run: RunConfig, cost: float, unit: str, file: Path) -> PerStage:
    """The budget of each stage less the same share of each, so that with the search it is the suite's."""
    total = sum(per_stage(run.budget.amount, stage) for stage in range(len(run.domains)))
    if unit != run.budget.unit or cost >= total:
        raise ConfigError(
            f"--charge-search: the search of {file} took {cost:g} {unit} a row, of a budget of {total:g} "
            f"{run.budget.unit}: tune with fewer --configurations or a smaller budget.amount of the same unit"
        )
    return _scaled(run.budget.amount, 1 - cost / total)


def _scaled(value: PerStage, factor: float) -> PerStage:
    return tuple(one * factor for one in value) if isinstance(value, tuple) else value * factor


def _shorten(run: RunConfig) -> RunConfig:
    """The run on the first domains of its stream only."""

    def first(value: PerStage) -> PerStage:
        return value[:DOMAINS] if isinstance(value, tuple) else value

    domains = run.domains[:DOMAINS]
    known = {domain.name for domain in domains}
    made_of = tuple(name for name in run.tokenizer.domains if name in known)
    rates = {"learning_rate": first(run.training.learning_rate), "warmup": first(run.training.warmup)}
    changes = {
        "domains": domains,
        "probes": (),
        "tasks": (),
        "tokenizer": run.tokenizer.model_copy(update={"domains": made_of}),
        "model": run.model.model_copy(update={"ladder": run.model.ladder[:DOMAINS]}),
        "training": run.training.model_copy(update=rates),
        "budget": run.budget.model_copy(update={"amount": first(run.budget.amount)}),
    }
    return run.model_copy(update=changes)
