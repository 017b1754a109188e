#!/usr/bin/env python3
"""Compare lifelong language-model pre-training methods: train what a suite's tables lack, then render them.

python run_all.py                       the demo: minutes on two cores
python run_all.py run SUITE --dry-run   which runs, how long, what is done
python run_all.py report SUITE          tables and figures from the records that exist
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.settings.config import ConfigError, RunConfig, Suite
from benchmark.settings.suite_files import expand, load_suite, parse_set, suite_names

if TYPE_CHECKING:
    from analysis.exhibits import View
    from benchmark.instruments.run_models import Measure
    from benchmark.jobs.planning import RunState, Survey

# torch, transformers and pandas are imported by the commands that need them, so that --help and mistakes answer at once


def main(arguments: list[str] | None = None) -> int:
    parser = command_line()
    given = list(sys.argv[1:] if arguments is None else arguments)
    commands = parser.commands  # type: ignore[attr-defined]
    if not given or (given[0] not in commands and given[0] not in ("-h", "--help")):
        given.insert(0, "run")
    options = parser.parse_args(given)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    from benchmark.errors import UserError

    try:
        code: int = options.command(options)
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the next run goes on from the last checkpoint", file=sys.stderr)
        return 130


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run_all.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.commands = subparsers.choices  # type: ignore[attr-defined]

    suites = f"{', '.join(suite_names())}, or a .toml file"
    one_suite = argparse.ArgumentParser(add_help=False)
    one_suite.add_argument("suite", nargs="?", default="demo", help=suites)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--runs", type=Path, default=Path("runs"), help="checkpoints and records (default: runs)")
    common.add_argument("--out", type=Path, default=Path("report"), help="tables and figures (default: report)")
    common.add_argument("--methods", default="", metavar="A,B", help="only rows of these methods")
    common.add_argument("--seeds", default="", metavar="0,1", help="these seeds instead of the suite's")
    common.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override, e.g. budget.amount=60"
    )
    common.add_argument(
        "--dry-run", action="store_true", help="say which runs, how long, and what is done; run nothing"
    )

    def command(
        name: str, function: Any, help: str, parents: Sequence[argparse.ArgumentParser] = (one_suite, common)
    ) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=help, description=help, parents=parents)
        sub.set_defaults(command=function)
        return sub

    sub = command("run", run, "train what is missing, then report (the default)")
    sub.add_argument("--executor", choices=("local", "slurm"), default="local", help="where (default: local)")
    sub.add_argument("--wait", action="store_true", help="with Slurm: show the state until all jobs have ended")
    sub.add_argument("--retry-failed", action="store_true", help="also runs that ended with an error")
    command("prepare", prepare, "tokenise the suite's domains, and read its tasks")
    sub = command("report", report, "render tables and figures from the records that exist", [common])
    sub.add_argument("suites", nargs="*", default=["demo"], help=f"{suites}; several make tables with a block each")
    sub.add_argument(
        "--view",
        choices=("ours", "printed", "both"),
        default="ours",
        help="tables with our numbers, the paper's, or both",
    )
    sub = command("status", status, "the state of each run")
    sub.add_argument("--watch", action="store_true", help="again and again, until no job is left")
    command("cancel", cancel, "end the suite's Slurm jobs; what is trained stays")

    sub = command("speed", speed, "what a step of each row costs beside Naive's, and what its FLOPs predict")
    sub.add_argument("--reference", type=Path, metavar="FILE", help="also write the table that unit 'reference' needs")
    sub.add_argument("--pairs", type=int, default=7, help="of steps timed in turns with Naive's (default: 7)")

    sub = command("check", check, "does a method in methods/ keep the promises of the interface?", parents=[])
    sub.add_argument("method")

    sub = command("evaluate", evaluate, "perplexity of a checkpoint on your text", parents=[])
    sub.add_argument("checkpoint", type=Path, help="a folder written by a run: runs/stages/KEY/model")
    sub.add_argument("--text", type=Path, required=True, metavar="FILE", help="JSON Lines or text, .gz and .zst too")
    sub.add_argument(
        "--domain", default=None, help="whose prompt or column to use; 'auto' picks one (default: the last)"
    )
    sub.add_argument("--json", action="store_true", help="print one JSON object")

    sub = command("grow", grow, "a larger model that computes the same, from a Hugging Face folder", parents=[])
    sub.add_argument("checkpoint", type=Path, help="a BERT, RoBERTa or GPT-2 type Hugging Face folder")
    sub.add_argument("--layers", type=int, required=True)
    sub.add_argument("--width", type=int, required=True, help="the new hidden size")
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--mode", choices=("exact", "fpi"), default="exact", help="exact (default), or the paper's")
    sub.add_argument("--text", type=Path, help="fits what cannot be exact to this text")
    sub.add_argument("--seed", type=int, default=0)
    return parser


def read_suite(options: argparse.Namespace, name: str) -> tuple[Suite, list[RunConfig]]:
    """A suite with the command line's overrides, and its runs."""
    suite = load_suite(name, dict(parse_set(item) for item in options.set))
    import methods

    only = tuple(filter(None, options.methods.split(",")))
    try:
        seeds = tuple(int(seed) for seed in options.seeds.split(",") if seed) or suite.seeds
    except ValueError:
        raise ConfigError(f"--seeds {options.seeds!r}: give whole numbers, e.g. --seeds 0,1") from None
    kept = {row.name for row in methods.rows(suite, only)}  # each keeps its place in the suite, and so its colour
    return suite, [config for config in expand(suite, methods.rows(suite), seeds) if config.row in kept]


def run(options: argparse.Namespace) -> int:
    from benchmark.jobs.planning import describe, to_train

    suite, survey = look(options)
    states, measures = survey.states(), measures_of(suite)
    if options.dry_run:
        print(describe(suite, states, survey.build, options.executor, options.retry_failed, measures))
        return 0
    wanted = to_train(states, options.retry_failed)
    left_out = sum(state.state == "failed" for state in states if state not in wanted)
    if left_out:
        print(f"{left_out} failed runs are left as they are; --retry-failed tries them again", file=sys.stderr)
    if options.executor == "slurm":
        return run_on_slurm(options, suite, survey, states)

    from benchmark.downstream.scoring import load_tasks, score_runs
    from benchmark.jobs.launch import train_here

    leads = int(os.environ.get("RANK", 0)) == 0
    if leads:
        load_tasks(suite, survey.store)  # what is wrong with them is said now, not after days of training
    failed = train_here([state.config for state in wanted], survey.build, options.runs)
    unscored = 0
    if leads:
        unscored = score_runs(suite, survey.configs, options.runs)
        for config in survey.configs:
            for measure in measures:
                measure(config, survey.store)
        write_report([(suite, survey.configs)], options.runs, options.out)
    if failed:
        print(f"{len(failed)} runs failed; `run_all.py status {options.suite}` says why", file=sys.stderr)
    if unscored:
        print(f"{unscored} models could not be scored, see above; `run` tries them again", file=sys.stderr)
    return 1 if failed or left_out or unscored else 0


def run_on_slurm(options: argparse.Namespace, suite: Suite, survey: Survey, states: list[RunState]) -> int:
    from benchmark.jobs.status import watch
    from benchmark.jobs.submit import Report, Submission

    work = Report(write_report, suite, tuple(survey.configs), options.runs.absolute(), options.out.absolute())
    submission = Submission(suite, survey.store, survey.build, work, measures_of(suite))
    submitted = submission.submit(states, options.retry_failed)
    for job in submitted:
        print(f"{job.id}  {job.name}" + (f"  after {', '.join(job.after)}" if job.after else ""))
    if options.wait:
        return watch(survey)
    if not submitted:
        print("nothing to submit: all runs are done or under way")
    print(f"`run_all.py status {options.suite}` says how they do")
    return 0


def measures_of(suite: Suite) -> tuple[Measure, ...]:
    """What the suite's tables and figures need of its models. Raises ConfigError for a name that is none of these."""
    import paper_tables

    names = dict.fromkeys(paper_tables.load(name).model_measure for name in suite.tables)
    return tuple(importlib.import_module(f"analysis.{name}").measure for name in names if name)


def look(options: argparse.Namespace) -> tuple[Suite, Survey]:
    import methods
    from benchmark.jobs.planning import Survey
    from benchmark.store import Store

    suite, configs = read_suite(options, options.suite)
    return suite, Survey(suite, configs, methods.build, Store(options.runs))


def prepare(options: argparse.Namespace) -> int:
    from benchmark.downstream.scoring import load_tasks
    from benchmark.store import Store
    from benchmark.training.run import corpus_of

    suite, configs = read_suite(options, options.suite)
    store = Store(options.runs)
    corpus = corpus_of(configs[0], store, lambda text: print(text, file=sys.stderr))
    for domain in corpus.domains:
        print(
            f"{domain.name}: {domain.info['documents']:,} documents, {len(domain.train):,} training and "
            f"{len(domain.valid):,} validation tokens, unigram perplexity {domain.info['unigram_perplexity']:,.1f}"
        )
    for task, data in load_tasks(suite, store):
        print(
            f"{task.name}: {len(data.train):,} training, {len(data.dev):,} dev and {len(data.test):,} test examples of "
            f"{len(data.labels)} classes"
        )
    return 0


def report(options: argparse.Namespace) -> int:
    suites = [read_suite(options, name) for name in options.suites]
    write_report(suites, options.runs, options.out, options.view)
    return 0


def write_report(
    suites: Sequence[tuple[Suite, Sequence[RunConfig]]], runs: Path, out: Path, view: View = "ours"
) -> None:
    """Into a folder of the suite's name; of several suites, of their names with + between."""
    import paper_tables
    from analysis.render import render
    from benchmark.records import load_runs, not_started

    chosen = []
    for suite, configs in suites:
        known = {run.id: run for run in load_runs(runs, suite.name)}
        found = [known.get(config.id) or not_started(config.description()) for config in configs]
        # a record says the place that its row had in the suite of that day
        chosen += [replace(run, row_index=config.row_index) for run, config in zip(found, configs, strict=True)]
    name = "+".join(suite.name for suite, _ in suites)
    tables = list(dict.fromkeys(table for suite, _ in suites for table in suite.tables))
    written = render(
        name, chosen, [paper_tables.load(table) for table in tables], paper_tables.catalogue(), out / name, view
    )
    for path in written:
        if path.suffix == ".md":
            print(path.read_text(encoding="utf-8"))
    print("\n".join(f"wrote {path}" for path in written))


def status(options: argparse.Namespace) -> int:
    from benchmark.jobs.status import show, watch

    _, survey = look(options)
    return watch(survey) if options.watch else show(survey)


def cancel(options: argparse.Namespace) -> int:
    from benchmark.jobs.submit import cancel_jobs

    suite, _ = read_suite(options, options.suite)
    print(f"ended {cancel_jobs(suite, options.runs)} jobs; `run` goes on from their checkpoints")
    return 0


def speed(options: argparse.Namespace) -> int:
    _, configs = read_suite(options, options.suite)
    import methods
    from benchmark.instruments.speed import measure, table
    from benchmark.store import Store
    from benchmark.training import step_times
    from benchmark.training.processes import join
    from benchmark.training.run import corpus_of

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    store = Store(options.runs)
    with join() as world:
        costs, rows = measure(
            configs, methods.build, lambda one: corpus_of(one, store, say), world, pairs=options.pairs, say=say
        )
        print(table(costs, world.hardware()))
        if options.reference:
            step_times.write(options.reference, rows, world.hardware())
    return 0


def check(options: argparse.Namespace) -> int:
    import methods
    from benchmark.instruments.conformance import check as run_checks

    methods.find(options.method)
    return 0 if run_checks(options.method, methods.build, print) else 1


def evaluate(options: argparse.Namespace) -> int:
    from benchmark.instruments.evaluate_text import evaluate_text

    result = evaluate_text(options.checkpoint, options.text, options.domain)
    print(json.dumps(result) if options.json else "\n".join(f"{key}: {value}" for key, value in result.items()))
    return 0


def grow(options: argparse.Namespace) -> int:
    from benchmark.instruments.grow_checkpoint import grow_checkpoint

    record = grow_checkpoint(
        options.checkpoint,
        options.layers,
        options.width,
        options.out,
        mode=options.mode,
        text=options.text,
        seed=options.seed,
    )
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, or processes that fine-tune would go on
    sys.exit(main())
