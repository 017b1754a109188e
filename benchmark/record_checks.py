"""What is wrong with lines of records that were damaged, moved or written by hand; `benchmark.records` refuses them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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
baseline task task_key domain name metric test
reference task task_key domain name metric test
similarity key stage_key domain positions divergences ars reason
attention key stage_key domain own others heads maps reason
"""
FIELDS = {kind: fields for kind, *fields in map(str.split, _REQUIRED.strip().splitlines())}

_NUMBER = (int, float)
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("domain", "phase", "id", "suite", "row", "title", "method", "error", "stage_key", "task"), str),
    **dict.fromkeys(("prompt", "metric", "text"), str),
    **dict.fromkeys(("index", "row_index", "seed", "parameters", "layers", "hidden_size"), int),
    **dict.fromkeys(("step", "fraction", "test", "seconds"), _NUMBER),
    **dict.fromkeys(("provenance", "budget", "data", "charged", "values", "config", "options", "unigram"), dict),
    **dict.fromkeys(("phases", "stages"), list),
}
_OF_KIND: dict[tuple[str, str], Any] = {
    ("stage", "key"): str,
    ("evaluation", "perplexity"): dict,
    ("later", "perplexity"): (*_NUMBER, type(None)),
    ("run", "domains"): list,
}


_EXPECTED = {
    kind: [(name, _OF_KIND.get((kind, name)) or _TYPES.get(name, object)) for name in fields]
    for kind, fields in FIELDS.items()
}


def flaw(line: Line) -> str:
    """What is wrong with a line of a known kind: a field that is missing, or of another type. Nothing if none is."""
    kind = line["kind"]
    for name, expected in _EXPECTED[kind]:
        if name not in line:
            return f"a line of kind {kind!r} without {name!r}"
        if not isinstance(line[name], expected):
            return f"a line of kind {kind!r} whose {name!r} is {line[name]!r:.60}"
    return ""


def flaw_of_key(line: Line, key: str) -> str:
    """What is wrong with the first line of the stage with this key."""
    if line["key"] != key:
        return f"these are the records of stage {line['key']}, not of {key}: a file was moved here"
    return ""


def flaw_of_stage(lines: Sequence[Line], key: str, learned: Sequence[str]) -> str:
    """What is wrong with the lines of the stage with this key, after which the domains `learned` were met."""
    for line in lines:
        if line["kind"] == "stage" and (wrong := flaw_of_key(line, key)):
            return wrong
        if line["kind"] == "evaluation":
            if not 0 <= line["fraction"] <= 1:
                return f"an evaluation after {line['fraction']!r:.20} of the budget"
            for name in learned:
                value = line["perplexity"].get(name, "missing")
                if value is not None and not _is_positive(value):
                    return f"the perplexity of {name!r} at step {line['step']} is {value!r:.60}"
        if line["kind"] in ("evaluation", "done"):
            charged = line.get("charged")
            if not isinstance(charged, dict) or not all(isinstance(one, _NUMBER) for one in charged.values()):
                return f"a line of kind {line['kind']!r} whose 'charged' is {charged!r:.60}"
    return ""


def flaw_of_run(line: Line, name: str) -> str:
    """What is wrong with the line of a run whose file has this name."""
    if line["id"] != name:
        return f"these are the records of run {line['id']}, not of {name}: a file was moved here"
    stages, domains = line["stages"], line["domains"]
    if not all(isinstance(key, str) and key.isalnum() for key in stages):
        return f"stages whose keys are {stages!r:.60}"
    if len(stages) != len(domains) or not all(
        isinstance(one, dict) and {"name", "title"} <= one.keys() for one in domains
    ):
        return f"{len(stages)} stages and the domains {domains!r:.60}"
    if not all(_is_positive(value) for value in line["unigram"].values()):
        return f"the unigram perplexities {line['unigram']!r:.60}"
    return ""


def _is_positive(value: object) -> bool:
    return isinstance(value, _NUMBER) and 0 < value < math.inf
