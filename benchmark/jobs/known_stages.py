"""What a survey keeps of a stage's records. It is little: the lines of 10,000 runs fill hundreds of megabytes."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmark.jobs.states import FinishedStage, RecordedStage
from benchmark.records import DoneLine, EvaluationLine, LineOfStage, ResumedLine, StageLine, last, of_kind
from benchmark.store import Store, crowded


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
    lines = store.stage_lines(key, learned)
    begun, evaluation, done = last(lines, StageLine), last(lines, EvaluationLine), last(lines, DoneLine)
    spent = done or evaluation
    is_known = begun and evaluation and done and learned
    return KnownStage(
        done=done is not None,
        evaluated=evaluation is not None,
        seconds=spent.charged["seconds"] if spent else 0.0,
        finished=finished(lines, learned) if is_known else None,
        recorded=recorded(begun, done) if begun else None,
    )


def finished(lines: Sequence[LineOfStage], learned: Sequence[str]) -> FinishedStage:
    """What the lines of a stage that is done say of it; `learned` are the domains whose AP is asked for."""
    [begun], [done] = of_kind(lines, StageLine), of_kind(lines, DoneLine)
    perplexity, resumed = of_kind(lines, EvaluationLine)[-1].perplexity, last(lines, ResumedLine)
    ap = statistics.geometric_mean([math.inf if (value := perplexity[name]) is None else value for name in learned])
    before = resumed.charged["seconds"] if resumed else 0.0  # a stage that begins has spent nothing
    seconds, since = done.charged["seconds"], resumed.time if resumed else begun.time
    wall = max(done.time - since, seconds - before)  # no less, where a clock was set back
    return FinishedStage(ap, seconds, wall, sum(phase["share"] for phase in begun.phases), before)


def recorded(begun: StageLine, done: DoneLine | None) -> RecordedStage:
    """What `status` may have a note on."""
    hardware = begun.provenance.hardware
    machine = f"{hardware.count} x {hardware.device}"
    # "user" and the like leave others of a kind on the node
    machine += " beside others" if hardware.exclusive not in (True, None) else ""
    if hardware.side_by_side > 1:
        machine += f", {len(hardware.own_cores)} of its cores for each of {hardware.side_by_side} runs"
    return RecordedStage(
        domain=sys.intern(begun.domain),
        machine=sys.intern(machine),
        crowded=crowded([done]) if done else "",
        jumped=done.cores.jumped if done else 0.0,
        micro_batch_size=done.micro_batch_size if done else None,
    )
