"""Which code a process runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmark.errors import UserError
from benchmark.jobs import pool
from benchmark.jobs.work import Unit, Worker
from benchmark.training.processes import Sources
from tests.support.programs import ROOT, start_in
from tests.support.suite_folder import SuiteFolder, copy_code, write_texts

# modules that processes import as they start
SHADOWS = (
    "sklearn",
    "torch",
    "queue",
    "selectors",
    "tempfile",
)


@pytest.fixture
def tiny(tmp_path) -> SuiteFolder:
    write_texts(tmp_path)
    rows = ('{ method = "naive" }', '{ method = "er" }')
    return SuiteFolder(tmp_path / "tiny", tmp_path).write(*rows)


@pytest.fixture
def here(tmp_path) -> Path:
    """A folder with modules that leave a file `ran` beside it when they are imported."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})")
    return folder


NOTED = """

_train = Run.train
def _train_noted(self, *arguments):
    open({path!r}, "a").close()
    return _train(self, *arguments)
Run.train = _train_noted
"""


def test_workers_run_the_code_of_the_clone_that_was_called(
    tiny: SuiteFolder, here: Path, tmp_path
) -> None:
    """Two clones, of which the first is installed. The second is called from a third folder.

    Oracle: the second clone's code leaves a file when it trains, and modules of the third folder
    leave another one when they are imported.
    """
    second = copy_code(tmp_path / "second")
    with (second / "benchmark/training/run.py").open("a") as file:
        file.write(NOTED.format(path=str(tmp_path / "trained")))
    command = (second / "run_all.py", *tiny.arguments("run", "--parallel", "2"))
    process = start_in(here, *command)
    said = process.communicate()
    assert process.returncode == 0, said
    assert (tmp_path / "trained").exists(), "the workers have the first clone's code"
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


READ = """
import joblib
from benchmark.data import docstrings
joblib.cpu_count = lambda: 2
docstrings.MODULES = 1
assert docstrings.read_package("email")[0]
"""


def test_text_is_read_without_files_of_the_folder(here: Path, tmp_path) -> None:
    """Oracle: modules of the current folder, which leave a file when a process that reads
    docstrings imports them.
    """
    program = tmp_path / "read.py"
    program.write_text(READ)
    process = start_in(here, program)
    said = process.communicate()
    assert process.returncode == 0, said
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


@dataclass(frozen=True)
class Touch(Unit):
    """Leaves a file."""

    kind = "measure"

    def __call__(self, worker: Worker) -> None:
        (self.runs / "note").touch()


def test_a_worker_with_other_sources_says_so(tiny: SuiteFolder, capsys) -> None:
    """Oracle: by hand: the message has both hashes and both folders, and the unit is not done."""
    sources = Sources.read()
    sources.check()
    other = replace(sources, folder=Path("/elsewhere"), digest="sources-0")
    names = rf"{sources.digest} of {ROOT}, .* sources-0 of /elsewhere"
    with pytest.raises(UserError, match=names):
        other.check()
    unit = Touch(tiny.runs, tiny.configs()[0], "key")
    [slot] = pool.make_slots(1, [(0,)], 0)
    with pytest.raises(SystemExit) as ended:
        pool._work(unit, replace(slot, cores=()), {}, other)
    assert pool.OUTCOMES[ended.value.code] == "failed"
    assert "sources-0" in capsys.readouterr().err
    assert not (tiny.runs / "note").exists()
