"""What a survey keeps of a stage's records. It is little: the lines of 10,000 runs fill hundreds of megabytes."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark import records
from benchmark.jobs.states import FinishedStage, RecordedStage
from benchmark.record_checks import flaw_of_stage
from benchmark.store import Store


@dataclass(frozen=True)
class KnownStage:
    """A stage by the last lines of its records; without any it has not begun."""

    done: bool = False
    evaluated: bool = False
    seconds: float = 0.0  # of train time so far
    finished: FinishedStage | None = None  # of one that is done and evaluated something, on domains that are known
    recorded: RecordedStage | None = None  # of one that has begun


def read_stage(store: Store, key: str, learned: Sequence[str]) -> KnownStage:
    """The stage with this key, after which the domains `learned` were met; none of them: nothing is said of these.

    Raises RecordsError for lines that are damaged, of another stage, or without a number that `learned` asks for.
    """
    last = store.last_of_stage(key, "done", "evaluation", "resumed")
    ends = [last[kind] for kind in ("stage", "evaluation", "done") if kind in last]
    if wrong := flaw_of_stage(ends, key, learned):
        raise records.RecordsError(f"{store.stage(key) / records.STAGE_FILE}: {wrong}; {records.CURE}")
    spent = last.get("done") or last.get("evaluation")
    return KnownStage(
        done="done" in last,
        evaluated="evaluation" in last,
        seconds=float(spent["charged"]["seconds"]) if spent else 0.0,
        finished=finished(last, learned) if learned and last.keys() >= {"stage", "evaluation", "done"} else None,
        recorded=recorded(last["stage"], last.get("done", {})) if "stage" in last else None,
    )


def finished(last: Mapping[str, records.Record], learned: Sequence[str]) -> FinishedStage:
    """What the last lines of a stage say of it, by kind; `learned` are the domains whose AP is asked for."""
    found = [last["evaluation"]["perplexity"].get(name) for name in learned]
    ap = statistics.geometric_mean([math.inf if value is None else value for value in found])
    begun = max((last[kind] for kind in ("stage", "resumed") if kind in last), key=lambda line: float(line["time"]))
    before = float(begun.get("charged", {}).get("seconds", 0.0))  # a stage that begins has spent nothing
    seconds = float(last["done"]["charged"]["seconds"])
    wall = max(last["done"]["time"] - begun["time"], seconds - before)  # no less, where a clock was set back
    return FinishedStage(ap, seconds, wall, sum(phase["share"] for phase in last["stage"]["phases"]), before)


def recorded(begun: Mapping[str, Any], done: Mapping[str, Any]) -> RecordedStage:
    """What `status` may have a note on, of a stage's first line and its last, which is empty before it is done."""
    hardware = begun["provenance"]["hardware"]
    machine = f"{hardware['count']} x {hardware['device']}"
    # "user" and the like leave others of a kind on the node; older records do not say
    machine += " beside others" if hardware.get("exclusive", True) not in (True, None) else ""
    if (others := hardware.get("side_by_side", 1)) > 1:
        machine += f", {len(hardware['own_cores'])} of its cores for each of {others} runs"
    return RecordedStage(
        domain=sys.intern(begun["domain"]),
        machine=sys.intern(machine),
        crowded=records.crowded([done]) if done else "",  # type: ignore[list-item]
        jumped=done.get("cores", {}).get("jumped", 0.0),
        micro_batch_size=done.get("micro_batch_size"),
    )
