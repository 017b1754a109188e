"""A suite in a notebook: runs, records as pandas frames, tables and figures. `run_all.open_suite` makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from analysis.exhibits import Exhibit, TableExhibit, View
from analysis.figures import FigureExhibit
from analysis.study import Study
from analysis.tables import Table
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Suite, Suites


@dataclass(frozen=True)
class Rooms:
    """What of other rooms is handed in: training, the exhibits, and records as a study."""

    train: Callable[[Sequence[RunConfig], Path], Sequence[RunConfig]]  # runs, `--runs`; those that failed
    exhibit: Callable[[str], Exhibit]
    study: Callable[[Suites, Path], Study]


@dataclass(frozen=True)
class OpenSuite:
    """A suite with some of its runs; `runs` is the folder of checkpoints and records.

    Records are read anew at each call, so that it shows what was trained since.
    """

    suite: Suite
    configs: tuple[RunConfig, ...]
    runs: Path
    rooms: Rooms

    def run(self, row: str, seed: int | None = None) -> None:
        """Train what is missing of a row, with one of its seeds or with all. Raises ConfigError for another row.

        Raises UserError where others who share the folder could not go on with what is trained.
        What goes wrong while it trains is recorded, and raised as ConfigError with the runs' names.
        """
        wanted = [one for one in self.configs if one.row == row and seed in (None, one.seed)]
        if not wanted:
            rows = ", ".join(dict.fromkeys(one.row for one in self.configs))
            seeds = ", ".join(dict.fromkeys(str(one.seed) for one in self.configs))
            raise ConfigError(f"no run of row {row!r} and seed {seed}; there are rows {rows} and seeds {seeds}")
        failed = self.rooms.train(wanted, self.runs)
        if failed:
            raise ConfigError(f"failed: {', '.join(one.label for one in failed)}; `run_all.py status` says why")

    @property
    def study(self) -> Study:
        """Everything that records say of the runs, as frames: `analysis.study` describes each."""
        return self.rooms.study([(self.suite, self.configs)], self.runs)

    @property
    def evaluations(self) -> pd.DataFrame:
        """Every evaluation of every run: AP, AP⁺, what was charged, and perplexity by domain."""
        found = self.study.evaluations
        names = [domain.name for domain in self.suite.domains]
        each = pd.DataFrame(found["perplexity"].tolist(), index=found.index, columns=names if len(found) else None)
        return found.drop(columns="perplexity").join(each.add_prefix("perplexity_"))

    @property
    def stages(self) -> pd.DataFrame:
        """Every stage that was started: budget, spent, hardware and size."""
        return self.study.stages

    @property
    def scores(self) -> pd.DataFrame:
        """Downstream scores, means over seeds of the fine-tuning."""
        return self.study.scores

    def table(self, name: str, view: View = "ours") -> Styler:
        """A table of paper_tables/ as a pandas Styler. Raises ConfigError for a name that is no table."""
        exhibit = self.rooms.exhibit(name)
        if not isinstance(exhibit, TableExhibit):
            raise ConfigError(f"{name} is a figure: figure({name!r}) draws it")
        return styled(exhibit.build(self.study, view))

    def figure(self, name: str) -> Figure:
        """A figure of paper_tables/. Raises ConfigError for a name that is no figure."""
        exhibit = self.rooms.exhibit(name)
        if not isinstance(exhibit, FigureExhibit):
            raise ConfigError(f"{name} is a table: table({name!r}) makes it")
        return exhibit.figure(self.study)


def styled(table: Table) -> Styler:
    """A table as pandas shows it: a column for each of its own, the best in bold, notes under the caption."""
    lines = [(block, row) for block in table.blocks for row in block.rows]
    columns = [" ".join(filter(None, (column.group, column.name))) for column in table.columns]
    stubs = [[block.title, *row.stub] for block, row in lines]
    titled = any(block.title for block in table.blocks)
    texts = [[_text(cell.number, cell.spread, cell.over) for cell in row.cells] for _, row in lines]
    names = ["", *table.stubs][0 if titled else 1 :]
    index = pd.MultiIndex.from_tuples([tuple(stub[0 if titled else 1 :]) for stub in stubs], names=names)
    shown = pd.DataFrame(texts, index=index, columns=columns)
    best = [["font-weight: bold" if cell.best else "" for cell in row.cells] for _, row in lines]
    bold = pd.DataFrame(best, index=shown.index, columns=columns)
    return shown.style.apply(lambda _: bold, axis=None).set_caption(" ".join((table.caption, *table.notes)))


def _text(number: str, spread: str, over: str) -> str:
    return f"{number} ± {spread}{over}" if spread else f"{number}{over}"
