"""A stream that grows: a stage depends on what came before it, and on nothing later."""

from __future__ import annotations

import inspect
import math
import operator
import sys
from pathlib import Path

import numpy as np
import pytest

import methods
from benchmark.data.tokenizer import EOS, Vocabulary
from benchmark.instruments.conformance import ALONE, TinyRuns, make_tiny_config
from benchmark.ledger.records import Titled
from benchmark.ledger.runs import RunRecords, load_runs
from benchmark.models import build, load
from benchmark.settings.suite import RunConfig, Tokenizer
from benchmark.training.declaration import declare_stages, make_stage_keys
from benchmark.training.evaluate import measure_perplexities
from benchmark.training.run import Run
from tests.support.thorough import these_of

# methods that keep most from stage to stage: weights, data, networks, an optimizer, averages
KEEP_MOST = {"ewc", "er", "elle_exact", "pnn", "infinite_lr", "ema"}


def config_of(method: str, *domains: int, architecture: str = "gpt") -> RunConfig:
    """A run on these domains of the conformance suite's stream, in this order.

    Its tokenizer is trained on the stream's first domain only.
    """
    whole = make_tiny_config(method, architecture, batch_size=20)  # Rewarm's 5% of them are one row
    ladder = whole.model.ladder[: len(domains)]
    return whole.model_copy(
        update={
            "domains": tuple(whole.domains[i] for i in domains),
            "model": whole.model.model_copy(update={"ladder": ladder}),
            "tokenizer": Tokenizer(
                vocabulary=400, sample_bytes=100_000, domains=(whole.domains[0].name,)
            ),
        }
    )


def count_equal_stages(method: str) -> int:
    """How many first stages a method declares equally with and without a third domain."""
    short, long = (
        declare_stages(config_of(method, *domains), methods.build(method))
        for domains in ((0, 1), (0, 1, 2))
    )
    return [*map(operator.eq, short, long), False].index(False)


def asks_for_the_stream(method: str) -> bool:
    """Whether a method's file uses what it is told about later stages."""
    source = inspect.getsource(sys.modules[methods.find(method).__module__])
    return "stream_info" in source or "stage.last" in source


FORESEES = set(filter(asks_for_the_stream, methods.list_names()))


def trained(tiny: TinyRuns, config: RunConfig, store: str) -> Run:
    run = tiny.make_run(config, store)
    run.train()
    return run


def model_of(run: Run, stage: int) -> dict[str, bytes]:
    """The files of a stage's model."""
    folder = run.store.stage_folder(run.keys[stage]) / "model"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("method", these_of(FORESEES | KEEP_MOST, methods.list_names()))
def test_a_later_domain_leaves_earlier_stages_as_they_are(tiny_folder: Path, method: str) -> None:
    """Oracle: the same stages trained without the later domain: their keys, and all files of their
    models. Only a control may depend on later domains, and only in stages that declare it.
    """
    tiny = TinyRuns(method, methods.build, tiny_folder)
    short, long = (
        trained(tiny, config_of(method, 0, 1), "short"),
        trained(tiny, config_of(method, 0, 1, 2), "long"),
    )
    shared = [stage for stage in range(2) if short.keys[stage] == long.keys[stage]]
    assert shared == list(range(count_equal_stages(method)))
    assert len(shared) == 2 or methods.find(method).group == "controls"
    for stage in shared:
        assert model_of(short, stage) == model_of(long, stage)


@pytest.mark.parametrize(
    ("method", "matters"), [("mas", False), ("pnn", False), ("er", True), ("elle_exact", True)]
)
def test_a_setting_that_a_stage_does_not_use_is_not_in_its_key(method: str, matters: bool) -> None:
    """Oracle: by hand: memory's size matters to methods that draw from it, evaluations to none."""
    config, new, texts = config_of(method, 0, 1), methods.build(method), ["one", "two"]
    keys = make_stage_keys(config, new, texts)
    data = config.data.model_copy(update={"memory_tokens": 17})
    other = make_stage_keys(config.model_copy(update={"data": data}), new, texts)
    assert (other[0] == keys[0], other[1] != keys[1]) == (True, matters)
    training = config.training.model_copy(update={"evaluations": 9})
    assert make_stage_keys(config.model_copy(update={"training": training}), new, texts) == keys


@pytest.mark.parametrize("architecture", ["bert", "bert_preln", "gpt"])
def test_meeting_domains_changes_nothing_but_their_rows(architecture: str) -> None:
    """Oracle: the model before: all weights are equal bit for bit, except the rows of new domains.
    The seed decides the new rows.
    """
    model, again = (
        build(architecture, 1, 16, Vocabulary(40, ("a",)), 18, head_size=16) for _ in range(2)
    )
    again.load_state_dict(model.state_dict())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.add_domains(("a", "b", "c"), seed=7)
    again.add_domains(("a", "b", "c"), seed=7)
    after = model.state_dict()
    assert model.vocabulary.size == model.network.config.vocab_size == 43
    for name, tensor in before.items():
        assert after[name].equal(again.state_dict()[name])
        assert after[name][: len(tensor)].equal(tensor), name
    embedding = model.network.get_input_embeddings().weight
    assert 0.01 < embedding[41:].std() < 0.03 and embedding.requires_grad
    model.add_domains(("a",), seed=8)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


def records_of(run: Run) -> RunRecords:
    return next(
        records
        for records in load_runs(run.store.root, run.config.suite)
        if records.id == run.config.id
    )


@pytest.mark.parametrize("architecture", ["gpt", "bert"])
def test_models_before_a_domain_are_evaluated_on_it_once(
    tiny_folder: Path, architecture: str
) -> None:
    """Oracle: the saved models' perplexities on the longer stream. The shorter run's numbers stay
    the same, and nothing is evaluated twice.
    """
    tiny = TinyRuns("elle", methods.build, tiny_folder)
    short = trained(tiny, config_of("elle", 0, 1, architecture=architecture), "store")
    files = [short.store.stage_file(key) for key in short.keys]
    before, matrix = [file.read_bytes() for file in files], records_of(short).matrix
    longer = config_of("elle", 0, 1, 2, architecture=architecture)
    long = trained(tiny, longer, "store")
    after = [file.read_bytes() for file in files]
    assert all(
        new.startswith(old) and new.count(b"\n") == old.count(b"\n") + 1
        for old, new in zip(before, after, strict=True)
    )
    for key, measures in zip(long.keys, records_of(long).matrix, strict=True):
        model = load(long.store.stage_folder(key) / "model")
        expected = measure_perplexities(model, long.stream, ALONE)
        assert measures and measures.perplexity == pytest.approx(expected, rel=1e-6)
    assert records_of(short).matrix == matrix
    trained(tiny, longer.model_copy(update={"seed": 4, "row": "other"}), "store")
    trained(tiny, longer, "store")
    assert [file.read_bytes() for file in files] == after


@pytest.mark.parametrize("architecture", ["gpt", "bert"])
def test_a_probe_is_evaluated_and_never_trained_on(tiny_folder: Path, architecture: str) -> None:
    """Oracles: models and perplexities without the probe, and the same numbers if it is added
    later.
    """
    tiny = TinyRuns("elle", methods.build, tiny_folder)
    without = config_of("elle", 0, 1, architecture=architecture)
    probe = make_tiny_config("elle").domains[2]
    probed = without.model_copy(update={"probes": (probe,)})
    plain, run, later = (
        trained(tiny, c, s) for c, s in ((without, "plain"), (probed, "probed"), (probed, "plain"))
    )
    assert plain.keys == run.keys and [model_of(plain, i) for i in (0, 1)] == [
        model_of(run, i) for i in (0, 1)
    ]
    assert records_of(run).line.probes == [Titled(probe.name, probe.name)]
    matrices = [records_of(each).matrix for each in (run, later, plain)]
    for of_run, again, bare in zip(*matrices, strict=True):
        perplexity = bare.perplexity | {probe.name: of_run.perplexity[probe.name]}
        assert [*of_run.perplexity.items()] == [*perplexity.items()]
        assert perplexity[probe.name] == pytest.approx(again.perplexity[probe.name], rel=1e-6)


def test_bits_per_byte_are_the_cross_entropy_over_the_bytes_of_the_text(tiny_folder: Path) -> None:
    """Oracle: the definition: bits of all tokens over bytes of the decoded text. A uniform
    distribution over bytes costs 8 bits per byte, so a trained model costs less.
    """
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    run = trained(tiny, config_of("naive", 0), "store")
    text = run.corpus.domains[0]
    documents = np.split(text.valid, np.flatnonzero(text.valid == EOS))
    decoded = [run.corpus.tokenizer.decode(ids[ids != EOS].tolist(), False) for ids in documents]
    assert text.info["valid_bytes"] == sum(len(piece.encode()) for piece in decoded)
    [measure] = records_of(run).matrix
    assert measure
    bits = math.log2(measure.perplexity[text.name] or math.nan) * len(text.valid)
    assert measure.bits_per_byte[text.name] == pytest.approx(
        bits / sum(len(piece.encode()) for piece in decoded)
    )
    assert 1 < (measure.bits_per_byte[text.name] or 0) < 8


def test_the_suite_says_when_another_domain_would_change_the_tokenizer() -> None:
    """By hand: the note counts the two later domains, and names a cure. With the cure there is no
    note.
    """
    config = make_tiny_config("naive")
    note = config.tokenizer_note
    assert " later domains too (2), " in note and note.endswith('tokenizer.domains = ["json"].')
    for tokenizer in (Tokenizer(domains=("json",)), Tokenizer(folder="somewhere")):
        assert not config.model_copy(update={"tokenizer": tokenizer}).tokenizer_note
