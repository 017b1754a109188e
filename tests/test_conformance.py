"""Every method keeps the promises of the interface. Oracles: the checks in
benchmark/instruments/conformance.py.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import methods
from benchmark.errors import UserError
from benchmark.instruments import conformance
from benchmark.instruments.conformance import CHECKS, TinyRuns, works_on_the_clock_alone
from benchmark.settings.base import ConfigError
from benchmark.training.method import LifelongMethod, Phase, Source
from tests.examples import made_up_methods
from tests.support.thorough import THOROUGH, only_thorough, these_of

ROOT = Path(__file__).parent.parent
ALONE = [check for check in CHECKS if check is not conformance.two_processes_equal_one]


# The methods that are tried in checks without an entry in TRIED_BY: of the paper's eight, the one
# that differs most. The made-up method `everything`, below, uses phases, sources, schedules, rates,
# an optimizer and averages at once. What methods compute, with adapters or experts too, has tests
# of its own. `run_all.py check NAME` and `make test-thorough` try each method in all checks.
TRIED = {"pnn"}
# A growing model must resume from a kill before and after its growth, and load at both sizes.
GROWS = {"pnn", "elle"}
# EWC acts at a share of the budget. For methods that do not, it is enough to try `everything`.
COUNT = {"ewc"}
TRIED_BY: dict[Callable[[TinyRuns], None], set[str]] = {
    # tests/test_golden.py trains three architectures, and growth is tested in each
    conformance.every_architecture_learns: set(),
    conformance.trains_under_every_budget: COUNT,
    conformance.checkpoints_compute_what_was_recorded: GROWS,
    conformance.resumes_identically_from_a_kill_in_each_phase: GROWS,
    # tests/test_pages_run.py tries these on the method of docs/adding_a_method.md
    conformance.compiled_equals_eager: set(),
    conformance.trains_the_same_twice: set(),
    conformance.bf16_is_finite: set(),
    conformance.draws_other_numbers_with_each_seed: set(),
}


@pytest.mark.parametrize("name", these_of(GROWS, methods.list_names()))
def test_conforms(name: str, tiny_folder) -> None:
    tiny = TinyRuns(name, methods.build, tiny_folder)
    for check in ALONE:
        if THOROUGH or name in TRIED_BY.get(check, TRIED):
            check(tiny)
    tiny.train_undisturbed("bert")  # masked tokens, not the next ones


def test_two_processes_equal_one(tiny_folder) -> None:
    """Oracle: one process: its models predict the same. One pair of processes trains all
    methods.
    """
    names = these_of({"elle", "agem", "ewc", "self_replay"}, methods.list_names())
    several = []
    for name in [*names, "everything"]:
        folder = tiny_folder / name
        folder.mkdir()
        (folder / "data").symlink_to(tiny_folder / "data")
        several.append(TinyRuns(name, made_up_methods.build, folder))
    conformance.two_processes_equal_one(*several)


TRIED_AT_ONCE = (
    conformance.budget_is_exceeded_by_one_step_at_most,
    conformance.checkpoints_compute_what_was_recorded,
    works_on_the_clock_alone,
    conformance.resumes_identically_from_a_kill_in_each_phase,
    conformance.trains_under_every_budget,
)


@pytest.fixture(scope="module")
def everything_tiny(tmp_path_factory) -> TinyRuns:
    return TinyRuns("everything", made_up_methods.build, tmp_path_factory.mktemp("everything"))


@pytest.mark.parametrize("check", TRIED_AT_ONCE)
def test_all_that_a_method_can_say_goes_together(
    check: Callable[[TinyRuns], None], everything_tiny
) -> None:
    """Oracle: the checks, on one method that uses all that a method can declare at once."""
    check(everything_tiny)


PAGE = (ROOT / "docs" / "adding_a_method.md").read_text(encoding="utf-8")
DOCUMENTED = dict(re.findall(r"`methods/(\w+)\.py`\n\n```python\n(.*?)```", PAGE, re.DOTALL))


def test_the_documented_method_is_short() -> None:
    """Oracle: forty lines of code at most. tests/test_pages_run.py checks and trains it."""
    [code] = DOCUMENTED.values()
    assert len(code.splitlines()) <= 40


@dataclass
class Wrong(LifelongMethod):
    """Breaks one promise on purpose."""

    state = ("omega",)

    how: str = ""

    omega: int = field(default=0, init=False)

    def signature(self, stage):
        if self.how == "asked":  # computes something to answer
            torch.eye(2) @ torch.eye(2)
        return super().signature(stage)

    def phases(self, stage):
        shares = {"too much": [2.0], "too many": [1 / 15] * 15}.get(self.how, [1.0])
        return [Phase(f"phase {i}", share=share) for i, share in enumerate(shares)]

    def start_stage(self, model, stage):
        self.kept, self.budget = [], stage.budget
        base = model.network.base_model
        if self.how == "first stage":
            base.wte.weight.data.mul_(0.5)
        if self.how == "not saved":
            base.ln_f.eps = 0.5
        if self.how == "GPT only":
            base.wte.weight.data.mul_(1.0)
        self.own = torch.nn.Linear(1, 1) if self.how == "own module" else None
        return model

    def loss(self, learner, batch):
        loss = super().loss(learner, batch)
        if self.how == "compiled" and torch.compiler.is_compiling():
            loss = loss + learner.parameters[0].square().sum()
        if self.own is not None:
            loss = loss + self.own(torch.ones(1)).sum()
        if self.how == "unseeded":
            loss = loss * np.random.rand()
        if self.how == "bf16" and learner.autocast._enabled:
            loss = loss * float("nan")
        return loss

    def adjust_gradients(self, learner, memory):
        self.omega += self.how == "remembers"
        if self.omega > conformance.STEPS:  # not in the first stage
            learner.parameters[0].grad.mul_(0.5)
        learner.record(steps=learner.metrics.get("steps", 0) + 1)
        if self.how == "counts":
            learner.parameters[0].grad.div_(round(self.budget) - 1)
        if (
            self.how == "state" and learner.metrics["steps"] > 1
        ):  # depends on what a resume does not restore
            self.calls = getattr(self, "calls", 0) + 1
            learner.parameters[0].grad.mul_(self.calls % 3)
        if self.how == "alone":
            learner.parameters[0].grad.add_(learner.world.size - 1)


def build(how: str, name: str, options: dict) -> LifelongMethod:
    """The wrong method, or the project's method of this name."""
    return Wrong(how) if name == "wrong" else methods.build(name, options)


@pytest.mark.parametrize(
    ("how", "check", "message"),
    [
        ("", conformance.options_are_documented, "option 'how' "),
        ("too much", conformance.phases_fill_each_stage, "sum to 2"),
        ("too many", conformance.budget_is_exceeded_by_one_step_at_most, "which may end at"),
        ("unseeded", conformance.trains_the_same_twice, "differs by .* take them from torch"),
        ("not saved", conformance.checkpoints_compute_what_was_recorded, "recorded, .* loaded"),
        (
            "first stage",
            conformance.is_naive_where_it_says,
            "differs by .* first stage: .*acts_first",
        ),
        ("remembers", conformance.is_naive_where_it_says, "differs by .* Naive has trained"),
        ("asked", works_on_the_clock_alone, "takes 16 FLOPs"),
        ("own module", works_on_the_clock_alone, "own gets gradients"),
        ("counts", conformance.trains_under_every_budget, "not finite"),
        (
            "state",
            conformance.resumes_identically_from_a_kill_in_each_phase,
            "differs by .* kills: .*`state`",
        ),
        pytest.param(
            "alone",
            conformance.two_processes_equal_one,
            "two processes: a process sees",
            marks=only_thorough,
        ),
        pytest.param(
            "compiled", conformance.compiled_equals_eager, "compiled", marks=only_thorough
        ),
        ("bf16", conformance.bf16_is_finite, "the loss is not finite"),
        ("GPT only", conformance.every_architecture_learns, "bert.*no attribute 'wte'"),
    ],
)
def test_each_check_can_fail(
    how: str, check: Callable[[TinyRuns], None], message: str, tiny_folder
) -> None:
    """Oracle: a method that breaks one promise fails that promise's check, which says what is
    wrong.
    """
    with pytest.raises((AssertionError, AttributeError, ArithmeticError, UserError), match=message):
        check(TinyRuns("wrong", functools.partial(build, how), tiny_folder))


@pytest.mark.parametrize(
    "without", [{"memory": 1.0}, {"domain": "previous"}, {"sources": (Source("memory"),)}]
)
def test_a_stage_without_a_row_of_its_domain_is_told(
    without: dict[str, Any], tiny_folder, monkeypatch
) -> None:
    """Oracle: by hand: each of three ways to leave out the new domain is refused, unless another
    phase trains on its rows.
    """
    monkeypatch.setattr(Wrong, "phases", lambda self, stage: [Phase("adapt", **without)])
    tiny = TinyRuns("wrong", functools.partial(build, ""), tiny_folder)
    with pytest.raises(AssertionError, match="stage 1: .*new domain"):
        conformance.phases_fill_each_stage(tiny)
    both = [Phase("recover", 0.5, **without), Phase("adapt", 0.5, memory=0.5)]
    monkeypatch.setattr(Wrong, "phases", lambda self, stage: both)
    conformance.phases_fill_each_stage(tiny)


def test_what_only_observes_meets_no_dropout(tiny_folder) -> None:
    """Oracle: the mode of the model: training in every `loss`, evaluation (without dropout) in
    every `on_batch`, as in phases that do not train.
    """
    seen: list[tuple[str, bool]] = []

    @dataclass
    class Looks(LifelongMethod):
        def phases(self, stage):
            return [Phase("look", 0.5, trains=False), Phase("adapt", 0.5)]

        def on_batch(self, learner, batches):
            seen.append(("on_batch", learner.model.training))

        def loss(self, learner, batch):
            seen.append(("loss", learner.model.training))
            return super().loss(learner, batch)

    TinyRuns("looks", lambda name, options: Looks(), tiny_folder).train_undisturbed()
    assert set(seen) == {("on_batch", False), ("loss", True)}


def tiny_runs_of(kind: type[LifelongMethod], folder: Path) -> TinyRuns:
    return TinyRuns(
        "wrong",
        lambda name, options: kind() if name == "wrong" else methods.build(name, options),
        folder,
    )


class OwnOptimizer(LifelongMethod):
    """Naive with another optimizer, which is part of stage keys although `signature` lacks it."""

    optimizer = "sgd"

    def options(self):
        return {}


def test_a_method_with_an_optimizer_of_its_own_does_something(tiny_folder) -> None:
    """Oracle: the rule of the check: a first stage with another key than Naive's may differ."""
    conformance.is_naive_where_it_says(tiny_runs_of(OwnOptimizer, tiny_folder))


@dataclass
class Misspelt(LifelongMethod):
    """Its hook is never called."""

    def adjust_gradient(self, learner, memory):
        """Never called."""


@dataclass
class Invented(LifelongMethod):
    """The loop has no such hook."""

    def end_stage(self, model, stage):
        """Never called."""


@dataclass
class Flagged(LifelongMethod):
    """Its flag is misspelled."""

    need_full_weights = True


@dataclass
class NoTuple(LifelongMethod):
    """Its state is a string."""

    state = "omega"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Misspelt, "adjust_gradient:.*adjust_gradients"),
        (Invented, "end_stage.*after_step"),
        (Flagged, "need_full_weights.*needs_full_weights"),
        (NoTuple, "'omega'"),
    ],
)
def test_names_that_python_takes_and_nobody_reads_are_told(
    kind: type[LifelongMethod], message: str, tiny_folder
) -> None:
    """Oracle: by hand: the message names what was written, and what was meant."""
    with pytest.raises(AssertionError, match=message):
        conformance.options_are_documented(tiny_runs_of(kind, tiny_folder))


class ReturnsNoModel(LifelongMethod):
    def start_stage(self, model, stage):
        model.train()


class ReturnsOnePhase(LifelongMethod):
    def phases(self, stage):
        return Phase("adapt")


class ReturnsNoTensor(LifelongMethod):
    def loss(self, learner, batch):
        return super().loss(learner, batch).item()


class ReturnsManyLosses(LifelongMethod):
    def loss(self, learner, batch):
        return super().loss(learner, batch).expand(2)


class LacksState(LifelongMethod):
    state = ("omega",)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ReturnsNoModel, "ReturnsNoModel.start_stage returned a NoneType"),
        (ReturnsOnePhase, r"ReturnsOnePhase.phases returned Phase\(name='adapt'"),
        (ReturnsNoTensor, r"`loss` returned \d+\.\d+"),
        (ReturnsManyLosses, r"`loss` returned tensor\(\["),
        (LacksState, "LacksState names 'omega' in `state`"),
    ],
)
def test_what_a_function_of_a_method_returns_is_refused_with_its_name(
    kind: type[LifelongMethod], message: str, tiny_folder
) -> None:
    """Oracle: by hand: the function or the attribute, and the value that it may not have."""
    with pytest.raises(ConfigError, match=message):
        conformance.trains_the_same_twice(tiny_runs_of(dataclass(kind), tiny_folder))


def test_two_processes_can_have_each_source_of_a_tiny_run(tiny_folder) -> None:
    """Oracle: by hand: a tenth of 8 rows is one row, too few for two processes. Of 20 it is two."""
    assert tiny_runs_of(Sources, tiny_folder).make_config().training.batch_size == 20


@dataclass
class Sources(LifelongMethod):
    """A tenth of each batch is from memory."""

    def phases(self, stage):
        memory = () if stage.first else (Source("memory", 0.1),)
        return [Phase("adapt", sources=(Source("new", 0.9), *memory))]


@dataclass
class Foresees(LifelongMethod):
    """Its share of memory depends on later stages of the stream."""

    of: str = ""
    says: bool = False

    def seen(self, stage):
        return {
            **vars(stage.stream_info),
            "size": stage.stream_info.size.layers,
            "last": stage.last,
        }[self.of]

    def signature(self, stage):
        return {"of": self.seen(stage)} if self.says else {"of": self.of}

    def phases(self, stage):
        return [Phase("adapt", memory=self.seen(stage) / 1e3)]


@pytest.mark.parametrize("of", ["stages", "size", "budget", "last"])
def test_phases_that_see_what_comes_later_must_say_so(of: str, tiny_folder) -> None:
    """Oracle: by hand: if phases depend on later stages and signatures do not, a stage of one
    stream passes for another stream's. With signatures that do, the check passes.
    """

    def tiny(says: bool) -> TinyRuns:
        return TinyRuns("wrong", lambda name, options: Foresees(of, says), tiny_folder)

    with pytest.raises(AssertionError, match=r"stage 0: .*`stage\.stream_info`.*`signature`"):
        conformance.phases_fill_each_stage(tiny(False))
    conformance.phases_fill_each_stage(tiny(True))
