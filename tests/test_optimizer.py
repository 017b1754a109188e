"""The optimizer: its kinds, rates by name, frozen parts, and moments that outlive a phase or a
stage.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import methods
from benchmark import cancel
from benchmark.instruments.conformance import TinyRuns, make_tiny_config
from benchmark.instruments.kills import Killed
from benchmark.models import load
from benchmark.settings.base import ConfigError
from benchmark.settings.decides import describe
from benchmark.settings.load import load_suite
from benchmark.settings.optimizers import OPTIMIZERS, Optimizer, Part, find_optimizer
from benchmark.training import stage
from benchmark.training.checkpoint import load_for_all
from benchmark.training.declaration import make_stage_keys
from benchmark.training.method import LifelongMethod, Phase
from benchmark.training.optimizer import PhaseOptimizer, find_rate_factors
from benchmark.training.processes import World
from benchmark.training.stage import StageRun
from benchmark.training.step import make_stage
from tests.support.published_models import published
from tests.support.record_lines import read_lines
from tests.support.tiny_suite import write

CONSTANT: Any = "constant"


def adafactor(groups: Any, training: Any, options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(groups, lr=0.0, weight_decay=training.weight_decay, **options)


def of_as_many_rows(state: Any, parameter: Any, vocabulary: int) -> Any:
    """Keep state with as many rows as the parameter. Adafactor's never has a parameter's shape."""
    return state if len(state.get("row_var", parameter)) == len(parameter) else {}


OWN = Optimizer(
    "adafactor", "Shazeer and Stern 2018", (Part(adafactor),), {"d": 2.0}, fit=of_as_many_rows
)
WEIGHT = "layers.0.attn.c_attn.weight"
NAMES = (WEIGHT, "layers.0.ln_1.weight", "embeddings.1.weight")
BY_HAND: dict[str, Any] = {
    "adamw": lambda p, name: torch.optim.AdamW(p, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01),
    "sgd": lambda p, name: torch.optim.SGD(p, momentum=0.8, weight_decay=0.01),
    "muon": lambda p, name: (
        torch.optim.Muon(p, momentum=0.8, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        if name == WEIGHT
        else BY_HAND["adamw"](p, name)
    ),
    "adafactor": lambda p, name: torch.optim.Adafactor(p, d=2.0, weight_decay=0.01),
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_each_kind_is_torchs(kind: str, tiny_folder) -> None:
    """Oracle: torch's own optimizer on some parameters, with the gradients that a run recorded. The
    run carried its optimizer through three stages of two training phases, and was killed once.
    """

    @dataclass
    class Notes(LifelongMethod):
        state: ClassVar = ("gradients", "weights")
        gradients: list = field(default_factory=list, init=False)
        weights: list = field(default_factory=list, init=False)
        optimizer = OWN if kind == "adafactor" else None

        def signature(self, stage):
            return {"notes": True}

        def phases(self, stage):
            return [
                Phase("a", 0.3, optimizer="carry", schedule=CONSTANT),
                Phase("look", 0.2, trains=False),
                Phase("b", 0.5, optimizer="carry", schedule=CONSTANT),
            ]

        def adjust_gradients(self, learner, memory):
            names = learner.model.map_parameter_names()
            noted = {names[name]: p for name, p in learner.named_parameters if names[name] in NAMES}
            self.gradients = [*self.gradients, {name: p.grad.clone() for name, p in noted.items()}]
            self.weights = [*self.weights, {name: p.detach().clone() for name, p in noted.items()}]

    tiny, options = (
        TinyRuns("notes", lambda name, options: Notes(), tiny_folder),
        {} if kind == "adamw" else {"momentum": 0.8},
    )
    chosen: dict[str, Any] = (
        {} if kind == "adafactor" else {"optimizer": kind, "optimizer_options": options}
    )
    config = tiny.make_config(
        **chosen, checkpoint_seconds=1e-9, weight_decay=0.01, betas=(0.9, 0.98), epsilon=1e-6
    )
    ladder = {"ladder": config.model.ladder[:1] * 3}
    config = config.model_copy(update={"model": config.model.model_copy(update=ladder)})
    calls = iter(range(1000))
    with pytest.raises(Killed), cancel.heed(lambda: next(calls) == 17 and kill()):
        tiny.make_run(config, "run").train()
    run = tiny.make_run(config, "run")
    run.train()
    noted = torch.load(run.store.stage_folder(run.keys[-1]) / "method.pt", weights_only=True)
    for name in NAMES:
        parameter = torch.nn.Parameter(noted["weights"][0][name].clone())
        by_hand = BY_HAND[kind]([parameter], name)
        by_hand.param_groups[0]["lr"] = config.training.learning_rate
        for gradient, before in zip(noted["gradients"], noted["weights"], strict=True):
            torch.testing.assert_close(parameter.detach(), before[name], rtol=1e-5, atol=1e-6)
            parameter.grad = gradient[name]
            by_hand.step()
    assert len(noted["weights"]) == 24


def test_a_checkpoint_is_let_go_before_steps_are_taken(tiny_folder: Path, monkeypatch) -> None:
    """Oracle: weak references to its weights and moments: on a GPU each would be held twice."""
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    config = tiny.make_config(checkpoint_seconds=1e-9)
    calls = itertools.count()
    begun = tiny.make_run(config, "let go")
    with pytest.raises(Killed), cancel.heed(lambda: next(calls) == 3 and kill()):
        begun.train()
    references: list[weakref.ref[torch.Tensor]] = []
    held = []

    def load(path: Path, world: World) -> Any:
        saved = load_for_all(path, world)
        if saved:
            moments = [state["exp_avg"] for state in saved["optimizer"].values()]
            references.extend(map(weakref.ref, [*saved["model"].values(), *moments]))
        return saved

    def take_steps(run: StageRun, *arguments: Any) -> None:
        gc.collect()
        held.append(sum(reference() is not None for reference in references))
        take_real_steps(run, *arguments)

    take_real_steps = StageRun.take_steps
    monkeypatch.setattr(stage, "load_for_all", load)
    monkeypatch.setattr(StageRun, "take_steps", take_steps)
    tiny.make_run(config, "let go").train()
    assert references and held and not any(held)


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_what_decays(kind: str, decay: str, tiny_folder: Path) -> None:
    """By hand: without a gradient, a step multiplies what decays by 1 - rate x decay. With
    "matrices" only the matrices of layers decay, not biases, gains of norms and embeddings.
    """
    config = make_tiny_config("naive", optimizer=kind, decay=decay, weight_decay=0.1)
    stream = TinyRuns("naive", methods.build, tiny_folder).make_run(config, "run").stream
    model = make_stage(config, 0, stream).build(config.model.ladder[1])
    names = model.map_parameter_names()
    named = [(names[name], parameter) for name, parameter in model.named_parameters()]
    before = {name: parameter.detach().clone() for name, parameter in named}
    for _, parameter in named:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = find_optimizer(kind)
    factors = [1.0] * len(named)
    PhaseOptimizer(optimizer, named, factors, config.training).step(0.5)
    for name, parameter in named:
        is_matrix = name.startswith("layers.") and parameter.dim() == 2
        factor = 1 - 0.5 * 0.1 if is_matrix or decay == "all" else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name])


def test_published_recipes_decay_matrices_alone(tmp_path: Path) -> None:
    """Oracle: the rule of docs/suite_keys.md: "matrices" is the default with a start model. A suite
    that says "all" has the identity that it had before the setting existed.
    """
    file = str(write(tmp_path))
    start = {"model.start": str(published(tmp_path / "start", "gpt")), "model.ladder": []}
    for said, expected in (({}, "matrices"), ({"training.decay": "all"}, "all")):
        run = methods.list_runs(load_suite(file, {**start, **said}))[0]
        assert run.training.decay == expected
    assert "decay" not in describe(run, "weights")["training"]


def kill() -> bool:
    raise Killed


def test_moments_fit_what_has_grown() -> None:
    """By hand: new rows of a vocabulary, here of three, have zero moments. Matrices and norms of
    another width start without moments.
    """
    training = make_tiny_config("naive").training
    small, large = (
        {"table": (2, 3), "map": (3, 3), "norm": (2,)},
        {"table": (3, 3), "map": (4, 4), "norm": (4,)},
    )
    old, new = (
        [(name, torch.nn.Parameter(torch.ones(s))) for name, s in shapes.items()]
        for shapes in (small, large)
    )
    before = PhaseOptimizer(OPTIMIZERS["adamw"], old, [1.0] * 3, training)
    for _, parameter in old:
        parameter.grad = torch.ones_like(parameter)
    before.step(0.1)
    after = PhaseOptimizer(OPTIMIZERS["adamw"], new, [1.0] * 3, training)
    after.load_moments(before.gather_moments(), vocabulary=3)
    kept = after.gather_moments()
    assert kept.keys() == {"table"} and kept["table"]["step"] == 1
    assert kept["table"]["exp_avg"].tolist() == [[pytest.approx(0.1)] * 3] * 2 + [[0.0] * 3]


@pytest.mark.parametrize("architecture", ["gpt", "bert", "llama"])
def test_parts_have_names_in_every_architecture(architecture: str, tiny_folder) -> None:
    """Oracle: the ladder: two layers, whose numbers are in the names of their parameters. All names
    differ, and one is the table of token embeddings.
    """
    config = make_tiny_config("naive", architecture)
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    stage = tiny.make_run(config, "run").config.model.ladder[-1]
    model = make_stage(config, 2, tiny.make_run(config, "run").stream).build(stage)
    names = set(model.map_parameter_names().values())
    assert len(names) == len(list(model.parameters()))
    assert {name.split(".")[1] for name in names if name.startswith("layers.")} == {"0", "1"}
    assert "embeddings.0.weight" in names


@dataclass
class Groups(LifelongMethod):
    rates: Mapping[str, float] = field(default_factory=dict)

    def signature(self, stage):
        return {"rates": dict(self.rates)}

    def phases(self, stage):
        return [Phase("adapt", lr_multipliers=self.rates, schedule=CONSTANT)]


def test_rates_by_name(tiny_folder) -> None:
    """Oracle: Adam's first step is the rate times a direction that depends only on the gradient, so
    at half the rate it moves half as far. Frozen parameters do not move, and a step then costs
    fewer FLOPs.
    """
    weights, flops = [], []
    for rates in (
        {"embeddings.*": 0.0, "layers.*": 0.0},
        {},
        {"*.ln_1.*": 0.5, "layers.*": 1.0, "embeddings.*": 0.0},
    ):
        tiny = TinyRuns("groups", lambda name, options: Groups(rates), tiny_folder)  # noqa: B023
        config = tiny.make_config()
        budget = config.budget.model_copy(update={"amount": 1.0})
        config = config.model_copy(update={"budget": budget, "domains": config.domains[:1]})
        run = tiny.make_run(config, "run")
        run.train()
        stage = run.store.stage_folder(run.keys[0])
        weights.append(load(stage / "model").state_dict())
        flops.append(
            next(line for line in read_lines(stage / "records.jsonl") if line["kind"] == "done")[
                "charged"
            ]["flops"]
        )
    frozen, free, groups = weights
    name = "network.transformer.h.0.ln_1.weight"
    begin = frozen[name]
    assert not torch.equal(begin, free[name])
    torch.testing.assert_close(groups[name] - begin, (free[name] - begin) / 2, rtol=1e-3, atol=1e-7)
    name = "network.transformer.h.0.mlp.c_fc.weight"
    torch.testing.assert_close(groups[name], free[name])
    assert torch.equal(
        groups["network.transformer.wte.weight"], frozen["network.transformer.wte.weight"]
    )
    assert flops[0] < flops[2] < flops[1]


def test_rates_that_mean_nothing_are_refused() -> None:
    """Oracle: the message names the pattern and the choices."""
    message = r"'layer.\*' fits no parameter; there are embeddings.\*.weight, layers.\*.ln_1.weight"
    names = ["embeddings.0.weight", "layers.0.ln_1.weight", "layers.1.ln_1.weight"]
    with pytest.raises(ConfigError, match=message):
        find_rate_factors(names, {"layer.*": 0.5}, "adapt")


def test_a_phase_that_freezes_all_is_refused(tiny_folder) -> None:
    """By hand: a rate of 0 for `*` freezes every parameter. The message must name the phase and the
    cure.
    """
    with pytest.raises(ConfigError, match="phase 'adapt' .*trains=False"):
        TinyRuns(
            "groups", lambda name, options: Groups({"*": 0.0}), tiny_folder
        ).train_undisturbed()


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimizer": "moun"}, "'moun'; .*adamw, muon, sgd"),
        ({"optimizer": "sgd", "optimizer_options": {"beta": 0.9}}, "sgd .*'beta'; .*momentum"),
        ({"optimizer": "muon", "optimizer_options": {"ns_steps": 5.5}}, "ns_steps of muon is 5.5"),
    ],
)
def test_what_no_kind_is_is_refused(training: dict[str, Any], message: str) -> None:
    """Oracle: the message names the value and the choices."""
    with pytest.raises(ValueError, match=message):
        make_tiny_config("naive", **training)


def test_what_torch_refuses_is_one_line() -> None:
    """Oracle: the message names the kind, its options and torch's reason."""
    sgd, parameter = (
        OPTIMIZERS["sgd"].replace_options({"momentum": -1}),
        torch.nn.Parameter(torch.ones(2)),
    )
    with pytest.raises(ConfigError, match=r"optimizer sgd .*'momentum': -1.*: Invalid momentum"):
        PhaseOptimizer(sgd, [("w", parameter)], [1.0], make_tiny_config("naive").training)


def test_keys_know_the_optimizer() -> None:
    """Oracle: the rule of stage keys: another computation has another key, also in the first stage
    of a method with its own optimizer, or whose optimizer is carried on and so is part of the
    stage's folder. A suite that names the default has the key of one that names
    none.
    """

    @dataclass
    class Own(LifelongMethod):
        optimizer = "muon"

    @dataclass
    class Keeps(LifelongMethod):
        def phases(self, stage):
            return [Phase("adapt", optimizer="carry")]

    texts = ["a", "b", "c"]
    settings: list[dict[str, Any]] = [{}, {"optimizer": "muon"}, {"optimizer": "sgd"}]
    settings.append({"optimizer": "sgd", "optimizer_options": {"momentum": 0.5}})
    naive = methods.build("naive")
    settings.append({"optimizer": "adamw"})  # the default
    stages = [make_stage_keys(make_tiny_config("naive", **each), naive, texts) for each in settings]
    for method in (Own(), Keeps()):
        stages.append(make_stage_keys(make_tiny_config("naive"), method, texts))
    keys = [stage.key for stage, *_ in stages]
    assert len(set(keys)) == 6
    assert keys[4] == keys[0]
