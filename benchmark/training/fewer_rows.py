"""Rows of a forward pass, fewer where memory did not hold as many: what failures of a run say to its next start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmark import records
from benchmark.settings.suite import RunConfig
from benchmark.store import Store, lines_of_run, read_heartbeat, recorded_stages


def rows_asked(config: RunConfig) -> int:
    """Rows of a forward pass that a run asks for."""
    return config.training.micro_batch_size or config.training.batch_size


def rows_held(config: RunConfig, known: Sequence[records.Record], stage: int) -> int:
    """Rows of a forward pass: those asked for, or fewer where a failure among the run's records `known` has said so.

    What memory did not hold it does not hold for a later stage's model, which is as large at least.
    """
    failed = [line for line in known if line["kind"] == "failed" and line["stage"] <= stage]
    fewer: list[int] = [line["micro_batch_size"] for line in failed if "micro_batch_size" in line]
    return min([rows_asked(config), *fewer])


def half_as_many(config: RunConfig, known: Sequence[records.Record], stage: int, processes: int = 1) -> int | None:
    """Rows with which a stage is to go on for which memory was short; None where it takes one at once already."""
    rows = min(rows_held(config, known, stage), config.training.batch_size // processes)
    return -(-rows // 2) if rows > 1 else None


def seconds_failed(known: Sequence[records.Record], key: str) -> float:
    """Seconds that attempts which failed for memory, and could not go on by themselves, have charged a stage."""
    failed = [line for line in known if line["kind"] == "failed" and line.get("key") == key]
    return max((line["seconds"] for line in failed), default=0.0)


def record_kill(config: RunConfig, store: Store, halves: bool) -> str:
    """Record that the kernel killed a run's process for lack of memory: it could not. Returns why, in words.

    `halves`: whether the run needs less of that memory with fewer rows at once, and so goes on with half as many. What
    it said of its time last is charged.
    """
    keys, text = recorded_stages(config, store), "the kernel killed its process for lack of memory"
    stage = next((index for index, key in enumerate(keys) if not store.stage_done(key)), None)
    half = half_as_many(config, lines_of_run(config, store), stage) if halves and stage is not None else None
    fewer: dict[str, Any] = {}
    if stage is not None and half:
        text += f"; `run --retry-failed` goes on with {half} rows at once"
        last = read_heartbeat(store.heartbeat(config))
        seconds = last["seconds"] if last and last["stage"] == stage else 0.0
        fewer = {"micro_batch_size": half, "key": keys[stage], "seconds": round(seconds, 3)}
    else:
        text += ": let it have more, or fewer runs go side by side; `run --retry-failed` goes on"
    line = {"kind": "failed", "stage": stage or 0, "error": text, "traceback": "", "rank": 0}
    records.append(store.run_file(config), {**line, **fewer})
    return text
