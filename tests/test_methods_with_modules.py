"""Methods of one file each that bring their own modules, text or kind of model."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import methods
from benchmark.instruments import conformance
from benchmark.instruments.conformance import CHECKS, TinyRuns, make_tiny_config
from benchmark.instruments.export import export_model
from benchmark.jobs.state import Survey
from benchmark.ledger.store import Store
from benchmark.models import load
from benchmark.models.kinds import extended
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.training.method import LifelongMethod, Phase, Source
from tests.support.thorough import THOROUGH, these_of

CLASSES = {
    "o_lora": "OLora",
    "feature_distillation": "FeatureDistillation",
    "generative_replay": "GenerativeReplay",
    "side_network": "SideNetwork",
}
TRIED = (
    conformance.checkpoints_compute_what_was_recorded,
    conformance.is_naive_where_it_says,
    conformance.works_on_the_clock_alone,
    conformance.resumes_identically_from_a_kill_in_each_phase,
)


def build(name: str, options: Mapping[str, Any]) -> LifelongMethod:
    """The method in a file of tests/examples/methods_with_modules, or one of the project."""
    if name not in CLASSES:
        return methods.build(name, options)
    module = importlib.import_module(f"tests.examples.methods_with_modules.{name}")
    try:
        return getattr(module, CLASSES[name])(**options)
    except TypeError as error:
        raise ConfigError(str(error)) from None


@pytest.mark.parametrize("name", these_of({"o_lora", "side_network"}, [*CLASSES]))
def test_own_modules_keep_the_promises_and_leave_the_project(name: str, tiny_folder: Path) -> None:
    """Oracle: the checks of `run_all.py check`. Plain transformers computes the exported model's
    logits, except for the side network, whose export is refused.
    """
    tiny = TinyRuns(name, build, tiny_folder)
    for check in CHECKS if THOROUGH else TRIED:
        check(tiny)
    run = tiny.make_run(tiny.make_config(), "undisturbed-gpt")
    stage = run.store.stage_folder(run.keys[-1])
    if name == "side_network":
        with pytest.raises(ConfigError, match="WithSide .*`to_plain`"):
            export_model(stage, tiny_folder / "plain")
        return
    export_model(stage, tiny_folder / "plain")
    plain, model = (
        AutoModelForCausalLM.from_pretrained(tiny_folder / "plain"),
        load(stage / "model"),
    )
    tokens, domains = torch.arange(4, 14).view(1, -1), torch.tensor([2])
    with torch.no_grad():
        expected = model(tokens, domains, torch.arange(10)[None])
        torch.testing.assert_close(
            plain(tokens).logits[..., : expected.shape[-1]], expected, rtol=1e-4, atol=1e-5
        )
        if (
            name == "o_lora"
        ):  # its modules stay beside the network, the others' are only for training
            encoder = load(stage / "model").make_encoder("logging")
            hidden = encoder.encode(tokens)
            torch.testing.assert_close(hidden, model.hidden(tokens, domains), rtol=1e-4, atol=1e-5)


def test_a_model_that_cannot_be_fine_tuned_is_refused_in_the_plan(tmp_path: Path) -> None:
    """Oracle: by hand: only the side network lacks `to_plain`, which only fine-tuning needs."""
    task = {"name": "t", "domain": "scipy", "docstrings": {}, "metric": "accuracy"}
    probed = {"tasks": [task], "finetuning": {"protocols": ["linear_probe"]}}
    tuned = {"tasks": [task], "finetuning": {"protocols": ["finetune"]}}

    def plan(name: str, overrides: dict[str, Any]) -> Survey:
        suite = load_suite("demo", overrides)
        run = methods.list_runs(suite)[0]
        own = run.model_copy(update={"method": name, "row": name, "options": {}})
        return Survey(suite, [own], build, Store(tmp_path))

    for name in CLASSES:
        plan(name, {"tasks": []})
        plan(name, probed)
        if name != "side_network":
            plan(name, tuned)
    with pytest.raises(ConfigError, match=r"'side_network'.* WithSide.*to_plain"):
        plan("side_network", tuned)


def test_a_model_whose_file_is_gone_is_told(tiny_folder: Path) -> None:
    """Oracle: the message names the class and the cure."""
    tiny = TinyRuns("side_network", build, tiny_folder)
    tiny.train_undisturbed()
    run = tiny.make_run(tiny.make_config(), "undisturbed-gpt")
    file = run.store.stage_folder(run.keys[-1]) / "model" / extended.FILE
    with safe_open(file, "pt") as opened:
        about = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    assert list(about) == [
        "model"
    ]  # the order of several keys, and so the file's bytes, would be random
    for kind in ("methods.gone:WithSide", "methods.naive:Naive", "methods.naive:Gone"):
        save_file(
            tensors, file, {"model": json.dumps({**json.loads(about["model"]), "class": kind})}
        )
        with pytest.raises(ConfigError, match=rf"a {kind.split(':')[1]} of .*the method's file"):
            extended.load(file.parent)


@dataclass
class Makes(LifelongMethod):
    """Notes the sequences that it made and got."""

    made: list = field(default_factory=list, init=False)
    given: list = field(default_factory=list, init=False)
    state = ("made", "given")

    def signature(self, stage):
        return {"makes": True}

    def phases(self, stage):
        return [Phase("adapt", sources=(Source("new", 0.5), Source("own", 0.5)))]

    def make_sequences(self, shape, generator):
        self.made = [*self.made, torch.randint(4, 300, shape, generator=generator)]
        return self.made[-1]

    def loss(self, learner, batch):
        if batch.source == 1:
            self.given = [*self.given, batch.tokens[:, 1:]]
        return super().loss(learner, batch)


def test_a_method_gets_the_rows_that_it_made(tiny_folder: Path) -> None:
    """Oracle: the rows that the method made, new ones in each step."""
    tiny = TinyRuns("makes", lambda name, options: Makes(), tiny_folder)
    run = tiny.make_run(tiny.make_config(batch_size=6), "run")
    run.train(0)
    noted = torch.load(run.store.stage_folder(run.keys[0]) / "method.pt", weights_only=True)
    made = torch.stack(noted["made"])
    assert made.shape == (10, 3, 16)
    assert torch.equal(made, torch.stack(noted["given"]))
    assert len(made.unique(dim=0)) == 10


def test_a_method_for_decoders_trains_no_masked_model(tiny_folder: Path) -> None:
    """Oracle: the message names the row, the architecture and the cure."""
    tiny = TinyRuns("generative_replay", build, tiny_folder)
    with pytest.raises(ConfigError, match="row 'generative_replay' .*causal.* bert "):
        tiny.make_run(make_tiny_config("generative_replay", "bert"), "run")
