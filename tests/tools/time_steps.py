"""What a step of the loop costs on one core: beside another version of this code, with strict algorithms, by operators.

    taskset -c 0 python -m tests.tools.time_steps --against FOLDER    # a checkout of the other version; in turns
    taskset -c 0 python -m tests.tools.time_steps --strict            # training.deterministic; in turns
    taskset -c 0 python -m tests.tools.time_steps --profile           # the tables of operators in docs/speed.md

Steps on the demo's text: 20 rows of 66 tokens, vocabulary 1,024, one thread, fp32, as the loop takes them, clock
included. It counts the CPU time of the process, batches made ahead too, which other programs lengthen little.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import methods
from benchmark.data.tokens import corpus_of
from benchmark.instruments import speed
from benchmark.models.devices import strict_algorithms
from benchmark.settings.load import load_suite
from benchmark.settings.suite import Budget
from benchmark.settings.units import Work
from benchmark.store import Store
from benchmark.training.clock import Clock
from benchmark.training.processes import join
from benchmark.training.run import stream_of
from benchmark.training.step import Stepper

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "runs/speed"
SHOWN = 8  # operators


def loop(size: str, method: str, stage: int) -> Callable[[int], None]:
    """A function that takes so many more steps of a stage (from 0) at a learning rate of 0."""
    layers, width = map(int, size.removeprefix("L").split("_D"))
    settings = {
        "methods": [method],
        "tasks": [],
        "tokenizer.vocabulary": 1024,
        "model.head_size": 16,
        "model.ladder": [{"layers": layers, "hidden_size": width}] * 5,
        "training.precision": "fp32",
    }
    (config,) = methods.runs(load_suite("demo", settings))
    torch.set_num_threads(1)
    with join() as world:
        stages = speed.stages(config, methods.build, stream_of(config, corpus_of(config, Store(RUNS))), world)
        inputs = next(islice(stages, stage, None))[1].inputs
        stepper = Stepper(inputs, inputs.method.phases(inputs.stage)[-1], 0)
        clock = Clock(Budget(unit="steps", amount=1e12), stage, world)
    numbers = count()
    clock.start()

    def steps(wanted: int) -> None:
        for number in islice(numbers, wanted):
            assert math.isfinite(stepper.step(number))
            clock.count(Work(steps=1))

    return steps


def answer(options: argparse.Namespace) -> None:
    """Take so many steps for each number that is read, and say the CPU seconds of one."""
    with strict_algorithms(options.strict):
        steps = loop(options.sizes[0], options.method, options.stage)
        for line in sys.stdin:
            began = time.process_time()
            steps(int(line))
            print((time.process_time() - began) / int(line), flush=True)


def compare(size: str, options: argparse.Namespace) -> str:
    """The ratio of the two versions' steps: the median over turns, and between which values half of them are.

    Of one version the second one's steps have strict algorithms.
    """

    def start(code: Path, *more: str) -> subprocess.Popen[str]:
        arguments = ["--answer", "--sizes", size, "--method", options.method, "--stage", str(options.stage)]
        return subprocess.Popen(
            [sys.executable, __file__, *arguments, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"},
        )

    def ask(program: subprocess.Popen[str], steps: int) -> float:
        assert program.stdin and program.stdout
        print(steps, file=program.stdin, flush=True)
        return float(program.stdout.readline())

    programs = [start(ROOT), start(ROOT, "--strict")]
    if options.against:
        programs = [start(options.against.resolve()), start(ROOT)]
    turns = [[ask(program, options.steps) for program in programs] for _ in range(1 + options.turns)][1:]
    for program in programs:
        program.communicate()
    there, here = (1000 * statistics.median(times) for times in zip(*turns, strict=True))
    low, middle, high = statistics.quantiles(new / old for old, new in turns)
    names = ("there", "here") if options.against else ("by default", "strict")
    return f"{size}: {there:.2f} ms {names[0]}, {here:.2f} ms {names[1]}; ratio {middle:.3f} ({low:.3f} to {high:.3f})"


def operators(size: str, options: argparse.Namespace) -> str:
    """What share of the time of a step its operators take, each without those that it calls, and their calls.

    Of each the least of many steps: other programs lengthen now this operator, now that one, and long ones most.
    """
    steps = loop(size, options.method, options.stage)
    steps(10)
    times: dict[str, list[float]] = {}
    for _ in range(options.steps):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            steps(1)
        calls = {one.key: one.count for one in seen.key_averages()}
        for one in seen.key_averages():
            times.setdefault(one.key, []).append(one.self_cpu_time_total)
    found = sorted(((min(each), name) for name, each in times.items()), reverse=True)
    whole = sum(least for least, _ in found)
    shown = [f"{least / whole:4.0%}  {calls[name]:4}  {name}" for least, name in found[:SHOWN]]
    return "\n  ".join([f"{size}: {sum(calls.values())} calls a step", *shown])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["L1_D32", "L3_D64", "L6_D384"])
    parser.add_argument("--method", default="naive")
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--strict", action="store_true")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--against", type=Path)
    what.add_argument("--profile", action="store_true")
    what.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.against or options.profile or options.answer or options.strict):
        parser.error("give one of --against, --strict and --profile")
    if options.answer:
        answer(options)
    for size in [] if options.answer else options.sizes:
        print(operators(size, options) if options.profile else compare(size, options), flush=True)


if __name__ == "__main__":
    main()
