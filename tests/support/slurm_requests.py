"""What a suite asks of Slurm, for tests of what `doctor` says of it."""

from __future__ import annotations

from typing import Any

import methods
import paper_tables
from benchmark.jobs.slurm.requests import Request, requests_of
from benchmark.settings.load import load_suite


def requests(**settings: Any) -> list[Request]:
    """What the jobs of the demo would ask for with these keys of its suite."""
    suite = load_suite("demo", {"slurm.exclusive": False, **settings})
    return requests_of(suite, methods.runs(suite, seeds=[0]), bool(paper_tables.measures(suite)))
