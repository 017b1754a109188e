"""`run_all.py run`, killed at random moments of random pieces of its work, and what is left when it has come to an end.

A method has a suite of its own, with all that a run does: text is tokenised, stages are trained, checkpointed and
evaluated, models fine-tuned and looked into, a report rendered. An undisturbed run says what it does and how long each
piece takes. Then copies of this process do the same work anew, one after the other, and each is killed (SIGKILL) a
random share of a piece's time after that began: kinds of pieces are drawn, and one of the first of each. The last copy
runs to the end.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

import paper_tables
import run_all
from benchmark import records
from benchmark.data import tokens
from benchmark.downstream import finetune
from benchmark.instruments.run_models import RunModels
from benchmark.models import transformer
from benchmark.orphans import end_with
from benchmark.training.checkpoint import Checkpoint
from benchmark.training.stage import StageRun
from benchmark.training.stage_inputs import StageInputs
from benchmark.training.step import Stepper
from tests.support import tiny_suite

NOTHING: Mapping[str, int] = MappingProxyType({})
CHECKPOINT_SECONDS = 0.05  # of train time, some steps
MEASURES_OF_TIME = {"time", "seconds", "tokens_per_second", "cores", "charged_seconds", "lost"}
TASK = """
[[tasks]]
name = "toy"
domain = "a"
train = "{0}/task.jsonl"
dev = "{0}/task.jsonl"
test = "{0}/task.jsonl"
metric = "accuracy"
max_epochs = 2
batch_size = 16
[finetuning]
seeds = 1
"""


def write_suite(folder: Path, method: str, whole: bool) -> Path:
    """The suite of a method; `whole` has a task and a look into models, too."""
    path = tiny_suite.write(folder)
    tables = ["main_pretraining", *["main_downstream", "representational_similarity"] * whole]
    text = path.read_text().replace('["naive", "er"]', json.dumps([method]))
    text = text.replace('title = "Tiny"', f'title = "Tiny"\ntables = {json.dumps(tables)}')
    text = text.replace("batch_size = 10", f"batch_size = 20\ncheckpoint_seconds = {CHECKPOINT_SECONDS}")
    for name in tiny_suite.WORDS:  # prepared text is known by the time of its files
        os.utime(folder / f"{name}.jsonl", (1, 1))
    if whole:
        lines = [{"text": f"red {word} {i}", "label": word} for i in range(12) for word in ("green", "blue")]
        (folder / "task.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        text += TASK.format(folder)
    path.write_text(text)
    return path


@dataclass
class Watch:
    """Sees the pieces of work of this process; one of them, as `target` says, is told of when it begins."""

    began: Callable[[], object] = lambda: None
    target: tuple[str, int] = ("", 0)  # a kind, and which of these pieces
    pieces: list[tuple[str, float]] = field(default_factory=list)  # kind and seconds, as they end
    seen: Counter[str] = field(default_factory=Counter)
    steps: mmap.mmap | None = None
    warming_up: bool = False

    @contextlib.contextmanager
    def inside(self, kind: str) -> Iterator[None]:
        number = self.seen[kind]
        self.seen[kind] += 1
        if (kind, number) == self.target:
            self.began()
        start = time.perf_counter()
        try:
            yield
        finally:
            self.pieces.append((kind, time.perf_counter() - start))

    def wrap(self, owner: Any, name: str, kind: str) -> None:
        function = getattr(owner, name)

        @functools.wraps(function)
        def watched(*arguments: Any, **named: Any) -> Any:
            with self.inside(kind):
                return function(*arguments, **named)

        setattr(owner, name, watched)

    def install(self) -> None:
        for owner, name, kind in (
            *((tokens, "train_bpe", "tokenizer"), (tokens, "_tokenise", "tokenising")),
            *((StageInputs, "begin", "start of a stage, growth"), (StageRun, "_evaluate", "evaluation")),
            *((Checkpoint, "save", "checkpoint"), (records, "append", "record")),
            *((finetune, "score", "fine-tuning"), (RunModels, "after", "look into a model")),
            (paper_tables, "write_report", "report"),
        ):
            self.wrap(owner, name, kind)
        models: Any = transformer
        steppers: Any = Stepper
        whole_folder, warm_up, step = models.whole_folder, steppers.warm_up, steppers.step

        @contextlib.contextmanager
        def written(folder: Path) -> Iterator[Path]:
            with self.inside("model written"), whole_folder(folder) as beside:
                yield beside

        def warmed_up(stepper: Stepper) -> float:
            self.warming_up = True
            with self.inside("warm-up step"):
                flops: float = warm_up(stepper)
            self.warming_up = False
            return flops

        def stepped(stepper: Stepper, *arguments: Any) -> Any:
            if self.warming_up:
                return step(stepper, *arguments)
            if self.steps:
                self.steps[:8] = (int.from_bytes(self.steps[:8], "little") + 1).to_bytes(8, "little")
            with self.inside(f"step of {stepper.phase.name}"):
                return step(stepper, *arguments)

        models.whole_folder, steppers.warm_up, steppers.step = written, warmed_up, stepped


class Found(TypedDict):
    """What a run came to that was killed."""

    kills: dict[str, int]  # by kind of piece
    charged: int  # steps of an undisturbed run
    taken: int  # steps that it and its killed beginnings took
    different: list[str]  # files that are other than undisturbed


@dataclass
class Kills:
    """The kills of one method, below a folder of its own."""

    folder: Path
    method: str
    whole: bool = True

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.suite = write_suite(self.folder, self.method, self.whole)
        self._steps = mmap.mmap(-1, 8)
        list_of_pieces = self.folder / "pieces.json"
        self._run(lambda watch: None, list_of_pieces)
        self.pieces = [(kind, seconds) for kind, seconds in json.loads(list_of_pieces.read_text())]
        self.expected = self._left()
        self._each = int.from_bytes(self._steps[:8], "little")

    def disturb(self, kills: int, chosen: random.Random, known: Mapping[str, int] = NOTHING) -> Found:
        """Kill the work `kills` times before it may come to an end, in kinds of it that are the least `known`.

        Of kinds that were as often hit steps come first: every phase of every method is then among the first.
        """
        shutil.rmtree(self.folder / "runs")
        shutil.rmtree(self.folder / "report")
        self._steps[:8] = bytes(8)
        kinds = list(dict.fromkeys(kind for kind, _ in self.pieces))
        order = chosen.sample(kinds, len(kinds))
        order.sort(key=lambda kind: (known.get(kind, 0), not kind.startswith("step of")))
        hit = [kind for kind in sorted(order[:kills], key=kinds.index) if self._kill(kind, chosen)]
        self._run(lambda watch: None)
        taken, left = int.from_bytes(self._steps[:8], "little"), self._left()
        different = sorted(name for name in {*left, *self.expected} if left.get(name) != self.expected.get(name))
        return Found(kills=dict(Counter(hit)), charged=self._each, taken=taken, different=different)

    def _kill(self, kind: str, chosen: random.Random) -> bool:
        """Kill in one of the first pieces of a kind that the run still comes to. Returns whether it did."""
        seconds = [one for name, one in self.pieces if name == kind]
        number = chosen.randrange(min(4, len(seconds)))
        reading, writing = os.pipe()

        def prepare(watch: Watch) -> None:
            watch.target = (kind, number)
            watch.began = lambda: os.write(writing, b"x")

        child = self._fork(prepare)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            if pipe.read(1):  # nothing: it came to its end without that piece
                time.sleep(chosen.random() * seconds[number])
                os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    def _run(self, prepare: Callable[[Watch], None], list_of_pieces: Path | None = None) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(self._fork(prepare, list_of_pieces), 0)[1])
        assert status == 0, f"{self.method}: the run ended with {status}: see {self.folder / 'log'}"

    def _fork(self, prepare: Callable[[Watch], None], list_of_pieces: Path | None = None) -> int:
        parent, child = os.getpid(), os.fork()
        if child:
            return child
        status = 99
        try:
            end_with(parent)
            log = os.open(self.folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            watch = Watch(steps=self._steps)
            prepare(watch)
            watch.install()
            places = ["--runs", str(self.folder / "runs"), "--out", str(self.folder / "report")]
            status = run_all.main(["run", str(self.suite), *places])
            if list_of_pieces:
                list_of_pieces.write_text(json.dumps(watch.pieces))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def _left(self) -> dict[str, Any]:
        """All that must be the same, by file: bytes of models, tokens and tables; records without measures of time."""
        left: dict[str, Any] = {}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if not path.is_file() or not name.startswith(("runs/", "report/")) or path.suffix in (".lock", ".part"):
                continue
            if path.suffix[1:].isdigit():
                continue  # a lease: its number counts who had it
            if path.name.startswith(".") and not name.startswith(("runs/stages/", "runs/data/")):
                continue  # what a killed report leaves is removed by one that comes an hour later
            if path.suffix == ".jsonl":
                lines = records.read_stage(path) if path.name == "records.jsonl" else records.read(path)
                left[name] = [_without_time(line) for line in lines if line["kind"] != "resumed"]
            elif path.name in ("lock", "index.html") or (
                path.parent.parent.name == "suites" and path.suffix == ".json"
            ):
                left[name] = "there"  # locks, the page, which shows times, and the heartbeat
            elif path.suffix in (".pdf", ".png"):
                left[name] = "there"
            else:
                left[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return left


def _without_time(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_time(inner) for key, inner in value.items() if key not in MEASURES_OF_TIME}
    return [_without_time(inner) for inner in value] if isinstance(value, list) else value
