"""A disk on which one operation after another fails.

`python -m tests.support.faulty_disk FOLDER MOST` does each scenario once on a disk that works. It
notes the operations there (creating, truncating, syncing, renaming, removing, making folders) and
the sizes of files. Then it does the scenario once for each fault, or for MOST faults drawn at
random. Each time a copy of this process does the work. It prints a line of JSON per scenario: how
many faults there were, and what went wrong:

- an error that does not name a file of the scenario's folder
- a reader that sees neither the old nor the new content, or gets an exception
- the same work, done again on a disk that works, with another result

An audit hook of Python sees all operations but syncing and writing. So `os.fsync` is replaced, and
a limit of the kernel (RLIMIT_FSIZE) stops files from growing, also for Rust and torch: a write
stores what fits, and the next one fails or ends the process.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch

from benchmark import locks
from benchmark.files import check_checksums
from benchmark.ledger import records
from benchmark.models import build, hash_weights, load
from benchmark.settings.suite import Data, Tokenizer
from benchmark.settings.texts import Domain
from benchmark.training import checkpoint
from tests.support.record_lines import STAGE, read_stage_lines
from tests.support.texts import prepare

ROOT = Path(__file__).parents[2]
# The error of the chosen operation. Later operations fail too, except renaming and removing. After
# an error of the device ("error") they work again. 0: the process is killed instead
KINDS = {"full": errno.ENOSPC, "read-only": errno.EROFS, "error": errno.EIO, "ends": 0}
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
DONE, FAILED = 0, 7  # exit statuses of the process that works on the faulty disk


@dataclass(frozen=True)
class Scenario:
    """One way in which the project writes files below a folder.

    `prepare` and `act` write, and `read` returns what is there. `allowed(seen, before, after)` is
    whether a reader may see `seen` after a fault, if `before` was there and `act` leads to `after`.
    """

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    read: Callable[[Path], Any]
    allowed: Callable[[Any, Any, Any], bool] = lambda seen, before, after: seen in (before, after)


def find_failures(folder: Path, most: int = 10**6) -> Iterator[dict[str, Any]]:
    """The number of faults of each scenario, and what went wrong, from a process of its own."""
    command = [sys.executable, "-m", "tests.support.faulty_disk", str(folder), str(most)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            yield json.loads(line)
    assert process.returncode == 0


@dataclass
class FaultyDisk:
    """A disk on which operation number `at` below `folder` fails in the way that `kind` names.

    It is this process's disk from `install` on. `names` lists the operations so far. If `at` is -1,
    none fails.
    """

    folder: Path
    at: int = -1
    kind: str = "full"
    names: list[str] = field(default_factory=list)  # of the operations

    def install(self) -> None:
        system: Any = os
        system.fsync = lambda descriptor: self.operate(
            "sync", os.readlink(f"/proc/self/fd/{descriptor}")
        )
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.truncate", "os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            return
        path, folder = arguments[0], arguments[-1] if event in ("os.remove", "os.rmdir") else -1
        if (event == "open" and not arguments[2] & CHANGES) or isinstance(path, int):
            return
        self.operate(
            event,
            os.path.join(
                os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else "", os.fspath(path)
            ),
        )

    def operate(self, name: str, path: str) -> None:
        if not Path(path).is_relative_to(self.folder):
            return
        number = len(self.names)
        self.names.append(f"{name} {path}")
        stays = self.kind != "error" and name not in ("os.rename", "os.remove", "os.rmdir")
        if self.at < 0 or number < self.at or (number > self.at and not stays):
            return
        if not KINDS[self.kind]:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(
            KINDS[self.kind], os.strerror(KINDS[self.kind]), None if name == "sync" else path
        )


@dataclass
class SmallDisk:
    """A disk on which no file of this process grows beyond `size` bytes, from `install` on.

    A longer write fails, or ends the process if `ends` is true.
    """

    size: int
    ends: bool

    def install(self) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.size))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if self.ends else signal.SIG_IGN)


def do_in_a_child(act: Callable[[], object]) -> tuple[int, str]:
    """Call `act` in a copy of this process, and return the exit status and the result or error.

    A negative status is the number of the signal that ended the copy.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status, text = FAILED, ""
        try:
            status, text = DONE, str(act())
        except BaseException as error:
            status, text = FAILED, f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, text.encode())
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def list_faults(scenario: Scenario, folder: Path) -> Iterator[tuple[str, FaultyDisk | SmallDisk]]:
    """All faults of a scenario, with their names.

    To find them, the scenario does its work in `folder` once, without a fault.
    """
    disk = FaultyDisk(folder)

    def act() -> str:
        disk.install()
        scenario.act(folder)
        return "\n".join(disk.names)

    status, names = do_in_a_child(act)
    assert status == DONE, names
    for kind in KINDS:
        for number, name in enumerate(names.splitlines()):
            yield f"{kind} at {number} ({name})", FaultyDisk(folder, number, kind)
    sizes = {path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    for limit in sorted({part for size in sizes for part in (size // 2, size - 1) if part > 0}):
        for ends in (False, True):
            yield f"{limit} bytes a file{', which end the process' * ends}", SmallDisk(limit, ends)


def run(scenario: Scenario, place: Path, most: int) -> dict[str, Any]:
    """Try all faults of a scenario, or `most` drawn at random, and return what went wrong."""
    folder = place / scenario.name
    folder.mkdir()
    scenario.prepare(folder)
    before = scenario.read(folder)
    known = [*list_faults(scenario, folder)]
    chosen = random.Random(scenario.name).sample(known, min(most, len(known)))
    after = scenario.read(folder)
    wrong = []
    for name, disk in chosen:
        shutil.rmtree(folder)
        folder.mkdir()
        scenario.prepare(folder)
        if problem := try_fault(scenario, disk, folder, before, after):
            wrong.append(f"{name}: {problem}")
    return {"scenario": scenario.name, "faults": len(chosen), "wrong": wrong}


def try_fault(
    scenario: Scenario, disk: FaultyDisk | SmallDisk, folder: Path, before: Any, after: Any
) -> str:
    """What is wrong after a fault, "" if nothing is."""

    def act() -> None:
        disk.install()
        try:
            scenario.act(folder)
        except OSError as error:
            if error.filename is None:  # commands print a traceback for it, not one line
                raise AssertionError(f"an OSError of no file, errno {error.errno}") from error
            raise
        except Exception as error:
            # a UserError is a ValueError. Commands print most other errors with a traceback
            if not isinstance(error, ValueError):
                raise AssertionError(f"told with a traceback: {type(error).__name__}") from error
            raise

    status, error = do_in_a_child(act)
    if status == FAILED and str(folder) not in error:
        return f"no file is named: {error}"
    if status not in (DONE, FAILED, -signal.SIGKILL, -signal.SIGXFSZ):
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


def do_nothing(folder: Path) -> None:
    pass


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
    content = {
        "model": {str(i): torch.full((50,), value) for i in range(3)},
        "position": {"step": value},
    }
    checkpoint.save(folder / "checkpoint.pt", content)


def read_checkpoint(folder: Path) -> Any:
    content = checkpoint.load(folder / "checkpoint.pt")
    return [
        content["position"]["step"],
        *(tensor.sum().item() for tensor in content["model"].values()),
    ]


# A model's folder


class Models:
    """Saves one of two models, and reads which one is there."""

    def __init__(self) -> None:
        domain = Domain(name="a", packages=("json",))
        with tempfile.TemporaryDirectory() as folder:
            corpus = prepare([domain], Path(folder), tokenizer=Tokenizer(vocabulary=300), data=DATA)
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
        return hash_weights(load(folder / "model")) if (folder / "model").exists() else None


# Text that is tokenised


def write_text(folder: Path) -> None:
    lines = [json.dumps({"text": f"{PIECES[i % 3]} {i} {PIECES[i % 2]} " * 4}) for i in range(60)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    os.utime(folder / "a.jsonl", (1, 1))  # hashes of text are looked up by its files' times


def tokenise(folder: Path) -> None:
    corpus = prepare(
        [Domain(name="a", train=(str(folder / "a.jsonl"),))],
        folder,
        tokenizer=Tokenizer(vocabulary=300),
        data=DATA,
    )
    corpus.domains[0].check()


def read_tokens(folder: Path) -> Any:
    whole = [path for path in folder.glob("*/*") if path.is_dir() and not path.name.startswith(".")]
    for path in whole:
        check_checksums(path, "")
    return sorted(
        f"{path.parent.name}/{path.name}: {sorted(p.name for p in path.iterdir())}"
        for path in whole
    )


# A lease


def own_twice(folder: Path) -> None:
    for _ in range(2):  # the second waits if the first was not given back
        with patch.object(locks, "BEAT", 0.01), locks.Lease(folder / "lock"):
            pass


def list_scenarios() -> list[Scenario]:
    models = Models()
    return [
        Scenario("records", begin_records, append_records, read_records, is_prefix),
        Scenario(
            "checkpoint",
            lambda folder: save_checkpoint(folder, 1.0),
            lambda folder: save_checkpoint(folder, 2.0),
            read_checkpoint,
        ),
        Scenario("model", do_nothing, models.second, models.read),
        # between two renames there is no model: its stage is not done then, and continues from its
        # checkpoint
        Scenario(
            "model_again",
            models.first,
            models.second,
            models.read,
            lambda seen, *both: seen in (None, *both),
        ),
        Scenario(
            "tokens",
            write_text,
            tokenise,
            read_tokens,
            lambda seen, _, after: set(seen) <= set(after),
        ),
        Scenario(
            "lease", do_nothing, own_twice, lambda folder: locks.Lease(folder / "lock").is_taken()
        ),
    ]


def main() -> None:
    system: Any = os
    system.fsync = lambda descriptor: None  # a killed process loses nothing that the kernel has
    locks.EXPIRES = 0.1  # seconds until a lock whose file names no owner is free
    for scenario in list_scenarios():
        print(json.dumps(run(scenario, Path(sys.argv[1]), int(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
