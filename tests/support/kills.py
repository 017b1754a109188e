"""`run_all.py run`, killed at random moments in random pieces of its work, and the files that are
left when it has ended.

Each method has its own suite, with all that a run does: text is tokenised, stages are trained,
checkpointed and evaluated, models are fine-tuned and compared, and a report is rendered. An
undisturbed run tells which pieces of work there are and how long each takes. Then copies of this
process do the same work from the start, one after the other. Each copy is killed in a chosen piece,
after a random share of the piece's time or, if the piece ends earlier, at its end. Kinds of pieces
are drawn, and one piece of each kind. The same work in another stage is another kind. The last copy
runs to the end.

A timer of the kernel kills by a signal that nothing handles, so that no more code runs, as with
SIGKILL. A checkpoint is saved after every third step of a process, not by the clock, so the kinds
of pieces do not depend on a machine's speed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import analysis.figures  # noqa: F401  # takes a second: import once, before this process is copied
import run_all
from analysis import report
from analysis.model_similarity import RunModels
from benchmark.data import tokens
from benchmark.downstream import finetune
from benchmark.jobs.executors import local
from benchmark.ledger import records
from benchmark.models import transformer
from benchmark.training.stage import StageRun
from benchmark.training.step import StageInputs, Stepper
from tests.support import processes, tiny_suite
from tests.support.record_lines import read_lines, read_stage_lines

NOTHING: Mapping[str, int] = MappingProxyType({})
CHECKPOINT_STEPS = 3  # from one checkpoint to the next
ONCE = {"tokenizer", "tokenising", "report"}  # work of a run, so its kind names no stage
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


def write_suite(folder: Path, method: str) -> Path:
    """Write a method's suite, with a task and a table that compares models."""
    path = tiny_suite.write(folder)
    tables = ["main_pretraining", "main_downstream", "representational_similarity"]
    text = path.read_text().replace('["naive", "er"]', json.dumps([method]))
    text = text.replace('title = "Tiny"', f'title = "Tiny"\ntables = {json.dumps(tables)}')
    text = text.replace(
        "batch_size = 10", "batch_size = 20\ncheckpoint_seconds = 1e-9"
    )  # due after each step
    for name in tiny_suite.WORDS:  # prepared text is identified by the times of its files
        os.utime(folder / f"{name}.jsonl", (1, 1))
    lines = [
        {"text": f"red {word} {i}", "label": word} for i in range(12) for word in ("green", "blue")
    ]
    (folder / "task.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path.write_text(text + TASK.format(folder))
    return path


@dataclass(frozen=True)
class Pieces:
    """A file with the pieces of work of a run, in all its processes. Each line is an event of a
    piece.
    """

    path: Path

    def add(self, what: str, kind: str, seconds: float = 0.0) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([what, kind, seconds]) + "\n")

    def that(self, what: str) -> list[str]:
        """The kinds of pieces with the event `what` (begin, end, or hit by a kill), in order."""
        return [kind for happened, kind, _ in self._lines() if happened == what]

    def with_seconds(self) -> list[tuple[str, float]]:
        """Kind and seconds of each piece of an undisturbed run, in the order they began."""
        ends = [(kind, seconds) for happened, kind, seconds in self._lines() if happened == "end"]
        seconds = {
            name: iter([taken for kind, taken in ends if kind == name])
            for name in self.that("begin")
        }
        return [(kind, next(seconds[kind])) for kind in self.that("begin")]

    def _lines(self) -> list[tuple[str, str, float]]:
        return (
            [json.loads(line) for line in self.path.read_text().splitlines()]
            if self.path.exists()
            else []
        )


@dataclass
class Watch:
    """Notes the pieces of work of this process, and kills it in one of the `known` pieces of an
    undisturbed run.

    If the `target` does not occur, the kill hits the next piece of its kind, or a piece of a kind
    that begins only after the target. `when` is the share of the piece's time.
    """

    pieces: Pieces
    known: list[tuple[str, float]] = field(default_factory=list)
    target: int = sys.maxsize
    when: float = 0.0
    stage: str = ""
    warming_up: bool = False
    steps: int = 0  # of this process

    def __post_init__(self) -> None:
        self._seen = Counter(self.pieces.that("end"))

    @contextlib.contextmanager
    def inside(self, what: str) -> Iterator[None]:
        kind = what if what in ONCE else what + self.stage
        seconds = [taken for name, taken in self.known if name == kind]
        hit = self._is_target(kind)
        self._seen[kind] += 1
        self.pieces.add("begin", kind)
        if hit:
            self.target = sys.maxsize  # pieces inside this one must not be hit again
            self.pieces.add("hit", kind)
            signal.setitimer(
                signal.ITIMER_REAL, self.when * seconds[min(self._seen[kind], len(seconds)) - 1]
            )
        start = time.perf_counter()
        try:
            yield
        finally:
            if hit:
                os.kill(os.getpid(), signal.SIGKILL)
            self.pieces.add("end", kind, time.perf_counter() - start)

    def _is_target(self, kind: str) -> bool:
        kinds = [name for name, _ in self.known]
        if self.target >= len(kinds) or kind not in kinds:
            return False
        number = kinds[: self.target].count(kind)
        return self._seen[kind] >= number if kind == kinds[self.target] else number == 0

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
            *((StageRun, "_evaluate", "evaluation"), (records, "append", "record")),
            *((finetune, "score", "fine-tuning"), (RunModels, "load_after", "look into a model")),
            (report, "write_report", "report"),
        ):
            self.wrap(owner, name, kind)
        models: Any = transformer
        steppers: Any = Stepper
        inputs: Any = StageInputs
        stages: Any = StageRun
        replace_folder, warm_up, step, begin = (
            models.replace_folder,
            steppers.warm_up,
            steppers.step,
            inputs.begin,
        )
        save = stages._save

        def begun(stage: StageInputs) -> None:
            self.stage = f", stage {stage.stage.index + 1}"
            with self.inside("start with its growth"):
                begin(stage)

        @contextlib.contextmanager
        def written(folder: Path) -> Iterator[Path]:
            with self.inside("model written"), replace_folder(folder) as beside:
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
            with self.inside(f"step of {stepper.phase.name}"):
                return step(stepper, *arguments)

        def saved(stage: StageRun, stepper: Stepper) -> None:
            self.steps += 1
            if self.steps % CHECKPOINT_STEPS == 0:
                with self.inside("checkpoint"):
                    save(stage, stepper)

        executor: Any = local
        executor.list_physical_cores = lambda: [
            (0,)
        ]  # so models are scored in this process, which is watched
        models.replace_folder, inputs.begin = written, begun
        steppers.warm_up, steppers.step, stages._save = warmed_up, stepped, saved


@dataclass
class Kills:
    """The kills of one method, below a folder of its own."""

    folder: Path
    method: str

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.suite = write_suite(self.folder, self.method)
        self._file = Pieces(self.folder / "pieces")
        self._run()
        self.pieces = self._file.with_seconds()
        self.expected = self._left()

    def disturb(
        self, kills: int, chosen: random.Random, known: Mapping[str, int] = NOTHING
    ) -> dict[str, Any]:
        """Kill the work up to `kills` times, in the kinds of pieces that `known` counts least, then
        let it end.

        Returns the kills by kind of piece, all kinds of an undisturbed run, and the names of files
        that differ from the undisturbed run's.
        """
        shutil.rmtree(self.folder / "runs")
        shutil.rmtree(self.folder / "report")
        self._file.path.unlink()
        kinds = sorted({kind for kind, _ in self.pieces})
        order = sorted(chosen.sample(kinds, len(kinds)), key=lambda kind: known.get(kind, 0))
        places = {
            kind: [at for at, (name, _) in enumerate(self.pieces) if name == kind]
            for kind in order[:kills]
        }
        for at in sorted(
            chosen.choice(all_of_kind) for all_of_kind in places.values()
        ):  # in the order of a run
            self._wait(Watch(self._file, self.pieces, at, chosen.random()))
        self._run()
        left = self._left()
        different = sorted(
            name for name in {*left, *self.expected} if left.get(name) != self.expected.get(name)
        )
        return {
            "kills": dict(Counter(self._file.that("hit"))),
            "kinds": kinds,
            "different": different,
        }

    def _run(self) -> None:
        status = self._wait(Watch(self._file))
        assert status == 0, f"{self.method}: the run ended with {status}: see {self.folder / 'log'}"

    def _wait(self, watch: Watch) -> int:
        """Run in a copy of this process. Returns its exit status, negative if a signal ended it."""

        def run() -> int:
            watch.install()
            places = ["--runs", str(self.folder / "runs"), "--out", str(self.folder / "report")]
            return run_all.main(["run", str(self.suite), *places])

        return os.waitstatus_to_exitcode(
            os.waitpid(processes.forked(run, self.folder / "log"), 0)[1]
        )

    def _left(self) -> dict[str, Any]:
        """What must be the same, by file: checksums of models, tokens and tables, and records
        without measures of time.

        Pictures, heartbeats of runs, and the page, which shows times, must only exist. Locks and
        files that begin with a dot do not count.
        """
        left: dict[str, Any] = {}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if (
                not path.is_file()
                or not name.startswith(("runs/", "report/"))
                or "lock" in path.name
            ):
                continue
            if path.name.startswith("."):
                continue  # what a killed writer leaves is removed a day later
            if path.suffix == ".jsonl":
                lines = read_stage_lines(path) if path.name == "records.jsonl" else read_lines(path)
                left[name] = [_without_time(line) for line in lines if line["kind"] != "resumed"]
            elif path.suffix in (".pdf", ".png", ".html") or path.parent.parent.name == "suites":
                left[name] = "there"
            else:
                left[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return left


def _without_time(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_time(inner) for key, inner in value.items() if key not in MEASURES_OF_TIME
        }
    return [_without_time(inner) for inner in value] if isinstance(value, list) else value
