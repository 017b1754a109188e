"""Records of runs: JSON Lines files that training appends to and that tables read. No torch here.

A run folder holds

    RUNS/stages/<key>/records.jsonl      one stage; <key> is a hash of all that determines it, so runs that
                                         share a prefix (the first domain above all) share its file
    RUNS/starts/<key>.jsonl              one start model, untouched: lines of kind "later"
    RUNS/suites/<suite>/<run id>.jsonl   one run: which stages it consists of
    RUNS/suites/<suite>/jobs/<cluster>/<id>.jsonl  one Slurm job, see benchmark/jobs/slurm/job_files.py
    RUNS/scores/<stage key>.jsonl        downstream scores of the model that a stage ended with
    RUNS/scores/baselines.jsonl          downstream scores that need no model (references.jsonl: older ones)
    RUNS/similarity/<stage key>.jsonl    how like its ancestors the model is that a stage ended with

Every line is one JSON object with `kind` and `time` (seconds since 1970, added by `append`). A float that is not finite
is written as null. Amounts in `charged` count from the start of the stage, `step` from that of the phase, `index` from
0. A second `stage` line in a file means that the stage began anew: what stands before it no longer counts.

    kind        fields
    stage       key, index, domain (name), parameters, trainable, layers, hidden_size,
                budget {unit: "seconds"|"steps"|"tokens"|..., amount},
                data {domain: what its tokens were made of}, texts {domain: hash of its validation text} (older: none),
                phases [{name, share, memory, trains}],
                provenance {code, packages {name: version}, hardware {device, count, cpu, instructions
                            (vector ones, e.g. AVX2; older: none), cores, own_cores [of this process],
                            side_by_side (runs at a time), node}, threads, precision, world_size}
    evaluation  phase, step, fraction (of the stage's budget, 0..1), charged {seconds, steps, tokens},
                perplexity and bits_per_byte {every domain of the stream, seen or not, and every probe: float},
                loss, tokens_per_second, learning_rate; phase "start": before the first step, after growth
    metrics     phase, step, values {name: float}: what the method counts, e.g. A-GEM's conflicts
    optimizer   phase, carried (parameters whose moments it goes on with), new (names of those that begin anew)
    resumed     phase, step (where training goes on), charged (so far), lost (seconds that are spent again, where the
                run's heartbeat told; in `stage` too, where it begins anew), precision, auto (this machine's if other)
    later       domain, text (its hash), perplexity, bits_per_byte: of the model on what came to the stream after it
    done        charged, phases [{name, steps, seconds, tokens}], growth (the growth's own record, or null),
                weights (sha256 of the model's; older: none), trained (of the one to go on from; null: the same),
                cores {wall and cpu (seconds while the clock ran), others (cores that other programs kept busy), share
                (of its cores that they left to the stage)}; the last two are null where they cannot be told;
                micro_batch_size, where memory did not hold as many rows as were asked for

    run         id, suite, row (label), row_index (its place in the suite), title, method, options, seed,
                config (`tuned` in it where `tune` chose the options), stages [keys], domains [{name, title}],
                unigram {domain: its unigram perplexity}, probes [{name, title}], texts {domain or probe: a hash of its
                validation text}, start (key of the start model, empty where there is none; older: none of the three),
                tasks [downstream tasks with their hyper-parameters] (none: no such field)
    failed      stage, error, traceback, rank; where memory was short for several processes, or the kernel killed one:
                micro_batch_size (for the next start), key and seconds (of the stage, charged for failed attempts)
    done        (no fields)

    score       key, stage_key, task, task_key (of its data), domain, prompt ("right"|"none"|"wrong"|"picked"),
                seed, metric, dev, test, test_without_leaks (or null), precision (older: none), seconds
    unscored    key, stage_key, task, prompt, seed, error (why the score could not be computed), traceback
    baseline    task, task_key, domain, name ("majority", "bag of words"), metric, test (older: "reference")

    similarity  key, stage_key, domain, positions (their number), divergences (in nats, one an ancestor, oldest
                first), ars (or null), reason (why there is none, or null); see analysis/similarity.py
    attention   key, stage_key, domain, own, others (similarity of heads to their ancestor and to other heads, 0..1 or
                null, one number an ancestor, oldest first), heads [[layer, head]] and maps [queries x columns, in
                thousandths] of the lineages that the figure shows, reason (likewise); see analysis/attention.py
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from benchmark.errors import UserError
from benchmark.files import LARGEST_RECORDS, NO_FILE, is_missing, jsonl_files, naming, read_bytes
from benchmark.record_checks import FIELDS as FIELDS
from benchmark.record_checks import decode, flaw, flaw_of_owners, flaw_of_run, flaw_of_stage, kinds_of, typed_line
from benchmark.record_lines import (
    AttentionLine,
    Baseline,
    EvaluationLine,
    FailedLine,
    LineOfStage,
    Measured,
    RecordedScore,
    SimilarityLine,
)
from benchmark.run_description import RunDescription, RunLine, Titled

Record = dict[str, Any]  # a line of any kind, as JSON gives it; `benchmark.record_lines` has the types


class RecordsError(UserError):
    """A record or a file of records that cannot be used, with its place."""


STAGE_FILE = "records.jsonl"  # what the file of a stage's records is called, and no other
CURE = "restore this file from a copy, or delete it: what it recorded is then trained or measured again"
_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class RunRecords:
    """All records of one run.

    `line` is the run's own; what one of an earlier version does not say is empty in it.
    `stages[i]` holds the lines of the i-th stage in the order of training, without what a resume took back;
    it is empty for a stage that has not started. `scores[i]` are the downstream scores of that stage's model,
    `baselines` those that need no model. Of two scores with the same task, prompt and seed the last one counts.
    `start` is what the untouched start model measured, by domain or probe, as in `matrix`.
    `similarities[i]` are the last lines of kind "similarity" and "attention" of that stage's model.
    """

    line: RunLine
    stages: list[list[LineOfStage]] = field(default_factory=list)
    scores: list[list[RecordedScore]] = field(default_factory=list)
    similarities: list[list[SimilarityLine | AttentionLine]] = field(default_factory=list)
    baselines: list[Baseline] = field(default_factory=list)
    start: dict[str, Measured] = field(default_factory=dict)
    failure: FailedLine | None = None

    @property
    def id(self) -> str:
        return self.line["id"]

    @property
    def suite(self) -> str:
        return self.line["suite"]

    @property
    def row(self) -> str:
        return self.line["row"]

    @property
    def seed(self) -> int:
        return self.line["seed"]

    @property
    def domains(self) -> list[Titled]:
        return self.line["domains"]

    @property
    def matrix(self) -> list[dict[str, Measured]]:
        """The last evaluation of each finished stage, by domain or probe; empty for a stage that trained nothing."""
        ends = [[line for line in stage if line["kind"] == "evaluation"][-1:] for stage in self.stages[: self.finished]]
        return [{name: _measured(line, name) for line in end for name in line["perplexity"]} for end in ends]

    @property
    def finished(self) -> int:
        """Number of stages that ran to their end."""
        return sum(any(line["kind"] == "done" for line in stage) for stage in self.stages)


ENOUGH_CORES = 0.95  # the share of its cores below which a stage was slowed by something else


def _measured(line: EvaluationLine, text: str) -> Measured:
    measured = Measured(perplexity=line["perplexity"][text])
    if "bits_per_byte" in line:
        measured["bits_per_byte"] = line["bits_per_byte"][text]
    return measured


def crowded(stage: Sequence[LineOfStage]) -> str:
    """`81% of its cores` if a finished stage had less than 95% of them, else nothing.

    It matters under a budget whose unit `is_wall_time`. `stage` are its lines; those of earlier versions do not say.
    """
    cores = [line["cores"] for line in stage if line["kind"] == "done" and "cores" in line]
    share = cores[-1]["share"] if cores else None
    return f"{share:.0%} of its cores" if share is not None and share < ENOUGH_CORES else ""


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line in a single write, so that the lines of concurrent writers never mix; it is on the disk then.

    Raises RecordsError for an unknown kind or a missing field, OSError when the disk takes only a part.
    """
    kind = record.get("kind", "")
    if kind not in FIELDS:
        raise RecordsError(f"cannot write a record of kind {kind!r} to {path}; kinds are: {', '.join(FIELDS)}")
    missing = [name for name in FIELDS[kind] if name not in record]
    if missing:
        raise RecordsError(f"a record of kind {kind!r} for {path} lacks {', '.join(missing)}: give them")
    line = (_encode({"time": round(time.time(), 3), **record}) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        with naming(path):
            if _is_torn(descriptor):
                line = b"\n\n" + line  # the empty line tells readers that the broken one before was a killed writer's
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, "a record was cut short: free room on the disk, and try again", str(path))
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> list[Record]:
    """Read a file of records. What a killed writer left half written is skipped and reported in the log.

    Raises RecordsError with file and line number for any other line that is not a JSON object with a kind.
    """
    lines, of_stage = _bytes(path).split(b"\n"), path.name == STAGE_FILE
    return [record for index in range(len(lines)) if (record := _record(path, lines, index, of_stage)) is not None]


def _record(path: Path | str, lines: Sequence[bytes], index: int, of_stage: bool) -> Record | None:
    """The record in a line of a file; None in an empty one, and where a killed writer left a half."""
    line, number = lines[index], index + 1
    if not line.strip():
        return None
    record = decode(line)
    if record is None:
        if number == len(lines) or (number < len(lines) - 1 and not lines[number].strip()):
            _log.warning("%s:%d: half a record, left by a writer that was killed; skipped", path, number)
            return None
        raise RecordsError(f"{path}:{number}: not a record: {line[:60]!r}; {CURE}")
    if wrong := flaw(record, line, of_stage):
        raise RecordsError(f"{path}:{number}: {wrong}; {CURE}")
    return record


def _bytes(path: Path | str) -> bytes:
    try:
        return read_bytes(path, LARGEST_RECORDS)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise RecordsError(f"{path} is a folder, a pipe or a device, not a file of records: move it away") from None


def last(path: Path, *kinds: str) -> Record | None:
    """The last line of the first of these kinds that the file has a line of; None without a file."""
    return next(filter(None, map(last_of_each(path, *kinds).get, kinds)), None)


def last_of_each(path: Path | str, *kinds: str) -> dict[str, Record]:
    """The last line of each of these kinds, by kind, as far as there is one; none without a file.

    Lines are read from the end on: the last line's kind comes first. Of those that are passed over no more is decoded
    than their kind: they must be whole. Of lines that have a type, only its fields are there. Raises as `read` does.
    """
    found: dict[str, Record] = {}
    of_stage = os.path.basename(path) == STAGE_FILE
    try:
        lines = (text := _bytes(path)).split(b"\n")
    except FileNotFoundError:
        return found if is_missing(path) else last_of_each(path, *kinds)
    known = kinds_of(text, lines)
    for index in reversed(range(len(lines))):
        if len(found) == len(kinds):
            break
        kind = known[index]
        if not lines[index] or (kind in FIELDS and (kind in found or kind not in kinds)):
            continue
        record = typed_line(kind, lines[index], of_stage) or _record(path, lines, index, of_stage)
        if record is not None and record["kind"] in kinds:
            found.setdefault(record["kind"], record)
    return found


def read_stage(path: Path) -> list[LineOfStage]:
    """Read a stage file in the order of training: a resume takes back what was recorded beyond its step.

    Of two lines of the same kind, phase and step the last one counts. Raises RecordsError as `read` does.
    """
    kept: dict[tuple[Any, ...], Any] = {}
    order: list[str] = []
    for record in read(path):
        if record["kind"] == "stage":
            kept, order = {}, ["start", *(phase["name"] for phase in record["phases"])]
        elif record.get("phase") not in [None, *order]:
            raise RecordsError(f"{path}: phase {record['phase']!r} is not one of the stage's: {order}; {CURE}")
        elif record["kind"] == "resumed":
            here = (order.index(record["phase"]), record["step"])
            kept = {key: old for key, old in kept.items() if not _is_beyond(old, here, order)}
        key = (record["kind"], record.get("phase"), record.get("step"), record.get("text"))
        kept.pop(key, None)
        kept[key] = record
    return list(kept.values())


def load_runs(runs: Path, suite: str) -> list[RunRecords]:
    """Load every run of a suite, in the order of the suite's rows, then of seeds. No runs: an empty list."""
    stages: dict[str, list[Any]] = {}
    scores: dict[str, list[Any]] = {}
    similarities: dict[str, list[Any]] = {}
    files = [runs / "scores" / name for name in ("references.jsonl", "baselines.jsonl")]
    baselines = _last([line for file in files for line in _if_there(file, read)], "task", "task_key", "name")
    loaded = []
    for path in jsonl_files(runs / "suites" / suite):
        run, failure = _head(path)
        if run is None:
            continue
        if wrong := flaw_of_run(run, path.stem):
            raise RecordsError(f"{path}: {wrong}; {CURE}")
        for key in run["stages"]:
            if key not in stages:
                stages[key] = _if_there(runs / "stages" / key / "records.jsonl", read_stage)
                scores[key] = _last(_of_stage(runs / "scores" / f"{key}.jsonl", key), "task", "prompt", "seed")
                similarities[key] = _last(_of_stage(runs / "similarity" / f"{key}.jsonl", key), "kind")
        of_run = [_on_texts_of(run, stages[key]) for key in run["stages"]]
        _check(run, of_run, runs)
        loaded.append(
            RunRecords(
                line=run,
                stages=of_run,
                scores=[scores[key] for key in run["stages"]],
                similarities=[similarities[key] for key in run["stages"]],
                baselines=baselines,
                start=_of_start(runs, run),
                failure=failure,
            )
        )
    return sorted(loaded, key=lambda run: (run.line["row_index"], run.seed, run.id))


def _check(run: RunLine, stages: Sequence[Sequence[Any]], runs: Path) -> None:
    """Raise RecordsError for records that are not the run's own stages', or lack a number that tables show."""
    names = [domain["name"] for domain in run["domains"]]
    for index, (key, lines) in enumerate(zip(run["stages"], stages, strict=True)):
        if wrong := flaw_of_stage(lines, key, names[: index + 1]):
            raise RecordsError(f"{runs / 'stages' / key / 'records.jsonl'}: {wrong}; {CURE}")


def _of_stage(path: Path, key: str) -> list[Any]:
    """What was found out of the model of a stage. Raises RecordsError for lines of another."""
    lines = _if_there(path, read)
    if wrong := flaw_of_owners((line.get("stage_key") for line in lines), key):
        raise RecordsError(f"{path}: {wrong}; {CURE}")
    return [line for line in lines if line["kind"] != "unscored"]


def not_started(description: RunDescription) -> RunRecords:
    """A run without records, so that tables can show that it is missing; see `RunConfig.description`."""
    line: RunLine = {**description, "stages": [], "unigram": {}, "texts": {}, "start": ""}
    return RunRecords(line=line, stages=[[] for _ in line["domains"]], scores=[[] for _ in line["domains"]])


def _encode(record: Mapping[str, Any]) -> str:
    try:
        return json.dumps(record, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(record), parse_constant=lambda _: None), ensure_ascii=False)


def _is_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _is_beyond(record: Record, here: tuple[int, int], order: list[str]) -> bool:
    """Whether a line lies after the phase and step `here`; what has no step (but `done`) stays."""
    if record["kind"] == "done":
        return True
    return "step" in record and (order.index(record["phase"]), record["step"]) > here


def _if_there(path: Path, reader: Callable[[Path], Sequence[Any]]) -> Any:
    return [] if is_missing(path) else reader(path)


def _last(records: Sequence[Record], *keys: str) -> list[Any]:
    return list({tuple(record[key] for key in keys): record for record in records}.values())


def _head(path: Path) -> tuple[RunLine | None, Any]:
    """The run's line, and its failure unless it was started again or finished since."""
    older: Record = {"tasks": [], "probes": [], "texts": {}, "start": ""}
    run, failure = None, None
    for record in read(path):
        failure = record if record["kind"] == "failed" else None
        run = cast(RunLine, {**older, **record}) if record["kind"] == "run" else run
    return run, failure


def _on_texts_of(run: RunLine, stage: list[Any]) -> list[LineOfStage]:
    """A shared stage as a run sees it: measured on its own texts alone, in the end on those that came later too."""
    texts, later = run["texts"], [line for line in stage if line["kind"] == "later"]
    known = next((line.get("texts") for line in stage if line["kind"] == "stage"), None) or texts
    if known == texts and not later:
        return stage
    lines = [line for line in stage if line["kind"] != "later"]
    last = max((i for i, line in enumerate(lines) if line["kind"] == "evaluation"), default=-1)
    for i, line in enumerate(lines):
        if line["kind"] == "evaluation":
            lines[i] = line = dict(line)
            for measure in {"perplexity", "bits_per_byte"} & set(line):
                line[measure] = {k: v for k, v in line[measure].items() if known.get(k, texts.get(k)) == texts.get(k)}
                if i == last:
                    mine = [one for one in later if texts.get(one["domain"]) == one["text"]]
                    line[measure] |= {one["domain"]: one[measure] for one in mine}
    return lines


def _of_start(runs: Path, run: RunLine) -> dict[str, Measured]:
    lines = _if_there(runs / "starts" / f"{run['start']}.jsonl", read)
    mine = [line for line in lines if run["texts"].get(line["domain"]) == line["text"]]
    return {line["domain"]: cast(Measured, {name: line[name] for name in Measured.__annotations__}) for line in mine}
