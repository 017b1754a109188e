#!/usr/bin/env python3
"""Compare lifelong language-model pre-training methods: train what a suite's tables lack, then render them.

python run_all.py                       the demo: minutes on two cores
python run_all.py run SUITE --dry-run   which runs, how long, what is done
python run_all.py report SUITE          tables and figures from the records that exist
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.config import ConfigError, RunConfig, Suite, expand, load_suite, parse_set, suite_names

if TYPE_CHECKING:
    pass

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
        return options.command(options)
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

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("suite", nargs="?", default="demo", help=f"{', '.join(suite_names())}, or a .toml file")
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

    def command(name: str, function: Any, help: str, parents: bool = True) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=help, description=help, parents=[common] if parents else [])
        sub.set_defaults(command=function)
        return sub

    command("run", run, "train what is missing, then report (the default)")
    command("prepare", prepare, "tokenise the suite's domains")
    command("report", report, "render tables and figures from the records that exist")
    command("status", status, "the state of each run")

    sub = command("check", check, "does a method in methods/ keep the promises of the interface?", parents=False)
    sub.add_argument("method")

    sub = command("evaluate", evaluate, "perplexity of a checkpoint on your text", parents=False)
    sub.add_argument("checkpoint", type=Path, help="a folder written by a run: runs/stages/KEY/model")
    sub.add_argument("--text", type=Path, required=True, metavar="FILE", help="JSON Lines or text, .gz and .zst too")
    sub.add_argument("--domain", default=None, help="whose prompt or column to use (default: the last domain's)")
    sub.add_argument("--json", action="store_true", help="print one JSON object")

    sub = command("grow", grow, "a larger model that computes the same, from a Hugging Face folder", parents=False)
    sub.add_argument("checkpoint", type=Path, help="a BERT, RoBERTa or GPT-2 type Hugging Face folder")
    sub.add_argument("--layers", type=int, required=True)
    sub.add_argument("--width", type=int, required=True, help="the new hidden size")
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--mode", choices=("exact", "fpi"), default="exact", help="exact (default), or the paper's")
    sub.add_argument("--text", type=Path, help="fits what cannot be exact to this text")
    sub.add_argument("--seed", type=int, default=0)
    return parser


def read_suite(options: argparse.Namespace) -> tuple[Suite, list[RunConfig]]:
    """The suite with the command line's overrides, and its runs."""
    suite = load_suite(options.suite, dict(parse_set(item) for item in options.set))
    import methods

    only = tuple(filter(None, options.methods.split(",")))
    try:
        seeds = tuple(int(seed) for seed in options.seeds.split(",") if seed) or suite.seeds
    except ValueError:
        raise ConfigError(f"--seeds {options.seeds!r}: give whole numbers, e.g. --seeds 0,1") from None
    return suite, expand(suite, methods.rows(suite, only), seeds)


def run(options: argparse.Namespace) -> int:
    if options.dry_run:
        return plan(options)
    suite, configs = read_suite(options)
    import methods
    from benchmark.progress import Line
    from benchmark.run import Run, Store, corpus_of
    from benchmark.stage import Stopped
    from benchmark.world import join

    store = Store(options.runs)
    failed = []
    with join() as world, stop_signals() as asked_to_stop:
        if world.leads:
            corpus_of(configs[0], store, lambda text: print(text, file=sys.stderr))
        world.barrier()
        # One at a time: under a wall-time budget they would slow each other.
        for config in configs:
            line = Line(f"{suite.name}: {config.row}, seed {config.seed}")
            try:
                one = Run(
                    config, lambda c=config: methods.build(c.method, c.options), store, world, line, asked_to_stop
                )
                if one.done():
                    line.finish("done before")
                    continue
                one.train()
                line.finish("done")
            except Stopped:
                raise KeyboardInterrupt from None
            except Exception as error:
                if world.size > 1:
                    raise
                failed.append(config)
                line.finish(f"failed: {error}")
                logging.debug(traceback.format_exc())
        if world.leads:
            report(options)
    if failed:
        print(
            f"{len(failed)} of {len(configs)} runs failed; `run_all.py status {options.suite}` says why",
            file=sys.stderr,
        )
    return 1 if failed else 0


@contextlib.contextmanager
def stop_signals() -> Iterator[Any]:
    """Ctrl-C and SIGTERM ask the run to save a checkpoint and stop after the current step; a second Ctrl-C insists."""
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def plan(options: argparse.Namespace) -> int:
    """--dry-run: which runs, how long, and what is already done."""
    import methods
    from benchmark.planning import describe
    from benchmark.run import Store

    suite, configs = read_suite(options)
    print(describe(suite, configs, [methods.build(c.method, c.options) for c in configs], Store(options.runs)))
    return 0


def prepare(options: argparse.Namespace) -> int:
    from benchmark.run import Store, corpus_of

    _, configs = read_suite(options)
    corpus = corpus_of(configs[0], Store(options.runs), lambda text: print(text, file=sys.stderr))
    for domain in corpus.domains:
        print(
            f"{domain.name}: {domain.info['documents']:,} documents, {len(domain.train):,} training and "
            f"{len(domain.valid):,} validation tokens, unigram perplexity {domain.info['unigram_perplexity']:,.1f}"
        )
    return 0


def report(options: argparse.Namespace) -> int:
    from analysis.render import render
    from benchmark.records import load_runs

    suite, configs = read_suite(options)
    wanted = {config.id for config in configs}
    runs = [one for one in load_runs(options.runs, suite.name) if one.id in wanted]
    written = render(suite.name, runs, suite.tables, options.out / suite.name)
    for path in written:
        if path.suffix == ".md":
            print(path.read_text(encoding="utf-8"))
    print("\n".join(f"wrote {path}" for path in written))
    return 0


def status(options: argparse.Namespace) -> int:
    from benchmark.planning import states
    from benchmark.run import Store

    suite, configs = read_suite(options)
    print(states(suite, configs, Store(options.runs)))
    return 0


def check(options: argparse.Namespace) -> int:
    import methods
    from benchmark.conformance import check as run_checks

    methods.find(options.method)
    return 0 if run_checks(options.method, methods.build, print) else 1


def evaluate(options: argparse.Namespace) -> int:
    from benchmark.evaluate import evaluate_text

    result = evaluate_text(options.checkpoint, options.text, options.domain)
    print(json.dumps(result) if options.json else "\n".join(f"{key}: {value}" for key, value in result.items()))
    return 0


def grow(options: argparse.Namespace) -> int:
    from benchmark.models.growth import grow_checkpoint

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
    sys.exit(main())
