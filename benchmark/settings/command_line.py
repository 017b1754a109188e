"""The command line: which commands there are and what they take; run_all.py says what they do. No torch here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmark.settings.names import suite_names

Add = Callable[..., argparse.ArgumentParser]  # (name, help, parsers whose arguments it takes too) -> its parser


def command_line(description: str, executors: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of `run_all.py`. `executors`: what `--executor` offers."""
    parser = argparse.ArgumentParser(
        prog="run_all.py", description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, help: str, parents: Sequence[argparse.ArgumentParser] = ()) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help, parents=parents)
        sub.set_defaults(command=name)
        return sub

    suites = f"{', '.join(suite_names())}, or a .toml file"
    _commands_of_suites(add, executors, suites)
    _commands_beside_a_sweep(add, suites)
    _commands_of_methods_and_models(add)
    return parser


def at_least(least: int, most: int = 10**15) -> Callable[[str], int]:
    """What turns the text of an option into a whole number from `least` to `most`, as argparse wants it."""

    def whole(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 17 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from {least} to {most:,}: give one")
        return int(text)

    return whole


def set_paths(options: argparse.Namespace) -> None:
    """Give paths their homes, which a shell leaves out after `--runs=`."""
    os.environ["MPLBACKEND"] = "agg"  # figures are drawn into files
    for name, value in vars(options).items():
        if isinstance(value, Path):
            setattr(options, name, Path(os.path.expanduser(str(value))))


def given(text: str) -> str:
    """The text of an option. An empty one is most often a variable that is not set, and would mean all, or nothing."""
    if not text:
        raise argparse.ArgumentTypeError("given without a value, as by a variable that is not set: give one")
    return text


def path(text: str) -> Path:
    """The path that an option gives; an empty one would be the current folder."""
    return Path(given(text))


def interrupted(options: argparse.Namespace) -> str:
    """What a command says that Ctrl-C has ended: only what trains here stops training."""
    if options.command != "run":
        return f"{options.command} was ended; nothing else is: what trains goes on"
    if options.executor != "local":
        return "ended; jobs that are submitted go on: `status` shows them, `cancel` ends them"
    return "stopped; the next run goes on from the last checkpoint"


def words_again(options: argparse.Namespace, suite: str) -> list[str]:
    """What another command must be given to be about the same runs of a suite."""
    given = [("--runs", str(options.runs)), ("--methods", options.methods), ("--seeds", options.seeds)]
    given += [("--set", assignment) for assignment in options.set]
    return [suite, *(word for option, value in given if value and value != "runs" for word in (option, value))]


def _commands_of_suites(add: Add, executors: Sequence[str], suites: str) -> None:
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("suite", nargs="?", default="demo", help=suites)
    runs = argparse.ArgumentParser(add_help=False)
    runs.add_argument("--runs", type=path, default=Path("runs"), help="checkpoints and records (default: runs)")
    rows = argparse.ArgumentParser(add_help=False, parents=[runs])
    rows.add_argument("--methods", type=given, metavar="A,B", help="only rows of these methods")
    _add_set(rows, "override, e.g. budget.amount=60; reports then go to OUT/KEY=VALUE-HASH/")
    common = argparse.ArgumentParser(add_help=False, parents=[rows])
    common.add_argument("--seeds", type=given, metavar="0,1", help="these seeds instead of the suite's")
    rendering = argparse.ArgumentParser(add_help=False)
    rendering.add_argument("--out", type=path, default=Path("report"), help="tables and figures (default: report)")
    training = argparse.ArgumentParser(add_help=False)
    training.add_argument("--dry-run", action="store_true", help="say which runs, how long, what is done; run nothing")
    training.add_argument("--executor", choices=executors, default="local", help="where (default: local)")
    training.add_argument(
        "--parallel",
        type=at_least(1),
        metavar="N",
        help="train N runs at a time here (default: what fits; 1 under seconds)",
    )
    training.add_argument("--wait", action="store_true", help="then show the state until all jobs have ended")
    training.add_argument("--retry-failed", action="store_true", help="also runs that ended with an error")
    training.add_argument(
        "--share-machine", action="store_true", help="do not wait for other local runs under a budget of wall time"
    )

    add("run", "train what is missing, then report (the default)", [one, common, rendering, training])
    sub = add("tune", "write a suite that tries options, as many for each row; then one with the best", [one, rows])
    sub.add_argument("--configurations", type=at_least(1), default=5, metavar="N", help="for each row (default: 5)")
    sub.set_defaults(seeds=None)
    sub = add("prepare", "tokenise the suite's domains, and read its tasks", [one, rows])
    sub.set_defaults(seeds=None)  # the text of all of them is the same
    sub = add("report", "render tables and figures from the records that exist", [common, rendering])
    sub.add_argument("suites", nargs="*", default=["demo"], help=f"{suites}; several make tables with a block each")
    views = ("ours", "both")
    sub.add_argument(
        "--view", choices=views, default="ours", help="tables with our numbers, or with the paper's beside them"
    )
    sub = add("status", "the state of each run", [one, common])
    sub.add_argument("--watch", action="store_true", help="again and again, until no job is left")
    sub = add("cancel", "end the jobs of the suite; what is trained stays", [one, common])
    sub.add_argument("--dry-run", action="store_true", help="say which jobs; end none")
    sub = add("collect", "add the records of finished runs to a study's folder, and render its report", [one, common])
    sub.add_argument("--study", type=path, required=True, metavar="FOLDER", help="with its suites, e.g. results/NAME")
    sub = add("verify", "check a study's folder: budgets, report, and with --stage a stage's weights", [runs])
    sub.add_argument("study", type=path, metavar="FOLDER", help="e.g. results/NAME")
    sub.add_argument("--stage", type=given, metavar="KEY", help="train it again in --runs, and compare its weights")
    sub = add("speed", "what a step of each row costs beside Naive's, and what its FLOPs predict", [one, common])
    sub.add_argument("--reference", type=path, metavar="FILE", help="also write the table that unit 'reference' needs")
    sub.add_argument("--pairs", type=at_least(1), default=7, help="of steps timed in turns with Naive's (default: 7)")


def _add_set(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help)


def _commands_beside_a_sweep(add: Add, suites: str) -> None:
    sub = add("track", "write what records say of a suite's runs for TensorBoard, on from where it was")
    sub.add_argument("suite", nargs="?", default="demo", help=suites)
    sub.add_argument("--runs", type=path, default=Path("runs"), help="checkpoints and records (default: runs)")
    sub.add_argument("--out", type=path, default=Path("tracked"), help="its event files (default: tracked)")
    sub.add_argument("--watch", action="store_true", help="again and again, until it is stopped")
    sub = add("doctor", "are this machine and the nodes of its cluster fit for a suite? A line each, with the cure")
    sub.add_argument("suite", nargs="?", default="demo", help=f"{suites}; its [slurm] section chooses the node")
    sub.add_argument("--runs", type=path, default=Path("runs"), help="the folder that nodes must see (default: runs)")
    _add_set(sub, "override, e.g. slurm.partition=long")
    sub.set_defaults(methods=None, seeds=None)
    sub = add("compare", "two folders of records side by side: what came out, and what differs")
    for side in "ab":
        sub.add_argument(side, type=given, metavar=side.upper(), help="a folder of --runs, or a study's")
    sub = add("new-suite", "write a suite for your own text, with sizes and budgets that fit text and machine")
    sub.add_argument("name", help="of the file, NAME.toml; with a folder before it, if you like")
    sub.add_argument(
        "--text", type=path, nargs="+", required=True, metavar="FOLDER", help="one a domain, or one that holds these"
    )


def _commands_of_methods_and_models(add: Add) -> None:
    sub = add("check", "does a method in methods/ keep the promises of the interface?")
    sub.add_argument("method")
    sub = add("evaluate", "perplexity of a model on your text")
    sub.add_argument("checkpoint", type=path, help="runs/stages/KEY/model, or the folder of a published model")
    sub.add_argument("--text", type=path, required=True, metavar="FILE", help="JSON Lines or text, .gz and .zst too")
    sub.add_argument("--domain", type=given, help="whose prompt or column to use; 'auto' picks one (default: the last)")
    sub.add_argument("--json", action="store_true", help="print one JSON object")
    sub = add("export", "a stage's model as a plain Hugging Face folder, with tokenizer and card")
    sub.add_argument("stage", help="runs/stages/KEY, or runs/suites/SUITE/RUN.jsonl for its last")
    sub.add_argument("out", type=path, metavar="DIR", help="the new folder")
    sub.add_argument(
        "--prompt",
        type=given,
        metavar="DOMAIN",
        help="whose prompt begins each text, or whose adapters it has (default: the last); 'none' for no prompt",
    )
    sub = add("grow", "a larger model that computes the same, from a Hugging Face folder")
    sub.add_argument("checkpoint", type=path, help="a Hugging Face folder of a known architecture")
    sub.add_argument("--layers", type=at_least(1, 10_000), required=True)
    sub.add_argument("--width", type=at_least(1, 1_000_000), required=True, help="the new hidden size")
    sub.add_argument("--out", type=path, required=True)
    sub.add_argument("--mode", choices=("exact", "fpi"), default="exact", help="exact (default), or the paper's")
    sub.add_argument(
        "--text", type=path, help="measures the perplexity on this text, and fits what cannot be exact to it"
    )
    sub.add_argument("--seed", type=at_least(0), default=0)
