"""`run_all.py track`: the records of a suite's runs as event files of TensorBoard.

It trains nothing. Each call writes all files again, so you may call it while runs go on, here or on
a cluster.
"""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.errors import UserError
from benchmark.files import name_in_errors
from benchmark.ledger.records import EvaluationLine, StageDone
from benchmark.ledger.runs import RunRecords, leave_out_older_texts
from benchmark.ledger.store import Store
from benchmark.settings.suite import RunConfig
from benchmark.training.declaration import open_ledger
from benchmark.training.method import Build

# steps since the start of the run, time, and values by name
Point = tuple[int, float, dict[str, float]]


def track(
    suite: str, configs: Sequence[RunConfig], build: Build, runs: Path, out: Path
) -> Iterator[str]:
    """Write event files with the evaluations of a suite's runs.

    Yields a line on each run: how many evaluations it has, or why it is left out.
    """
    folder = out / suite
    ledger = open_ledger(Store(runs), build)
    ids = {config.id for config in configs}
    recorded = [run for run in ledger.read_recorded(suite) if run.id in ids]
    for run in leave_out_older_texts(recorded):
        if run.why:
            yield f"! {run.id} is left out: {run.why}"
            continue
        evaluations = list(list_points(run))
        write_events(folder / run.id, evaluations)
        yield f"{run.id}: {len(evaluations)} evaluations written to {folder / run.id}"
    if not recorded:
        raise UserError(
            f"{runs}: no run of {suite} is recorded there: give its --runs, or a study's folder"
        )
    yield f"`tensorboard --logdir {shlex.quote(str(folder))}` shows what there is"


def write_events(folder: Path, evaluations: Sequence[Point]) -> None:
    """Write a run's folder with one event file. Raises UserError without TensorBoard."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise UserError(f"{error}; `pip install tensorboard`") from None
    with name_in_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        writer = SummaryWriter(str(folder))
        for step, when, values in evaluations:
            for name, value in values.items():
                writer.add_scalar(name, value, step, walltime=when)
        writer.close()


def list_points(run: RunRecords) -> Iterator[Point]:
    steps = 0.0
    for index, stage in enumerate(run.stages):
        for line in stage:
            if isinstance(line, EvaluationLine):
                step = round(steps + line.charged["steps"])
                yield step, line.time, _list_values(line, run, index)
            elif isinstance(line, StageDone):
                steps += line.charged["steps"]


def _list_values(line: EvaluationLine, run: RunRecords, stage: int) -> dict[str, float]:
    values = {
        "stage": stage + 1.0,
        "AP": run.compute_ap(line, stage),
        "seconds in the stage": line.charged["seconds"],
        "tokens_per_second": line.tokens_per_second,
    }
    for name, value in line.perplexity.items():
        values[f"perplexity/{name}"] = math.inf if value is None else value
    measured = {"loss": line.loss, "learning_rate": line.learning_rate}
    for name, number in measured.items():
        if number is not None:
            values[name] = number
    return values
