"""The promises of the interface, as checks that any method must pass (`run_all.py check NAME`).

Each check is a function of a `Lab`, a place to train tiny runs of one method; it raises AssertionError with what was
expected. The test suite runs the same checks on every file in `methods/`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import torch

from benchmark import records
from benchmark.instruments.audit import works_on_the_clock_alone
from benchmark.instruments.tiny_runs import ALONE, Lab, Weights, place_in
from benchmark.models import load
from benchmark.records import DoneLine, EvaluationLine, StageLine
from benchmark.settings import names as setting_names
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Budget
from benchmark.store import Store
from benchmark.training.evaluate import perplexities
from benchmark.training.keys import stage_of
from benchmark.training.method import Build, LifelongMethod
from benchmark.training.processes import join
from benchmark.training.progress import Silent
from benchmark.training.run import Run

COMPILED = "`loss` may branch on nothing but the phase, and reads no number that changes from step to step"


class Killed(Exception):
    """Stands for SIGKILL: raised in the middle of a step, so nothing of the step is saved."""


def options_are_documented(lab: Lab) -> None:
    """Every option has a comment on its line, and a misspelt one is refused."""
    method = type(lab.new_method())
    source = "".join(inspect.getsource(base) for base in method.__mro__ if issubclass(base, LifelongMethod))
    for field in fields(method):  # type: ignore[arg-type]
        if field.init:
            line = rf"^ +{field.name}: [^#\n]+  # \S.+"
            assert re.search(line, source, re.MULTILINE), f"option {field.name!r} has no comment that says what it is"
    both = set(method.state) & {field.name for field in fields(method) if field.init}  # type: ignore[arg-type]
    assert not both, f"{', '.join(both)}: an option cannot be state too, or a stage would begin with its predecessor's"
    assert inspect.getdoc(inspect.getmodule(method)), "the module has no docstring that cites the method's source"
    try:
        lab.new_method({"no_such_option": 1})
    except ConfigError as error:
        assert "no_such_option" in str(error)
    else:
        raise AssertionError("an unknown option was accepted")


def phases_fill_each_stage(lab: Lab) -> None:
    """The shares of a run's phases add up to its budget, none is empty, names differ.

    Those of a reference add up to the budget of all stages so far in each stage.
    """
    config = lab.config()
    method = lab.new_method()
    spent = 0.0
    for index in range(len(config.domains)):
        stage = stage_of(config, index)
        phases = list(method.phases(stage))
        assert all(phase.share > 0 for phase in phases), f"stage {index}: a phase has no share of the budget: {phases}"
        names = [phase.name for phase in phases]
        assert len(set(names)) == len(names), f"stage {index}: phases share a name: {names}"
        spent = (spent if method.group != "references" else 0.0) + sum(phase.share for phase in phases) * stage.budget
        assert spent <= sum(stage_of(config, i).budget for i in range(index + 1)) * (1 + 1e-9), (
            f"the phases up to stage {index} take {spent:g}, more than the budget"
        )
    assert abs(spent / stage.outlook.budget - 1) < 1e-9, f"the phases take {spent:g} of {stage.outlook.budget:g}"


def budget_is_kept_to_one_step(lab: Lab) -> None:
    """At the end of each phase at most one step more is spent than the phases so far may take."""
    config = lab.config()
    lab.undisturbed()
    run = lab.run(config, "undisturbed-gpt")
    for key in run.keys:
        lines = records.read_stage(run.store.stage(key) / "records.jsonl")
        start = next(line for line in lines if isinstance(line, StageLine))
        done = next(line for line in lines if isinstance(line, DoneLine))
        assert [phase["name"] for phase in done.phases] == [phase["name"] for phase in start.phases]
        may = spent = 0.0
        for phase, took in zip(start.phases, done.phases, strict=True):
            may += phase["share"] * start.budget.amount
            spent += took["steps"]
            assert took["steps"] >= 1 and may - 1e-6 <= spent < may + 1 + 1e-6, (
                f"stage {start.index}: {spent:g} steps after phase {phase['name']}, which may end at {may:g}"
            )


def trains_under_every_budget(lab: Lab) -> None:
    """Under seconds, FLOPs and a step or two a stage, in micro-batches that do not divide a batch, all stays finite."""
    lab.undisturbed()
    run = lab.run(lab.config(), "undisturbed-gpt")
    lines = records.read_stage(run.store.stage(run.keys[-1]) / "records.jsonl")
    [flops] = [line.charged["flops"] for line in lines if isinstance(line, DoneLine)]
    for unit, amount in (("steps", 1.0), ("steps", 2.5), ("seconds", 0.05), ("flops", 0.35 * flops)):
        config = lab.config(micro_batch_size=3).model_copy(update={"budget": Budget(unit=unit, amount=amount)})
        for index, stage in enumerate(lab.weights(config, f"{unit}-{amount:g}")):
            infinite = [name for name, tensor in stage.items() if not tensor.isfinite().all()]
            assert not infinite, (
                f"under {amount:g} {unit} a stage, {infinite[0]} is not finite after stage {index}: a stage may end "
                "with any step, so do not count on a number of them; learner.elapsed says what share is over"
            )


def resumes_identically_from_a_kill_in_each_phase(lab: Lab) -> None:
    """Killed in each phase of each stage and started again, the weights end bit-identical."""
    expected = lab.undisturbed()
    config = lab.config(checkpoint_seconds=1e-9)  # a checkpoint after every step
    ends = list(itertools.accumulate(_steps_of_phases(lab)))
    kills = sorted({*ends} | {max(1, end - 1) for end in ends})
    calls = 0

    def stop_here() -> bool:
        nonlocal calls
        calls += 1
        if calls in kills:
            kills.remove(calls)
            calls -= 1  # the killed step will be run again
            raise Killed
        return False

    while True:
        run = lab.run(config, "killed", stop_here)
        try:
            run.train()
            break
        except Killed:
            continue
    assert not kills, f"the run ended before it was killed at steps {kills}"
    actual = [load(run.store.stage(key) / "model").state_dict() for key in run.keys]
    cure = ": name in `state` what a step changes, and let start_stage make again what it does not"
    _assert_equal(expected, actual, "after kills", cure)


def two_processes_equal_one(lab: Lab) -> None:
    """Two processes with half of each batch end with the weights of one, within 1e-6 (GPT, double precision).

    In single precision the order of sums alone makes up to 2e-5, in one process with half-size micro-batches too: Adam
    amplifies rounding where a growing method's gradients are tiny.
    """
    compare_two_processes([lab])


def compiled_equals_eager(lab: Lab) -> None:
    """The captured graph computes what the eager method computes, within 1e-5."""
    _assert_close(
        lab.undisturbed(), lab.weights(lab.config(compile="aot_eager"), "compiled"), 1e-5, "compiled", COMPILED
    )


def bf16_is_finite(lab: Lab) -> None:
    """Under bf16 autocast all weights and perplexities are finite."""
    config = lab.config(precision="bf16")
    weights = lab.weights(config, "bf16")
    assert all(bool(tensor.isfinite().all()) for stage in weights for tensor in stage.values())
    run = lab.run(config, "bf16")
    lines = [line for key in run.keys for line in records.read_stage(run.store.stage(key) / "records.jsonl")]
    values = [v for line in lines if isinstance(line, EvaluationLine) for v in line.perplexity.values()]
    assert values and None not in values, "a perplexity is not finite"


def every_architecture_learns(lab: Lab) -> None:
    """A model of each architecture goes through all stages."""
    for name in setting_names.architecture_names():
        for weights in lab.undisturbed(name):
            infinite = [part for part, tensor in weights.items() if not tensor.isfinite().all()]
            assert not infinite, f"{name}: {infinite[0]} is not finite"


def checkpoints_compute_what_was_recorded(lab: Lab) -> None:
    """Loaded from its folder, each stage's model has the perplexities in the records."""
    lab.undisturbed()
    run = lab.run(lab.config(), "undisturbed-gpt")
    for key in run.keys:
        lines = records.read_stage(run.store.stage(key) / "records.jsonl")
        evaluations = [line for line in lines if isinstance(line, EvaluationLine) and line.fraction == 1]
        if evaluations:
            loaded = perplexities(load(run.store.stage(key) / "model"), run.stream, ALONE)
            for domain, value in evaluations[-1].perplexity.items():
                assert value and abs(loaded[domain] / value - 1) < 1e-6, (
                    f"{domain}: {value} recorded, {loaded[domain]} loaded: a model must be "
                    "saved with all that it computes with, so give it what its class saves"
                )


def shared_first_stage_is_naive(lab: Lab) -> None:
    """A method whose signature claims nothing for the first stage trains there exactly what Naive trains."""
    if lab.new_method().signature(stage_of(lab.config(), 0)) == {}:
        naive = lab.weights(lab.config().model_copy(update={"method": "naive", "row": "naive"}), "naive")
        cure = ": say in `signature` what the first stage does that Naive's does not"
        _assert_equal(naive[:1], lab.undisturbed()[:1], "in the first stage", cure)


CHECKS: tuple[Callable[[Lab], None], ...] = (
    options_are_documented,
    phases_fill_each_stage,
    budget_is_kept_to_one_step,
    checkpoints_compute_what_was_recorded,
    shared_first_stage_is_naive,
    works_on_the_clock_alone,
    trains_under_every_budget,
    resumes_identically_from_a_kill_in_each_phase,
    two_processes_equal_one,
    compiled_equals_eager,
    bf16_is_finite,
    every_architecture_learns,
)


def check(name: str, build: Build, say: Callable[[str], None]) -> bool:
    """Run all checks on one method and say of each how it went. Returns whether all passed."""
    passed = True
    say(f"{name}: {len(CHECKS)} checks on tiny runs, a line each when it is over; nothing of them is kept")
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(name, build, Path(folder))
        for one in CHECKS:
            began = time.monotonic()
            try:
                one(lab)
                verdict = "passed"
            except Exception as error:
                passed, verdict = False, f"FAILED: {type(error).__name__}: {error}{place_in(name, error)}"
            say(f"{one.__name__.replace('_', ' '):50} {time.monotonic() - began:5.1f} s  {verdict}")
    beside_er = f'`python run_all.py run demo --set \'methods=["er", "{name}"]\'` trains it beside ER'
    again = f"mend methods/{name}.py, and the same command tries all again (docs/adding_a_method.md)"
    say(f"{name} keeps all promises; {beside_er}" if passed else f"{name} breaks those that say FAILED: {again}")
    return passed


def compare_two_processes(labs: Sequence[Lab]) -> None:
    """`two_processes_equal_one` for several methods in one pair of processes, since starting a pair takes seconds."""
    jobs = [(lab.name, lab.build, lab.folder / "two") for lab in labs]
    with _double_precision():
        expected = [lab.weights(lab.config(), "double") for lab in labs]
    for lab in labs:
        lab.run(lab.config(), "two")  # links the tokenised text
    torch.multiprocessing.spawn(_train_as_one_of_two, (_free_port(), jobs), nprocs=2)  # type: ignore
    for lab, weights in zip(labs, expected, strict=True):
        run = lab.run(lab.config(), "two")
        actual = [load(run.store.stage(key) / "model").state_dict() for key in run.keys]
        cure = "a process sees its own rows: add up what is of all with learner.world.add_up or .total"
        _assert_close(weights, actual, 1e-6, f"{lab.name} in two processes", cure)


def _train_as_one_of_two(rank: int, port: int, jobs: Sequence[tuple[str, Build, Path]]) -> None:
    be_one_of_two(rank, port)
    with join() as world, _double_precision():
        for name, build, folder in jobs:
            config = Lab(name, build, folder).config()
            Run(config, functools.partial(build, name, config.options), Store(folder), world, Silent()).train()


def be_one_of_two(rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    torch.set_num_threads(1)


@contextlib.contextmanager
def _double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _steps_of_phases(lab: Lab) -> list[int]:
    """The steps of every phase of the undisturbed run, over all stages."""
    lab.undisturbed()
    run = lab.run(lab.config(), "undisturbed-gpt")
    lines = [line for key in run.keys for line in records.read_stage(run.store.stage(key) / "records.jsonl")]
    return [phase["steps"] for line in lines if isinstance(line, DoneLine) for phase in line.phases]


def _assert_equal(expected: list[Weights], actual: list[Weights], what: str, cure: str = "") -> None:
    for stage, (one, other) in enumerate(zip(expected, actual, strict=True)):
        assert one.keys() == other.keys(), f"stage {stage}: other parameters {what}"
        different = [name for name in one if not torch.equal(one[name], other[name])]
        assert not different, f"stage {stage}: {len(different)} tensors differ {what}, e.g. {different[0]}{cure}"


def _assert_close(expected: list[Weights], actual: list[Weights], tolerance: float, what: str, cure: str) -> None:
    for stage, (one, other) in enumerate(zip(expected, actual, strict=True)):
        for name in one:
            difference = (one[name] - other[name]).abs().max().item()
            assert difference <= tolerance, f"stage {stage}: {name} differs by {difference:.1e} {what}: {cure}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
