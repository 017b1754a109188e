"""The catalogue of tables and figures: an entry is a file of `paper_tables/`.

Entries import pandas and matplotlib, which takes seconds, so they are loaded only when needed.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.ledger import records
from benchmark.ledger.runs import keep_own_comparisons
from benchmark.ledger.store import Store
from benchmark.settings.base import ConfigError
from benchmark.settings.names import ROOT
from benchmark.settings.suite import RunConfig, Suite

if TYPE_CHECKING:
    from analysis.exhibits import Exhibit

FOLDER = ROOT / "paper_tables"


def list_exhibits() -> list[str]:
    """All exhibits, tables and figures, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


@cache
def list_printed_blocks() -> frozenset[str]:
    """The blocks of the paper's printed numbers: most are suites, others parts of a table."""
    from analysis.exhibits import read_printed

    paths = sorted((FOLDER / "printed").glob("*.csv"))
    return frozenset(value.block for path in paths for value in read_printed(path))


def load(name: str) -> Exhibit:
    """Load a table or figure by name, with the paper's numbers.

    Raises ConfigError for an unknown name.
    """
    from analysis.exhibits import read_printed

    file = find_file(name)
    module = importlib.import_module(f"{FOLDER.name}.{file.stem}")
    exhibit: Exhibit = module.EXHIBIT
    printed = read_printed(FOLDER / "printed" / f"{name}.csv")
    return dataclasses.replace(exhibit, name=name, printed=printed)


def find_file(name: str) -> Path:
    """Find the file of an exhibit, or raise ConfigError if there is none."""
    if name in list_exhibits():
        return FOLDER / f"{name}.py"
    names = ", ".join(difflib.get_close_matches(name, list_exhibits(), cutoff=0.0))
    raise ConfigError(
        f"no table or figure {name!r}: choose from the files of {FOLDER}, such as {names}"
    )


@dataclass(frozen=True)
class ModelMeasure:
    """Measures models with `analysis.model_similarity`, and records lines of one kind.

    The module, which imports torch, is imported only at a call.
    """

    kind: str  # of the lines that it records

    def is_done(self, config: RunConfig, store: Store, stage: str) -> bool:
        """Whether the model of a run's stage is measured on the run's text."""
        run_line = records.find_last(store.read_run(config), records.RunLine)
        if run_line is None:
            return False
        lines = records.read(store.similarity_file(stage), records.MEASURES)
        own_lines = keep_own_comparisons(run_line, lines)
        return any(line.__struct_config__.tag == self.kind for line in own_lines)

    def __call__(self, config: RunConfig, store: Store) -> None:
        from analysis.model_similarity import MEASURES

        MEASURES[self.kind](config, store)


def list_measures(suite: Suite) -> tuple[ModelMeasure, ...]:
    """The measures of models that the suite's tables and figures need.

    Most tables and figures need only the records of training. Raises ConfigError for a name that is
    neither a table nor a figure.
    """
    measures = []
    for name in suite.tables:
        text = find_file(name).read_text(encoding="utf-8")
        measures += re.findall(r'^MEASURE = "(\w+)"', text, re.MULTILINE)
    return tuple(map(ModelMeasure, dict.fromkeys(measures)))
