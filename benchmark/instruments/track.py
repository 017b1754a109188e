"""`run_all.py track`: what records say of a suite's runs, as event files of TensorBoard. It trains nothing.

Each call goes on from where the last one was, which `OUT/SUITE.json` says: so it may be called again and again while
runs go on, here or on a cluster, and be killed at any time.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.errors import UserError
from benchmark.files import naming, write_json
from benchmark.records import DoneLine, EvaluationLine
from benchmark.settings.load import load_suite
from benchmark.store import RunRecords, load_runs

SECONDS = 10.0  # between two looks at records
Point = tuple[tuple[int, float], int, float, dict[str, float]]
"""A stage and steps in it, steps since the start of the run, time, and values by name."""


def track(options: argparse.Namespace) -> int:
    """Write what is new, with `--watch` again and again, and print of which runs."""
    suite, any_new = load_suite(options.suite).name, False
    while True:
        for line in send_new(suite, options.runs, options.out):
            any_new = True
            print(line, flush=True)
        if not options.watch:
            break
        time.sleep(SECONDS)
    if any_new:
        print(f"`tensorboard --logdir {shlex.quote(str(options.out / suite))}` shows them")
    else:
        print(f"nothing new in {options.runs} since the last call")
    return 0


def send_new(suite: str, runs: Path, out: Path) -> Iterator[str]:
    """Write what is new since the last call, and say of which runs."""
    file = out / f"{suite}.json"
    try:
        sent = {run: (stage, steps) for run, (stage, steps) in json.loads(file.read_bytes()).items()}
    except FileNotFoundError:
        sent = {}
    except (ValueError, TypeError, AttributeError):
        raise UserError(f"{file} is damaged: remove it, and all that records say is written again") from None
    for run in load_runs(runs, suite):
        new = [point for point in points(run) if point[0] > sent.get(run.id, (0, -1.0))]
        if new:
            write_events(out / suite / run.id, new)
            sent[run.id] = new[-1][0]
            write_json(file, sent)  # after the events: a call that is killed in between writes some points twice
            yield f"{run.id}: {len(new)} evaluations written to {out / suite / run.id}"


def write_events(folder: Path, new: Sequence[Point]) -> None:
    """Add an event file to a run's folder. Raises UserError without TensorBoard."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise UserError(f"{error}; `pip install tensorboard`") from None
    with naming(folder):
        writer = SummaryWriter(str(folder))
        for _, step, when, values in new:
            for name, value in values.items():
                writer.add_scalar(name, value, step, walltime=when)
        writer.close()


def points(run: RunRecords) -> Iterator[Point]:
    """Each evaluation of a run."""
    steps = 0.0
    for index, stage in enumerate(run.stages):
        for line in stage:
            if isinstance(line, EvaluationLine):
                spent = line.charged["steps"]
                yield (index, spent), round(steps + spent), line.time, _values(line, run, index)
            elif isinstance(line, DoneLine):
                steps += line.charged["steps"]


def _values(line: EvaluationLine, run: RunRecords, stage: int) -> dict[str, float]:
    perplexity = {name: math.inf if value is None else value for name, value in line.perplexity.items()}
    met = [math.log(perplexity[domain.name]) for domain in run.domains[: stage + 1]]
    values = {"stage": stage + 1.0, "AP": math.exp(math.fsum(met) / len(met))}
    values |= {"seconds in the stage": line.charged["seconds"], "tokens_per_second": line.tokens_per_second}
    values |= {f"perplexity/{name}": value for name, value in perplexity.items()}
    measured = {"loss": line.loss, "learning_rate": line.learning_rate}
    return values | {name: value for name, value in measured.items() if value is not None}
