"""The promises of the interface, as checks that any method must pass (`run_all.py check NAME`).

Each check is a function of a `TinyRuns`, which trains tiny runs of one method: three small domains,
models of a few thousand weights, ten steps per stage. If a check fails, it raises AssertionError
with what was expected. The test suite runs the same checks on every file in `methods/`.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import itertools
import os
import re
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.elastic.utils.distributed import get_free_port

from benchmark.instruments.comparisons import (
    ROUNDING,
    Weights,
    assert_alike,
    assert_same,
    compute_predictions,
    in_double_precision,
    load_weights,
    measure_difference,
)
from benchmark.instruments.kills import train_through_kills
from benchmark.instruments.speed import prepare_stages
from benchmark.instruments.whole_stages import list_phase_steps, list_random_states
from benchmark.interpreters import set_up_to_compute
from benchmark.ledger import records
from benchmark.ledger.records import EvaluationLine, StageDone, StageLine
from benchmark.ledger.store import Store
from benchmark.models import architectures, load
from benchmark.settings.base import ConfigError
from benchmark.settings.names import list_architecture_names
from benchmark.settings.suite import Budget, RunConfig, Size
from benchmark.training.batch_parts import check_method, check_shares
from benchmark.training.clock import count_flops
from benchmark.training.declaration import plan_stage
from benchmark.training.evaluate import measure_perplexities
from benchmark.training.method import (
    Build,
    LifelongMethod,
    Phase,
    find_own_optimizer,
    list_phases,
)
from benchmark.training.processes import HELD_BACK, Sources, World, join, start_fork_server
from benchmark.training.run import Run

ALONE = World(0, 1, torch.device("cpu"))
STEPS = 10
SEED = 3
OTHER_SEED = 4  # of runs in double precision, which the same process trains after those of SEED
DROPOUT = 0.1
CURE_OF_SHARDS = (
    "a method that keeps, adds or looks into whole weights says needs_full_weights = True"
)


def find_place_in(name: str, error: Exception) -> str:
    """The line of the method's file in which an error arose, in brackets.

    Empty if the error arose elsewhere.
    """
    calls = traceback.extract_tb(error.__traceback__)
    lines = [call for call in calls if Path(call.filename).name == f"{name}.py"]
    if not lines:
        return ""
    path = Path(lines[-1].filename)
    return f" ({Path(path.parent.name, path.name)}:{lines[-1].lineno})"


class TinyRuns:
    """Trains tiny runs of the method `name`, as `build` makes it, in folders below `folder`."""

    def __init__(self, name: str, build: Build, folder: Path) -> None:
        self.name = name
        self.build = build
        self.folder = folder

    def make_method(self) -> LifelongMethod:
        return self.build(self.name, {})

    def make_config(
        self, architecture: str = "gpt", seed: int = SEED, dropout: float = 0.0, **training: Any
    ) -> RunConfig:
        """A tiny run of the method.

        A batch has 8 rows, or more if two halves of 8 rows cannot hold the method's shares of
        memory.
        """
        optimizer = find_own_optimizer(self.make_method())
        recipe = optimizer.defaults if optimizer else {}
        for rows in (8, 20, 100):
            of_rows = {"batch_size": rows, **recipe, **training}
            config = make_tiny_config(self.name, architecture, seed, dropout, **of_rows)
            with contextlib.suppress(ConfigError):
                check_method(config, self.make_method(), processes=2)
                break
        return config

    def make_run(
        self,
        config: RunConfig,
        store: str,
        world: World = ALONE,
    ) -> Run:
        """A run in the folder `store`, which shares the tokenised text with all others."""
        root = self.folder / store
        root.mkdir(parents=True, exist_ok=True)
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        # it exists if an earlier run, or another process of this run, has made it
        with contextlib.suppress(FileExistsError):
            (root / "data").symlink_to(data)
        build = partial(self.build, config.method, config.options)
        return Run(config, build, Store(root), world)

    def train(self, config: RunConfig, store: str) -> list[Weights]:
        """Train a run, if that is not done yet. Returns the weights after each stage."""
        run = self.make_run(config, store)
        run.train()
        return load_weights(run)

    def train_undisturbed(self, architecture: str = "gpt") -> list[Weights]:
        return self.train(self.make_config(architecture), f"undisturbed-{architecture}")


def make_tiny_config(
    method: str, architecture: str = "gpt", seed: int = SEED, dropout: float = 0.0, **training: Any
) -> RunConfig:
    sizes = ((1, 16), (1, 32), (2, 32))
    settings = {
        "suite": "conformance",
        "row": method,
        "row_index": 0,
        "method": method,
        "options": {},
        "seed": seed,
        "domains": [{"name": name, "packages": [name]} for name in ("json", "email", "logging")],
        "tokenizer": {"vocabulary": 400, "sample_bytes": 100_000},
        "data": {
            "sequence_length": 18,
            "memory_tokens": 1600,
            "valid_share": 0.2,
            "max_valid_bytes": 800,
        },
        "model": {
            "architecture": architecture,
            "head_size": 16,
            "dropout": dropout,
            "ladder": [{"layers": layers, "hidden_size": width} for layers, width in sizes],
        },
        "training": {
            "batch_size": 8,
            "learning_rate": 3e-3,
            "evaluations": 2,
            "precision": "fp32",
            **training,
        },
        "budget": {"unit": "steps", "amount": STEPS},
    }
    return RunConfig.model_validate(settings)


def options_are_documented(tiny: TinyRuns) -> None:
    """Every option has a comment on its line, and the module has a docstring.

    `state` is a tuple of names that are not options. A function or an attribute of the class is
    part of the interface, or the class uses it.
    """
    method = type(tiny.make_method())
    source = "".join(
        inspect.getsource(base) for base in method.__mro__ if issubclass(base, LifelongMethod)
    )
    for field in fields(method):  # type: ignore[arg-type]
        if field.init:
            line = rf"^ +{field.name}: [^#\n]+  # \S"
            assert re.search(line, source, re.MULTILINE), (
                f"option {field.name!r} has no comment that says what it is"
            )
    options = {field.name for field in fields(method) if field.init}  # type: ignore[arg-type]
    overlap = set(method.state) & options
    assert not overlap, (
        f"{', '.join(overlap)}: an option cannot be state too, or a stage would begin with its "
        "predecessor's"
    )
    assert inspect.getdoc(inspect.getmodule(method)), (
        "the module has no docstring that cites the method's source"
    )
    assert isinstance(method.state, tuple), (
        f"state is {method.state!r}: let it be a tuple of names, as ('name',)"
    )
    interface = [name for name in vars(LifelongMethod) if not name.startswith("_")]
    has_meaning = {*interface, *(field.name for field in fields(method))}  # type: ignore[arg-type]
    for name in vars(method):
        if name.startswith("_") or name in has_meaning:
            continue
        near = difflib.get_close_matches(name, interface, 1, 0.85)
        assert not near, f"nothing uses {name}: is it {near[0]}?"
        assert re.search(rf"\.{name}\b", source), (
            f"nothing uses {name}: a method has {', '.join(interface)}, and what its code uses"
        )


def phases_fill_each_stage(tiny: TinyRuns) -> None:
    """The shares of phases add up to the run's budget (see `check_shares`), and names differ.

    Each stage after the first that trains has rows of its new domain. If phases use
    `stage.stream_info`, `signature` includes what they use, or stages of one stream would pass for
    those of another.
    """
    config = tiny.make_config()
    method = tiny.make_method()
    check_shares(config, method)
    for index in range(len(config.domains)):
        stage = plan_stage(config, index)
        phases = list_phases(method, stage)
        assert all(phase.share > 0 for phase in phases), (
            f"stage {index}: a phase has no share: {phases}"
        )
        must_learn = index > 0 and any(phase.trains for phase in phases)
        assert not must_learn or any(map(_has_new_rows, phases)), (
            f"stage {index}: no phase trains on a row of the new domain: `memory` below 1, of "
            "'new' or 'seen' text"
        )
        names = [phase.name for phase in phases]
        assert len(set(names)) == len(names), f"stage {index}: phases share a name: {names}"
        changes: list[dict[str, Any]] = [
            {"stages": index + 1},
            {"size": Size(layers=9, hidden_size=144)},
            {"budget": 1e3},
        ]
        for change in changes if not stage.last else ():  # nothing comes after the last stage
            other = replace(stage, stream_info=replace(stage.stream_info, **change))
            is_told = method.signature(other) != method.signature(stage)
            assert is_told or list_phases(method, other) == phases, (
                f"stage {index}: phases use `stage.stream_info`, and `signature` does not: let "
                "it hold what they use"
            )


def _has_new_rows(phase: Phase) -> bool:
    texts = {source.domain for source in phase.sources}
    if not texts and phase.memory < 1:
        texts = {phase.domain}
    return phase.trains and not texts.isdisjoint({"new", "seen"})


def budget_is_exceeded_by_one_step_at_most(tiny: TinyRuns) -> None:
    """At the end of each phase, the shares so far are spent, and less than one step more."""
    config = tiny.make_config()
    tiny.train_undisturbed()
    run = tiny.make_run(config, "undisturbed-gpt")
    for key in run.keys:
        lines = run.store.read_stage(key)
        [start] = records.select_kind(lines, StageLine)
        [done] = records.select_kind(lines, StageDone)
        assert [phase["name"] for phase in done.phases] == [phase["name"] for phase in start.phases]
        limit = spent = 0.0
        for phase, costs in zip(start.phases, done.phases, strict=True):
            limit += phase["share"] * start.budget.amount
            spent += costs["steps"]
            assert costs["steps"] >= 1 and limit - 1e-6 <= spent < limit + 1 + 1e-6, (
                f"stage {start.index}: {spent:g} steps after phase {phase['name']}, which may end "
                f"at {limit:g}"
            )


def trains_the_same_twice(tiny: TinyRuns) -> None:
    """The same run in another folder ends with the same weights, bit for bit, with dropout."""
    cure = (
        "it draws numbers that nobody seeds, as numpy's and those of `random` are: take them from "
        "torch"
    )
    config = tiny.make_config(dropout=DROPOUT)
    second = tiny.train(config, "again")
    assert_same(tiny.train(config, "dropout"), second, "when the same run is trained again", cure)


def trains_under_every_budget(tiny: TinyRuns) -> None:
    """Weights stay finite under a budget in seconds, and under 1 and 2.5 steps per stage.

    Training ends with an error if they do not. The size of micro-batches does not divide a batch.
    """
    for unit, amount in (("steps", 1.0), ("steps", 2.5), ("seconds", 0.05)):
        budget = Budget(unit=unit, amount=amount)
        config = tiny.make_config(micro_batch_size=3).model_copy(update={"budget": budget})
        tiny.train(config, f"{unit}-{amount:g}")


def resumes_identically_from_a_kill_in_each_phase(tiny: TinyRuns) -> None:
    """Killed in each phase of each stage and started again, a run ends with the same weights.

    They are the same bit for bit, with dropout. A run that goes on makes one more warm-up, so this
    also finds what a warm-up leaves in a method, and later steps use.
    """
    config = tiny.make_config(dropout=DROPOUT)
    expected = tiny.train(config, "dropout")
    undisturbed = tiny.make_run(config, "dropout")
    steps: list[float] = []
    for key in undisturbed.keys:
        for line in records.select_kind(undisturbed.store.read_stage(key), StageDone):
            for phase in line.phases:
                steps.append(phase["steps"])
    ends = [int(end) for end in itertools.accumulate(steps)]
    # so that the kill in a phase's last step hits a run that was just resumed
    steps_before = {max(1, end - 1) for end in ends}
    kills = sorted({*ends} | steps_before)
    # a checkpoint after every step
    config = tiny.make_config(dropout=DROPOUT, checkpoint_seconds=1e-9)
    actual = train_through_kills(lambda: tiny.make_run(config, "killed"), kills)
    cure = "name in `state` what a step changes, and let start_stage make again what it does not"
    assert_same(expected, actual, "after kills", cure)


def two_processes_equal_one(*several: TinyRuns) -> None:
    """Two processes with half of each batch end with the same predictions as one process (GPT).

    They train in double precision. In single precision, another order of sums changes predictions
    by up to 2e-5, even in one process with half-size micro-batches. Weights are not compared: if a
    gradient is 0, Adam makes whole steps of its rounding error. An example is a bias of attention's
    keys, on which no prediction depends. The one process has trained another seed before, the two
    have not, so the check also finds what a run leaves behind for the next run in its process. One
    pair of processes trains all methods, because it takes seconds to start. If a method does not
    set `needs_full_weights`, it also trains with weights sharded over the two.
    """
    for tiny in several:
        tiny.train_undisturbed()
    expected = [_train_in_double_precision(tiny) for tiny in several]
    # made here, because this links the tokenised text
    runs = [tiny.make_run(tiny.make_config(seed=OTHER_SEED), "two") for tiny in several]
    call_in_two_processes(_train_as_one_of_two, several)
    cure = (
        "a process sees its own rows: add up over all with learner.world.add_up or .total, and let "
        "no sign, threshold, order or division by nearly nothing turn rounding into a step; and "
        "keep nothing of one seed for another's run on the class, in its file or in a cache"
    )
    for tiny, run, predictions in zip(several, runs, expected, strict=True):
        assert_alike(predictions, compute_predictions(run), f"{tiny.name} in two processes", cure)
        if tiny.make_method().needs_full_weights:
            continue
        sharded = tiny.make_run(tiny.make_config(seed=OTHER_SEED, shard=True), "shards")
        where = f"{tiny.name} with sharded weights"
        assert_alike(predictions, compute_predictions(sharded), where, CURE_OF_SHARDS)


def _train_in_double_precision(tiny: TinyRuns) -> list[Tensor]:
    """What the model predicts after each stage of an undisturbed run in double precision."""
    config = tiny.make_config(seed=OTHER_SEED)
    with in_double_precision():
        tiny.train(config, "double")
    return compute_predictions(tiny.make_run(config, "double"))


def call_in_two_processes(act: Callable[..., None], *arguments: Any) -> None:
    """Let two processes that can talk to each other call `act` with these arguments.

    Raises the error of either.
    """
    sources = Sources.read()
    start_fork_server()
    parameters = (sources, get_free_port(), act, arguments)
    pair = torch.multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        _be_one_of_two, parameters, nprocs=2, join=False, daemon=True, start_method="forkserver"
    )
    try:
        while not pair.join():
            pass
    finally:  # also after Ctrl-C or SIGTERM: the two would go on, and this process would wait
        for process in pair.processes:
            process.kill()
            process.join()


def _train_as_one_of_two(several: Sequence[TinyRuns]) -> None:
    with in_double_precision(), join() as world:
        for tiny in several:
            tiny.make_run(tiny.make_config(seed=OTHER_SEED), "two", world=world).train()
            if not tiny.make_method().needs_full_weights:
                _train_shards(tiny, world)


def _train_shards(tiny: TinyRuns, world: World) -> None:
    config = tiny.make_config(seed=OTHER_SEED, shard=True)
    run = tiny.make_run(config, "shards", world=world)
    try:
        run.train()
    except RuntimeError as error:
        raise AssertionError(
            f"{tiny.name} with sharded weights (training.shard): {error}: {CURE_OF_SHARDS}"
        ) from error


def _be_one_of_two(
    rank: int, sources: Sources, port: int, act: Callable[..., None], arguments: Sequence[Any]
) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    set_up_to_compute()
    sources.check()
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
    }
    os.environ |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    torch.set_num_threads(1)
    act(*arguments)


def compiled_equals_eager(tiny: TinyRuns) -> None:
    """A model trained with a captured graph predicts the same as one trained eagerly."""
    config = tiny.make_config(seed=OTHER_SEED, compile="aot_eager")
    with in_double_precision():
        tiny.train(config, "compiled")
    compiled = compute_predictions(tiny.make_run(config, "compiled"))
    cure = (
        "`loss` may branch on nothing but the phase, and reads no number that changes from step to "
        "step"
    )
    assert_alike(_train_in_double_precision(tiny), compiled, "compiled", cure)


def bf16_is_finite(tiny: TinyRuns) -> None:
    """Under bf16 autocast all weights and perplexities are finite."""
    config = tiny.make_config(precision="bf16")
    tiny.train(config, "bf16")
    run = tiny.make_run(config, "bf16")
    values: list[float | None] = []
    for key in run.keys:
        for line in records.select_kind(run.store.read_stage(key), EvaluationLine):
            values += line.perplexity.values()
    assert values and None not in values, "a perplexity is not finite"


def every_architecture_learns(tiny: TinyRuns) -> None:
    """A model of each architecture goes through all stages.

    If the method is `causal_only`, masked architectures are left out.
    """
    for name in list_architecture_names():
        if tiny.make_method().causal_only and architectures.load(name).masked:
            continue
        try:
            tiny.train_undisturbed(name)
        except Exception as error:
            raise AssertionError(
                f"with {name}: {error!r}{find_place_in(tiny.name, error)}"
            ) from error


def checkpoints_compute_what_was_recorded(tiny: TinyRuns) -> None:
    """Loaded from its folder, each stage's model has the perplexities in the records."""
    tiny.train_undisturbed()
    run = tiny.make_run(tiny.make_config(), "undisturbed-gpt")
    for key in run.keys:
        lines = records.select_kind(run.store.read_stage(key), EvaluationLine)
        evaluations = [line for line in lines if line.fraction == 1]
        if not evaluations:
            continue
        model = load(run.store.stage_folder(key) / "model")
        perplexities = measure_perplexities(model, run.stream, ALONE)
        for domain, value in evaluations[-1].perplexity.items():
            assert value and abs(perplexities[domain] / value - 1) < 1e-6, (
                f"{domain}: {value} recorded, {perplexities[domain]} loaded: a model is saved with "
                "what its class saves"
            )


def is_naive_where_it_says(tiny: TinyRuns) -> None:
    """If a method's first stage has the key of Naive's, it trains what Naive trains.

    Its later stages are then the same after a first stage that Naive has trained. After some stage
    it predicts something else than Naive, unless it says `may_equal_naive`. Predictions are
    compared up to rounding, in double precision: so a loss that equals Naive's counts as the same
    if it is computed in another way, and a teacher that equals the student counts as no teacher.
    """
    config = tiny.make_config(seed=OTHER_SEED)
    naive_config = config.model_copy(update={"method": "naive", "row": "naive"})
    predictions = _train_in_double_precision(tiny)
    with in_double_precision():
        tiny.train(naive_config, "naive")
    naive_run = tiny.make_run(naive_config, "naive")
    naive_predictions = compute_predictions(naive_run)
    first_key = tiny.make_run(config, "double").keys[0]
    if first_key == naive_run.keys[0]:
        cure = (
            "set acts_first = True: the first stage does something, or keeps it in `state`, that "
            "Naive's does not"
        )
        assert_alike(naive_predictions[:1], predictions[:1], "in the first stage", cure)
        with in_double_precision():
            tiny.train(config, "naive")  # beside Naive's stages, so it takes the first of these
        continued = compute_predictions(tiny.make_run(config, "naive"))
        assert_alike(continued, predictions, "after a first stage that Naive has trained", cure)
    if not tiny.make_method().may_equal_naive:
        pairs = zip(naive_predictions, predictions, strict=True)
        differences = [measure_difference(*pair) for pair in pairs]
        assert max(differences) > ROUNDING, (
            f"after {len(predictions)} stages the model predicts what Naive's does: does it do "
            "anything? What a later stage needs must stand in `state`, an anchor or a teacher be a "
            "copy; one that means it says may_equal_naive = True"
        )


def is_told_domains_where_it_says(tiny: TinyRuns) -> None:
    """Predictions depend on the domain that the model is told if and only if the method says so."""
    tiny.train_undisturbed()
    run = tiny.make_run(tiny.make_config(), "undisturbed-gpt")
    pairs = zip(compute_predictions(run), compute_predictions(run, shift=1), strict=True)
    is_told = any(measure_difference(*pair) > 0 for pair in pairs)
    says = tiny.make_method().reads_domain()
    assert is_told == says, (
        f"told another domain, the model predicts {'something else' if is_told else 'the same'}, "
        f"and reads_domain() is {says}: return {is_told} there, so that tables say who is told a "
        "text's domain"
    )


def draws_other_numbers_with_each_seed(tiny: TinyRuns) -> None:
    """With another seed, torch's generator has another state after start_stage and each step."""
    states = []
    for seed in (SEED, OTHER_SEED):
        config = tiny.make_config(seed=seed)
        stream = tiny.make_run(config, "untrained").stream
        states.append(list_random_states(config, tiny.build, stream))
    for where, state in states[0].items():
        assert not torch.equal(state, states[1][where]), (
            f"{where}: the random numbers to come are those of every other seed, as after "
            "torch.manual_seed(0): draw them without it, they are seeded already, or seed a "
            "generator of your own with stage.seed"
        )


def works_on_the_clock_alone(tiny: TinyRuns) -> None:
    """A method computes nothing while no clock runs.

    The clock does not charge for building a method and for its answers (`signature`, `options`,
    `phases`). It charges each step the FLOPs of the first one of its phase, which is also taken
    once before the clock runs. So no step may cost more, from the phase's begin to its end, and the
    first one costs the same again. The check does not see what only a generator, a
    compiled extension, a file, a thread or another process has: a method's code must also be read.
    """
    config = tiny.make_config()
    _refuse_work("building it", tiny.make_method)
    stream = tiny.make_run(config, "untrained").stream
    for _, prepared in prepare_stages(config, tiny.build, stream, ALONE):
        inputs = prepared.inputs
        index = inputs.stage.index
        method = inputs.method
        bare = plan_stage(config, index)

        def ask() -> object:
            return method.signature(bare), method.options(), list_phases(method, inputs.stage)  # noqa: B023

        _refuse_work(f"stage {index}: signature, options or phases", ask)
        answers = ask(), ask()
        assert answers[0] == answers[1], (
            f"stage {index}: asked twice, it says {answers[0]} and {answers[1]}"
        )
        for stepper, moments in list_phase_steps(inputs, STEPS):
            where = f"stage {index}, phase {stepper.phase.name}"
            first = stepper.warm_up()
            second = stepper.warm_up()
            assert second * 1.001 >= first, (
                f"{where}: the first step takes {first:g} FLOPs, which all are charged, and the "
                f"same step again {second:g}: what a phase computes once belongs into start_stage"
            )
            for moment in moments:
                take = partial(stepper.step, moment.step, moment.learning_rate, moment.elapsed)
                flops = count_flops(take)
                assert flops <= first * 1.001, (
                    f"{where}: step {moment.step}, at {moment.elapsed.stage:.0%} of the stage, "
                    f"takes {flops:g} FLOPs, the first {first:g}, which all are charged: let "
                    "dearer steps be a phase of their own"
                )
            stepper.close()
            for name, value in vars(method).items():
                if not isinstance(value, nn.Module):
                    continue
                further_parameters = {*value.parameters()} - {*inputs.model.parameters()}
                assert not any(parameter.grad is not None for parameter in further_parameters), (
                    f"{where}: {name} gets gradients and never learns: set it on the model in "
                    "start_stage"
                )


CHECKS: tuple[Callable[[TinyRuns], None], ...] = (
    options_are_documented,
    phases_fill_each_stage,
    budget_is_exceeded_by_one_step_at_most,
    trains_the_same_twice,
    checkpoints_compute_what_was_recorded,
    is_naive_where_it_says,
    is_told_domains_where_it_says,
    draws_other_numbers_with_each_seed,
    works_on_the_clock_alone,
    trains_under_every_budget,
    resumes_identically_from_a_kill_in_each_phase,
    two_processes_equal_one,
    compiled_equals_eager,
    bf16_is_finite,
    every_architecture_learns,
)


def check(name: str, build: Build, say: Callable[[str], None]) -> bool:
    """Run all checks on one method and say of each how it went. Returns whether all passed.

    If the same run trained twice differs, no more checks are made: comparisons of two runs would
    then say nothing.
    """
    passed = True
    say(f"{name}: {len(CHECKS)} checks on tiny runs. Each prints a line when it ends")
    with tempfile.TemporaryDirectory() as folder:
        tiny = TinyRuns(name, build, Path(folder))
        for promise in CHECKS:
            began = time.monotonic()
            try:
                promise(tiny)
                verdict = "passed"
            except Exception as error:
                passed = False
                verdict = f"FAILED: {type(error).__name__}: {error}{find_place_in(name, error)}"
            title = promise.__name__.replace("_", " ")
            seconds = time.monotonic() - began
            say(f"{title:50} {seconds:5.1f} s  {verdict}")
            if promise is trains_the_same_twice and verdict != "passed":
                break
    advice = (
        f"mend methods/{name}.py, and the same command tries all again (docs/adding_a_method.md)"
    )
    say(
        f"{name} keeps all promises" if passed else f"{name} breaks those that say FAILED: {advice}"
    )
    return passed


def _refuse_work(where: str, call: Callable[[], object]) -> None:
    flops = count_flops(call)
    assert not flops, (
        f"{where} takes {flops:g} FLOPs, which nobody charges: let steps or start_stage compute it"
    )
