"""The command line: which commands there are and what they take; run_all.py says what they do. No torch here."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmark import __version__
from benchmark.settings.names import suite_names

Add = Callable[..., argparse.ArgumentParser]  # (purpose, example, help, *parsers whose arguments it takes too)
LISTS = ("methods", "suites", "tables", "architectures")  # what `list` lists
DAILY, SWEEP, RECORDS, MODELS = "every day:", "around a sweep:", "records and studies:", "models:"


def command_line(description: str, executors: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of `run_all.py`. `executors`: what `--executor` offers."""
    parser = argparse.ArgumentParser(
        prog="run_all.py", usage="run_all.py COMMAND ...", formatter_class=argparse.RawTextHelpFormatter
    )
    version = f"lifelong-pretraining-benchmark {__version__}"
    parser.add_argument("--version", action="version", version=version, help="show the version of this project")
    commands = parser.add_subparsers(prog="run_all.py", dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    purposes: dict[str, list[str]] = {}

    def add(purpose: str, example: str, help: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        purposes.setdefault(purpose, [f"\n{purpose}"]).append(f"  {example:42}{help}")
        epilog = f"example: python run_all.py {example}"
        return commands.add_parser(example.split()[0], description=help, epilog=epilog, parents=parents)

    suites = f"{', '.join(suite_names())}, or a .toml file"
    suite = argparse.ArgumentParser(add_help=False)
    suite.add_argument("suite", nargs="?", default="demo", help=suites)
    runs = argparse.ArgumentParser(add_help=False)
    runs.add_argument("--runs", type=path, default=Path("runs"), help="checkpoints and records (default: runs)")
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override: budget.amount=60")
    chosen.add_argument("--methods", type=names, default=(), metavar="A,B", help="only rows of these methods")
    chosen.add_argument("--seeds", type=seeds, default=(), metavar="0,1", help="these instead of the suite's")

    _add_daily(add, suite, runs, chosen, executors, suites)
    _add_around_a_sweep(add, suite, runs, chosen)
    _add_records_and_studies(add, suite, runs, chosen)
    _add_models(add)
    parser.description = "\n".join([description, *(line for lines in purposes.values() for line in lines)])
    return parser


def no_command(word: str, commands: Sequence[str]) -> str:
    """The error of a word that is no command, and is never run because of a slip."""
    near = difflib.get_close_matches(word, commands, n=1)
    meant = f"run {word}" if word in suite_names() or word.endswith(".toml") else near[0] if near else ""
    hint = f"did you mean {meant}?" if meant else "`python run_all.py --help` shows all"
    return f"no command {word[:80]!r}: {hint}"


def at_least(least: int) -> Callable[[str], int]:
    """What turns the text of an option into a whole number from `least` on, as argparse wants it."""

    def whole(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from {least} on: give one")
        return int(text)

    return whole


def processes(text: str) -> int | str:
    return text if text == "all" else at_least(1)(text)


def path(text: str) -> Path:
    """The path that an option gives, in its home, which a shell leaves out after `--runs=`."""
    return Path(text).expanduser()


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def seeds(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(at_least(0), text.split(","))))


def repeat_options(options: argparse.Namespace, suite: str) -> list[str]:
    """What another command must be given to be about the same runs of a suite."""
    lists = [(f"--{name}", ",".join(map(str, getattr(options, name)))) for name in ("methods", "seeds")]
    given = [("--runs", str(options.runs)), *lists]
    given += [("--set", assignment) for assignment in options.set]
    return [suite, *(word for option, value in given if value and value != "runs" for word in (option, value))]


def _add_daily(
    add: Add,
    suite: argparse.ArgumentParser,
    runs: argparse.ArgumentParser,
    chosen: argparse.ArgumentParser,
    executors: Sequence[str],
    suites: str,
) -> None:
    rendering = argparse.ArgumentParser(add_help=False)
    rendering.add_argument("--out", type=path, default=Path("report"), help="tables and figures (default: report)")
    sub = add(DAILY, "run demo --dry-run", "train missing runs, then report", suite, runs, chosen, rendering)
    sub.add_argument("--dry-run", action="store_true", help="say which runs, how long, how far; run nothing")
    sub.add_argument("--executor", choices=executors, default="local", help="where (default: local)")
    parallel = "train N runs at a time here (default: what fits; 1 under seconds)"
    sub.add_argument("--parallel", type=at_least(1), metavar="N", help=parallel)
    together = "train each run with N processes, or one for each GPU here"
    sub.add_argument("--processes", type=processes, metavar="N|all", help=together)
    sub.add_argument("--retry-failed", action="store_true", help="also runs that ended with an error")
    sub = add(DAILY, "status demo --watch", "show how far each run is", suite, runs, chosen)
    sub.add_argument("--watch", action="store_true", help="again and again, until no job is left")
    sub = add(DAILY, "report demo", "render tables and figures from the records", runs, chosen, rendering)
    sub.add_argument("suites", nargs="*", default=["demo"], help=f"{suites}; several make tables with a block each")
    view = "tables with our numbers, or with the paper's beside them"
    sub.add_argument("--view", choices=("ours", "both"), default="ours", help=view)
    sub = add(DAILY, "check er", "try whether a method keeps the promises of the interface")
    sub.add_argument("method", help="the name of a file in methods/")
    sub = add(DAILY, "new-suite mine --text FOLDER", "write a suite that fits your text and this machine")
    sub.add_argument("name", help="of the file, NAME.toml, perhaps with a folder before it")
    text = "one for each domain, or one that holds these"
    sub.add_argument("--text", type=path, nargs="+", required=True, metavar="FOLDER", help=text)


def _add_around_a_sweep(
    add: Add, suite: argparse.ArgumentParser, runs: argparse.ArgumentParser, chosen: argparse.ArgumentParser
) -> None:
    sub = add(SWEEP, "list methods", f"name the {', '.join(LISTS)}")
    sub.add_argument("kind", choices=LISTS, type=lambda text: {name[:-1]: name for name in LISTS}.get(text, text))
    add(SWEEP, "doctor bert_base", "try whether this machine and its cluster are fit for it", suite, runs, chosen)
    add(SWEEP, "prepare bert_base", "tokenise a suite's domains, and read its tasks", suite, runs, chosen)
    sub = add(SWEEP, "tune demo", "write a suite that tries options; then one with the best", suite, runs, chosen)
    sub.add_argument("--configurations", type=at_least(1), default=5, metavar="N", help="for each row (default: 5)")
    sub = add(SWEEP, "speed demo", "measure a step beside Naive's, and beside its FLOPs", suite, runs, chosen)
    sub.add_argument("--reference", type=path, metavar="FILE", help="also write the table that unit 'reference' needs")
    sub.add_argument("--pairs", type=at_least(1), default=7, help="steps to time in turns with Naive's (default: 7)")
    sub = add(SWEEP, "cancel bert_base", "end the jobs of a suite; trained stages stay", suite, runs, chosen)
    sub.add_argument("--dry-run", action="store_true", help="say which jobs; end none")


def _add_records_and_studies(
    add: Add, suite: argparse.ArgumentParser, runs: argparse.ArgumentParser, chosen: argparse.ArgumentParser
) -> None:
    sub = add(RECORDS, "track demo", "write the records of runs for TensorBoard", suite, runs, chosen)
    sub.add_argument("--out", type=path, default=Path("tracked"), help="its event files (default: tracked)")
    sub = add(RECORDS, "compare runs OTHER", "set two folders of records side by side", chosen)
    sub.add_argument("a", metavar="A", help="a folder of --runs, or a study's")
    sub.add_argument("b", metavar="B", help="another")
    example = "collect demo --study results/NAME"
    sub = add(RECORDS, example, "add finished runs to a study's folder, and render its report", suite, runs, chosen)
    sub.add_argument("--study", type=path, required=True, metavar="FOLDER", help="with its suites, e.g. results/NAME")
    sub = add(RECORDS, "verify results/NAME", "check a study's budgets and report; with --stage weights, too", runs)
    sub.add_argument("study", type=path, metavar="FOLDER", help="e.g. results/NAME")
    sub.add_argument("--stage", metavar="KEY", help="also train it again below a --runs without it; compare weights")


def _add_models(add: Add) -> None:
    sub = add(MODELS, "evaluate FOLDER --text FILE", "measure the perplexity of a model on your text")
    sub.add_argument("checkpoint", type=path, help="runs/stages/KEY/model, or the folder of a published model")
    sub.add_argument("--text", type=path, required=True, metavar="FILE", help="JSON Lines or text, .gz and .zst too")
    sub.add_argument("--domain", help="whose prompt or column to use (default: the last)")
    sub = add(MODELS, "export runs/stages/KEY NEW", "write a plain Hugging Face folder, with its tokenizer")
    sub.add_argument("stage", help="runs/stages/KEY, or runs/suites/SUITE/RUN.jsonl for its last")
    sub.add_argument("out", type=path, metavar="DIR", help="the new folder")
    prompt = "whose prompt begins each text, or whose adapters it has (default: the last); 'none' for no prompt"
    sub.add_argument("--prompt", metavar="DOMAIN", help=prompt)
    sub = add(MODELS, "grow OLD --layers 6 --width 384 --out NEW", "make a larger model that computes the same")
    sub.add_argument("checkpoint", type=path, help="a Hugging Face folder of a known architecture")
    sub.add_argument("--layers", type=at_least(1), required=True)
    sub.add_argument("--width", type=at_least(1), required=True, help="the new hidden size")
    sub.add_argument("--out", type=path, required=True)
    sub.add_argument("--mode", choices=("exact", "fpi"), default="exact", help="exact (default), or the paper's")
    text = "measure the perplexity on this text, and fit to it what cannot be exact"
    sub.add_argument("--text", type=path, help=text)
    sub.add_argument("--seed", type=at_least(0), default=0)
