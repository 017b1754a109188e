"""The suite that a command line is about, and its runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmark.settings.command_line import words_again
from benchmark.settings.load import load_suite, parse_methods, parse_seeds, parse_set
from benchmark.settings.suite import RunConfig, Suite

RunsOf = Callable[[Suite, tuple[str, ...], tuple[int, ...]], list[RunConfig]]  # of some methods and seeds, or all


@dataclass(frozen=True)
class OpenedSuite:
    """A suite with the command line's overrides, and the runs that it asks for.

    `every` gives the runs of all rows with some seeds; without seeds, with the suite's own.
    """

    suite: Suite
    runs: list[RunConfig]
    every: Callable[[tuple[int, ...]], Sequence[RunConfig]]


def opened(options: argparse.Namespace, name: str, runs_of: RunsOf) -> OpenedSuite:
    """The suite of this name as the command line says it.

    `runs_of` is that of the methods, which jobs must not import. Raises ConfigError for what cannot be read, or asked
    for.
    """
    suite = load_suite(name, dict(parse_set(item) for item in options.set))
    runs = runs_of(suite, parse_methods(options.methods), parse_seeds(options.seeds))
    return OpenedSuite(suite.called_by(words_again(options, name)), runs, lambda seeds: runs_of(suite, (), seeds))
