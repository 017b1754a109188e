"""The suite that a command line is about, and its runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmark.jobs import tuning
from benchmark.settings.base import ConfigError
from benchmark.settings.command_line import words_again
from benchmark.settings.load import load_suite, parse_methods, parse_seeds, parse_set, refuse_unused
from benchmark.settings.suite import RunConfig, Suite

RunsOf = Callable[[Suite, tuple[str, ...], tuple[int, ...]], list[RunConfig]]  # of some methods and seeds, or all
CheckOptions = Callable[[Sequence[RunConfig], str], None]  # raises ConfigError for options that methods do not take


@dataclass(frozen=True)
class OpenedSuite:
    """A suite with the command line's overrides, and the runs that it asks for.

    `every` gives the runs of all rows with some seeds; without seeds, with the suite's own.
    """

    suite: Suite
    runs: list[RunConfig]
    every: Callable[[tuple[int, ...]], Sequence[RunConfig]]


def opened(options: argparse.Namespace, name: str, runs_of: RunsOf, check: CheckOptions) -> OpenedSuite:
    """The suite of this name as the command line says it; with options that `tune` chose, if some are given.

    `runs_of` and `check` are those of the methods, which jobs must not import. Raises ConfigError for what cannot be
    read, or asked for.
    """
    refuse_unused(options)
    written = load_suite(name, dict(parse_set(item) for item in options.set))
    only = parse_methods(options.methods)

    def chosen(rows: tuple[str, ...], seeds: tuple[int, ...]) -> tuple[Suite, list[RunConfig]]:
        runs = runs_of(written, rows, seeds)
        if options.charge_search and not options.options:
            raise ConfigError("--charge-search: say which search, --options FILE")
        if not options.options:
            return written, runs
        suite, runs = tuning.tuned(written, runs, options.options, options.charge_search)
        check(runs, f"--options {options.options}")
        return suite, runs

    def every(seeds: tuple[int, ...]) -> list[RunConfig]:
        try:
            return chosen((), seeds)[1]
        except ConfigError:  # a search may have been for some rows alone
            return chosen(only, seeds)[1]

    suite, runs = chosen(only, parse_seeds(options.seeds))
    return OpenedSuite(suite.called_by(words_again(options, name)), runs, every)
