"""A disk that fails at one operation after the other, below what is really written. Needs a C compiler.

`python -m tests.support.faulty_disk FOLDER EVERY` runs each scenario once on a whole disk and counts what it does
there (creating, reserving, writing, syncing, renaming, removing, making folders); then once for each of these
operations, or for every EVERYth, and each kind of fault. It prints a line of JSON a scenario: how many faults there
were, and what went wrong:

- an error that does not name a file of the scenario's folder;
- a reader that sees neither what was there nor what was to come, or meets an exception;
- the same work done again on a whole disk that does not come to the same.

`faulty_disk.c` must be loaded before the C library: `failures` starts such a process.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch

from benchmark import locks, records
from benchmark.data.tokens import prepare
from benchmark.files import check_checksums
from benchmark.models import build, load, weights_hash
from benchmark.settings.suite import Data, Tokenizer
from benchmark.settings.texts import Domain
from benchmark.training import checkpoint
from tests.support.record_lines import STAGE, read_stage_lines

ROOT = Path(__file__).parents[2]
KINDS = ("full", "read-only", "error", "torn", "short")  # as in faulty_disk.c
DONE, FAILED = 0, 7  # exit statuses of the process that works on the faulty disk


@dataclass(frozen=True)
class Scenario:
    """One way in which the project writes: `prepare` and `act` below a folder, `read` says what is there.

    `allowed` says of what is read after a fault whether it may be: it is given that, what was there before, and what
    comes after.
    """

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    read: Callable[[Path], Any]
    allowed: Callable[[Any, Any, Any], bool] = lambda seen, before, after: seen in (before, after)


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def failures(folder: Path, every: int = 1) -> Iterator[dict[str, Any]]:
    """What went wrong in each scenario, in a process of its own: see this file's first lines."""
    library = folder / "faulty_disk.so"
    source = Path(__file__).with_suffix(".c")
    command = [str(compiler()), "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    place = folder / "disk"
    place.mkdir()
    command = [sys.executable, "-m", "tests.support.faulty_disk", str(place), str(every)]
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            yield json.loads(line)
    assert process.returncode == 0


class FaultyDisk:
    """The disk of this process, once `faulty_disk.c` is loaded."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_char_p]
        self._library.fault_disarm.restype = ctypes.c_long

    def operations(self, folder: Path, act: Callable[[Path], None]) -> list[str]:
        """The names of what `act` does below a folder, in order."""
        with tempfile.NamedTemporaryFile() as names:
            self._library.fault_arm(str(folder).encode(), -1, 0, names.name.encode())
            act(folder)
            self._library.fault_disarm()
            return Path(names.name).read_text().splitlines()

    @contextmanager
    def failing(self, folder: Path, at: int, kind: str) -> Iterator[None]:
        """Operation number `at` below a folder goes wrong."""
        self._library.fault_arm(str(folder).encode(), at, KINDS.index(kind), b"")
        try:
            yield
        finally:
            self._library.fault_disarm()


def in_a_child(act: Callable[[], None]) -> tuple[int, str]:
    """The exit status of a copy of this process that does something, and its error; a negative number is a signal."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = DONE
        try:
            act()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode()[:4000])
            status = FAILED
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def run(scenario: Scenario, disk: FaultyDisk, place: Path, every: int) -> dict[str, Any]:
    """Every fault of a scenario, or every `every`-th."""
    fresh = place / scenario.name
    fresh.mkdir()
    scenario.prepare(fresh)
    before = scenario.read(fresh)
    names = disk.operations(fresh, scenario.act)
    after = scenario.read(fresh)
    shutil.rmtree(fresh)
    wrong, faults = [], 0
    for number, kind in [(number, kind) for kind in KINDS for number in range(len(names))][::every]:
        faults += 1
        fresh.mkdir()
        scenario.prepare(fresh)
        problem = one_fault(scenario, disk, fresh, (number, kind), before, after)
        if problem:
            wrong.append(f"{kind} at {number} ({names[number]}): {problem}")
        shutil.rmtree(fresh)
    return {"scenario": scenario.name, "operations": len(names), "faults": faults, "wrong": wrong}


def one_fault(
    scenario: Scenario, disk: FaultyDisk, folder: Path, fault: tuple[int, str], before: Any, after: Any
) -> str:
    """What is wrong after a fault, or nothing."""

    def act() -> None:
        try:
            with disk.failing(folder, *fault):
                scenario.act(folder)
        except OSError as error:
            if error.filename is None:  # which no command tells in a line
                raise AssertionError(f"an OSError of no file, errno {error.errno}") from error
            raise
        except Exception as error:
            if not isinstance(error, ValueError):  # UserError among them; any other is told with a traceback
                raise AssertionError(f"told with a traceback: {type(error).__name__}") from error
            raise

    status, error = in_a_child(act)
    if status == FAILED and str(folder) not in error:
        return f"no file is named: {error}"
    if status not in (DONE, FAILED) and fault[1] != "torn":
        return f"the process ended with {status}"
    try:
        seen = scenario.read(folder)
        if not scenario.allowed(seen, before, after) or (status == DONE and seen != after):
            return f"a reader sees {seen!r} after {error or 'nothing was said'}"
        scenario.act(folder)
        if (again := scenario.read(folder)) != after:
            return f"done again it is {again!r}"
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}, after {error or 'nothing was said'}"
    return ""


# What the project writes

PIECES = ("red green", "blue cyan", "one two")
DATA = Data(sequence_length=18, memory_tokens=100, valid_share=0.3)


def nothing(folder: Path) -> None:
    pass


def is_subset(seen: Sequence[Any], before: Any, after: Sequence[Any]) -> bool:
    return set(seen) <= set(after)


def is_prefix(seen: Sequence[Any], before: Any, after: Sequence[Any]) -> bool:
    return len(seen) >= len(before) and list(seen) == list(after[: len(seen)])


# Records: lines that are appended


def begin_records(folder: Path) -> None:
    records.append(folder / "records.jsonl", msgspec.convert(STAGE, records.StageLine))


def append_records(folder: Path) -> None:
    for step in (1, 2):
        line = records.MetricsLine(phase="adapt", step=step, values={"x": step / 3})
        records.append(folder / "records.jsonl", line)


def read_records(folder: Path) -> Any:
    lines: list[Any] = read_stage_lines(folder / "records.jsonl")
    return [[line["kind"], line.get("step"), line.get("values")] for line in lines]


# A checkpoint, which replaces what was there


def save_checkpoint(folder: Path, value: float) -> None:
    content = {"model": {str(i): torch.full((50,), value) for i in range(3)}, "position": {"step": value}}
    checkpoint.save(folder / "checkpoint.pt", content)


def read_checkpoint(folder: Path) -> Any:
    content = checkpoint.load(folder / "checkpoint.pt")
    return [content["position"]["step"], *(tensor.sum().item() for tensor in content["model"].values())]


# A model's folder


class Models:
    """Saves one of two models, and says which is there."""

    def __init__(self) -> None:
        domain = Domain(name="a", packages=("json",))
        with tempfile.TemporaryDirectory() as folder:
            corpus = prepare([domain], Tokenizer(vocabulary=300), DATA, Path(folder))
        self.tokenizer = corpus.tokenizer
        vocabulary = replace(corpus.vocabulary, domains=("a",))
        self.models = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            self.models.append(build("gpt", 1, 16, vocabulary, 18, head_size=16))

    def first(self, folder: Path) -> None:
        self.models[0].save(folder / "model", self.tokenizer)

    def second(self, folder: Path) -> None:
        self.models[1].save(folder / "model", self.tokenizer)

    def read(self, folder: Path) -> Any:
        return weights_hash(load(folder / "model")) if (folder / "model").exists() else None


# Text that is tokenised


def write_text(folder: Path) -> None:
    lines = [json.dumps({"text": f"{PIECES[i % 3]} {i} {PIECES[i % 2]} " * 4}) for i in range(60)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    os.utime(folder / "a.jsonl", (1, 1))  # prepared text is known by the time of its files


def tokenise(folder: Path) -> None:
    corpus = prepare([Domain(name="a", train=(str(folder / "a.jsonl"),))], Tokenizer(vocabulary=300), DATA, folder)
    corpus.domains[0].check()


def read_tokens(folder: Path) -> Any:
    whole = [path for path in folder.glob("*/*") if path.is_dir() and not path.name.startswith(".")]
    for path in whole:
        check_checksums(path, "")
    return sorted(f"{path.parent.name}/{path.name}: {sorted(p.name for p in path.iterdir())}" for path in whole)


# A lease


def own_twice(folder: Path) -> None:
    for _ in range(2):  # what was not given back is waited for
        with patch.object(locks, "BEAT", 0.01), locks.Lease(folder / "lock"):
            pass


def is_owned(folder: Path) -> bool:
    return locks.Lease(folder / "lock").is_taken()


def scenarios() -> list[Scenario]:
    models = Models()
    return [
        Scenario("records", begin_records, append_records, read_records, is_prefix),
        Scenario(
            "checkpoint",
            lambda folder: save_checkpoint(folder, 1.0),
            lambda folder: save_checkpoint(folder, 2.0),
            read_checkpoint,
        ),
        Scenario("model", nothing, models.second, models.read),
        # between two renames there is none: its stage is not done then, and trains on from its checkpoint
        Scenario("model_again", models.first, models.second, models.read, lambda seen, *both: seen in (None, *both)),
        Scenario("tokens", write_text, tokenise, read_tokens, is_subset),
        Scenario("lease", nothing, own_twice, is_owned),
    ]


def main() -> None:
    place, every = Path(sys.argv[1]), int(sys.argv[2])
    disk = FaultyDisk()
    for scenario in scenarios():
        print(json.dumps(run(scenario, disk, place, every)), flush=True)


if __name__ == "__main__":
    main()
