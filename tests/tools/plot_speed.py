"""How the cost of a step grows: docs/figures/speed.png and speed.csv. About five minutes on two quiet cores.

    python -m tests.tools.plot_speed

Steps of Naive on the demo's first domain, each point in processes of its own: tokens a second against size, against
the length of rows, and with one thread, two threads and two processes of one thread; and the peak of memory against
the rows of a batch, less what a process takes before its first step.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import methods
from analysis import figures
from benchmark.data.tokens import corpus_of
from benchmark.instruments import speed
from benchmark.settings.load import load_suite
from benchmark.store import Store
from benchmark.training.processes import join
from benchmark.training.run import stream_of
from benchmark.training.step import Stepper

OUT = Path("docs/figures")
RUNS = Path("runs/speed")
STEPS = 12
TOKENS = 2048  # in a batch, at all lengths
SIZES = (1, 32), (2, 64), (3, 96), (4, 128), (6, 256), (6, 384)
LENGTHS = 32, 64, 128, 256, 512
ROWS = 8, 16, 32, 64, 128
MIDDLE = 4, 128
SETUPS = {"1 thread": (1, 1), "2 threads": (1, 2), "2 processes": (2, 1)}


@dataclass(frozen=True)
class Point:
    """What is measured: one size, length of rows (text tokens), rows of a batch, processes and threads of each."""

    panel: str
    layers: int
    hidden_size: int
    length: int
    rows: int
    setup: str


def points() -> Iterator[Point]:
    rows = TOKENS // 64
    yield from (Point("size", *size, 64, rows, setup) for setup in SETUPS for size in SIZES)
    yield from (Point("length", *MIDDLE, length, TOKENS // length, "2 threads") for length in LENGTHS)
    yield from (Point("memory", *MIDDLE, 128, rows, "2 threads") for rows in ROWS)


def measure(point: Point) -> dict[str, float]:
    """Tokens a second over all processes, FLOPs a second, and bytes that steps take beyond what was there before."""
    torch.set_num_threads(SETUPS[point.setup][1])
    suite = load_suite(
        "demo",
        {
            "methods": ["naive"],
            "tasks": [],
            "tokenizer.vocabulary": 1024,
            "model.head_size": 16,
            "model.ladder": [{"layers": point.layers, "hidden_size": point.hidden_size}] * 5,
            "data.sequence_length": point.length + 2,
            "training.batch_size": point.rows,
        },
    )
    (config,) = methods.runs(suite)
    with join() as world:
        stream = stream_of(config, corpus_of(config, Store(RUNS)))
        _, stage = next(speed.stages(config, methods.build, stream, world))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        stepper = Stepper(stage.inputs, stage.inputs.method.phases(stage.inputs.stage)[0], 0)
        seconds = [speed.seconds_of(stepper, step) for step in range(3 + STEPS)][3:]
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        flops, tokens = stepper.flops(), stepper.loader.tokens
        stepper.close()
        second = statistics.median(seconds)
        return {
            "rank": world.rank,
            "tokens_per_second": tokens / second,
            "flops_per_second": flops / second,
            "bytes": (after - before) * 1024,
        }


def in_own_process(point: Point) -> dict[str, Any]:
    processes, threads = SETUPS[point.setup]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    this = [sys.executable, *launch, "-m", "tests.tools.plot_speed", "--point", json.dumps(asdict(point))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    said = subprocess.run(this, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return {**asdict(point), **json.loads(next(line for line in said.splitlines() if line.startswith("{")))}


def draw(found: pd.DataFrame) -> None:
    with figures.style():
        grid = figures.panels(1, 3, width=2.3, height=2.0)
        by_size, by_length, by_rows = grid.flat
        sizes = found[found["panel"] == "size"]
        for setup, marker in zip(SETUPS, "osD", strict=True):
            lines = sizes[sizes["setup"] == setup]
            by_size.plot(range(len(lines)), lines["tokens_per_second"], marker=marker, label=setup)
        by_size.set_xticks(range(len(SIZES)), [f"L{layers}\nD{width}" for layers, width in SIZES])
        by_size.set(xlabel="Size", ylabel=figures.named("Tokens a second", "log"))
        figures.scale_y(by_size, "log", *sizes["tokens_per_second"].agg(["min", "max"]))
        lengths = found[found["panel"] == "length"]
        by_length.plot(lengths["length"], lengths["tokens_per_second"], marker="s")
        by_length.set(xscale="log", xlabel="Tokens of a row (log)", ylabel="Tokens a second", ylim=(0, None))
        by_length.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
        by_length.minorticks_off()
        memory = found[found["panel"] == "memory"]
        by_rows.plot(memory["rows"], memory["bytes"] / 1e6, marker="s")
        by_rows.set(xlabel="Rows of 128 tokens in a batch", ylabel="Memory of a step (MB)", ylim=(0, None))
        by_rows.set_xticks(ROWS)
        files = figures.finish(grid, f"GPT, vocabulary 1,024; L{MIDDLE[0]}_D{MIDDLE[1]} where no size is said.")
    OUT.mkdir(exist_ok=True)
    (OUT / "speed.png").write_bytes(files["png"])
    found.to_csv(OUT / "speed.csv", index=False, float_format="%.4g")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--point")
    options = parser.parse_args()
    if options.point:
        if (found := measure(Point(**json.loads(options.point))))["rank"] == 0:  # lines of several would mix
            print(json.dumps(found), flush=True)
        return
    lines = []
    for point in points():
        lines.append(in_own_process(point))
        print(lines[-1], flush=True)
    draw(pd.DataFrame(lines))


if __name__ == "__main__":
    main()
