"""Stages and runs as `status` and plans see them, without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from benchmark.ledger.records import CoreShare, EvaluationLine, LineOfStage, StageDone
from benchmark.ledger.runs import RunRecords, make_run_line
from benchmark.settings.suite import RunConfig


def make_ended_stage(
    charged: Mapping[str, float],
    perplexities: Mapping[str, float] | None = None,
    wall_time: float = 0.0,
) -> list[LineOfStage]:
    """The records of a stage that is done.

    Its last evaluation has these perplexities, by domain. Without any, it has no evaluation.
    """
    done = StageDone(
        time=wall_time, charged={**charged}, phases=[], growth=None, cores=CoreShare(share=None)
    )
    evaluation = EvaluationLine(
        phase="adapt",
        step=0,
        fraction=1.0,
        charged={**charged},
        perplexity={**(perplexities or {})},
        bits_per_byte={},
    )
    return [evaluation, done] if perplexities else [done]


def make_view(
    config: RunConfig, stages: Sequence[Sequence[LineOfStage]] = (), keys: Sequence[str] = ()
) -> RunRecords:
    """A run with the records of these stages."""
    line = structs.replace(make_run_line(config), stages=[*keys])
    return RunRecords(line=line, lines=[line], stages=[[*stage] for stage in stages])
