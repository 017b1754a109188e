"""Models that are spread over processes (`training.shard`)."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import methods
from benchmark import cancel
from benchmark.data.tokenizer import Vocabulary
from benchmark.instruments.comparisons import load_weights
from benchmark.instruments.conformance import (
    ALONE,
    TinyRuns,
    call_in_two_processes,
    make_tiny_config,
)
from benchmark.models import LanguageModel, build
from benchmark.settings.base import ConfigError
from benchmark.training.batch_parts import check_method
from benchmark.training.processes import join
from benchmark.training.run import Run
from benchmark.training.shards import Shards, take_local_part
from tests.support.record_lines import read_stage_lines

# architecture and training per method: growth and memory, moments and a branch, a teacher
TRIED: dict[str, tuple[str, dict[str, Any]]] = {
    "elle": ("llama", {"max_grad_norm": 0.5}),
    "infinite_lr": ("gpt", {"batch_size": 20}),
    "logit_kd": ("bert", {"micro_batch_size": 3}),
}


def tiny_of(name: str, folder: Path) -> TinyRuns:
    return TinyRuns(name, methods.build, folder / name)


def perplexities(run: Run) -> list[dict[str, float]]:
    lines = [line for key in run.keys for line in read_stage_lines(run.store.stage_file(key))]
    return [line["perplexity"] for line in lines if line["kind"] == "evaluation"]


def _train_until_stopped_twice(folder: Path) -> None:
    torch.set_default_dtype(torch.float64)
    with join() as world:
        whole = model()
        shards = Shards(whole, world)
        held = sum(take_local_part(parameter).numel() for parameter in shards.model.parameters())
        assert held < 0.6 * whole.parameters_count  # small tensors are padded
        for name, (architecture, training) in TRIED.items():
            tiny = tiny_of(name, folder)
            for steps in (13, 10):  # in the middle of the second stage, and of the third
                calls = count()
                stop = lambda calls=calls, steps=steps: world.leads and next(calls) == steps  # noqa: E731
                config = tiny.make_config(architecture, shard=True, **training)
                with pytest.raises(cancel.Stopped), cancel.heed(stop):
                    tiny.make_run(config, "two", world).train()


def test_two_shards_equal_one_process_and_one_goes_on_from_their_checkpoint(tmp_path: Path) -> None:
    """Oracle: one process without shards or stops: the weights to 1e-6, in double precision.

    Two processes each hold about half of the weights, by counting. They are stopped in the second
    stage, go on, and are stopped in the third stage, which one process ends alone.
    """
    torch.set_default_dtype(torch.float64)
    try:
        expected, tinies = {}, {name: tiny_of(name, tmp_path) for name in TRIED}
        for name, (architecture, training) in TRIED.items():
            run = tinies[name].make_run(tinies[name].make_config(architecture, **training), "one")
            run.train()
            expected[name] = load_weights(run), perplexities(run)
        call_in_two_processes(_train_until_stopped_twice, tmp_path)
        for name, (architecture, training) in TRIED.items():
            run = tinies[name].make_run(
                tinies[name].make_config(architecture, shard=True, **training), "two"
            )
            run.train()
            weights, measured = expected[name]
            for mine, theirs in zip(load_weights(run), weights, strict=True):
                assert mine.keys() == theirs.keys()
                for part, tensor in mine.items():
                    torch.testing.assert_close(
                        tensor, theirs[part], rtol=0, atol=1e-6, msg=f"{name}: {part}"
                    )
            for perplexity, of_whole in zip(perplexities(run), measured, strict=True):
                assert perplexity == pytest.approx(of_whole, rel=1e-5)  # sums of single precision
            lines = [
                line for key in run.keys for line in read_stage_lines(run.store.stage_file(key))
            ]
            assert [line["kind"] for line in lines].count("resumed") == 2, name
    finally:
        torch.set_default_dtype(torch.float32)


def model() -> LanguageModel:
    return build("gpt", 2, 32, Vocabulary(100), sequence_length=18, head_size=16)


def test_a_block_computes_again_in_the_backward_pass() -> None:
    """Oracle: by hand: the feed-forward network is called twice. The gradients are those of a model
    that keeps its activations.
    """
    plain, calls = model(), []
    shards = Shards(plain, ALONE)
    shards.model.network.transformer.h[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    tokens, columns = torch.arange(4, 21).view(1, -1), torch.arange(16).view(1, -1)
    for each in (plain, shards.model):
        each.eval().compute_mean_loss(
            tokens, torch.zeros(1).long(), columns, tokens[:, 1:]
        ).backward()
    assert len(calls) == 2
    for mine, theirs in zip(shards.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_shards_on_a_gpu_without_bf16_compute_in_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the rule: shards refuse fp16, so `precision = "auto"` gives them fp32."""
    monkeypatch.setattr("benchmark.training.run.choose_precision", lambda *arguments: "fp16")
    run = tiny_of("naive", tmp_path).make_run(make_tiny_config("naive", shard=True), "run")
    run.train()
    assert (
        read_stage_lines(run.store.stage_file(run.keys[0]))[0]["provenance"]["precision"] == "fp32"
    )


def test_what_needs_whole_weights_is_refused_before_any_run() -> None:
    """Oracle: the message names the row, or the settings, and the cure."""
    with pytest.raises(ConfigError, match=r"row 'ewc': .*whole weights.*training\.shard"):
        check_method(make_tiny_config("ewc", shard=True), methods.build("ewc"))
    with pytest.raises(ConfigError, match=r"row 'er': .*'muon' .*whole weights"):
        check_method(make_tiny_config("er", shard=True, optimizer="muon"), methods.build("er"))
    with pytest.raises(ValueError, match="shard .*compile .*'fp16'"):
        make_tiny_config("naive", shard=True, compile=True)
