"""A disk that is full, read-only, broken or cut off at any operation: see tests/support/faulty_disk.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.disk_writers import WHOLE, WRITERS
from tests.support.faulty_disk import KINDS, ROOT, compiler, failures
from tests.support.thorough import THOROUGH

EVERY = 1 if THOROUGH else 61


def test_a_disk_that_fails_anywhere_costs_nothing_but_the_work(tmp_path: Path) -> None:
    """Oracle: what was there or what was to come is read back, an error names its file, and the same work done again
    comes to what it would have been. Of all operations and faults one in 61, another in each scenario. Each function
    that writes runs in the scenario that it is listed under. And a run that is killed at random leaves, when it has
    come to its end, what an undisturbed one does."""
    if sys.platform != "linux" or not compiler():
        assert not os.environ.get("CI"), "no Linux with a C compiler"
        pytest.skip("needs Linux and a C compiler")
    *found, kills = failures(tmp_path, EVERY)
    ran = {line["scenario"]: {name.removeprefix("benchmark.") for name in line["called"]} for line in found}
    meant = [(name, writer) for name, writers in WRITERS.items() if name != WHOLE for writer in writers]
    assert [(name, writer) for name, writer in meant if writer not in ran.get(name, ())] == []
    assert [line["wrong"] for line in found] == [[]] * len(found)
    assert all(line["operations"] * len(KINDS) // EVERY <= line["faults"] for line in found)
    assert sum(line["faults"] for line in found) > 7
    assert (kills["scenario"], kills["wrong"]) == ("kills", []) and kills["faults"] > 0


def test_what_hangs_is_ended() -> None:
    """Oracle: work that waits for a signal that nobody sends; what ends at once is let be."""
    code = "from tests.support.faulty_disk import DONE, HANGS, in_a_child; import signal; "
    code += "assert in_a_child(signal.pause, 0.2) == (HANGS, '') and in_a_child(int) == (DONE, '')"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
