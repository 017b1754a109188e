"""The command line: which commands there are and what they take; run_all.py says what they do. No torch here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmark.settings.names import suite_names

Add = Callable[..., argparse.ArgumentParser]  # (name, help, *parsers whose arguments it takes too) -> its parser


def command_line(description: str, executors: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of `run_all.py`. `executors`: what `--executor` offers."""
    parser = argparse.ArgumentParser(
        prog="run_all.py", description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, help: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help, parents=parents)
        sub.set_defaults(command=name, methods=(), seeds=())
        return sub

    suites = f"{', '.join(suite_names())}, or a .toml file"
    suite = argparse.ArgumentParser(add_help=False)
    suite.add_argument("suite", nargs="?", default="demo", help=suites)
    runs = argparse.ArgumentParser(add_help=False)
    runs.add_argument("--runs", type=path, default=Path("runs"), help="checkpoints and records (default: runs)")
    changed = argparse.ArgumentParser(add_help=False)
    changed.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. budget.amount=60")
    settings = argparse.ArgumentParser(add_help=False, parents=[runs, changed])
    rows = argparse.ArgumentParser(add_help=False, parents=[settings])
    rows.add_argument("--methods", type=names, default=(), metavar="A,B", help="only rows of these methods")
    chosen = argparse.ArgumentParser(add_help=False, parents=[rows])
    chosen.add_argument("--seeds", type=different_seeds, default=(), metavar="0,1", help="instead of the suite's")

    _add_training_and_reports(add, suite, chosen, executors, suites)
    _add_other_work_of_suites(add, suite, runs, changed, settings, rows, chosen)
    _add_methods_and_models(add)
    return parser


def at_least(least: int, most: int = 10**15) -> Callable[[str], int]:
    """What turns the text of an option into a whole number from `least` to `most`, as argparse wants it."""

    def whole(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 17 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from {least} to {most:,}: give one")
        return int(text)

    return whole


def path(text: str) -> Path:
    """The path that an option gives, in its home, which a shell leaves out after `--runs=`."""
    return Path(text).expanduser()


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def different_seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(map(at_least(0, 2**53), text.split(",")))
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} would count one run as two: give each seed once")
    return seeds


def interrupted(options: argparse.Namespace) -> str:
    """What a command says that Ctrl-C has ended: only what trains here stops training."""
    if options.command != "run":
        return f"{options.command} was ended; nothing else is: what trains goes on"
    if options.executor != "local":
        return "ended; jobs that are submitted go on: `status` shows them, `cancel` ends them"
    return "stopped; the next run goes on from the last checkpoint"


def repeat_options(options: argparse.Namespace, suite: str) -> list[str]:
    """What another command must be given to be about the same runs of a suite."""
    methods, seeds = ",".join(options.methods), ",".join(map(str, options.seeds))
    given = [("--runs", str(options.runs)), ("--methods", methods), ("--seeds", seeds)]
    given += [("--set", assignment) for assignment in options.set]
    return [suite, *(word for option, value in given if value and value != "runs" for word in (option, value))]


def _add_training_and_reports(
    add: Add, suite: argparse.ArgumentParser, chosen: argparse.ArgumentParser, executors: Sequence[str], suites: str
) -> None:
    rendering = argparse.ArgumentParser(add_help=False)
    rendering.add_argument("--out", type=path, default=Path("report"), help="tables and figures (default: report)")
    sub = add("run", "train what is missing, then report (the default)", suite, chosen, rendering)
    sub.add_argument("--dry-run", action="store_true", help="say which runs, how long, what is done; run nothing")
    sub.add_argument("--executor", choices=executors, default="local", help="where (default: local)")
    parallel = "train N runs at a time here (default: what fits; 1 under seconds)"
    sub.add_argument("--parallel", type=at_least(1), metavar="N", help=parallel)
    sub.add_argument("--wait", action="store_true", help="then show the state until all jobs have ended")
    sub.add_argument("--retry-failed", action="store_true", help="also runs that ended with an error")
    share = "do not wait for other local runs under a budget of wall time"
    sub.add_argument("--share-machine", action="store_true", help=share)
    sub = add("report", "render tables and figures from the records that exist", chosen, rendering)
    sub.add_argument("suites", nargs="*", default=["demo"], help=f"{suites}; several make tables with a block each")
    view = "tables with our numbers, or with the paper's beside them"
    sub.add_argument("--view", choices=("ours", "both"), default="ours", help=view)


def _add_other_work_of_suites(
    add: Add,
    suite: argparse.ArgumentParser,
    runs: argparse.ArgumentParser,
    changed: argparse.ArgumentParser,
    settings: argparse.ArgumentParser,
    rows: argparse.ArgumentParser,
    chosen: argparse.ArgumentParser,
) -> None:
    sub = add("tune", "write a suite that tries options, as many for each row; then one with the best", suite, rows)
    sub.add_argument("--configurations", type=at_least(1), default=5, metavar="N", help="for each row (default: 5)")
    add("prepare", "tokenise the suite's domains, and read its tasks", suite, rows)
    sub = add("status", "the state of each run", suite, chosen)
    sub.add_argument("--watch", action="store_true", help="again and again, until no job is left")
    sub = add("cancel", "end the jobs of the suite; what is trained stays", suite, chosen)
    sub.add_argument("--dry-run", action="store_true", help="say which jobs; end none")
    sub = add("collect", "add the records of finished runs to a study's folder, and render its report", suite, chosen)
    sub.add_argument("--study", type=path, required=True, metavar="FOLDER", help="with its suites, e.g. results/NAME")
    sub = add("verify", "check a study's folder: budgets, report, and with --stage a stage's weights", runs)
    sub.add_argument("study", type=path, metavar="FOLDER", help="e.g. results/NAME")
    sub.add_argument("--stage", metavar="KEY", help="train it again in --runs, and compare its weights")
    sub = add("speed", "what a step of each row costs beside Naive's, and what its FLOPs predict", suite, chosen)
    sub.add_argument("--reference", type=path, metavar="FILE", help="also write the table that unit 'reference' needs")
    sub.add_argument("--pairs", type=at_least(1), default=7, help="of steps timed in turns with Naive's (default: 7)")
    add("doctor", "are this machine and the nodes of its cluster fit for a suite? A line each", suite, settings)
    sub = add("track", "write what records say of a suite's runs for TensorBoard", suite, runs)
    sub.add_argument("--out", type=path, default=Path("tracked"), help="its event files (default: tracked)")
    sub = add("compare", "two folders of records side by side: what came out, and what differs", changed)
    sub.add_argument("a", metavar="A", help="a folder of --runs, or a study's")
    sub.add_argument("b", metavar="B", help="another")


def _add_methods_and_models(add: Add) -> None:
    sub = add("new-suite", "write a suite for your own text, with sizes and budgets that fit text and machine")
    sub.add_argument("name", help="of the file, NAME.toml; with a folder before it, if you like")
    text = "one a domain, or one that holds these"
    sub.add_argument("--text", type=path, nargs="+", required=True, metavar="FOLDER", help=text)
    sub = add("check", "does a method in methods/ keep the promises of the interface?")
    sub.add_argument("method")
    sub = add("evaluate", "perplexity of a model on your text")
    sub.add_argument("checkpoint", type=path, help="runs/stages/KEY/model, or the folder of a published model")
    sub.add_argument("--text", type=path, required=True, metavar="FILE", help="JSON Lines or text, .gz and .zst too")
    sub.add_argument("--domain", help="whose prompt or column to use; 'auto' picks one (default: the last)")
    sub.add_argument("--json", action="store_true", help="print one JSON object")
    sub = add("export", "a stage's model as a plain Hugging Face folder, with tokenizer and card")
    sub.add_argument("stage", help="runs/stages/KEY, or runs/suites/SUITE/RUN.jsonl for its last")
    sub.add_argument("out", type=path, metavar="DIR", help="the new folder")
    prompt = "whose prompt begins each text, or whose adapters it has (default: the last); 'none' for no prompt"
    sub.add_argument("--prompt", metavar="DOMAIN", help=prompt)
    sub = add("grow", "a larger model that computes the same, from a Hugging Face folder")
    sub.add_argument("checkpoint", type=path, help="a Hugging Face folder of a known architecture")
    sub.add_argument("--layers", type=at_least(1, 10_000), required=True)
    sub.add_argument("--width", type=at_least(1, 1_000_000), required=True, help="the new hidden size")
    sub.add_argument("--out", type=path, required=True)
    sub.add_argument("--mode", choices=("exact", "fpi"), default="exact", help="exact (default), or the paper's")
    text = "measures the perplexity on this text, and fits what cannot be exact to it"
    sub.add_argument("--text", type=path, help=text)
    sub.add_argument("--seed", type=at_least(0), default=0)
