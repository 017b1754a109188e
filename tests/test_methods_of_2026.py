"""Methods of 2026 compute what their papers' equations say."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import methods
from benchmark.data.tokenizer import Vocabulary
from benchmark.instruments.conformance import ALONE, TinyRuns, make_tiny_config
from benchmark.ledger.records import StageDone, find_last
from benchmark.models import LanguageModel, load
from benchmark.models import build as build_model
from benchmark.models.growth import grow
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Size, Training
from benchmark.training import checkpoint, step
from benchmark.training.learner import Batch, Learner
from benchmark.training.method import Stage
from benchmark.training.optimizer import Moments, PhaseOptimizer
from benchmark.training.run import Run
from run_all import main
from tests.support import tiny_suite, toy
from tests.support.record_lines import read_stage_lines

FULL = Size(layers=3, hidden_size=32)


def build(name: str, options: dict[str, Any] | None = None) -> Any:
    """The method, whose attributes of its own the tests look at."""
    return methods.build(name, options)


def model_of(layers: int, architecture: str = "llama") -> LanguageModel:
    model = build_model(
        architecture, layers, 32, Vocabulary(50, ("a", "b")), 18, head_size=16, dropout=0.0
    )
    return model.double()


def stage_of(index: int, spent: float) -> Stage:
    """A stage of a stream with a budget of 10, whose last network has three layers."""
    info = replace(toy.stage(0).stream_info, budget=10.0, size=FULL)
    return replace(
        toy.stage(index), stream_info=info, spent=spent, build=lambda size: model_of(size.layers)
    )


def test_one_layer_is_expanded_once_and_late() -> None:
    """By hand: Bu's copies have theta_l = theta_1. Before tau the network stays small."""
    method = build("zero_one_layer", {"timing": 0.8})
    torch.manual_seed(0)
    small = method.start_stage(model_of(2), stage_of(0, 0.0))
    assert small.layers == 1 and small.hidden_size == 32
    assert method.start_stage(small, stage_of(1, 7.9)) is small
    trained = copy.deepcopy(small.state_dict())
    grown = method.start_stage(small, stage_of(2, 8.0))
    assert grown.layers == 3
    for name, weight in grown.state_dict().items():
        source = name
        for number in ("1", "2"):
            source = source.replace(f"layers.{number}.", "layers.0.")
        torch.testing.assert_close(weight, trained[source], rtol=0, atol=0, msg=name)
    assert method.start_stage(grown, stage_of(2, 9.0)) is grown


def test_the_network_is_expanded_with_the_last_stage_at_the_latest() -> None:
    """By hand: the last of three equal stages begins at 2/3 of the budget, before tau = 0.8."""
    method = build("zero_one_layer", {})
    stages = [stage_of(index, 10 * index / 3) for index in range(3)]
    assert stages[2].last
    model = model_of(2)
    layers = []
    for stage in stages:
        model = method.start_stage(model, stage)
        layers.append(model.layers)
    assert layers == [1, 1, 3]


def test_the_rate_is_wsds_over_the_stream() -> None:
    """Oracle: eta_max min(1, n / w, (1 - n) / d) by hand, at share n of the stream."""
    warmup = 0.1
    decay = 0.25
    [phase] = build("zero_one_layer", {"warmup": warmup, "decay": decay}).phases(stage_of(1, 5.0))
    assert phase.optimizer == "carry" and phase.schedule.over == "stream"
    for share in (0.0, 0.05, 0.1, 0.5, 0.75, 0.8, 0.9, 1.0):
        expected = min(1, share / warmup, (1 - share) / decay)
        assert phase.schedule.at(share) == pytest.approx(expected)


@pytest.mark.parametrize("architecture", ["gpt", "llama", "bert", "gemma"])
def test_a_network_without_layers_runs_through_a_stream(
    architecture: str, tiny_folder: Path
) -> None:
    """Oracle: without layers, the logits at a position depend only on its own token. By hand: the
    depth in each stage.
    """
    options = {"layers": 0, "timing": 0.5}
    tiny = TinyRuns(
        "zero_one_layer", lambda *_: methods.build("zero_one_layer", options), tiny_folder
    )
    run = tiny.make_run(tiny.make_config(architecture), "runs")
    run.train()
    lines = [read_stage_lines(run.store.stage_file(key)) for key in run.keys]
    headers = [next(line for line in stage if "layers" in line) for stage in lines]
    depth = run.config.model.ladder[-1].layers
    assert [line["layers"] for line in headers] == [0, 0, depth]
    first = load(run.store.stage_folder(run.keys[0]) / "model")
    tokens = torch.randint(4, 200, (1, 8))
    domains = torch.zeros(1, dtype=torch.long)
    last = torch.tensor([[7]])
    with torch.no_grad():
        other = torch.cat([torch.randint(4, 200, (1, 7)), tokens[:, 7:]], 1)
        torch.testing.assert_close(first(tokens, domains, last), first(other, domains, last))


def test_a_network_without_layers_is_reported(tmp_path: Path) -> None:
    """By hand: 0 layers of the ladder's last width. The model's attention cannot be compared."""
    suite = tiny_suite.write(tmp_path)
    tables = ["architectures", "attention_patterns", "representational_similarity"]
    command = ["run", str(suite), "--methods", "zero_one_layer", "--parallel", "1"]
    command += ["--set", "options.zero_one_layer={ layers = 0, timing = 0.3 }"]
    command += ["--set", f"tables={tables}"]
    command += ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "report")]
    assert main(command) == 0
    report = tmp_path / "report/tiny"
    assert "| 0 | 32 |" in (report / "architectures.md").read_text()
    measures = "".join(path.read_text() for path in (tmp_path / "runs").glob("similarity/*.jsonl"))
    assert "a model without layers has no heads" in measures


def test_nothing_is_copied_from_no_layer() -> None:
    """By hand: the message names the model's size and the one asked for."""
    with pytest.raises(ConfigError, match=r"L0_D32 to L2_D32"):
        grow(model_of(0).network, 2, 32)


@dataclass(frozen=True)
class Expanded:
    """A run that is expanded at its last stage, and the moments that its optimizers began with."""

    run: Run
    begun: list[Moments]


@pytest.fixture(scope="module", params=[0, 1])
def expanded(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Expanded:
    options = {"layers": request.param, "timing": 0.5}
    folder = tmp_path_factory.mktemp("expanded")
    tiny = TinyRuns("zero_one_layer", lambda *_: methods.build("zero_one_layer", options), folder)
    run = tiny.make_run(tiny.make_config("llama"), "runs")
    begun = []

    class Noting(PhaseOptimizer):
        def load_moments(self, moments: Moments, vocabulary: int) -> None:
            super().load_moments(moments, vocabulary)
            begun.append(copy.deepcopy(self.gather_moments()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "PhaseOptimizer", Noting)
        run.train()
    return Expanded(run, begun)


def test_the_cost_is_the_papers(expanded: Expanded) -> None:
    """Oracle: by hand, Bu's 6 B T (tau N_small + (1 - tau) N_large). Layers have N = 4 D^2 + 3 D F
    weights and compute all columns of a row. The head has V D weights and computes the text's
    columns. Attention adds 12 D T^2 per layer and row, which the paper leaves out.
    """
    run = expanded.run
    width = 32
    text = run.config.data.text_length
    columns = text + 1  # `<s>` before it
    one_layer = 6 * columns * (4 + 3 * 4) * width**2 + 12 * width * columns**2
    head = 6 * text * run.corpus.vocabulary.text * width
    done = [find_last(run.store.read_stage(key), StageDone) for key in run.keys]
    charged = sum(line.charged["flops"] for line in done if line)
    small = load(run.store.stage_folder(run.keys[0]) / "model").layers
    steps = 30
    tau = 2 / 3  # stages begin at 0, 1/3 and 2/3, and the last is the first after `timing` = 0.5
    layers = tau * small + (1 - tau) * 2
    assert charged == pytest.approx(
        run.config.training.batch_size * steps * (head + layers * one_layer)
    )


def test_moments_go_on(expanded: Expanded) -> None:
    """By hand: a copied layer has the moments of its source, a new random layer has none, and all
    other parameters keep theirs. A new domain's row has zeros.
    """
    run = expanded.run
    left = checkpoint.load(run.store.stage_folder(run.keys[1]) / "optimizer.pt")
    expected = {name: state for name, state in left.items() if not name.startswith("layers.")}
    for name, state in left.items():
        if name.startswith("layers.0."):
            part = name.removeprefix("layers.0.")
            expected |= {f"layers.{layer}.{part}": state for layer in range(2)}
    begun = expanded.begun[-1]
    assert begun.keys() == expected.keys()
    for name, state in expected.items():
        for key, value in state.items():
            found = begun[name][key]
            if found.dim() and len(found) > len(value):
                assert not found[len(value) :].any()
                found = found[: len(value)]
            torch.testing.assert_close(found, value, rtol=0, atol=0, msg=f"{name} {key}")
    assert all(state["step"] == 20 for state in begun.values())


def test_weights_of_the_stage_before_stay(expanded: Expanded) -> None:
    """By hand: all weights in the previous stage's file are in the expanded network. New layers of
    a network that had none differ, and are as drawn: with mean 0 and standard deviation 0.02.
    """
    run = expanded.run
    before = load_file(run.store.stage_folder(run.keys[1]) / "model/model.safetensors")
    inputs = run._load_inputs(run.config, 2)
    inputs.begin()
    grown = inputs.model.network.state_dict()
    assert all(torch.equal(grown[name][: len(weight)], weight) for name, weight in before.items())
    if "model.layers.0.self_attn.q_proj.weight" not in before:
        matrices = [weight for name, weight in grown.items() if name.endswith("q_proj.weight")]
        drawn = torch.cat(matrices)
        assert abs(drawn.mean()) < 0.002 and abs(drawn.std() - 0.02) < 0.002
        assert not torch.equal(*matrices)


def rows_of(count: int, memory: bool, rows: int | None = None) -> Batch:
    tokens = torch.randint(4, 50, (count, 18))
    return Batch(
        tokens=tokens[:, :-1],
        domains=torch.zeros(count, dtype=torch.long),
        positions=torch.arange(17).expand(count, -1),
        targets=tokens[:, 1:],
        global_size=rows or count,
        memory_sequences=count if memory else 0,
    )


def learner_of(model: LanguageModel, method: Any) -> Learner:
    return Learner(model, method.loss, Training(precision="fp32"), ALONE)


def assert_gradients(learner: Learner, expected: tuple[torch.Tensor, ...]) -> None:
    for parameter, gradient in zip(learner.parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_drawn_rows_are_the_models_own() -> None:
    """Oracle: the model's probabilities of the first token, and of the second after the likeliest
    first. They are compared with how often each token is drawn.
    """
    torch.manual_seed(2)
    model = model_of(1)
    for parameter in model.parameters():
        parameter.data.mul_(3)
    method = build("self_replay", {"sequences": 20_000})
    rows = torch.empty(0, 3)
    method.start_stage(model, replace(toy.stage(1), memory_sequences=lambda count: rows[:count]))
    drawn = method.memory
    assert drawn.shape == (20_000, 2)
    begin = torch.zeros(1, 1, dtype=torch.long)
    domain = torch.tensor([1])
    with torch.no_grad():
        odds = model(begin, domain, begin)[0, 0].softmax(-1)
        assert_frequencies(drawn[:, 0], odds)
        first = int(odds.argmax())
        pair = torch.tensor([[0, first]])
        after = model(pair, domain, begin + 1)[0, 0].softmax(-1)
    assert_frequencies(drawn[drawn[:, 0] == first, 1], after)


def assert_frequencies(drawn: torch.Tensor, odds: torch.Tensor) -> None:
    """Each frequency is within five standard deviations of its probability."""
    count = len(drawn)
    seen = torch.bincount(drawn, minlength=len(odds)) / count
    spread = (odds * (1 - odds) / count).sqrt()
    assert ((seen - odds).abs() < 5 * spread + 1 / count).all()


def test_self_replay_adds_the_divergence_from_the_model_before() -> None:
    """Oracle: sum_v pi(v) (log pi(v) - log theta(v)), averaged over positions, and 0 if theta
    equals pi. The step's gradient has lambda times its gradient.
    """
    torch.manual_seed(3)
    model = model_of(2)
    method = build("self_replay", {"strength": 0.7, "replay_ratio": 0.5, "sequences": 4})
    rows = torch.empty(0, 18)
    method.start_stage(model, replace(toy.stage(1), memory_sequences=lambda count: rows[:count]))
    before = copy.deepcopy(model)
    learner = learner_of(model, method)
    new = rows_of(4, memory=False)
    own = replace(rows_of(2, memory=False), source=1, weight=0.7)
    assert method.loss(learner, own).item() == pytest.approx(0, abs=1e-6)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))

    theta = model(own.tokens, own.domains, own.positions).log_softmax(-1)
    with torch.no_grad():
        pi = before(own.tokens, own.domains, own.positions).log_softmax(-1)
    divergence = (pi.exp() * (pi - theta)).sum(-1).mean()
    assert method.loss(learner, own).item() == pytest.approx(divergence.item(), rel=1e-5)
    whole = learner.language_model_loss(new) + 0.7 * divergence
    expected = torch.autograd.grad(whole, learner.parameters)
    learner.accumulate([new, own])
    assert_gradients(learner, expected)
    shares = [(source.domain, source.share) for source in method.phases(toy.stage(1))[0].sources]
    assert shares == [("new", 1.0), ("own", 0.5)]


@pytest.mark.parametrize("micro", [8, 3, 1])
def test_replay_by_loss_learns_the_worst_rows(micro: int) -> None:
    """Oracle: (B g + k m) / (B + k), with autograd's gradients g of the B new rows and m of the k
    memory rows with the largest mean loss, found by sorting all of them.
    """
    torch.manual_seed(4)
    model = model_of(2)
    method = build("loss_replay", {"candidates": 1.9, "kept": 0.25})  # of 4 rows, so 8 are drawn
    learner = learner_of(model, method)
    learner.batch_size = 4
    new = rows_of(4, memory=False)
    memory = rows_of(8, memory=True)
    logits = model(memory.tokens, memory.domains, memory.positions)
    losses = F.cross_entropy(logits.transpose(1, 2), memory.targets, reduction="none").mean(1)
    worst = losses.argsort(descending=True)[:2]
    sum_of_all = 4 * learner.language_model_loss(new) + losses[worst].sum()
    expected = torch.autograd.grad(sum_of_all / 6, learner.parameters)
    parts = []
    for start in range(0, 8, micro):
        cut = slice(start, start + micro)
        tensors = {
            name: getattr(memory, name)[cut]
            for name in ("tokens", "domains", "positions", "targets")
        }
        parts.append(replace(memory, **tensors))
    learner.accumulate([new])
    method.adjust_gradients(learner, parts)
    assert_gradients(learner, expected)


def test_equal_losses_give_no_more_rows() -> None:
    """By hand: half of four memory rows with equal losses are kept: two, beside four new rows."""
    torch.manual_seed(5)
    model = model_of(1)
    method = build("loss_replay", {"candidates": 1.0, "kept": 0.5})
    learner = learner_of(model, method)
    learner.batch_size = 4
    new = rows_of(4, memory=False)
    one = rows_of(1, memory=True, rows=4)
    tensors = {
        name: getattr(one, name).repeat_interleave(4, 0)
        for name in ("tokens", "domains", "positions", "targets")
    }
    whole = 4 * learner.language_model_loss(new) + 2 * learner.language_model_loss(one)
    expected = torch.autograd.grad(whole / 6, learner.parameters)
    learner.accumulate([new])
    method.adjust_gradients(learner, [replace(one, **tensors)])
    assert_gradients(learner, expected)


def test_what_the_model_writes_is_charged(tmp_path: Path) -> None:
    """Oracle: one more row costs a forward pass at each of its columns, so a stage's FLOPs rise
    linearly with the number of drawn rows.
    """
    flops = {}
    for rows in (8, 108, 208):
        tiny = TinyRuns("self_replay", methods.build, tmp_path / str(rows))
        config = make_tiny_config("self_replay").model_copy(update={"options": {"sequences": rows}})
        run = tiny.make_run(config, "store")
        run.train(last_stage=1)
        done = find_last(run.store.read_stage(run.keys[1]), StageDone)
        assert done
        flops[rows] = done.charged["flops"]
    assert flops[108] - flops[8] == pytest.approx(flops[208] - flops[108], rel=0.05)
    assert flops[108] > 1.5 * flops[8]
