"""The command line: which commands there are and what they take.

run_all.py says what they do. No torch here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from benchmark import __version__
from benchmark.settings.names import list_executor_names

# what `list` lists
LISTS = ("methods", "suites", "studies", "tables", "architectures", "optimizers")


def require_at_least(least: int) -> Callable[[str], int]:
    """A type for argparse: a whole number that is `least` or more.

    The function raises ArgumentTypeError for any other text.
    """

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is no whole number from {least} on: give one"
            )
        return int(text)

    return read


def read_processes(text: str) -> int | str:
    if text == "all":
        return text
    return require_at_least(1)(text)


def read_path(text: str) -> Path:
    """The path that an option gives.

    `~` becomes the home folder here, because the shell does not replace it after `--runs=`.
    """
    return Path(text).expanduser()


def split_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} has an empty name: give A,B")
    return names


def read_seeds(text: str) -> tuple[int, ...]:
    """The seeds of a list such as `0,1,2`, or of a range such as `0-2`, which includes 2."""
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


A_SUITE = "a name that `list suites` prints, or a file such as mine.toml (default: demo)"
FPI = "exact growth (default), or the paper's"
PARALLEL = (
    "train N runs at a time here, such as 4 "
    "(default: as many as fit, or 1 with budget.unit = seconds)"
)
TABLE = (
    "also write the step times that budget.unit = reference needs, such as to my_times.json. "
    "The file gets new rows, or new times of the same rows"
)
PROMPT = (
    "the domain whose prompt begins each text, or whose adapters are exported, such as torch "
    "(default: the last). 'none' exports without a prompt"
)
Keywords = dict[str, Any]  # of argparse's add_argument
SEVERAL: Keywords = {"action": JoinWords, "nargs": "+", "default": ()}
OPTIONS: dict[str, Keywords] = {
    "suite": {"nargs": "?", "default": "demo", "help": A_SUITE},
    "suites": {
        "nargs": "*",
        "default": ["demo"],
        "help": f"{A_SUITE}. Several give tables with a block for each",
    },
    "--runs": {
        "type": read_path,
        "default": Path("runs"),
        "help": "folder for checkpoints and records, such as /scratch/runs (default: runs)",
    },
    "--set": {
        "action": "append",
        "default": [],
        "metavar": "KEY=VALUE",
        "help": "override one suite key, such as budget.amount=60",
    },
    "--methods": {
        **SEVERAL,
        "type": split_names,
        "metavar": "A",
        "help": "only these methods, such as naive er, also if the suite does not list them",
    },
    "--seeds": {
        **SEVERAL,
        "type": read_seeds,
        "metavar": "N",
        "help": "these seeds instead of the suite's, such as 0,1 or 0-4",
    },
    "--out": {
        "type": read_path,
        "default": Path("report"),
        "help": "folder for tables and figures, such as trial (default: report)",
    },
    "--dry-run": {
        "action": "store_true",
        "help": "print which runs are missing and how long they take, and run nothing",
    },
    "--executor": {
        "default": "local",
        "metavar": "NAME",
        "help": f"where to run, such as {' or '.join(list_executor_names())} (default: local)",
    },
    "--parallel": {"type": require_at_least(1), "metavar": "N", "help": PARALLEL},
    "--processes": {
        "type": read_processes,
        "metavar": "N|all",
        "help": "use N processes per run, such as 2, or with `all` one per GPU of this machine",
    },
    "--retry-failed": {"action": "store_true", "help": "also retry failed runs"},
    "--verbose": {
        "action": "store_true",
        "help": "with --dry-run on a cluster, also print each unit of work",
    },
    "--watch": {"action": "store_true", "help": "refresh until nothing is under way"},
    "--why": {
        "action": "store_true",
        "help": "also print which settings of a missing run differ from those of the records",
    },
    "places": {
        "type": read_path,
        "nargs": "+",
        "metavar": "PLACE",
        "help": "a folder of --runs, such as runs, a study, a suite's .toml file or a .json file "
        "of step times",
    },
    "method": {"help": "the name of a file in methods/, such as er"},
    "name": {"help": "name of the new file without .toml, such as mine or suites/mine"},
    "--text FOLDER": {
        "type": read_path,
        "nargs": "+",
        "required": True,
        "help": "a folder per domain, such as texts/letters texts/news, or one that holds them",
    },
    "kind": {
        "nargs": "?",
        "choices": LISTS,
        "help": "what to list, such as suites (default: everything)",
    },
    "--configurations": {
        "type": require_at_least(1),
        "default": 5,
        "metavar": "N",
        "help": "configurations to try per row, such as 10 (default: 5)",
    },
    "--domains": {
        "type": require_at_least(1),
        "default": 2,
        "metavar": "N",
        "help": "try configurations on the first N domains, such as 5 (default: 2). Few domains "
        "understate forgetting, so too little replay looks best",
    },
    "--reference": {"type": read_path, "metavar": "FILE", "help": TABLE},
    "--pairs": {
        "type": require_at_least(1),
        "default": 7,
        "help": "steps to time in turns with Naive's, such as 20 (default: 7)",
    },
    "--out tracked": {
        "type": read_path,
        "default": Path("tracked"),
        "help": "folder for the event files, such as events (default: tracked)",
    },
    "a": {
        "metavar": "A",
        "help": "a folder of --runs, such as runs, or a study, such as results/demo",
    },
    "b": {"metavar": "B", "help": "the folder or study to compare with it, such as results/demo"},
    "--study": {
        "type": read_path,
        "required": True,
        "metavar": "FOLDER",
        "help": "the study's folder, such as results/demo",
    },
    "study": {
        "type": read_path,
        "metavar": "FOLDER",
        "help": "the study's folder, such as results/demo",
    },
    "--stage": {
        "metavar": "KEY",
        "help": "train this stage again below another --runs, such as 082b93b49494, "
        "and compare the weights",
    },
    "checkpoint": {
        "type": read_path,
        "help": "a model's folder, such as runs/stages/KEY/model, or any Hugging Face folder",
    },
    "--text FILE": {
        "type": read_path,
        "required": True,
        "help": "a file of JSON Lines or text, such as sample.jsonl, also .gz or .zst",
    },
    "--domain": {
        "help": "the domain whose prompt or column to use, such as torch (default: the last)"
    },
    "stage": {"help": "a suite with --row, such as demo, or runs/stages/KEY"},
    "--row": {
        "metavar": "NAME",
        "help": "export the final model of this row of the suite, such as elle",
    },
    "out": {"type": read_path, "metavar": "DIR", "help": "the new folder, such as exported"},
    "--prompt": {"metavar": "DOMAIN", "help": PROMPT},
    "--layers": {
        "type": require_at_least(1),
        "required": True,
        "help": "the new number of layers, such as 4",
    },
    "--width": {
        "type": require_at_least(1),
        "required": True,
        "help": "the new hidden size, such as 96",
    },
    "--out NEW": {"type": read_path, "required": True, "help": "the new folder, such as larger"},
    "--mode": {"choices": ("exact", "fpi"), "default": "exact", "help": FPI},
    "--text": {
        "type": read_path,
        "help": "measure the perplexity on this text, such as sample.jsonl, and fit what cannot be "
        "exact to it",
    },
    "--seed": {
        "type": require_at_least(0),
        "default": 0,
        "help": "seed of what growth draws, such as 1 (default: 0)",
    },
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
# purpose -> example -> (help, arguments)
COMMANDS: dict[str, dict[str, tuple[str, Sequence[str]]]] = {
    "every day:": {
        "run demo --dry-run": ("train missing runs, then report", RUN),
        "status demo --watch": ("show how far each run is", (*OF_SUITE, "--watch", "--why")),
        "report demo": (
            "render tables and figures from the records",
            ("suites", *OF_SUITE[1:], "--out"),
        ),
        "check er": ("test that a method keeps the rules of the interface", ["method"]),
        "new-suite mine --text FOLDER": (
            "write a suite that fits your text and this machine",
            ("name", "--text FOLDER"),
        ),
    },
    "before and beside training:": {
        "list suites": (f"list {', '.join(LISTS)}, or everything", ["kind"]),
        "doctor bert_base": ("test that this machine and its cluster can run a suite", OF_SUITE),
        "prepare bert_base": ("download and tokenize a suite's text", OF_SUITE),
        "tune demo": (
            "write a suite that tries options, and later one with the best",
            (*OF_SUITE, "--configurations", "--domains"),
        ),
        "speed demo": (
            "compare each method's time and FLOPs per step with Naive's",
            (*OF_SUITE, "--reference", "--pairs"),
        ),
        "cancel bert_base": ("end the jobs of a suite and keep trained stages", OF_SUITE),
    },
    "records and studies:": {
        "track demo": ("write the records of runs for TensorBoard", (*OF_SUITE, "--out tracked")),
        "compare runs OTHER": ("compare two folders of records", (*CHOSEN, "a", "b")),
        "collect demo --study results/NAME": (
            "add finished runs to a study, and render it",
            (*OF_SUITE, "--study"),
        ),
        "verify results/NAME": (
            "check a study's report, or with --stage the weights of a stage",
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
    """The options of a command, whose name is the first of the arguments.

    `description` is the project's. If no command is to be called, it prints the help, the version
    or what is wrong, then raises SystemExit.
    """
    by_name: dict[str, tuple[str, str, Sequence[str]]] = {}
    lines = [description.strip()]
    for purpose, commands in COMMANDS.items():
        lines += ["", purpose]
        for example, (help, names) in commands.items():
            lines.append(f"  {example:42}{help}")
            by_name[example.split()[0]] = (example, help, names)
    parser = argparse.ArgumentParser(
        "run_all.py",
        usage="run_all.py COMMAND ..., such as run demo",
        description="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    version = f"lifelong-pretraining-benchmark {__version__}"
    parser.add_argument("--version", action="version", version=version, help=argparse.SUPPRESS)
    parser.add_argument("command", choices=by_name, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments[:1])
    # no subparsers, because they would add the options of all commands before --help is printed
    example, help, names = by_name[options.command]
    epilog = f"example: python run_all.py {example}"
    parser = argparse.ArgumentParser(
        f"run_all.py {options.command}", description=help, epilog=epilog
    )
    for name in names:
        parser.add_argument(name.split()[0], **OPTIONS[name])
    return parser.parse_args(arguments[1:], options)


def repeat_options(options: argparse.Namespace, suite: str) -> list[str]:
    """The arguments that select the same runs of a suite in another command."""
    pairs = [("--runs", str(options.runs))]
    for name in ("methods", "seeds"):
        values = map(str, getattr(options, name))
        pairs.append((f"--{name}", ",".join(values)))
    for assignment in options.set:
        pairs.append(("--set", assignment))
    words = [suite]
    for option, value in pairs:
        if value and value != "runs":
            words += [option, value]
    return words
