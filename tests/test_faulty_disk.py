"""A disk that is full, read-only, broken or cut off at any operation: see
tests/support/faulty_disk.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.faulty_disk import find_failures
from tests.support.thorough import THOROUGH


def test_a_disk_that_fails_anywhere_costs_nothing_but_the_work(tmp_path: Path) -> None:
    """Oracle: after each of eight faults per scenario, a reader sees the old or the new content,
    the error names its file, and the work, done again, gives what it gives without a fault.
    """
    scenarios = list(find_failures(tmp_path, 1000 if THOROUGH else 8))
    assert [line["wrong"] for line in scenarios] == [[]] * len(scenarios)
    assert sum(line["faults"] for line in scenarios) > 40
