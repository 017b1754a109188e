"""`run_all.py track`: what records say of a suite's runs, sent to a tracker. It reads records, and trains nothing.

Each call goes on from where the last one was, which `RUNS/trackers/TRACKER/SUITE.json` says: so it may be called again
and again while runs go on, here or on a cluster, and be killed at any time.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmark.errors import UserError
from benchmark.files import naming, write_json
from benchmark.records import DoneLine, EvaluationLine
from benchmark.settings.load import load_suite
from benchmark.store import RunRecords, load_runs

SECONDS = 10.0  # between two looks at records
SentPlace = tuple[int, float]  # a stage, and steps in it: what was sent last


def track(options: argparse.Namespace) -> int:
    """Send what is new, with `--watch` again and again, and print of which runs."""
    suite, new = load_suite(options.suite).name, False
    while True:
        for line in send_new(suite, options.runs, options.to, options.out):
            new = True
            print(line, flush=True)
        if not options.watch:
            break
        time.sleep(SECONDS)
    if not new:
        print(f"nothing new in {options.runs} since the last call")
    return 0


class TensorBoard:
    """Event files; `tensorboard --logdir OUT` shows them. Another call adds a file to the run's folder."""

    def __init__(self, suite: str, run: RunRecords, out: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._folder, self._writer = out / suite, SummaryWriter(str(out / suite / run.id))

    def log(self, values: Mapping[str, float], step: int, when: float) -> None:
        with naming(self._folder):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step, walltime=when)

    def close(self) -> str:
        """Returns what shows it, when all that was logged is kept."""
        with naming(self._folder):
            self._writer.close()
        return f"`tensorboard --logdir {shlex.quote(str(self._folder))}` shows them"


class WeightsAndBiases:
    """A run of the service, or with `WANDB_MODE=offline` files in `out` that are sent later."""

    def __init__(self, suite: str, run: RunRecords, out: Path) -> None:
        import wandb

        self._wandb = wandb
        config = {"row": run.row, "method": run.line.method, "seed": run.seed, "options": run.line.options}
        # what it would measure of this process says nothing of the run
        quiet = wandb.Settings(
            silent=True, x_disable_stats=True, x_save_requirements=False, disable_git=True, console="off"
        )
        self._run = wandb.init(
            project=suite, name=run.id, id=run.id, resume="allow", config=config, dir=str(out), settings=quiet
        )

    def log(self, values: Mapping[str, float], step: int, when: float) -> None:
        self._wandb.log({**values, "recorded at": when}, step=step)

    def close(self) -> str:
        self._wandb.finish()
        if self._run.offline:
            return f"`wandb sync {shlex.quote(self._run.settings.sync_dir)}` sends them on"
        return f"{self._run.url} shows them"


def open_tracker(name: str, suite: str, run: RunRecords, out: Path) -> TensorBoard | WeightsAndBiases:
    """Raises UserError without its package."""
    try:
        return (WeightsAndBiases if name == "wandb" else TensorBoard)(suite, run, out)
    except ImportError as error:
        raise UserError(f"--to {name}: {error}; `pip install {name}`") from None


def send_new(suite: str, runs: Path, to: str, out: Path) -> Iterator[str]:
    """Send what is new since the last call, and say of which runs."""
    file = runs / "trackers" / to / f"{suite}.json"
    try:
        sent = {run: (stage, steps) for run, (stage, steps) in json.loads(file.read_bytes()).items()}
    except FileNotFoundError:
        sent = {}
    except (ValueError, TypeError, AttributeError):
        raise UserError(f"{file} is damaged: remove it, and all that records say is sent again") from None
    for run in load_runs(runs, suite):
        before = sent.get(run.id, (0, -1.0))
        new = [point for point in points(run) if point[0] > before]
        if not new:
            continue
        tracker = open_tracker(to, suite, run, out)
        for _, step, when, values in new:
            tracker.log(values, step, when)
        shown = tracker.close()
        sent[run.id] = new[-1][0]
        write_json(file, sent)  # once the tracker has it: a call that is killed in between sends some points twice
        yield f"{run.id}: {len(new)} evaluations sent to {to}; {shown}"


def points(run: RunRecords) -> Iterator[tuple[SentPlace, int, float, dict[str, float]]]:
    """Each evaluation of a run: its place, steps since the start of the run, time, and values by name."""
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
