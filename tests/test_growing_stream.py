"""A stream that grows: a stage depends on what came before it, and on nothing later."""

from __future__ import annotations

from pathlib import Path

import pytest

import methods
from benchmark.data.vocabulary import Vocabulary
from benchmark.instruments.conformance import Lab, tiny_config
from benchmark.models import build
from benchmark.models.prompts import meet
from benchmark.settings.config import RunConfig, Tokenizer
from benchmark.training.run import Run
from benchmark.training.stage_keys import stage_keys

FORESEES = {"scratch", "er_large"}  # controls that cannot be had without the whole stream


def config_of(method: str, *domains: int, architecture: str = "gpt") -> RunConfig:
    """The conformance suite's stream with these of its domains, in this order; its tokenizer knows the first only."""
    whole = tiny_config(method, architecture)
    ladder = whole.model.ladder[: len(domains)]
    return whole.model_copy(
        update={
            "domains": tuple(whole.domains[i] for i in domains),
            "model": whole.model.model_copy(update={"ladder": ladder}),
            "tokenizer": Tokenizer(vocabulary=400, sample_bytes=100_000, domains=(whole.domains[0].name,)),
        }
    )


def trained(lab: Lab, config: RunConfig, store: str) -> Run:
    run = lab.run(config, store)
    run.train()
    return run


def model_of(run: Run, stage: int) -> dict[str, bytes]:
    """The files of a stage's model."""
    folder = run.store.stage(run.keys[stage]) / "model"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", methods.names())
def test_a_later_domain_leaves_earlier_stages_as_they_are(tmp_path: Path, method: str) -> None:
    """Oracle: the same stages trained apart, without the later domain: keys and all files of the models."""
    lab = Lab(method, methods.build, tmp_path)
    short, long = trained(lab, config_of(method, 0, 1), "short"), trained(lab, config_of(method, 0, 1, 2), "long")
    shared = [stage for stage in range(2) if short.keys[stage] == long.keys[stage]]
    assert shared == ([0, 1] if method not in FORESEES else [0] if method == "scratch" else [])
    for stage in shared:
        assert model_of(short, stage) == model_of(long, stage)


@pytest.mark.parametrize("method", sorted(set(methods.names()) - FORESEES))
def test_the_order_of_later_domains_is_nothing_to_earlier_stages(method: str) -> None:
    """Oracle: keys hold what a stage has seen; what comes after, reordered or left out, is not in them."""
    new = methods.build(method)
    keys = {order: stage_keys(config_of(method, *order), new, [f"text {i}" for i in order]) for order in ORDERS}
    assert keys[0, 1, 2][:1] == keys[0, 2, 1][:1] == keys[0,][:1]
    assert keys[0, 1, 2][:2] == keys[0, 1]
    assert keys[0, 1, 2][1] != keys[0, 2, 1][1] and keys[0, 1, 2][2] != keys[0, 2, 1][2]
    assert keys[0, 1, 2][0] != keys[1, 0][0]


ORDERS = ((0, 1, 2), (0, 2, 1), (0, 1), (0,), (1, 0))


@pytest.mark.parametrize(("method", "matters"), [("mas", False), ("pnn", False), ("er", True), ("elle_exact", True)])
def test_a_setting_that_a_stage_does_not_use_is_not_in_its_key(method: str, matters: bool) -> None:
    """Oracle: the methods that draw from memory; how often a model is evaluated changes no weight."""
    config, new, texts = config_of(method, 0, 1), methods.build(method), ["one", "two"]
    keys = stage_keys(config, new, texts)
    data = config.data.model_copy(update={"memory_tokens": 17})
    other = stage_keys(config.model_copy(update={"data": data}), new, texts)
    assert (other[0] == keys[0], other[1] != keys[1]) == (True, matters)
    training = config.training.model_copy(update={"evaluations": 9})
    assert stage_keys(config.model_copy(update={"training": training}), new, texts) == keys


@pytest.mark.parametrize("architecture", ["bert", "bert_preln", "gpt"])
def test_meeting_domains_changes_nothing_but_their_rows(architecture: str) -> None:
    """Oracle: all other weights, bit for bit, and the rows of domains met before; the seed decides the new ones."""
    model, again = (build(architecture, 1, 16, Vocabulary(40, ("a",)), 18, head_size=16) for _ in range(2))
    again.load_state_dict(model.state_dict())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    meet(model, ("a", "b", "c"), seed=7)
    meet(again, ("a", "b", "c"), seed=7)
    after = model.state_dict()
    assert model.vocabulary.size == model.network.config.vocab_size == 43
    for name, tensor in before.items():
        assert after[name].equal(again.state_dict()[name])
        assert after[name][: len(tensor)].equal(tensor), name
    embedding = model.network.get_input_embeddings().weight
    assert 0.01 < embedding[41:].std() < 0.03 and embedding.requires_grad
    meet(model, ("a",), seed=8)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError, match="met a cannot go on with b"):
        meet(model, ("b",), seed=7)
