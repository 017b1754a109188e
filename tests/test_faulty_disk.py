"""A disk that is full, read-only, broken or cut off at any operation: see tests/support/faulty_disk.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.faulty_disk import KINDS, compiler, failures
from tests.support.thorough import THOROUGH

EVERY = 1 if THOROUGH else 61


def test_a_disk_that_fails_anywhere_costs_nothing_but_the_work(tmp_path: Path) -> None:
    """Oracle: what was there or what was to come is read back, an error names its file, and the same work done again
    comes to what it would have been. Of all operations and faults one in 61, another in each scenario."""
    if sys.platform != "linux" or not compiler():
        assert not os.environ.get("CI"), "no Linux with a C compiler"
        pytest.skip("needs Linux and a C compiler")
    scenarios = list(failures(tmp_path, EVERY))
    assert [line["wrong"] for line in scenarios] == [[]] * len(scenarios)
    assert all(line["operations"] * len(KINDS) // EVERY <= line["faults"] for line in scenarios)
    assert sum(line["faults"] for line in scenarios) > 6
