"""What an import of the library, and a command that trains, change in a process."""

from __future__ import annotations

import os
from dataclasses import dataclass

from benchmark.jobs import pool
from benchmark.jobs.work import Unit, Worker
from tests.support.memory_maps import count_maps
from tests.support.programs import ROOT, start_in
from tests.support.suite_folder import SuiteFolder, write_texts


@dataclass(frozen=True)
class NoteMemory(Unit):
    """Writes down how a process that computes is set up."""

    kind = "measure"

    def __call__(self, worker: Worker) -> None:
        text = f"{count_maps()} {os.environ.get('GOMP_SPINCOUNT')}"
        (self.runs / "note").write_text(text)


IMPORT = """
import os, sys
sys.path.insert(0, sys.argv[1])
import benchmark, run_all, benchmark.jobs.pool, benchmark.training.run, methods, analysis.report
from tests.support.memory_maps import count_maps
print(count_maps(), os.environ.get("GOMP_SPINCOUNT"))
run_all.main(["check", "no_such_method"])
print(count_maps(), os.environ.get("GOMP_SPINCOUNT"))
"""


def test_an_import_leaves_the_process_as_it_is(tmp_path) -> None:
    """Oracle: the defaults, which imports keep: glibc maps a large block outside the heap (1), and
    GOMP_SPINCOUNT is not set. A command that trains changes them to 0 and 10000.
    """
    program = tmp_path / "import.py"
    program.write_text(IMPORT)
    process = start_in(tmp_path, program, ROOT)
    said = process.communicate()
    assert said[0].split() == ["1", "None", "0", "10000"], said


def test_workers_are_set_up_to_compute(tmp_path) -> None:
    """Oracle: a command that trains: no block is mapped (0), and GOMP_SPINCOUNT is 10000."""
    write_texts(tmp_path)
    tiny = SuiteFolder(tmp_path / "tiny", tmp_path).write('{ method = "naive" }')
    unit = NoteMemory(tiny.runs, tiny.configs()[0], "key")
    assert pool.work_through([unit], pool.make_slots(1, [(0,)], 0)) == []
    assert (tiny.runs / "note").read_text() == "0 10000"
