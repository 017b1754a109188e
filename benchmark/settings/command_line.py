"""The command line: which commands there are and what they take.

run_all.py says what they do. No torch here.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from benchmark import __version__
from benchmark.settings.names import list_executor_names, list_suite_names

LISTS = ("methods", "suites", "tables", "architectures")  # what `list` lists


def require_at_least(least: int) -> Callable[[str], int]:
    """A function that reads a whole number from `least` on.

    It says as argparse wants it that it got none.
    """

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is no whole number from {least} on: give one"
            )
        return int(text)

    return read


def read_processes(text: str) -> int | str:
    return text if text == "all" else require_at_least(1)(text)


def read_path(text: str) -> Path:
    """The path that an option gives.

    `~` is the home folder: after `--runs=` the shell leaves it as it is.
    """
    return Path(text).expanduser()


def split_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} has an empty name: give A,B")
    return names


def read_seeds(text: str) -> tuple[int, ...]:
    """The seeds of `0,1,2`, or of a range with its last, `0-2`."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        start = require_at_least(0)(first)
        stop = require_at_least(start)(last) if last else start
        seeds += range(start, stop + 1)
    return tuple(dict.fromkeys(seeds))


class JoinWords(argparse.Action):
    """Makes one tuple of all words of an option, `a,b` as well as `a b`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        joined = chain.from_iterable(values)
        setattr(namespace, self.dest, tuple(dict.fromkeys(joined)))


def make_plural(text: str) -> str:
    return text if text in LISTS else f"{text}s"


A_SUITE = "a name that `list suites` has, or a .toml file (default: demo)"
FPI = "exact (default), or the paper's"
PARALLEL = "train N runs at a time here (default: what fits; 1 under seconds)"
TABLE = (
    "also write the step times that unit 'reference' needs: "
    "add rows, or replace the same rows of this machine"
)
PROMPT = (
    "whose prompt begins each text, or whose adapters it has (default: the last); "
    "'none' for no prompt"
)
Settings = dict[str, Any]  # of an argument, as argparse takes them
SEVERAL: Settings = {"action": JoinWords, "nargs": "+", "default": ()}
OPTIONS: dict[str, Settings] = {
    "suite": {"nargs": "?", "default": "demo", "help": A_SUITE},
    "suites": {
        "nargs": "*",
        "default": ["demo"],
        "help": f"{A_SUITE}; several make tables with a block each",
    },
    "--runs": {
        "type": read_path,
        "default": Path("runs"),
        "help": "checkpoints and records (default: runs)",
    },
    "--set": {
        "action": "append",
        "default": [],
        "metavar": "KEY=VALUE",
        "help": "override: budget.amount=60",
    },
    "--methods": {
        **SEVERAL,
        "type": split_names,
        "metavar": "A",
        "help": "these methods alone, listed or not: A,B or A B",
    },
    "--seeds": {
        **SEVERAL,
        "type": read_seeds,
        "metavar": "N",
        "help": "these instead of the suite's: 0,1 or 0-4",
    },
    "--out": {
        "type": read_path,
        "default": Path("report"),
        "help": "tables and figures (default: report)",
    },
    "--dry-run": {"action": "store_true", "help": "say which runs, how long, how far; run nothing"},
    "--executor": {
        "default": "local",
        "metavar": "NAME",
        "help": f"where: {' or '.join(list_executor_names())} (default: local)",
    },
    "--parallel": {"type": require_at_least(1), "metavar": "N", "help": PARALLEL},
    "--processes": {
        "type": read_processes,
        "metavar": "N|all",
        "help": "train each run with N, or one a GPU here",
    },
    "--retry-failed": {"action": "store_true", "help": "also runs that ended with an error"},
    "--verbose": {
        "action": "store_true",
        "help": "with --dry-run on a cluster: also name each unit of work",
    },
    "--watch": {"action": "store_true", "help": "again and again, until no job is left"},
    "--why": {
        "action": "store_true",
        "help": "also say of each run without records in what others of its row and seed differ",
    },
    "places": {
        "type": read_path,
        "nargs": "+",
        "metavar": "PLACE",
        "help": "a folder of --runs, a study's, a suite's .toml file, a .json of step times",
    },
    "--view": {
        "choices": ("ours", "both"),
        "default": "ours",
        "help": "our numbers, or the paper's beside them",
    },
    "method": {"help": "the name of a file in methods/"},
    "name": {"help": "of the file, NAME.toml, perhaps with a folder before it"},
    "--text FOLDER": {
        "type": read_path,
        "nargs": "+",
        "required": True,
        "help": "one a domain, or one that has these",
    },
    "kind": {"choices": LISTS, "type": make_plural},
    "--configurations": {
        "type": require_at_least(1),
        "default": 5,
        "metavar": "N",
        "help": "of each row (default: 5)",
    },
    "--reference": {"type": read_path, "metavar": "FILE", "help": TABLE},
    "--pairs": {
        "type": require_at_least(1),
        "default": 7,
        "help": "steps to time in turns with Naive's (default: 7)",
    },
    "--out tracked": {
        "type": read_path,
        "default": Path("tracked"),
        "help": "its event files (default: tracked)",
    },
    "a": {"metavar": "A", "help": "a folder of --runs, or a study's"},
    "b": {"metavar": "B", "help": "another"},
    "--study": {
        "type": read_path,
        "required": True,
        "metavar": "FOLDER",
        "help": "with its suites, e.g. results/NAME",
    },
    "study": {"type": read_path, "metavar": "FOLDER", "help": "e.g. results/NAME"},
    "--stage": {
        "metavar": "KEY",
        "help": "also train it again below a --runs without it; compare weights",
    },
    "checkpoint": {
        "type": read_path,
        "help": "runs/stages/KEY/model, or another model's Hugging Face folder",
    },
    "--text FILE": {
        "type": read_path,
        "required": True,
        "help": "JSON Lines or text, .gz and .zst too",
    },
    "--domain": {"help": "whose prompt or column to use (default: the last)"},
    "stage": {
        "help": "runs/stages/KEY, or runs/suites/SUITE/RUN.jsonl for its last; "
        "or a suite, with --row"
    },
    "--row": {"metavar": "NAME", "help": "the model with which this row of the suite ended"},
    "out": {"type": read_path, "metavar": "DIR", "help": "the new folder"},
    "--prompt": {"metavar": "DOMAIN", "help": PROMPT},
    "--layers": {"type": require_at_least(1), "required": True},
    "--width": {"type": require_at_least(1), "required": True, "help": "the new hidden size"},
    "--out NEW": {"type": read_path, "required": True},
    "--mode": {"choices": ("exact", "fpi"), "default": "exact", "help": FPI},
    "--text": {
        "type": read_path,
        "help": "measure the perplexity on this text, and fit to it what cannot be exact",
    },
    "--seed": {"type": require_at_least(0), "default": 0},
}
CHOSEN = ("--set", "--methods", "--seeds")
OF_SUITE = ("suite", "--runs", *CHOSEN)
RUN = (
    *OF_SUITE,
    "--out",
    "--dry-run",
    "--verbose",
    "--executor",
    "--parallel",
    "--processes",
    "--retry-failed",
)
GROW = ("checkpoint", "--layers", "--width", "--out NEW", "--mode", "--text", "--seed")
EXPORT = ("stage", "out", "--row", "--runs", *CHOSEN, "--prompt")
# by purpose and example: help, and what it takes
COMMANDS: dict[str, dict[str, tuple[str, Sequence[str]]]] = {
    "every day:": {
        "run demo --dry-run": ("train missing runs, then report", RUN),
        "status demo --watch": ("show how far each run is", (*OF_SUITE, "--watch", "--why")),
        "report demo": (
            "render tables and figures from the records",
            ("suites", *OF_SUITE[1:], "--out", "--view"),
        ),
        "check er": ("try whether a method keeps the promises of the interface", ["method"]),
        "new-suite mine --text FOLDER": (
            "write a suite that fits your text and this machine",
            ("name", "--text FOLDER"),
        ),
    },
    "around a sweep:": {
        "list methods": (f"name the {', '.join(LISTS)}", ["kind"]),
        "doctor bert_base": ("try whether this machine and its cluster are fit for it", OF_SUITE),
        "prepare bert_base": ("tokenise a suite's domains, and read its tasks", OF_SUITE),
        "tune demo": (
            "write a suite that tries options; then one with the best",
            (*OF_SUITE, "--configurations"),
        ),
        "speed demo": (
            "measure a step beside Naive's, and its FLOPs",
            (*OF_SUITE, "--reference", "--pairs"),
        ),
        "cancel bert_base": ("end the jobs of a suite; trained stages stay", OF_SUITE),
    },
    "records and studies:": {
        "track demo": ("write the records of runs for TensorBoard", (*OF_SUITE, "--out tracked")),
        "compare runs OTHER": ("set two folders of records side by side", (*CHOSEN, "a", "b")),
        "collect demo --study results/NAME": (
            "add finished runs to a study, and render it",
            (*OF_SUITE, "--study"),
        ),
        "verify results/NAME": (
            "check a study's report; with --stage weights, too",
            ("--runs", "study", "--stage"),
        ),
        "upgrade runs": ("give records and suites of version 1 their new names", ["places"]),
    },
    "models:": {
        "evaluate FOLDER --text FILE": (
            "measure a model on your text",
            ("checkpoint", "--text FILE", "--domain"),
        ),
        "export demo NEW --row elle": ("write a plain Hugging Face folder", EXPORT),
        "grow OLD --layers 6 --width 384 --out NEW": (
            "make a larger model that computes the same",
            GROW,
        ),
    },
}


def parse(arguments: Sequence[str], description: str) -> argparse.Namespace:
    """The options of a command, the first of the arguments; `description` is that of the project.

    Raises SystemExit where no command is to be called. Then the help, or what is wrong, is printed.
    """
    name, *words = arguments
    if name == "--version":
        print("lifelong-pretraining-benchmark", __version__)
        raise SystemExit(0)
    if name in ("-h", "--help"):
        print(f"usage: run_all.py COMMAND ...\n\n{description.strip()}")
        for purpose, commands in COMMANDS.items():
            print(f"\n{purpose}")
            for example, (help, _) in commands.items():
                print(f"  {example:42}{help}")
        raise SystemExit(0)
    by_name: dict[str, tuple[str, str, Sequence[str]]] = {}
    for commands in COMMANDS.values():
        for example, (help, options) in commands.items():
            by_name[example.split()[0]] = (example, help, options)
    if name not in by_name:
        print(f"error: {describe_unknown_command(name, list(by_name))}", file=sys.stderr)
        raise SystemExit(2)
    example, help, options = by_name[name]
    epilog = f"example: python run_all.py {example}"
    parser = argparse.ArgumentParser(f"run_all.py {name}", description=help, epilog=epilog)
    for option in options:
        parser.add_argument(option.split()[0], **OPTIONS[option])
    return parser.parse_args(words, argparse.Namespace(command=name))


def describe_unknown_command(word: str, commands: Sequence[str]) -> str:
    """The error message for a word that is no command.

    It says what may be meant. Nothing is run by a slip.
    """
    near = difflib.get_close_matches(word, commands, n=1)
    if word in list_suite_names() or word.endswith(".toml"):
        suggestion = f"run {word}"
    else:
        suggestion = near[0] if near else ""
    hint = f"did you mean {suggestion}?" if suggestion else "`python run_all.py --help` shows all"
    return f"no command {word[:80]!r}: {hint}"


def repeat_options(options: argparse.Namespace, suite: str) -> list[str]:
    """The arguments with which another command is about the same runs of a suite."""
    pairs = [("--runs", str(options.runs))]
    for name in ("methods", "seeds"):
        pairs.append((f"--{name}", ",".join(map(str, getattr(options, name)))))
    pairs += [("--set", assignment) for assignment in options.set]
    words = [suite]
    for option, value in pairs:
        if value and value != "runs":
            words += [option, value]
    return words
