"""Files that are larger than they can mean to be. Oracle: their size and the limit in the error, which the docs state;
the files have holes, so that they take no room on a disk, and all of their bytes would be read into memory."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import run_all
from benchmark import records
from benchmark.data.tokenizer import load_bpe, load_tokenizer
from benchmark.downstream.classifier import SavedModel
from benchmark.errors import UserError, told
from benchmark.files import CHECKSUMS, LARGEST, LARGEST_RECORDS, check_checksums, read_bytes, read_text, unseal
from benchmark.instruments import track
from benchmark.instruments.checkpoints import open_folder
from benchmark.jobs.slurm import process
from benchmark.locks import Lease
from benchmark.models import load
from benchmark.models.transformer import load_network
from benchmark.settings.load import load_suite
from benchmark.store import read_heartbeat
from benchmark.training import step_times
from tests.support import tiny_suite
from tests.support.disk_scenarios import Models
from tests.support.record_lines import last_line
from tests.support.source_tree import ROOT, TREES


def hole(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def says(error: BaseException, path: Path, size: int, largest: int) -> bool:
    assert isinstance(error, UserError | OSError)
    line = told(error)
    return path.name in line and f"has {size:,} bytes, and such a file at most {largest:,}: restore" in line


ONE_FILE: list[Callable[[Path], object]] = [
    *(read_bytes, read_text, step_times.machine_of, track._sent),
    *(lambda path: load_suite(str(path)), lambda path: unseal(path, "cure")),
]


@pytest.mark.parametrize("read", ONE_FILE)
def test_what_is_read_whole_has_a_limit(read: Callable[[Path], object], tmp_path: Path) -> None:
    """They are JSON, TOML, tables of step times, notes and pages of reports."""
    path = hole(tmp_path / "large.toml", LARGEST + 1)
    (tmp_path / "suite").mkdir()
    with pytest.raises((UserError, OSError)) as raised:
        read(path)
    assert says(raised.value, path, LARGEST + 1, LARGEST)


@pytest.mark.parametrize("read", [records.read, lambda path: last_line(path, "done")])
def test_a_file_of_records_has_a_limit(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = hole(tmp_path / "records.jsonl", LARGEST_RECORDS + 1)
    with pytest.raises((UserError, OSError)) as raised:
        read(path)
    assert says(raised.value, path, LARGEST_RECORDS + 1, LARGEST_RECORDS)


def test_a_file_that_grows_while_it_is_read_has_a_limit(tmp_path: Path) -> None:
    """Oracle: no size is told of what the kernel makes as it is read, such as this file of pages."""
    with pytest.raises(OSError, match="such a file at most 100,000"):
        read_bytes("/proc/self/pagemap" if Path("/proc/self/pagemap").exists() else "/dev/zero", 100_000)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "added.txt", "x.model"])
@pytest.mark.parametrize("read", [load, load_network, open_folder, load_tokenizer, SavedModel])
def test_a_models_files_have_a_limit(read: Callable[[Path], object], name: str, tmp_path: Path) -> None:
    """Libraries read these whole, by names of their own. Oracle: as above, for every reader of models."""
    Models().first(tmp_path)
    folder = tmp_path / "model"
    (folder / CHECKSUMS).unlink()
    path = hole(folder / name, LARGEST + 1)
    with pytest.raises((UserError, OSError)) as raised:
        read(folder)
    assert says(raised.value, path, LARGEST + 1, LARGEST)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (CHECKSUMS, lambda folder: check_checksums(folder, "cure")),
        ("vocab.json", load_bpe),
    ],
)
def test_files_in_a_folder_have_a_limit(name: str, read: Callable[[Path], object], tmp_path: Path) -> None:
    path = hole(tmp_path / name, LARGEST + 1)
    with pytest.raises((UserError, OSError)) as raised:
        read(tmp_path)
    assert f"has {LARGEST + 1:,} bytes, and such a file at most {LARGEST:,}" in str(raised.value)
    assert path.name in str(raised.value) or name == "vocab.json"


def test_signs_of_life_have_a_limit(tmp_path: Path) -> None:
    """Oracle: what is longer than anybody writes says nothing, as what was left half written."""
    assert read_heartbeat(hole(tmp_path / "run.json", LARGEST + 1)) is None
    hole(tmp_path / "lease.7", LARGEST + 1)
    assert Lease(tmp_path / "lease").owner() is None


def test_a_command_that_is_given_a_large_file_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: exit code 2 and one line."""
    hole(tmp_path / "large.toml", 9 * 2**30)
    assert run_all.main(["status", str(tmp_path / "large.toml")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and "9,663,676,416 bytes" in said


@pytest.mark.parametrize(
    ("name", "asked"), [("7", {}), ("12_3", {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"})]
)
def test_a_jobs_pickle_has_a_limit(name: str, asked: dict[str, str], tmp_path: Path) -> None:
    """Oracle: its size and the limit in the error; a module that takes submitit's place would make a folder."""
    (tmp_path / "in_its_place.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'made')!r})\n")
    (tmp_path / "logs").mkdir(mode=0o755)
    pickled = hole(tmp_path / "logs" / f"{name}_submitted.pkl", LARGEST + 1)
    command = [sys.executable, str(process.__file__), "-u", "-m", "in_its_place", str(tmp_path / "logs")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "SLURM_JOB_ID": "7", **asked}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert f"has {LARGEST + 1:,} bytes, and such a file at most {LARGEST:,}" in done.stderr and done.returncode
    assert not (tmp_path / "made").exists()
    pickled.write_bytes(b"small")
    assert not subprocess.run(command, env=environment, check=False).returncode and (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "given",
    [
        ("status", "{file}"),
        ("run", "{suite}", "--dry-run", *(f"--set=budget.{one}" for one in ("unit=reference", "reference={file}"))),
        ("prepare", "{suite}", "--set=tokenizer.folder={folder}"),
    ],
)
@pytest.mark.parametrize("pipe", [False, True])
def test_what_has_a_cure_gets_no_second_one(
    given: tuple[str, ...], pipe: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: the line ends with the cure of what reads files; others said to name another file after it."""
    suite, file = tiny_suite.write(tmp_path), tmp_path / "t" / ("x.toml" if given[0] == "status" else "vocab.json")
    file.parent.mkdir()
    os.mkfifo(file) if pipe else hole(file, LARGEST + 1)
    words = [one.format(file=file, suite=suite, folder=file.parent) for one in given]
    assert run_all.main([*words, f"--runs={tmp_path / 'runs'}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: ") and re.search(r"(from a copy|in its place), or remove it\n$", said)


def test_a_command_without_memory_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: no machine has 2^60 bytes; the line where they were asked for."""

    def greedy(_: object) -> int:
        return len(bytearray(2**60))

    monkeypatch.setitem(run_all.COMMANDS, "status", greedy)
    assert run_all.main(["status", "demo"]) == 2
    said = capsys.readouterr().err
    assert re.match(r"error: no memory is left .*test_large_files\.py:\d+\): free some", said) and said.count("\n") == 1


WHOLE = {"read_text", "read_bytes", "readlines", "fromfile", "loadtxt", "genfromtxt"}  # methods, of whatever they are
LOADERS = {"json.load", "tomllib.load", "tomli.load", "pickle.load", "np.load"}


def reads_whole(tree: ast.AST) -> set[str]:
    """The calls of a file that read a file to its end, whatever its size."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            has_limit = bool(node.args or node.keywords)
            if node.func.attr == "fromfile" and len(node.args) > 2:  # so many numbers
                continue
            if node.func.attr in WHOLE or (node.func.attr == "read" and not has_limit):
                found.add(node.func.attr)
            elif ast.unparse(node.func) in LOADERS:
                found.add(ast.unparse(node.func))
    return found


READ_WHOLE = {
    "benchmark.models.growth.width": {"read"},  # a place in a network, no file
    "benchmark.jobs.study": {"read", "read_bytes"},  # archives of a study, and records that go into them
}


def test_one_file_reads_files_whole() -> None:
    """All others ask benchmark/files.py, which has a limit. Oracle: the table above, which says what for."""
    found = {module: calls for module, tree in TREES.items() if (calls := reads_whole(tree))}
    assert found == READ_WHOLE


@pytest.mark.parametrize(
    "code", ["path.read_text()", "open(x).read()", "json.load(file)", "file.readlines()", "np.fromfile(file, dtype)"]
)
def test_reading_whole_is_found(code: str) -> None:
    """Oracle: each reads to the end of a file."""
    assert reads_whole(ast.parse(code))


@pytest.mark.parametrize("code", ["file.read(7)", "np.fromfile(file, dtype, 9)", "read_text(path)", "read_lines(path)"])
def test_reading_so_much_is_let_be(code: str) -> None:
    """Oracle: each has a limit."""
    assert not reads_whole(ast.parse(code))


def test_the_limits_are_told() -> None:
    """Oracle: the numbers of the code, in the page that promises them."""
    page = " ".join((ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").split())
    small, large = LARGEST / 2**20, LARGEST_RECORDS / 2**30
    assert f"pages {small:.0f} MB, a file of records {large:.0f} GB" in page
