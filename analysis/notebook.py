"""A suite in a notebook: runs, records as pandas frames, tables and figures. `run_all.open_suite` makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis.exhibits import Exhibit, TableExhibit, View
from analysis.figures import FigureExhibit
from analysis.study import Study
from analysis.tables import Table
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Suite, Suites


@dataclass(frozen=True)
class OpenSuite:
    """A suite with some of its runs; `runs` is the folder of checkpoints and records.

    Records are read anew at each call, so that it shows what was trained since.
    """

    suite: Suite
    configs: tuple[RunConfig, ...]
    runs: Path
    # what of other rooms is handed in
    train: Callable[[Sequence[RunConfig], Path], Sequence[RunConfig]]  # runs, `--runs`; those that failed
    exhibit: Callable[[str], Exhibit]
    study_of: Callable[[Suites, Path], Study]

    def run(self, row: str, seed: int | None = None) -> None:
        """Train the missing runs of a row, with one of its seeds or with all. Raises ConfigError for another row.

        What goes wrong while it trains is recorded, and raised as ConfigError with the runs' names.
        """
        wanted = [config for config in self.configs if config.row == row and seed in (None, config.seed)]
        if not wanted:
            rows = ", ".join(dict.fromkeys(config.row for config in self.configs))
            seeds = ", ".join(dict.fromkeys(str(config.seed) for config in self.configs))
            raise ConfigError(f"no run of row {row!r} and seed {seed}; there are rows {rows} and seeds {seeds}")
        failed = self.train(wanted, self.runs)
        if failed:
            raise ConfigError(f"failed: {', '.join(run.label for run in failed)}; `run_all.py status` says why")

    @property
    def study(self) -> Study:
        """Everything that records say of the runs, as frames: `analysis.study` describes each."""
        return self.study_of([(self.suite, self.configs)], self.runs)

    @property
    def evaluations(self) -> pd.DataFrame:
        """Every evaluation of every run: AP, AP⁺, what was charged, and perplexity by domain."""
        lines = self.study.evaluations
        names = [domain.name for domain in self.suite.domains]
        each = pd.DataFrame(lines["perplexity"].tolist(), index=lines.index, columns=names if len(lines) else None)
        return lines.drop(columns="perplexity").join(each.add_prefix("perplexity_"))

    def table(self, name: str, view: View = "ours") -> Table:
        """A table of paper_tables/, which a notebook shows. Raises ConfigError for a name that is no table."""
        exhibit = self.exhibit(name)
        if not isinstance(exhibit, TableExhibit):
            raise ConfigError(f"{name} is a figure: figure({name!r}) draws it")
        return exhibit.build(self.study, view)

    def figure(self, name: str) -> Figure:
        """A figure of paper_tables/. Raises ConfigError for a name that is no figure."""
        exhibit = self.exhibit(name)
        if not isinstance(exhibit, FigureExhibit):
            raise ConfigError(f"{name} is a table: table({name!r}) makes it")
        return exhibit.figure(self.study)
