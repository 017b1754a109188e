"""Records of runs: JSON Lines files that training appends to and that tables read. No torch here.

A run folder holds

    RUNS/stages/<key>/records.jsonl      one stage. <key> is a hash of all that determines it, so
                                         runs that share a prefix (the first domain above all)
                                         share its file
    RUNS/starts/<key>.jsonl              one start model before training: lines of kind "later"
    RUNS/suites/<suite>/<run id>.jsonl   one run: which stages it consists of
    RUNS/scores/<stage key>.jsonl        downstream scores of the model that a stage ended with
    RUNS/scores/baselines.jsonl          downstream scores that need no model
    RUNS/similarity/<stage key>.jsonl    how similar a stage's last model is to its ancestors

Every line is one JSON object: a class below, with its kind and time. A float that is not finite is
written as null. `charged` counts from the start of the stage, `step` from the start of the phase,
`index` from 0. A second `stage` line in a file means that the stage was started again: the lines
before it no longer count.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from benchmark.errors import UserError
from benchmark.files import name_in_errors

# Increased when the meaning of a line changes: `run_all.py upgrade` then converts older records. (A
# change of `keys.FORMAT` trains stages again.) Version 1 had no descriptions beside keys.
SCHEMA = 2
T = TypeVar("T")
L = TypeVar("L")
_log = logging.getLogger(__name__)

# What a field can be. Keys are names of files.
Key = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z]*\Z")]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
# 1 if the model is certain of every token, except for rounding
Perplexity = Annotated[float, Meta(ge=1 - 1e-6)]
Spent = dict[str, Amount]  # by unit


class Line(Struct, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Any line of a file of records."""

    time: Amount = 0.0  # seconds since 1970, which `append` adds


class Titled(Struct):
    """A domain or a probe."""

    name: str
    title: str


class RunLine(Line, tag="run", kw_only=True):
    """The settings of a run, and the keys of its stages."""

    schema: int = 1  # the version of all records of the run, see SCHEMA
    id: str
    suite: str
    row: str
    row_index: int  # its place in the suite
    method: str
    options: dict[str, Any]  # of the method, whose class has their types
    seed: int
    # its settings, as RunConfig has them, with `tuned` if `tune` chose the options
    config: dict[str, Any]
    tasks: list[dict[str, Any]] = []  # downstream tasks with their hyper-parameters
    domains: list[Titled]
    probes: list[Titled] = []
    # keys of its stages. Like all fields below, it is empty before the run has started
    stages: list[Key] = []
    unigram: dict[str, Perplexity] = {}  # by domain
    texts: dict[str, str] = {}  # by domain or probe a hash of its validation text
    tokens: dict[str, str] = {}  # by domain or probe a hash of all its tokens and of the tokenizer
    start: Key = ""  # of the start model, empty if there is none


class FailedLine(Line, tag="failed", kw_only=True):
    """Why a run failed."""

    stage: Count
    error: str
    traceback: str = ""
    node: str = ""


class RunDone(Line, tag="done", kw_only=True):
    """The end of a run."""


class Hardware(Struct, kw_only=True, omit_defaults=True):
    """The hardware that a wall time depends on."""

    device: str  # the GPU's name, or "CPU"
    count: int  # of processes
    cpu: str
    # the vector instructions that torch uses on it, e.g. AVX2: sums round differently
    instructions: str = ""
    cores: int | None = None  # of the machine
    threads: int = 1
    node: str = ""


class Provenance(Struct, omit_defaults=True):
    """Code, packages and hardware that trained a stage."""

    code: str  # the commit if there is one, and a hash of the sources that trained
    packages: dict[str, str]  # versions
    hardware: Hardware
    precision: str


class StageBudget(Struct, omit_defaults=True):
    unit: str
    amount: Annotated[float, Meta(gt=0)]
    # whether its step time was not measured on the reference machine, but estimated: Naive's time,
    # times the FLOPs of its step over the FLOPs of Naive's step
    estimated: bool = False


class StageLine(Line, tag="stage", kw_only=True):
    """The beginning of a stage."""

    key: Key
    # what the key is a hash of, empty in older records
    description: dict[str, Any] = {}
    index: Count
    domain: str
    parameters: Positive
    trainable: Count
    layers: Count
    hidden_size: Positive
    # as the method asks for them, see Phase of benchmark.training.method
    phases: list[dict[str, Any]]
    budget: StageBudget
    provenance: Provenance
    data: dict[str, dict[str, Any]]  # by domain, what its tokens were made of
    texts: dict[str, str]  # by domain or probe a hash of its validation text
    method: str = ""  # of the run that trained it, others may share it
    # a hash of that method's code, see `hash_code` in benchmark/training/declaration.py
    method_code: str = ""


class EvaluationLine(Line, tag="evaluation", kw_only=True):
    """Perplexities of a stage's model at a step, on each text, None if a number overflowed."""

    phase: str  # "start": before the first step, after growth
    step: Count
    fraction: Share  # of the stage's budget
    charged: Spent
    perplexity: dict[str, Perplexity | None]
    bits_per_byte: dict[str, Amount | None]
    # at a stage's end, by text: the predicted tokens of each document, and their loss in nats
    documents: dict[str, list[tuple[Count, Amount]]] = {}
    tokens_per_second: Amount = 0.0
    loss: float | None = None  # of the step, in a phase that trains
    learning_rate: Amount | None = None


class MetricsLine(Line, tag="metrics", kw_only=True):
    """Numbers that a method counts."""

    phase: str
    step: Count
    values: dict[str, float | None]  # None: not finite


class ResumedLine(Line, tag="resumed", kw_only=True):
    """The step at which training resumed from a checkpoint."""

    phase: str
    step: Count
    charged: Spent


class Measured(Struct):
    """Measures of a model on each text, None if a number overflowed."""

    perplexity: dict[str, Perplexity | None]
    bits_per_byte: dict[str, Amount | None]


Measures = Measured | EvaluationLine | None  # None: nothing is measured


class LaterLine(Line, tag="later", kw_only=True):
    """Measures of a finished stage's model on a text that was added later, or of a start model."""

    domain: str
    text: str  # its hash
    perplexity: Perplexity | None
    bits_per_byte: Amount | None


class GrowthRecord(Struct):
    """The layers and heads that a growth copied."""

    layer_sources: list[int]  # old index of each new layer
    layer_is_copy: list[bool]  # whether a new layer is an inserted copy
    head_sources: list[list[int]]  # for each new layer the old head of each new head
    # layers of the grown model that count as copied before, an input of the next growth
    copied: list[int]


# a shorter stage has no `CoreShare.share`, because the counters of cores tick every 10 ms
SECONDS_TO_MEASURE_CORES = 5.0


class CoreShare(Struct, kw_only=True):
    """The share of its cores that a stage had while the clock ran."""

    # the share of the wanted cores that other programs left to a process, for the process with the
    # smallest share. None if the stage was too short to tell
    share: float | None
    stood_still: float = 0.0  # seconds in which it was stopped, which the clock does not count


class StageDone(Line, tag="done", kw_only=True):
    """The end of a stage: its costs, its growth, and hashes of its weights."""

    charged: Spent
    phases: list[dict[str, Any]]  # of each its name, and what it has spent by unit
    growth: GrowthRecord | None
    cores: CoreShare
    weights: str = ""  # a hash of its model's weights
    # a hash of the weights that the next stage starts from, if they are others
    trained: str | None = None
    # rows of a forward pass, if memory did not suffice for as many as were asked for
    micro_batch_size: int | None = None


class BaselineLine(Line, tag="baseline", kw_only=True):
    """A downstream score that needs no model."""

    task: str
    domain: str
    task_key: str  # of its data
    # for word counts on the part of the texts that fits into a model's row: a hash of that part
    window: str = ""
    name: str  # "majority" or "bag of words"
    metric: str
    test: Share
    # test examples with a near copy in training text of the task or the stream, and how many of
    # them have one in the stream's, if `data.near_copies` keeps them
    leaks: int = 0
    in_stream: int = 0


class ScoreLine(Line, tag="score", kw_only=True):
    """A model's score."""

    key: str = ""  # its own
    task: str
    task_key: str  # of its data
    domain: str
    window: str = ""  # a hash of the part of the texts that fits into a row of the model
    protocol: Literal["finetune", "linear_probe"] = "finetune"
    prompt: Literal["right", "none", "wrong", "picked"]
    seed: int
    metric: str
    dev: Share  # of the best epoch, or of a linear probe's best strength
    test: Share
    # test examples with a near copy in training text of the task or the stream, and how many of
    # them have one in the stream's, if `data.near_copies` keeps them
    leaks: int = 0
    in_stream: int = 0
    precision: str = ""  # of the forward passes
    # tokens of a forward pass, if memory did not suffice for as many as were asked for
    forward_tokens: int | None = None
    seconds: Amount


class UnscoredLine(Line, tag="unscored", kw_only=True):
    """Why a score could not be computed when it was last tried."""

    key: str  # that the score would have
    task: str
    protocol: str = "finetune"
    prompt: str
    seed: int
    error: str
    traceback: str = ""


class ZeroShotLine(Line, tag="zero_shot", kw_only=True):
    """Scores of a model on a task by lm-evaluation-harness, without fine-tuning."""

    key: str
    task: str
    values: dict[str, float]  # by metric, and their standard errors, e.g. acc and acc_stderr
    version: str = ""  # of the task's definition in the harness
    content: str = ""  # a hash of the files in `evaluate.folder`
    seconds: Amount


class SimilarityLine(Line, tag="similarity", kw_only=True):
    """The similarity of a stage's model to its ancestors, see analysis/model_similarity.py.

    `text` is the key of the validation text that the models read. It is empty in older records, and
    if there is a `reason`.
    """

    key: str = ""
    text: str = ""
    ars: float | None
    reason: str | None  # why it cannot be measured


class AttentionLine(Line, tag="attention", kw_only=True):
    """The attention of the heads of a stage's model, see analysis/model_similarity.py.

    `text` as in `SimilarityLine`.
    """

    key: str = ""
    text: str = ""
    own: list[float]  # for each earlier model, the heads' mean similarity to their ancestors
    others: list[float | None]  # and to that model's other heads, None if it has no others
    heads: list[list[int]]  # layer and head of the lineages that the figure shows
    maps: list[list[list[int]]]  # their attention, queries by keys, in thousandths
    reason: str | None  # why it cannot be measured


LineOfRun = RunLine | FailedLine | RunDone
LineOfStage = StageLine | EvaluationLine | MetricsLine | ResumedLine | LaterLine | StageDone
LineOfScores = ScoreLine | UnscoredLine | ZeroShotLine
LineOfMeasures = SimilarityLine | AttentionLine

RUN: Decoder[LineOfRun] = Decoder(LineOfRun)
STAGE: Decoder[LineOfStage] = Decoder(LineOfStage)
SCORES: Decoder[LineOfScores] = Decoder(LineOfScores)
BASELINES = Decoder(BaselineLine)
MEASURES: Decoder[LineOfMeasures] = Decoder(LineOfMeasures)


class RecordsError(UserError):
    """A record or a file of records that cannot be used, with its place."""


def check_schema(line: RunLine, path: Path) -> None:
    """Raise RecordsError for a run whose records are of another version than this code reads."""
    if line.schema == SCHEMA:
        return
    if line.schema < SCHEMA:
        cure = "`python run_all.py upgrade FOLDER`, with the folder of --runs, makes them new"
    else:
        cure = "read them with the version of this project that wrote them, or a later one"
    raise RecordsError(
        f"{path}: its records have version {line.schema}, this code reads {SCHEMA}: {cure}"
    )


CURE = (
    "restore this file from a copy, or delete it: "
    "what it recorded is then trained or measured again"
)
STAGE_FILE = "records.jsonl"  # what the file of a stage's records is called


def append(path: Path, line: Line) -> None:
    """Append a line in a single write, so that the lines of concurrent writers never mix.

    When it returns, the line is on the disk. Raises OSError if the disk takes only a part of it.
    """
    timed_line = replace(line, time=round(time.time(), 3))
    content = msgspec.json.encode(timed_line) + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        with name_in_errors(path):
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                # the empty line tells readers that a killed writer left the line before it
                content = b"\n\n" + content
            if os.write(descriptor, content) != len(content):
                message = "a record was cut short: free room on the disk, and try again"
                raise OSError(errno.ENOSPC, message, str(path))
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, decoder: Decoder[T]) -> list[T]:
    """The lines of a file of records, or [] if there is none. Raises RecordsError as `parse`."""
    try:
        return parse(path.read_bytes(), decoder, path)
    except FileNotFoundError:
        return []


def parse(content: bytes, decoder: Decoder[T], path: Path) -> list[T]:
    """Decode the lines in `content`, which was read from `path`.

    A half line that a killed writer left is skipped, and logged. Raises RecordsError with file and
    line number for any other line that is not a record.
    """
    lines = content.split(b"\n")
    decoded = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            decoded.append(decoder.decode(line))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            is_last = number == len(lines)
            stands_before_gap = number + 1 < len(lines) and not lines[number]  # see `append`
            is_half = is_last or stands_before_gap
            if isinstance(error, msgspec.ValidationError) or not is_half:
                raise RecordsError(f"{path}:{number}: not a record: {error}; {CURE}") from None
            _log.warning(
                "%s:%d: half a record, left by a writer that was killed; skipped", path, number
            )
    return decoded


def find_last(lines: Iterable[Any], kind: type[L]) -> L | None:
    """The last line of a kind, None if there is none."""
    return next((line for line in reversed(list(lines)) if isinstance(line, kind)), None)


def select_kind(lines: Iterable[Any], kind: type[L]) -> list[L]:
    """The lines of a kind."""
    return [line for line in lines if isinstance(line, kind)]


def read_stage(path: Path) -> list[LineOfStage]:
    """The lines of a stage's file in the order of training.

    A "resumed" line cancels earlier lines of later steps. Of two lines of the same kind, phase,
    step and text the last one counts. This includes two "done" lines, because a writer that hung
    may add its line to that of the writer that took over. Raises RecordsError as `read` does.
    """
    newest: dict[tuple[object, ...], LineOfStage] = {}
    order: list[str] = []
    for line in read(path, STAGE):
        if isinstance(line, StageLine):
            newest = {}
            order = ["start", *(phase["name"] for phase in line.phases)]
        phase = getattr(line, "phase", None)
        step = getattr(line, "step", None)
        if phase not in (None, *order):
            raise RecordsError(
                f"{path}: phase {phase!r} is not one of the stage's: {order}; {CURE}"
            )
        if isinstance(line, ResumedLine):
            position = (order.index(line.phase), line.step)
            newest = {
                key: old for key, old in newest.items() if not _is_beyond(old, position, order)
            }
        key = (type(line), phase, step, getattr(line, "text", None))
        newest.pop(key, None)
        newest[key] = line
    return list(newest.values())


def _is_beyond(line: LineOfStage, position: tuple[int, int], order: list[str]) -> bool:
    """Whether a line is later than `position`, a phase and a step in it.

    Of the lines without a step, only "done" is.
    """
    if isinstance(line, EvaluationLine | MetricsLine | ResumedLine):
        return (order.index(line.phase), line.step) > position
    return isinstance(line, StageDone)
