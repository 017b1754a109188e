#!/usr/bin/env python3
"""Compare lifelong language-model pre-training methods: train what a suite's tables lack, then
render them.

`python run_all.py` alone runs the demo, in minutes on two cores. Each command below has a --help of
its own.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.errors import UserError, run_command
from benchmark.interpreters import set_up_to_compute
from benchmark.jobs import executors
from benchmark.settings.command_line import LISTS, parse, repeat_options

# Each command imports what it needs, so --help answers at once, and plans do not wait for torch.
if TYPE_CHECKING:
    from analysis.study import Study
    from benchmark.jobs.state import Survey
    from benchmark.ledger.runs import RunRecords
    from benchmark.settings.suite import RunConfig, Suite


def main(arguments: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or (words[0].startswith("-") and words[0] not in ASKS):
        words.insert(0, "run")
    options = parse(words, __doc__ or "")
    options.program = (__file__, *words)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    if options.command in COMPUTE:
        set_up_to_compute()
    command = partial(COMMANDS[options.command], options)
    return run_command(command, ENDED.get(options.command, "ended"))


def read_suite(options: argparse.Namespace, name: str) -> tuple[Suite, list[RunConfig]]:
    """A suite with the command line's overrides, and its runs."""
    import methods
    from benchmark.settings.load import load_suite, parse_set

    overrides = dict(map(parse_set, options.set))
    if options.seeds:
        overrides["seeds"] = list(options.seeds)
    suite = load_suite(name, overrides, repeat_options(options, name))
    needs_records_alone = options.command in ("status", "report")
    find_start = partial(find_start_in_records, options.runs) if needs_records_alone else None
    runs = methods.list_runs(suite, options.methods, find_start=find_start)
    executors.check_sections(suite, runs)
    return suite, runs


def find_start_in_records(runs: Path, config: RunConfig) -> RunConfig | None:
    """The run with its start model as recorded below `runs`, None if no record has it."""
    from benchmark.ledger.archive import open_suites
    from benchmark.ledger.ledger import find_recorded_start
    from benchmark.ledger.store import Store

    with open_suites(runs, [config.suite]) as folders:
        return find_recorded_start(config, Store(folders[config.suite]))


def say(lines: Iterable[str]) -> int:
    for line in lines:
        print(line)
    return 0


def read_survey(options: argparse.Namespace) -> Survey:
    """The survey of a suite for a command that writes below `--runs`."""
    suite, configs = read_suite(options, options.suite)
    return make_survey(suite, configs, require_runs(options.runs))


def make_survey(suite: Suite, configs: list[RunConfig], runs: Path) -> Survey:
    import methods
    from analysis.catalogue import list_measures
    from benchmark.jobs.state import Survey
    from benchmark.ledger.store import Store

    return Survey(suite, configs, methods.build, Store(runs), list_measures(suite))


def require_runs(runs: Path) -> Path:
    """The folder of `--runs`, for commands that write there.

    Raises UserError for a study's folder, which is only read.
    """
    from benchmark.ledger.archive import RECORDS

    if (runs / RECORDS).is_dir():
        raise UserError(
            f"{runs} is a study's folder: give another --runs; `collect` adds what is trained there"
        )
    return runs


def run(options: argparse.Namespace) -> int:
    from analysis.report import write_report
    from benchmark.jobs.status import describe
    from benchmark.jobs.waves import execute, make_plan

    survey = read_survey(options)
    if options.dry_run:
        plan = make_plan(survey, write_report, options)
        return say(describe(plan, executors.find(options.executor)))
    return execute(survey, write_report, options)


def tune(options: argparse.Namespace) -> int:
    import methods
    from benchmark.jobs import tuning

    suite, _ = read_suite(options, options.suite)
    runs = require_runs(options.runs)
    rows = methods.list_rows(suite, options.methods)
    spaces = {row.method: methods.find(row.method).search_space for row in rows}
    lines = tuning.tune(
        suite,
        rows,
        spaces,
        options.configurations,
        options.domains,
        methods.list_runs,
        methods.build,
        runs,
    )
    return say(lines)


def prepare(options: argparse.Namespace) -> int:
    from benchmark.jobs import preparation

    suite, configs = read_suite(options, options.suite)
    return say(preparation.prepare(suite, configs, require_runs(options.runs)))


def report(options: argparse.Namespace) -> int:
    from analysis.report import write_report
    from benchmark.ledger.archive import open_suites

    suites = [read_suite(options, name) for name in options.suites]
    with open_suites(options.runs, [suite.name for suite, _ in suites]) as folders:
        write_report(suites, folders, options.out)
    return 0


def status(options: argparse.Namespace) -> int:
    from benchmark.jobs.status import show
    from benchmark.ledger.archive import open_suites

    suite, configs = read_suite(options, options.suite)
    with open_suites(options.runs, [suite.name]) as folders:
        survey = make_survey(suite, configs, folders[suite.name])
        return show(survey, options.watch, options.why)


def cancel(options: argparse.Namespace) -> int:
    from benchmark.ledger.store import Store

    suite, _ = read_suite(options, options.suite)  # no survey: it may refuse a method
    store = Store(require_runs(options.runs))
    jobs: list[str] = []
    for executor in executors.list_used(suite, store):
        jobs += executor.cancel(suite, store)
    if not jobs:
        return say(["no jobs to end; Ctrl-C ends what runs here"])
    return say(
        [
            f"ended {len(jobs)} jobs; `python run_all.py run {suite.command_arguments}` "
            "(with --executor as before) goes on from their checkpoints"
        ]
    )


def speed(options: argparse.Namespace) -> int:
    from benchmark.instruments.speed import print_speed

    survey = read_survey(options)
    return print_speed(survey.configs, survey.build, survey.store, options.pairs, options.reference)


def check(options: argparse.Namespace) -> int:
    import methods

    methods.find(options.method)  # before torch is imported, which takes seconds
    from benchmark.instruments import conformance

    if conformance.check(options.method, methods.build, print):
        return 0
    return 1


def doctor(options: argparse.Namespace) -> int:
    suite, configs = read_suite(options, options.suite)
    return executors.doctor(suite, configs, options.runs)


def collect(options: argparse.Namespace) -> int:
    import methods
    from analysis.report import write_report
    from benchmark.jobs import study
    from benchmark.ledger import archive

    suites = methods.load_study_runs(options.study)
    suite, configs = read_suite(options, options.suite)
    archive.check_suites(options.study, suites, [suite.name])
    runs_by_suite = {study_suite.name: suite_runs for study_suite, suite_runs in suites}
    rows = {run.row for run in runs_by_suite[suite.name]}
    missing_rows = dict.fromkeys(config.row for config in configs if config.row not in rows)
    if missing_rows:
        print(
            f"left out: {', '.join(missing_rows)}; "
            f"suite {suite.name} in {options.study} has no such row"
        )
    study_configs = [config for config in configs if config.row in rows]
    runs = require_runs(options.runs)
    say(study.collect(suite, study_configs, runs, options.study, methods.build))
    return say(study.render(options.study, suites, write_report))


def verify(options: argparse.Namespace) -> int:
    import methods
    from analysis.report import write_report
    from benchmark.jobs import study

    suites = methods.load_study_runs(options.study)
    if options.stage:
        lines = study.verify_stage(
            options.study, suites, options.stage, methods.build, options.runs
        )
    else:
        render = partial(write_report, only_tables=True)
        lines = study.verify(options.study, suites, render, methods.build)
    return say(lines)


def compare(options: argparse.Namespace) -> int:
    import methods
    from analysis import comparison
    from benchmark.ledger.archive import open_suites
    from benchmark.ledger.store import Store
    from benchmark.settings.load import parse_set
    from benchmark.training.declaration import open_ledger

    sides = []
    for place in (options.a, options.b):
        with open_suites(Path(place)) as folders:
            runs = []
            for name, folder in folders.items():
                runs += open_ledger(Store(folder), methods.build).read_recorded(name)
        suites: dict[str, list[RunRecords]] = {}
        for run in runs:
            is_of_method = not options.methods or run.line.method in options.methods
            is_of_seed = not options.seeds or run.seed in options.seeds
            if is_of_method and is_of_seed:
                suites.setdefault(run.suite, []).append(run)
        sides.append(comparison.Side(place, suites))
    settings = dict(map(parse_set, options.set))
    return say(comparison.compare(sides[0], sides[1], settings))


def upgrade(options: argparse.Namespace) -> int:
    import methods
    from benchmark.jobs.upgrade import upgrade

    return say(upgrade(options.places, methods.build))


def list_names(options: argparse.Namespace) -> int:
    """Print the names of a kind, such as methods, each with what it is and when to take it.

    Without a kind, all kinds are printed.
    """
    if options.kind:
        return say(describe_names(options.kind))
    for kind in LISTS:
        lines = [f"  {line}" for line in describe_names(kind)]
        say([f"{kind}:", *lines, ""])
    return 0


def describe_names(kind: str) -> Iterator[str]:
    """The lines of `list` on one of LISTS."""
    if kind == "optimizers":
        from benchmark.settings.optimizers import OPTIMIZERS

        for optimizer in OPTIMIZERS.values():
            yield from describe_entry(optimizer.name, optimizer.described, optimizer.reason)
        return
    import methods
    from analysis import catalogue
    from benchmark.settings import names

    if kind == "studies":
        for study in sorted(names.STUDIES.glob("*/")):
            count = len(list(study.glob("*.toml")))
            plan = study / "plan.md"
            suites = "1 suite" if count == 1 else f"{count} suites"
            title = names.read_first_line(plan).removesuffix(": the plan")
            heading = f"{title} ({suites} in {study})"
            yield from describe_entry(study.name, heading, names.read_reason(plan))
        return
    folders: dict[str, list[str]] = {
        "methods": [*methods.__path__],
        "tables": [str(catalogue.FOLDER)],
        "suites": [str(names.SUITES)],
        "architectures": names.ARCHITECTURE_FOLDERS,
    }
    files: dict[str, Path] = {}
    for folder in folders[kind]:
        paths = Path(folder).glob("*.toml" if kind == "suites" else "*.py")
        files |= {path.stem: path for path in paths if not path.stem.startswith("_")}
    # other packages' methods too
    entries = methods.list_names() if kind == "methods" else list(files)
    for name in sorted(entries):
        file = files.get(name)
        yield from describe_entry(name, names.read_first_line(file), names.read_reason(file))


def describe_entry(name: str, meaning: str, reason: str) -> Iterator[str]:
    yield f"{name:28}{meaning}".rstrip()
    if reason:
        yield f"{'':28}{reason}"


def track(options: argparse.Namespace) -> int:
    import methods
    from benchmark.instruments.track import track
    from benchmark.ledger.archive import open_suites

    suite, configs = read_suite(options, options.suite)
    with open_suites(options.runs, [suite.name]) as folders:
        runs = folders[suite.name]
        return say(track(suite.name, configs, methods.build, runs, options.out))


def open_study(name: str, runs: str = "runs", set: Mapping[str, object] | None = None) -> Study:
    """The records of a suite below `runs`.

    `set` overrides suite keys as `--set` does (docs/python.md). Raises UserError for a mistake, and
    if there are no records.
    """
    import methods
    from analysis.report import load_study, say_what_is_missing
    from benchmark.ledger.archive import open_suites
    from benchmark.settings.load import load_suite

    suite = load_suite(name, set)
    suites = [(suite, methods.list_runs(suite))]
    with open_suites(Path(runs), [suite.name]) as folders:
        study = load_study(suites, folders)
    missing = say_what_is_missing(study)
    if missing:
        raise UserError(f"{runs}: {missing}")
    return study


def export(options: argparse.Namespace) -> int:
    """Export the model of a stage, or with --row the last one of a suite's row."""
    from benchmark.instruments.export import export
    from benchmark.jobs.state import find_last_model

    if not options.row:
        return export(options)
    options.suite = options.stage
    options.stage = find_last_model(read_survey(options), options.row)
    return export(options)


OF_INSTRUMENTS = {"evaluate": "checkpoints", "grow": "checkpoints", "new-suite": "new_suite"}


def run_instrument(options: argparse.Namespace) -> int:
    """Run a command on a model's folder or on text, from a file in benchmark/instruments."""
    module = importlib.import_module(f"benchmark.instruments.{OF_INSTRUMENTS[options.command]}")
    command = getattr(module, options.command.replace("-", "_"))
    return int(command(options))


HERE = (
    run,
    tune,
    prepare,
    report,
    status,
    cancel,
    speed,
    collect,
    verify,
    check,
    compare,
    upgrade,
    doctor,
    track,
    export,
)
COMMANDS = {command.__name__: command for command in HERE} | dict.fromkeys(
    OF_INSTRUMENTS, run_instrument
)
COMMANDS["list"] = list_names
COMPUTE = {"run", "speed", "check", "verify", "evaluate", "grow"}
ENDED = {  # what to print when Ctrl-C or SIGTERM ends a command
    "run": "ended; the next `run` continues from the last checkpoint (jobs on a cluster go on)",
    "status": "ended; this stops no run, and `run` starts what is missing",
    "check": "ended; `check` keeps nothing, and the same command tries all again",
}
ASKS = ("-h", "--help", "--version")  # asked without a command

if __name__ == "__main__":
    # handled like Ctrl-C, or else processes that fine-tune would go on
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper):  # whatever its encoding, it takes any character
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
