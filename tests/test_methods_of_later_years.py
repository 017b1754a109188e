"""Methods of the last years compute what their papers' equations say."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import methods
from benchmark.data.tokenizer import Vocabulary
from benchmark.devices import evaluating
from benchmark.instruments.conformance import ALONE, TinyRuns
from benchmark.models import LanguageModel, load
from benchmark.models import build as build_model
from benchmark.models.kinds.lora import list_linear_maps
from benchmark.settings.suite import Size, Training
from benchmark.training import checkpoint
from benchmark.training.learner import Learner
from benchmark.training.method import LifelongMethod, Phase, Stage
from methods.ema import EMA
from tests.support import toy
from tests.support.record_lines import read_stage_lines


def build(name: str, options: dict[str, Any] | None = None) -> Any:
    """The method, typed so that tests may read attributes that only it has."""
    return methods.build(name, options)


@pytest.mark.parametrize(("spent", "budget"), [(1.0, 1.0), (2.0, 1.0), (4.0, 1.0), (600.0, 300.0)])
def test_ar_schedule_peaks_on_a_long_cosine(spent: float, budget: float) -> None:
    """Oracle: the equation of Roth et al. by hand. For equal stages it has cos(pi n / (n + 1)), as
    in their released code. In the middle of the decay the rate is halfway between peak and floor,
    and at the end it is the floor.
    """
    [phase] = build("ar_schedule", {"warmup": 0.2}).phases(
        replace(toy.stage(1), spent=spent, budget=budget)
    )
    peak = 0.1 + 0.9 / 2 * (1 + math.cos(math.pi * spent / (spent + budget)))
    assert phase.memory == 0.5
    expected = {0.1: peak / 2, 0.2: peak, 0.6: (peak + 0.1) / 2, 1.0: 0.1}
    assert [phase.schedule.at(x) for x in expected] == pytest.approx(
        list(expected.values()), abs=1e-6
    )
    assert build("ar_schedule").phases(toy.stage(0))[0].schedule is None


def test_an_oracle_is_trained_anew_with_all_that_was_given() -> None:
    """Oracle: the definition: each later stage begins with a new model of its size, and takes its
    own budget and that of all stages before it, on all domains so far.
    """
    fresh = {toy.stage(2).size: model_of()}
    stage = replace(toy.stage(2), spent=5.0, budget=2.0, build=fresh.__getitem__)
    method = build("oracle")
    assert method.start_stage(model_of(), stage) is fresh[stage.size]
    [phase] = method.phases(stage)
    assert phase.share * stage.budget == 7 and phase.domain == "seen"
    assert method.signature(toy.stage(0)) == {} and method.phases(toy.stage(0)) == [Phase("adapt")]


def model_of(layers: int = 2, architecture: str = "llama") -> LanguageModel:
    torch.manual_seed(0)
    return build_model(
        architecture, layers, 32, Vocabulary(50, ("a", "b", "c")), 18, head_size=16
    ).double()


def later(index: int, model: LanguageModel | None = None, **changes: Any) -> Stage:
    """A later stage, before which `model` was evaluated."""
    return replace(toy.stage(index), previous=lambda: copy.deepcopy(model).eval(), **changes)


def learner_of(model: LanguageModel, method: LifelongMethod) -> Learner:
    return Learner(model, method.loss, Training(precision="fp32"), ALONE)


def moved(model: LanguageModel) -> None:
    """Change the trainable weights, as training would."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)


def test_a_soup_is_the_mean_of_the_domains_models() -> None:
    """Oracle: the mean of all models trained so far. Each later model begins as the mean of the
    models before it, and so does its soup.
    """
    model = model_of()
    assert build("soup").start_stage(model, toy.stage(0)) is model
    trained = [copy.deepcopy(model).state_dict()]
    evaluated = model
    for index in (1, 2):
        method, soup = (
            build("soup"),
            {name: sum(weights[name] for weights in trained) / index for name in trained[0]},
        )
        model = method.start_stage(copy.deepcopy(model), later(index, evaluated))
        for name, weight in model.state_dict().items():
            torch.testing.assert_close(weight, soup[name], rtol=0, atol=1e-6)
            assert torch.equal(weight, method.eval_model.state_dict()[name])
        for _ in range(2):
            moved(model)
            method.after_step(learner_of(model, method))
        trained.append({name: weight.clone() for name, weight in model.state_dict().items()})
        evaluated = method.eval_model
        for name, weight in evaluated.state_dict().items():
            mean = sum(weights[name] for weights in trained) / (index + 1)
            torch.testing.assert_close(weight, mean, rtol=0, atol=1e-6)


def test_gstack_grows_once_by_its_factor_and_in_time() -> None:
    """Oracle: by hand: the model grows at the first stage before which a third of the stream's
    budget is spent, and layer i of its eight layers is a copy of layer i mod 2.
    """
    method = build("gstack", {"timing": 1 / 3})
    stream_info = replace(toy.stage(0).stream_info, budget=6.0)
    small = replace(
        toy.stage(1), stream_info=stream_info, ladder=(Size(layers=2, hidden_size=32),) * 3
    )
    model = model_of()
    old = [p.clone() for p in model.architecture.layers(model.network)[1].parameters()]
    assert method.start_stage(model, small).layers == 2 and method.growth is None
    grown = method.start_stage(model, replace(small, spent=2.0))
    assert method.growth and grown.layers == 8 and method.growth.layer_sources == [0, 1] * 4
    for upper in grown.architecture.layers(grown.network)[1::2]:
        assert all(torch.equal(a, b) for a, b in zip(upper.parameters(), old, strict=True))
    assert method.start_stage(grown, replace(small, spent=5.0)).layers == 8


def test_mer_draws_back_after_every_k_steps() -> None:
    """Oracle: theta_0 + gamma (theta_k - theta_0) written out for seven steps of SGD with k = 3,
    the seventh left as it is.
    """
    numbers = toy.read_numbers()
    weights = numbers["weights"]["first"]
    rows = toy.batch(numbers["domains"][0])
    method = build("mer", {"steps": 3, "gamma": 0.4})
    trained = toy.Toy(weights)
    method.start_stage(trained, toy.stage(1))
    learner = toy.learner(trained, method)
    seen = []
    for _ in range(7):
        learner.accumulate([rows])
        for p in learner.parameters:
            p.data.sub_(0.5 * p.grad)
        method.after_step(learner)
        seen.append([p.detach().clone() for p in learner.parameters])

    model = toy.Toy(weights)
    plain, begin, expected = (
        toy.learner(model, build("er")),
        [p.detach().clone() for p in model.parameters()],
        [],
    )
    for step in range(1, 8):
        plain.accumulate([rows])
        with torch.no_grad():
            for p in plain.parameters:
                p.sub_(0.5 * p.grad)
            if step in (3, 6):
                for p, start in zip(plain.parameters, begin, strict=True):
                    p.copy_(start + 0.4 * (p - start))
                    start.copy_(p)
        expected.append([p.detach().clone() for p in plain.parameters])
    torch.testing.assert_close(seen, expected, **toy.EXACT)


@pytest.mark.parametrize("architecture", ["llama", "gpt"])
def test_merged_adapters_are_a_change_of_rank_r(architecture: str) -> None:
    """Oracle: the outputs of the network with its adapters. By hand: only the matrices of the
    layers change, each by a matrix of the stage's rank.
    """
    method, before = build("lora_merged", {"ranks": [1, 3]}), model_of(architecture=architecture)
    adapted = method.start_stage(before, later(2, before))
    for parameter in adapted.adapters.parameters():
        parameter.data = 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
    method.after_step(learner_of(adapted, method))
    tokens = torch.arange(4, 14).view(1, -1)
    rows = tokens, torch.tensor([1]), torch.arange(9).view(1, -1)
    torch.testing.assert_close(method.eval_model(*rows), adapted.eval()(*rows), rtol=0, atol=1e-6)
    old, new = before.state_dict(), method.eval_model.state_dict()
    changes = [new[name] - old[name] for name in old if not torch.equal(new[name], old[name])]
    assert len(changes) == len(adapted.adapters[0]) and {
        int(torch.linalg.matrix_rank(c)) for c in changes
    } == {3}
    assert build("lora_merged").start_stage(before, toy.stage(0)) is before


@pytest.mark.parametrize("architecture", ["bert", "gpt"])
def test_das_masks_units_by_what_a_factor_on_them_would_do(architecture: str) -> None:
    """Oracle: central differences of the loss in a factor on each unit's output. Then by hand:
    importance is tanh of the standardised values, the larger of two domains, and gradients are
    multiplied by one minus importance.
    """
    model, method = model_of(architecture=architecture).train(), build("das")
    moved(model)  # otherwise biases are 0
    learner, generator = learner_of(model, method), torch.Generator().manual_seed(1)
    tokens = torch.randint(4, 50, (4, 12), generator=generator)
    batch = toy.batch({"tokens": [0] * 4, "targets": [0] * 4})
    batch = replace(
        batch, tokens=tokens, positions=torch.arange(11).expand(4, 11), targets=tokens[:, 1:]
    )
    with evaluating(model):
        method.on_batch(learner, [batch])
    number, eps = 3, 1e-5
    module = list_linear_maps(model)[number]
    losses = []
    for unit in range(5):
        values = []
        for factor in (1 + eps, 1 - eps):
            scale = torch.ones(len(method.total[number]), dtype=torch.float64)
            scale[unit] = factor
            hook = module.register_forward_hook(lambda _, __, output, scale=scale: output * scale)
            model.eval()
            values.append(learner.language_model_loss(batch).item())
            model.train()
            hook.remove()
        losses.append((values[0] - values[1]) / (2 * eps))
    assert method.total[number][:5].tolist() == pytest.approx(losses, abs=1e-6)
    known = [torch.full_like(total, 0.3) for total in method.total]
    total, method.importance = method.total[number], known
    learner.accumulate([batch])
    gradients = module.weight.grad.clone()
    method.adjust_gradients(learner, [])
    kept = 1 - ((total - total.mean()) / total.std()).tanh().abs().clamp(min=0.3)
    expected = gradients * (kept if architecture == "gpt" else kept.unsqueeze(1))
    torch.testing.assert_close(module.weight.grad, expected, rtol=0, atol=1e-6)
    assert not method.total


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tiny")


def test_the_infinite_learning_rate(folder, learning_rates) -> None:
    """Oracle: the four formulas of arXiv 2403.08763 at the middles of ten steps per stage. By hand:
    no stage continues from an annealed model, so the optimizer has made only the 24 steps of adapt.
    """
    options = {
        "warmup": 0.2,
        "cooldown": 0.6,
        "constant": 0.5,
        "minimum": 0.1,
        "anneal": 0.2,
        "replay_ratio": 0.25,
    }
    tiny = TinyRuns("infinite_lr", lambda name, _: methods.build(name, options), folder)
    run = tiny.make_run(tiny.make_config(), "infinite")
    run.train()
    middles = [(i + 0.5) / 10 for i in range(8)]
    warm = [share / 0.2 for share in middles if share < 0.2]
    cool = [
        0.5 + 0.25 * (1 + math.cos(math.pi * (share - 0.2) / 0.4))
        for share in middles
        if 0.2 < share < 0.6
    ]
    anneal = [0.5 * 0.2**0.25, 0.5 * 0.2**0.75]
    first = [*warm, *cool, *[0.5] * 2, *anneal]
    assert learning_rates == pytest.approx(
        [3e-3 * share for share in [*first, *[*[0.5] * 8, *anneal] * 2]], rel=1e-6
    )
    kept = checkpoint.load(run.store.stage_folder(run.keys[-1]) / "optimizer.pt")
    assert {state["step"].item() for state in kept.values()} == {24}  # eight of adapt per stage


def test_shares_that_leave_no_time_are_refused() -> None:
    """By hand: 0.9 and 0.2 of the first stage are more than it has. The message of `build` must
    name both.
    """
    with pytest.raises(ValueError, match=r"cooldown 0\.9 .*anneal 0\.2"):
        methods.build("infinite_lr", {"cooldown": 0.9, "anneal": 0.2})


def test_the_average_of_weights(folder) -> None:
    """Oracle: the recursion by hand over the weights after each of ten steps. A step is placed at
    its middle, so the first alpha is for 0.05 of the stage and each later one for 0.1.
    """
    kept: list[torch.Tensor] = []

    class Noting(EMA):
        def after_step(self, learner):
            super().after_step(learner)
            if learner.elapsed.stage:
                kept.append(learner.parameters[-1].detach().clone())

    tiny = TinyRuns("ema", methods.build, folder)
    run = tiny.make_run(tiny.make_config(), "ema")
    run.make_method = lambda: Noting(half_life=0.4)
    run.train(last_stage=0)
    folder_of_stage = run.store.stage_folder(run.keys[0])
    name, last = list(load(folder_of_stage / "trained").named_parameters())[-1]
    assert len(kept) == 10 and torch.equal(last, kept[-1])
    # the weights before the first step: a layer norm's bias, 0
    mean = torch.zeros_like(last)
    for step, weight in enumerate(kept):
        alpha = 2 ** (-(0.1 if step else 0.05) / 0.4)
        mean = alpha * mean + (1 - alpha) * weight
    torch.testing.assert_close(
        dict(load(folder_of_stage / "model").named_parameters())[name], mean, rtol=1e-6, atol=1e-9
    )


def test_only_new_blocks_learn(folder) -> None:
    """Oracle: the paper's definition: before its first step, a stage's model has the recorded
    perplexities of the previous stage's model. One block is new, and all other weights stay equal
    bit for bit.
    """
    tiny = TinyRuns("llama_pro", methods.build, folder)
    run = tiny.make_run(tiny.make_config(), "llama_pro")
    run.train()
    for index in (1, 2):
        before, after = (
            load(run.store.stage_folder(run.keys[i]) / "model") for i in (index - 1, index)
        )
        assert after.layers == before.layers + 1
        lines = [read_stage_lines(run.store.stage_file(run.keys[i])) for i in (index - 1, index)]
        ended, begins = ([line for line in each if line["kind"] == "evaluation"] for each in lines)
        assert begins[0]["phase"] == "start"
        assert begins[0]["perplexity"] == pytest.approx(ended[-1]["perplexity"], rel=1e-6)
        [done] = [line for line in lines[1] if line["kind"] == "done"]
        known, now = before.state_dict(), after.state_dict()
        for new, old in enumerate(done["growth"]["layer_sources"]):
            block = f"network.transformer.h.{new}."
            source = f"network.transformer.h.{old}."
            same = all(
                torch.equal(now[name], known[name.replace(block, source)])
                for name in now
                if name.startswith(block)
            )
            assert same != done["growth"]["layer_is_copy"][new]
        ends = [
            name
            for name in known
            if ".h." not in name and ".wte." not in name and "lm_head" not in name
        ]
        assert ends and all(torch.equal(now[name], known[name]) for name in ends)
