"""A stream that begins with a published model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import (
    AutoTokenizer,
)

import methods
import run_all
from analysis.study import find_header
from benchmark.data.tokenizer import Vocabulary, load_tokenizer
from benchmark.data.tokens import Corpus
from benchmark.instruments.checkpoints import open_folder
from benchmark.instruments.conformance import ALONE, TinyRuns
from benchmark.jobs import study
from benchmark.ledger import archive
from benchmark.ledger.runs import load_runs
from benchmark.models import load
from benchmark.models.growth import grow
from benchmark.models.start_model import load_start
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.suite import Model
from benchmark.training.batch_parts import Draw
from benchmark.training.evaluate import measure_perplexities
from tests.support import tiny_suite
from tests.support.published_models import config_of, published
from tests.support.small_networks import RMS_FAMILIES, network
from tests.support.thorough import these_of

LARGER = [{"layers": 2, "hidden_size": 48}, {"layers": 3, "hidden_size": 64}]
STARTED = ["naive", "elle", "elle_exact", "ewc", "agem", "pnn", "lora", "er_large", "scratch"]


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        # EWC and A-GEM begin as Naive does, and exact growth is tried on BERT
        *(
            (method, "gpt")
            for method in these_of(["naive", "elle", "pnn", "lora", "er_large", "scratch"], STARTED)
        ),
        *((method, "bert") for method in these_of(["elle_exact", "pnn"], STARTED)),
    ],
)
def test_methods_begin_with_the_model(tiny_folder: Path, method: str, kind: str) -> None:
    """Oracles: the start model's own perplexity (in the records), the requested sizes, and the
    perplexity of the last model when it is loaded again.
    """
    start = published(tiny_folder / "start", kind)
    tiny = TinyRuns(method, methods.build, tiny_folder)
    run = tiny.make_run(config_of(method, start, ladder=LARGER), "store")
    run.train()
    records = load_runs(run.store.root, "conformance")[0]
    assert run.config.start
    untouched = measure_perplexities(
        load_start(run.config.start, run.corpus.vocabulary), run.stream, ALONE
    )
    assert records.start.perplexity == pytest.approx(untouched)
    head = find_header(records.stages[-1])
    grown = method in ("elle", "elle_exact", "er_large", "scratch")
    assert (head.layers, head.hidden_size) == ((3, 64) if grown else (1, 32))
    last = load(run.store.stage_folder(run.keys[-1]) / "model")
    assert measure_perplexities(last, run.stream, ALONE) == pytest.approx(
        records.matrix[-1].perplexity, rel=1e-6
    )
    first = run.store.stage_folder(run.keys[0]) / "model"
    assert not run.config.tokenizer_note  # no tokenizer is trained, so no domain changes it
    tokenizer = AutoTokenizer.from_pretrained(first)
    assert tokenizer.convert_tokens_to_ids("<domain:json>") == run.corpus.text_vocabulary
    assert tokenizer.bos_token == AutoTokenizer.from_pretrained(start).bos_token


def test_a_study_holds_what_the_untouched_model_measured(tiny_folder: Path) -> None:
    """Oracle: the run's own record of the start model's perplexities."""
    run = TinyRuns("naive", methods.build, tiny_folder).make_run(
        config_of("naive", published(tiny_folder / "start", "gpt")), "runs"
    )
    run.train()
    suite = load_suite("demo").model_copy(update={"name": run.config.suite})
    study.collect(suite, [run.config], run.store.root, tiny_folder / "study", methods.build)
    places = run.store.root, archive.unpack(tiny_folder / "study", tiny_folder / "unpacked").root
    [measured], [held] = (
        [records.start for records in load_runs(place, suite.name)] for place in places
    )
    assert held == measured and set(held.perplexity) >= {
        domain.name for domain in run.config.domains
    }


def test_masked_models_meet_no_rows_without_a_token(tiny_folder: Path) -> None:
    """Oracle: the tokenizer's largest id, by its library: the seven embedding rows beyond it belong
    to no text. A saved model, whose tokenizer has tokens for them too, keeps the same largest id.
    """
    start = published(tiny_folder / "start", "bert")
    run = TinyRuns("naive", methods.build, tiny_folder).make_run(config_of("naive", start), "store")
    largest = max(AutoTokenizer.from_pretrained(start).get_vocab().values())
    assert run.corpus.text_vocabulary == largest + 8
    draw = Draw(domain="new", fresh=4000)
    tokens = run.stream.make_batch(0, draw, 0, range(4000)).tokens
    assert int(tokens.max()) == largest
    run.train()
    model, tokenizer = open_folder(run.store.stage_folder(run.keys[0]) / "model")
    saved = Corpus(tokenizer.bpe, model.vocabulary.text, (), special=tokenizer.special)
    assert saved.token_count == run.corpus.token_count == largest + 1


def test_the_key_holds_the_model_and_not_where_it_lies(tiny_folder: Path) -> None:
    """Oracle: the same files in another folder have the same keys. A second layer changes them."""
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    here, there = (published(tiny_folder / name, "gpt") for name in ("here", "there"))
    other = published(tiny_folder / "other", "gpt", n_layer=2)
    first, same, different = (
        tiny.make_run(config_of("naive", folder), "store") for folder in (here, there, other)
    )
    assert first.keys == same.keys and first.config.id == same.config.id
    assert not set(first.keys) & set(different.keys) and first.config.id != different.config.id


def flip(file: Path) -> None:
    """Flip a bit in the last eighth of a file. In a file of weights, it is a bit of a weight."""
    content = bytearray(file.read_bytes())
    content[len(content) * 7 // 8] ^= 1
    file.write_bytes(content)


def test_a_start_model_that_changed_since_the_plan_is_not_trained_on(tmp_path: Path) -> None:
    """Oracle: by hand: one bit of a weight is flipped, which no library notices. With the bit
    flipped back, the model loads.
    """
    folder = published(tmp_path / "start", "gpt")
    start = config_of("naive", folder).start
    assert start
    vocabulary = Vocabulary(400, (), load_tokenizer(folder).special)
    flip(folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"\bstart .*\(hash"):
        load_start(start, vocabulary)
    flip(folder / "model.safetensors")
    assert load_start(start, vocabulary).network.config.n_layer == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": {}}, "quantised weights"),
        ({"auto_map": {}}, "code of its own"),
        ({"text_vocabulary": 9, "domains": ["x"], "prompts": False}, "run_all.py export"),
        ({"n_positions": 17}, "17 columns, data.sequence_length is 18"),
    ],
)
def test_what_cannot_be_started_from_is_said_before_anything_is_trained(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """By hand: one change of config.json makes a model that this suite cannot begin with; the
    message must say why.
    """
    folder = published(tmp_path / "start", "gpt")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | change))
    with pytest.raises(ConfigError, match=message):
        config_of("naive", folder)


@pytest.mark.parametrize("family", RMS_FAMILIES)
def test_growing_starts_keep_heads_that_share_a_key_together(family: str, tmp_path: Path) -> None:
    """Oracle: growth, which refuses a width that would separate such heads."""
    model = network(family, width=32, max_position_embeddings=42)
    model.save_pretrained(tmp_path / "start")
    ladder = config_of(
        "elle", tmp_path / "start", ladder=[{"layers": 2, "hidden_size": 40}] * 2
    ).model.ladder
    assert [size.hidden_size for size in ladder] == [32, 40, 40]
    assert grow(model, 2, ladder[1].hidden_size)[0].config.hidden_size == 40
    with pytest.raises(ConfigError, match="multiples of 8"):
        config_of("elle", tmp_path / "start", ladder=[{"layers": 2, "hidden_size": 36}] * 2)
    with pytest.raises(ConfigError, match="multiple of 8,"):
        grow(model, 2, 36)


def test_other_mistakes_are_said_too(tmp_path: Path) -> None:
    """By hand: no such folder, two sizes that the model cannot grow to, `revision` without `start`,
    no ladder.
    """
    folder = published(tmp_path / "start", "gpt")
    with pytest.raises(ConfigError, match="no such folder"):
        config_of("naive", tmp_path / "nothing")
    with pytest.raises(ConfigError, match="L1_D16 .*L1_D32"):
        config_of("naive", folder, ladder=[{"layers": 1, "hidden_size": 16}] * 2)
    with pytest.raises(ConfigError, match=r"L1_D40 .*L1_D32.* multiples of 16"):
        config_of("naive", folder, ladder=[{"layers": 1, "hidden_size": 40}] * 2)
    with pytest.raises(ValueError, match="goes with start"):
        Model(revision="main", ladder=[{"layers": 1, "hidden_size": 64}])
    with pytest.raises(ValueError, match="ladder: missing"):
        Model()


def test_a_vocabulary_that_does_not_fit_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: Any
) -> None:
    """Oracle: the tokenizer's largest id, by its library; one line, exit code 2, and no model or
    record.
    """
    folder = published(tmp_path / "start", "gpt")
    largest = max(AutoTokenizer.from_pretrained(folder).get_vocab().values())
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"vocab_size": largest}))
    runs = tmp_path / "runs"
    words = [
        str(tiny_suite.write(tmp_path)),
        "--set",
        f'model.start="{folder}"',
        "--set",
        "model.ladder=[]",
    ]
    for command in ("prepare", "run"):
        assert run_all.main([command, *words, "--runs", str(runs)]) == 2
        error = capsys.readouterr().err
        assert f" {largest}, " in error and f" {largest} rows" in error
        assert (
            len(error.splitlines()) == 1
            and not (runs / "stages").exists()
            and not (runs / "starts").exists()
        )


def test_the_hub_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the requests to a stand-in for the Hub. The copy is identified by its commit, and
    jobs find it without a network.
    """
    copy, fetched, offline = tmp_path / "snapshots" / "c0ffee", [], True

    def hub(
        name: str,
        *,
        revision: str | None,
        allow_patterns: list[str],
        local_files_only: bool = False,
    ) -> str:
        if not local_files_only:
            fetched.append((name, revision, offline))
            if offline:
                raise OSError("no network")
            published(copy, "gpt")
        if not copy.exists():
            raise LocalEntryNotFoundError("not here")
        return str(copy)

    monkeypatch.setattr("benchmark.models.start_model.snapshot_download", hub)
    with pytest.raises(
        ConfigError,
        match=r"'me/base', revision 'v1' .*OSError.*`hf auth login`.*`run_all\.py prepare`",
    ):
        config_of("naive", Path("me/base"), revision="v1")
    offline = False
    first = config_of("naive", Path("me/base"), revision="v1")
    offline = True
    again = config_of("elle", Path("me/base"), revision="v1")
    assert fetched == [("me/base", "v1", True), ("me/base", "v1", False)]
    assert first.start == again.start and first.start.key == "c0ffee"


def test_a_start_model_that_is_gone_or_another_is_said(tmp_path: Path, capsys) -> None:
    """Oracle: the table of the finished run, which stays the same when its start model is gone.
    With another model in the same folder, no numbers are shown, and the output says why.
    """
    start = published(tmp_path / "start", "gpt")
    suite = tiny_suite.write(tmp_path)
    changes = ["--set", f"model.start={start}", "--set", "model.ladder=[]"]
    places = ["--runs", str(tmp_path / "runs")]
    arguments = [str(suite), "--methods", "naive", *changes, *places]
    out = ["--out", str(tmp_path / "report")]
    assert run_all.main(["run", *arguments, *out, "--parallel", "1"]) == 0
    table = tmp_path / "report" / "tiny" / "main_pretraining.csv"
    expected = table.read_bytes()
    table.unlink()
    start.rename(tmp_path / "away")
    assert run_all.main(["report", *arguments, *out]) == 0
    assert table.read_bytes() == expected
    capsys.readouterr()
    assert run_all.main(["status", *arguments]) == 0
    assert re.search(r"Naive +1\b", capsys.readouterr().out)
    published(tmp_path / "start", "gpt", n_embd=64)
    assert run_all.main(["status", *arguments]) == 0
    said = capsys.readouterr().out
    assert "another start model" in said and not re.search(r"1 done", said)
    assert run_all.main(["report", *arguments, *out]) == 0
    assert table.read_bytes() != expected
    assert "another start model" in table.with_suffix(".md").read_text()
