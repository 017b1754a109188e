"""Identities of methods, bit for bit: a method that is switched off is Naive or ER. Replay with an
empty memory is Naive, and so are most methods on a stream of one domain.

The runs are tiny (three stages of ten steps, as in the conformance checks), but real: text, models,
loop and records.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import methods
from analysis.study import Study
from benchmark.instruments.conformance import (
    DROPOUT,
    TinyRuns,
    make_tiny_config,
    resumes_identically_from_a_kill_in_each_phase,
)
from benchmark.ledger.runs import load_runs
from benchmark.settings.base import digest
from tests.support.record_lines import read_stage_lines

ELLE_OFF = {"width": False, "depth": False, "recover": 0, "noise": 0, "prompts": False}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> TinyRuns:
    return TinyRuns("naive", methods.build, tmp_path_factory.mktemp("tiny"))


def configured(method: str, options: dict[str, Any] | None = None, **overrides: Any):
    """The tiny configuration of a method, with `overrides` for some of its keys."""
    content = make_tiny_config(method).model_dump()
    for key, value in overrides.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    return type(make_tiny_config(method)).model_validate({**content, "options": options or {}})


def train(
    tiny: TinyRuns, method: str, options: dict[str, Any] | None = None, **overrides: Any
) -> list[dict[str, torch.Tensor]]:
    """Weights after each stage, trained in a folder that no other run shares stages with."""
    return tiny.train(
        configured(method, options, **overrides), digest([method, options, overrides])
    )


def differ(ours, theirs) -> list[int]:
    """The stages after which the weights differ in any bit."""
    return [
        stage
        for stage, (a, b) in enumerate(zip(ours, theirs, strict=True))
        if a.keys() != b.keys() or any(not torch.equal(a[name], b[name]) for name in a)
    ]


@pytest.mark.parametrize(
    ("method", "options", "same_as"),
    [
        ("ewc", {"strength": 0}, "naive"),
        ("mas", {"strength": 0}, "naive"),
        ("logit_kd", {"distillation": 0}, "er"),
        ("derpp", {"alpha": 0, "beta": 1}, "er"),
        ("elle", ELLE_OFF, "er"),
        ("er", {"replay_ratio": 0}, "naive"),
        ("agem", {"reference": 0}, "naive"),
    ],
)
def test_switched_off(method: str, options: dict[str, Any], same_as: str, tiny) -> None:
    """Oracle: Naive or ER, trained separately. Switched on, the method differs from it, except
    A-GEM, which finds no conflict in ten steps.
    """
    expected = train(tiny, same_as)
    assert differ(expected, train(tiny, method, options)) == []
    assert differ(expected, train(tiny, method)) in ([1, 2], [0, 1, 2]) or method == "agem"


@pytest.mark.parametrize(
    ("method", "options"),
    [("er", {}), ("agem", {}), ("logit_kd", {}), ("derpp", {}), ("elle", ELLE_OFF)],
)
def test_an_empty_memory_is_naive(method: str, options: dict[str, Any], tiny) -> None:
    """Oracle: Naive, which reads no memory."""
    empty = {"data": {"memory_tokens": 0}}
    assert differ(train(tiny, "naive"), train(tiny, method, options, **empty)) == []


@pytest.mark.parametrize(
    "method",
    [
        "ewc",
        "mas",
        "agem",
        "er",
        "logit_kd",
        "derpp",
        "joint",
        "rewarm",
        "merge",
        "er_large",
        "elle",
    ],
)
def test_a_stream_of_one_domain_is_naive(method: str, tiny) -> None:
    """Oracle: Naive after its first stage. Scratch is not in the list, because it draws its rows in
    another way.
    """
    content = make_tiny_config("naive").model_dump()
    settings = {"domains": content["domains"][:1], "tokenizer": {"domains": []}}
    settings["model"] = {"ladder": content["model"]["ladder"][:1]}
    options = {"prompts": False} if method == "elle" else {}
    assert differ(train(tiny, "naive", **settings), train(tiny, method, options, **settings)) == []


def test_merging_with_weight_0_keeps_the_old_model(tiny) -> None:
    """Oracle: the model of the stage before. By default, the mean of the old and the new model."""
    first, second, third = train(tiny, "merge", {"weight": 0})
    for old, new in (
        (first, second),
        (second, third),
    ):  # except for the row of a prompt, which each stage adds
        assert all(torch.equal(new[name][: len(tensor)], tensor) for name, tensor in old.items())
    new, mean = train(tiny, "merge", {"weight": 1})[1], train(tiny, "merge")[1]
    for name in mean:
        torch.testing.assert_close(mean[name], (second[name] + new[name]) / 2, rtol=0, atol=1e-7)


def stage_lines(tiny: TinyRuns, method: str, kind: str) -> list[list[Any]]:
    run = tiny.make_run(configured(method), digest([method, None, {}]))
    run.train()
    lines = [read_stage_lines(run.store.stage_file(key)) for key in run.keys]
    return [[line for line in stage if line["kind"] == kind] for stage in lines]


def test_scratch_spends_everything_in_its_last_stage(tiny) -> None:
    """Oracle: by hand: 0, 0 and 30 of 3 x 10 steps, at the final size. The last stage is evaluated
    at its start, half-way and at its end.
    """
    done, sizes = stage_lines(tiny, "scratch", "done"), stage_lines(tiny, "scratch", "stage")
    assert [line["charged"]["steps"] for (line,) in done] == [0, 0, 30]
    assert (sizes[2][0]["layers"], sizes[2][0]["hidden_size"]) == (2, 32)
    evaluations = stage_lines(tiny, "scratch", "evaluation")
    assert evaluations[:2] == [[], []]
    assert [(line["phase"], line["step"], line["fraction"]) for line in evaluations[2]] == [
        ("start", 0, 0.0),
        ("train", 15, 0.5),
        ("train", 30, 1.0),
    ]
    store = tiny.make_run(configured("scratch"), digest(["scratch", None, {}])).store.root
    ends = Study("conformance", load_runs(store, "conformance")).ends
    assert list(ends["stage"]) == [2] and np.isfinite(ends["ap"]).all()


def with_options(options: dict[str, Any], name: str, given: dict[str, Any]):
    return methods.build(name, {**options, **given})


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fisher of rows": (
        "ewc",
        {"strength": 1e3, "share": 0.3},
    ),  # several steps, to be killed between them
    "importances": ("mas", {"strength": 1e-3, "share": 0.3}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_resume_identically(name: str, tiny_folder) -> None:
    """Oracle: the run without kills, against kills in every phase of every stage. At its end the
    method has measured importances.
    """
    method, options = VARIANTS[name]
    tiny = TinyRuns(method, functools.partial(with_options, options), tiny_folder)
    resumes_identically_from_a_kill_in_each_phase(tiny)
    run = tiny.make_run(tiny.make_config(dropout=DROPOUT), "killed")
    state = torch.load(run.store.stage_folder(run.keys[-1]) / "method.pt", weights_only=True)
    assert len(state["importance"]) > 1
