"""Names of the suites in `benchmark/suites/`: all that `--help` needs to know of them."""

from __future__ import annotations

from pathlib import Path

SUITES = Path(__file__).parents[1] / "suites"


def suite_names() -> list[str]:
    """The names of the suites that come with the project, in alphabetical order."""
    return sorted(path.stem for path in SUITES.glob("*.toml"))
