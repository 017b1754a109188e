"""What is wrong with lines of records that were damaged, moved or written by hand; `benchmark.records` refuses them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from benchmark import record_lines
from benchmark.errors import all_shown

Line = Mapping[str, Any]

_REQUIRED = """
stage key index domain provenance parameters trainable layers hidden_size phases budget data
evaluation phase step fraction charged perplexity
metrics phase step values
optimizer phase carried new
resumed phase step
later domain text perplexity bits_per_byte
run id suite row row_index title method options seed config stages domains unigram
failed stage error
done
job id key name run after needs log exclusive
released
started node
begun key
ended state
score key stage_key task task_key domain prompt seed metric dev test seconds
unscored key stage_key task prompt seed error
baseline task task_key domain name metric test
reference task task_key domain name metric test
similarity key stage_key domain positions divergences ars reason
attention key stage_key domain own others heads maps reason
"""
FIELDS = {kind: fields for kind, *fields in map(str.split, _REQUIRED.strip().splitlines())}

_ESCAPE = re.compile(rb"\\(u[0-9a-fA-F]{4}|.)")  # what follows a backslash in JSON
_NUMBER = (int, float)
_SPENT = {"seconds", "steps", "tokens"}  # what every version records of them

SHAPES: dict[str, type] = {
    "stage": record_lines.StageLine,
    "evaluation": record_lines.EvaluationLine,
    "metrics": record_lines.MetricsLine,
    "optimizer": record_lines.OptimizerLine,
    "resumed": record_lines.ResumedLine,
    "later": record_lines.LaterLine,
    "done": record_lines.DoneLine,
    "run": record_lines.RecordedRun,
    "failed": record_lines.FailedLine,
    "score": record_lines.RecordedScore,
    "unscored": record_lines.Unscored,
    "baseline": record_lines.Baseline,
    "reference": record_lines.Baseline,
    "similarity": record_lines.SimilarityLine,
    "attention": record_lines.AttentionLine,
    "job": record_lines.Submitted,
    "started": record_lines.Started,
    "ended": record_lines.Ended,
}


def decode(line: bytes) -> dict[str, Any] | None:
    """A line's record; None where it is none. Its texts may be printed and written: see `benchmark.errors`."""
    import msgspec  # three times as fast as json, for a report reads 100,000 lines; here, for --help has no packages

    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("kind") not in FIELDS:
        return None
    return record if _is_plain(line) else all_shown(record)  # which takes longer than to decode it


def _is_plain(line: bytes) -> bool:
    """Whether a line of JSON holds no hidden character, escaped or not."""
    if b"\\" in line:
        escapes = set(_ESCAPE.findall(line))  # of a Greek letter there may be many
        if not all(one in b'"\\/' or (len(one) == 5 and chr(int(one[1:], 16)).isprintable()) for one in escapes):
            return False
    return b"\x7f" not in line and (line.isascii() or line.decode().isprintable())


def kinds_of(content: bytes, lines: Sequence[bytes]) -> list[str]:
    """The kind of each of the lines that a file's content has, "" of one that is none or may be no text.

    No more is decoded than the kinds, which takes a third of the time of `decode`.
    """
    decoder, refused = _kind_decoder()
    try:  # all at once, as long as all are whole; a byte that is no text would be passed over
        found = [one.kind for one in decoder.decode_lines(content)] if content.isascii() else []
    except refused:
        found = []
    if len(found) == len(lines) - 1 and not lines[-1]:
        return [*found, ""]
    found = []
    for line in lines:
        try:
            found.append(decoder.decode(line).kind if line.isascii() else "")
        except refused:
            found.append("")
    return found


@cache
def _kind_decoder() -> tuple[Any, tuple[type[Exception], ...]]:
    import msgspec

    class _Kind(msgspec.Struct):
        kind: str

    return msgspec.json.Decoder(_Kind), (msgspec.DecodeError, ValueError, RecursionError)


@cache
def _shapes() -> tuple[Any, dict[str, Any]]:
    import msgspec  # here, for --help has no packages

    decoders: dict[str, Any] = {kind: msgspec.json.Decoder(shape) for kind, shape in SHAPES.items()}
    return msgspec.ValidationError, decoders


def flaw(line: Line, text: bytes, of_stage: bool) -> str:
    """What is wrong with a line of a known kind, which `text` holds: a field that is missing or that cannot be.

    `of_stage`: whether it is in the file of a stage, where "done" says more than in others. Nothing if none is.
    """
    kind, wrong = line["kind"], ""
    if not (isinstance(time := line.get("time"), _NUMBER) and 0 <= time < math.inf):
        wrong = f"its 'time' is {line.get('time', 'missing')!r:.60}"
    elif kind in SHAPES and (of_stage or kind != "done"):
        refused, decoders = _shapes()
        try:
            decoders[kind].decode(text)
        except refused as error:
            wrong = str(error)
        else:
            wrong = _out_of_bounds(line) or (_RULES[kind](line) if kind in _RULES else "")
    return f"a line of kind {kind!r} cannot be right: {wrong}" if wrong else ""


def typed_line(kind: str, text: bytes, of_stage: bool) -> dict[str, Any] | None:
    """A line with the fields that its kind's type has, decoded once where `decode` and `flaw` do it twice.

    None of one that has no type or is not plainly right: then these say what is wrong with it, if anything is.
    """
    if kind not in SHAPES or (kind == "done" and not of_stage):
        return None
    refused, decoders = _shapes()
    try:
        line: dict[str, Any] = decoders[kind].decode(text)
    except (refused, ValueError, RecursionError):
        return None
    if line.get("kind") != kind:
        return None
    rule = _RULES.get(kind)
    untimed = not 0 <= line.get("time", -1.0) < math.inf
    wrong = untimed or not _is_plain(text) or _out_of_bounds(line) or (rule and rule(line))
    return None if wrong else line


def _out_of_bounds(line: Line) -> str:
    for name, least in _LEAST.get(line["kind"], {}).items():
        if (value := line.get(name)) is not None and not least <= value < math.inf:
            return f"its {name!r} is {value!r:.20}, and {least} is the least"
    for name, most in MOST.items() if line["kind"] == "stage" else ():
        if line[name] > most:
            return f"its {name!r} is {line[name]!r:.20}, and {most:,} is the most"
    return ""


def _flaw_of_spent(line: Line) -> str:
    charged = line.get("charged")
    if charged is not None and (lacks := _SPENT - charged.keys()):
        return f"its 'charged' has no {min(lacks)}"
    for what, every in (("charged", [charged] if charged else []), ("phases", line.get("phases", ()))):
        for spent in every:
            for unit, value in spent.items():
                if unit != "name" and not (isinstance(value, _NUMBER) and 0 <= value < math.inf):
                    return f"its {what!r} has {value!r:.20} {unit}, and nothing spends less than nothing"
    return ""


def _flaw_of_stage_line(line: Line) -> str:
    amount = line["budget"]["amount"]
    return "" if _is_positive(amount) else f"its 'budget' is {amount!r:.20}, which nothing can be trained with"


def _flaw_of_evaluation(line: Line) -> str:
    if not 0 <= line["fraction"] <= 1:
        return f"it was made after {line['fraction']!r:.20} of the budget, which is from 0 to 1"
    for name, value in line["perplexity"].items():
        if value is not None and not _is_perplexity(value):
            return f"the perplexity of {name!r:.60} is {value!r:.20}"
    for name, value in line.get("bits_per_byte", {}).items():
        if value is not None and not value >= 0:
            return f"the 'bits_per_byte' of {name!r:.60} are {value!r:.20}"
    return _flaw_of_spent(line)


def _flaw_of_later(line: Line) -> str:
    value = line["perplexity"]
    return "" if value is None or _is_perplexity(value) else f"its 'perplexity' is {value!r:.20}"


def _flaw_of_score(line: Line) -> str:
    for name in ("dev", "test", "test_without_leaks", "picked_right"):
        if line.get(name) is not None and not 0 <= line[name] <= 1:
            return f"its {name!r} is {line[name]!r:.20}, and scores are from 0 to 1"
    return ""


def _flaw_of_job(line: Line) -> str:
    if not re.fullmatch(r"[0-9]{1,18}(_[0-9]{1,18})?", line["id"]):
        return f"its 'id' is {line['id']!r:.60}, which is no job's number"
    return ""


_LEAST: dict[str, dict[str, int]] = {  # what these fields can be at least
    "stage": {"index": 0, "parameters": 1, "trainable": 0, "layers": 1, "hidden_size": 1, "lost": 0},
    "evaluation": {"step": 0, "tokens_per_second": 0, "learning_rate": 0},
    "metrics": {"step": 0},
    "resumed": {"step": 0, "lost": 0},
    "score": {"seconds": 0},
    "similarity": {"positions": 0},
}
MOST = {"layers": 10_000, "hidden_size": 1_000_000}  # as in a suite; of a line of kind "stage"
_RULES: dict[str, Callable[[Line], str]] = {
    "stage": _flaw_of_stage_line,
    "evaluation": _flaw_of_evaluation,
    "resumed": _flaw_of_spent,
    "later": _flaw_of_later,
    "done": _flaw_of_spent,
    "score": _flaw_of_score,
    "baseline": _flaw_of_score,
    "reference": _flaw_of_score,
    "job": _flaw_of_job,
}


def flaw_of_key(line: Line, key: str) -> str:
    """What is wrong with the first line of the stage with this key."""
    if line["key"] != key:
        return f"these are the records of stage {line['key']}, not of {key}: a file was moved here"
    return ""


def flaw_of_owners(keys: Iterable[str | None], key: str) -> str:
    """What is wrong with lines about models of the stages `keys` (None: an older one), in a file about that of one."""
    other = set(keys) - {key, None}
    return f"a line about stage {min(map(str, other))}, not {key}" if other else ""


def flaw_of_stage(lines: Sequence[Line], key: str, learned: Sequence[str]) -> str:
    """What is wrong with the lines of the stage with this key, after which the domains `learned` were met.

    Each is as `flaw` wants it; lines between the first and the last one of a kind may be left out.
    """
    if not lines:
        return ""
    # Two of kind "done" are no flaw: a writer that hung after it had asked for its lease may add its own to that of who
    # took over. The last one counts, and the hash in it is held against the model.
    begun, done = _first(lines, "stage"), _first(lines, "done")
    if not begun:
        return "these are records of a stage without a line of kind 'stage'"
    if wrong := flaw_of_key(begun, key):
        return wrong
    unit, phases = begun["budget"]["unit"], ["start", *(phase["name"] for phase in begun["phases"])]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    for line in evaluations:
        if line["phase"] not in phases:
            return f"phase {line['phase']!r:.60} is not one of the stage's: {phases}"
        if lacks := [name for name in learned if name not in line["perplexity"]]:
            return f"the perplexity of {lacks[0]!r} at step {line['step']} is missing"
        if "bits_per_byte" in line and (more := line["perplexity"].keys() - line["bits_per_byte"].keys()):
            return f"the bits per byte of {min(more)!r} at step {line['step']} are missing"
    for line in [*evaluations, *([done] if done else [])]:
        if unit not in line["charged"]:
            return f"a line of kind {line['kind']!r} does not say how many {unit} were charged"
    if done and begun["phases"] and (not evaluations or evaluations[-1]["charged"] != done["charged"]):
        return "the evaluation at the stage's end is missing"
    return ""


def _first(lines: Sequence[Line], kind: str) -> Line | None:
    return next((line for line in lines if line["kind"] == kind), None)


def flaw_of_run(line: Line, name: str) -> str:
    """What is wrong with the line of a run whose file has this name."""
    if line["id"] != name:
        return f"these are the records of run {line['id']}, not of {name}: a file was moved here"
    stages, domains = line["stages"], line["domains"]
    if not all(key.isalnum() for key in [*stages, line.get("start") or "none"]):  # they are names of files
        return f"stages whose keys are {stages!r:.60}, and the 'start' {line.get('start')!r:.60}"
    if len(stages) != len(domains):
        return f"{len(stages)} stages and {len(domains)} domains"
    if not all(map(_is_perplexity, line["unigram"].values())):
        return f"the unigram perplexities {line['unigram']!r:.60}"
    return ""


def _is_perplexity(value: float) -> bool:
    return 1 - 1e-6 <= value < math.inf  # a model that is sure of all has 1, but for rounding


def _is_positive(value: float) -> bool:
    return 0 < value < math.inf
