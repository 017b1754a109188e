#!/usr/bin/env python3
"""Compare lifelong language-model pre-training methods: train what a suite's tables lack, then render them.

python run_all.py                       the demo: minutes on two cores
python run_all.py run SUITE --dry-run   which runs, how long, what is done
python run_all.py report SUITE          tables and figures from the records that exist
"""

from __future__ import annotations

import argparse
import io
import logging
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.errors import UserError, is_of_printing, stop_printing, told
from benchmark.instruments.commands import evaluate, export, grow, new_suite, track
from benchmark.jobs import executors
from benchmark.settings.command_line import check_runs, command_line, interrupted

if TYPE_CHECKING:
    from analysis.notebook import OpenSuite
    from benchmark.jobs.state import Survey
    from benchmark.settings.suite import RunConfig, Suite
    from benchmark.store import Store

# What a command needs is imported when it is called, so that --help answers at once, and plans before torch would


def main(arguments: list[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or (given[0] not in COMMANDS and given[0] not in ("-h", "--help")):
        given.insert(0, "run")
    options = command_line(__doc__ or "", executors.names()).parse_args(given)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    try:
        check_runs(options)
        code = COMMANDS[options.command](options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads, as `head` does, has read enough
        return stop_printing()
    except (UserError, ModuleNotFoundError, OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.filename is None:
            if not is_of_printing(error):
                raise
            stop_printing()  # or Python would try again as it ends
        print(f"error: {told(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{interrupted(options)}", file=sys.stderr)
        return 130


def read_suite(options: argparse.Namespace, name: str) -> tuple[Suite, list[RunConfig]]:
    """A suite with the command line's overrides, and its runs."""
    import methods
    from benchmark.settings.command_line import words_again
    from benchmark.settings.load import load_suite, parse_methods, parse_seeds, parse_set

    suite = load_suite(name, dict(parse_set(item) for item in options.set))
    runs = methods.runs(suite, parse_methods(options.methods), parse_seeds(options.seeds))
    return suite.called_by(words_again(options, name)), runs


def store_of(options: argparse.Namespace) -> Store:
    from benchmark.store import Store

    return Store(options.runs)


def say(lines: Iterable[str]) -> int:
    for line in lines:
        print(line)
    return 0


def survey_of(options: argparse.Namespace) -> Survey:
    import methods
    from benchmark.jobs.state import Survey

    return Survey(*read_suite(options, options.suite), methods.build, store_of(options))


def run(options: argparse.Namespace) -> int:
    import paper_tables
    from benchmark.jobs.waves import Tables, execute
    from benchmark.settings.load import report_folder

    survey = survey_of(options)
    out = report_folder(options.out, survey.suite, options.set)
    return execute(survey, Tables(paper_tables.measures(survey.suite), paper_tables.write_report, out), options)


def tune(options: argparse.Namespace) -> int:
    import methods
    from benchmark.jobs import tuning
    from benchmark.settings.load import parse_methods
    from benchmark.training.keys import check_memory_shares

    def check(run: RunConfig) -> None:
        check_memory_shares(run, methods.build(run.method, run.options))

    suite = read_suite(options, options.suite)[0]
    rows = methods.rows(suite, parse_methods(options.methods))
    spaces = {row.method: methods.find(row.method).space for row in rows}
    return say(tuning.tune(suite, rows, spaces, options.configurations, check, options.runs))


def prepare(options: argparse.Namespace) -> int:
    from benchmark.jobs import preparation

    suite, configs = read_suite(options, options.suite)
    return say(preparation.prepare(suite, configs, store_of(options)))


def report(options: argparse.Namespace) -> int:
    import paper_tables
    from benchmark.settings.load import report_folder

    suites = [read_suite(options, name) for name in options.suites]
    out = report_folder(options.out, suites[0][0], options.set)
    paper_tables.write_report(suites, options.runs, out, options.view)
    return 0


def status(options: argparse.Namespace) -> int:
    from benchmark.jobs.status import show, watch

    return (watch if options.watch else show)(survey_of(options))


def cancel(options: argparse.Namespace) -> int:
    from benchmark.jobs import executors
    from benchmark.store import Store

    (suite, _), store = read_suite(options, options.suite), Store(options.runs)
    ended = [id for one in executors.of(suite, store) for id in one.cancel(suite, store, options.dry_run)]
    if not ended:
        return say(["no jobs to end; what runs here, outside a cluster, ends with Ctrl-C where it was started"])
    if options.dry_run:
        return say([f"{len(ended)} jobs would be ended: {', '.join(ended)}"])
    return say([f"ended {len(ended)} jobs; `python run_all.py run {suite.called}` goes on from their checkpoints"])


def speed(options: argparse.Namespace) -> int:
    import methods
    from benchmark.instruments.speed import print_speed

    _, configs = read_suite(options, options.suite)
    print_speed(configs, methods.build, store_of(options), options.pairs, options.reference)
    return 0


def check(options: argparse.Namespace) -> int:
    import methods
    from benchmark.instruments.conformance import check as run_checks

    methods.find(options.method)
    return 0 if run_checks(options.method, methods.build, print) else 1


def doctor(options: argparse.Namespace) -> int:
    from benchmark.jobs.doctor import doctor as look

    return look(*read_suite(options, options.suite), options.runs)


def collect(options: argparse.Namespace) -> int:
    import methods
    from benchmark.jobs import study
    from paper_tables import write_report

    suites = methods.of_study(options.study)
    study.collect(*read_suite(options, options.suite), store_of(options), options.study)
    return say(study.render(options.study, suites, write_report))


def verify(options: argparse.Namespace) -> int:
    import methods
    from benchmark.jobs import study
    from paper_tables import write_report

    suites = methods.of_study(options.study)
    if options.stage:
        return say(study.verify_stage(options.study, suites, options.stage, methods.build, store_of(options)))
    if str(options.runs) != "runs":
        raise UserError("--runs: verify trains nothing without --stage KEY: give that, or leave --runs out")
    return say(study.verify(options.study, suites, write_report, methods.build))


def compare(options: argparse.Namespace) -> int:
    from analysis.comparison import Side
    from analysis.comparison import compare as sides
    from benchmark.jobs import study

    with study.open_records(options.a) as a, study.open_records(options.b) as b:
        return say(sides(Side(a.called, a.runs()), Side(b.called, b.runs())))


def open_suite(
    name: str, runs: str = "runs", *, set: Mapping[str, object] | None = None, seeds: Sequence[int] = ()
) -> OpenSuite:
    """A suite for a notebook (docs/python.md). `runs` holds its records, `set` what `--set` would. Raises UserError."""
    import methods
    import paper_tables
    from analysis.notebook import OpenSuite, Rooms
    from benchmark.settings.load import load_suite

    def train(configs: Sequence[RunConfig], folder: Path) -> Sequence[RunConfig]:
        from benchmark.jobs.executors.local import train_here

        return train_here(configs, methods.build, folder)

    suite = load_suite(name, set)
    rooms = Rooms(train, paper_tables.load, paper_tables.study_of)
    return OpenSuite(suite, tuple(methods.runs(suite, seeds=seeds)), Path(runs), rooms)


SUITE_COMMANDS = (run, tune, prepare, report, status, cancel, speed, collect, verify)
OTHERS = (check, compare, doctor, evaluate, export, grow, new_suite, track)
COMMANDS = {command.__name__.replace("_", "-"): command for command in (*SUITE_COMMANDS, *OTHERS)}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, or processes that fine-tune would go on
    if isinstance(sys.stdout, io.TextIOWrapper):  # whatever its encoding, it takes any character
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
