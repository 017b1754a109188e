"""Similarity of a stream's models: ARS and attention, in runs, records and figures."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import rel_entr

import methods
from analysis import model_similarity
from benchmark.data.tokenizer import MASK
from benchmark.instruments.conformance import TinyRuns, make_tiny_config
from benchmark.models import load
from benchmark.settings.suite import RunConfig
from benchmark.training.run import Run
from tests.support import suite_folder
from tests.support.record_lines import read_lines

# Runs

CHAINS = ("elle", "pnn", "naive", "lora", "scratch")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> TinyRuns:
    return TinyRuns("naive", methods.build, tmp_path_factory.mktemp("similarity"))


def config_of(method: str, architecture: str) -> RunConfig:
    """Three stages, the first model with two heads in each of its layers."""
    config = make_tiny_config(method, architecture)
    ladder = [{"layers": n, "hidden_size": d} for n, d in ((2, 32), (2, 48), (3, 48))]
    model = config.model.model_copy(
        update={
            "ladder": type(config.model)
            .model_validate({"architecture": architecture, "head_size": 16, "ladder": ladder})
            .ladder
        }
    )
    row = {
        "row": methods.find(method).title,
        "row_index": CHAINS.index(method),
        "suite": architecture,
    }
    # one batch of the first domain's rows
    data = config.data.model_copy(update={"max_valid_bytes": 300})
    return config.model_copy(update={"model": model, "data": data, **row})


@pytest.fixture(scope="module", params=["gpt", "bert"])
def runs(request, tiny) -> dict[str, Run]:
    """One measured run of each method.

    With BERT only of methods whose models read each domain in another way.
    """
    made = {}
    for method in CHAINS if request.param == "gpt" else ("elle", "pnn"):
        config = config_of(method, request.param)
        made[method] = tiny.make_run(config, "runs")
        made[method].train()
        for measure in (model_similarity.measure_similarity, model_similarity.measure_attention):
            measure(config, made[method].store)
    return made


def lines(run: Run, kind: str) -> list[Any]:
    """The record of each stage, None if it has none."""
    recorded: list[Any] = []
    for key in run.keys:
        path = run.store.similarity_file(key)
        here = [line for line in read_lines(path) if line["kind"] == kind] if path.exists() else []
        assert len(here) < 2
        recorded += here or [None]
    return recorded


def test_ars_of_runs_is_that_of_a_plain_loop(runs: dict[str, Run]) -> None:
    """Oracle: a plain loop over probabilities in float64, of the saved models, which read domain j
    as in evaluation: ELLE with its prompt, PNN and LoRA with its column or adapters, or the newest.
    The text has fewer than 32 rows, so all are read.
    """
    for method in set(runs) - {"scratch"}:
        run = runs[method]
        models = [load(run.store.stage_folder(key) / "model") for key in run.keys]
        assert lines(run, "similarity")[0] is None, "M1 has no ancestor"
        for j in (1, 2):
            terms, n = np.zeros(j), 0
            rows = list(run.stream.read_validation(j, 1))
            assert len(rows) <= model_similarity.ROWS
            for batch in rows:
                keep = batch.tokens.gather(1, batch.positions) == MASK
                keep = keep if run.stream.masked else keep | True
                n += int(keep.sum())
                with torch.no_grad():
                    logits = [
                        m(batch.tokens, batch.domains, batch.positions)[keep].double()
                        for m in models[: j + 1]
                    ]
                p = [row.softmax(-1).numpy() for row in logits]
                terms += [(p[i] * np.log(p[i] / p[j])).sum() for i in range(j)]
            line = lines(run, "similarity")[j]
            assert n > 10 and line["reason"] is None
            assert (
                line["ars"] == pytest.approx(-terms.mean() / n, rel=1e-3, abs=1e-7)
                and line["ars"] < 0
            )


@pytest.mark.parametrize(
    ("there", "asked", "taken"),
    [(33, 32, 32), (5, 32, 5), (64, 32, 32), (63, 32, 32), (100, 7, 7)],
)
def test_as_many_rows_are_read_as_are_asked_for(there: int, asked: int, taken: int) -> None:
    """Oracle: by hand: the number of rows. They are evenly spread: gaps differ by one at most."""
    stream = SimpleNamespace(
        valid_blocks=[there], read_validation_blocks=lambda _domain, blocks, _rows: iter(blocks)
    )
    blocks: Any = list(model_similarity.sample(stream, 0, asked, 4))  # type: ignore[arg-type]
    gaps = np.diff(blocks)
    assert len(blocks) == taken and blocks[0] == 0 and blocks[-1] < there
    assert gaps.min() > 0 and gaps.max() - gaps.min() <= 1


def test_what_cannot_be_compared_says_why(runs: dict[str, Run]) -> None:
    """Oracle: by hand: From scratch trains only the last model, PNN and LoRA keep M1 for its
    domain.
    """
    for kind in ("similarity", "attention") if "scratch" in runs else ():
        _, second, third = lines(runs["scratch"], kind)
        assert second["reason"] == third["reason"] == "M1, M2 not trained"
        assert not third.get("ars") and not third.get("own")
    for method in {"pnn", "lora"} & set(runs):
        first, *later = lines(runs[method], "attention")
        assert first["maps"] and all(
            "unchanged" in line["reason"] and not line["own"] for line in later
        )


def test_attention_of_runs_follows_their_growth(runs: dict[str, Run]) -> None:
    """Oracle: a loop over heads and over the sources that the growth recorded, with SciPy's
    relative entropies.
    """
    run = runs["elle"]
    models = [load(run.store.stage_folder(key) / "model") for key in run.keys]
    [batch] = run.stream.read_validation(0, 20)
    maps = [
        model_similarity.compute_attention(model, batch.tokens, batch.domains) for model in models
    ]
    growths = [read_lines(run.store.stage_file(key))[-1]["growth"] for key in run.keys[1:]]
    assert (
        maps[0].shape[0] == 4
        and maps[2].shape[0] == 9
        and maps[2].shape[-1] == batch.tokens.shape[1] + 1
    )

    def source(stage: int, layer: int, head: int) -> tuple[int, int]:
        growth = growths[stage - 1]
        return growth["layer_sources"][layer], growth["head_sources"][layer][head]

    own: list[float] = []
    others: list[float] = []
    for layer, head in np.ndindex(3, 3):
        mine = source(1, *source(2, layer, head))
        for other in np.ndindex(2, 2):
            p, q = maps[2][3 * layer + head].numpy(), maps[0][2 * other[0] + other[1]].numpy()
            mixed = (p + q) / 2
            divergence = (rel_entr(p, mixed) + rel_entr(q, mixed)).sum(-1) / (2 * math.log(2))
            (own if other == mine else others).append((1 - divergence).mean())
    line = lines(run, "attention")[2]
    assert line["own"][0] == pytest.approx(np.mean(own), abs=1e-5)
    assert line["others"][0] == pytest.approx(np.mean(others), abs=1e-5)
    # the columns of the figure: each head came from the one above it
    shown = [line["heads"] for line in lines(run, "attention")]
    for stage in (1, 2):
        assert [list(source(stage, *head)) for head in shown[stage]] == shown[stage - 1]
    assert shown[0] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    first = maps[2][3 * shown[2][0][0] + shown[2][0][1], 0]
    np.testing.assert_allclose(line["maps"][0], 1000 * first[:24, :24], atol=0.51)


# From the command line

TABLES = 'tables=["representational_similarity","attention_patterns"]'


@pytest.fixture
def suite(tmp_path) -> suite_folder.SuiteFolder:
    suite_folder.write_texts(tmp_path)
    return suite_folder.SuiteFolder(tmp_path / "tiny", tmp_path).write(
        '{ method = "naive" }', '{ method = "elle" }'
    )


def test_a_run_measures_what_its_tables_need(suite: suite_folder.SuiteFolder) -> None:
    """Oracle: by hand: two models of Naive and two of ELLE, of which each second one has an
    ancestor. A second run changes no record and no figure.
    """
    small = ["--set", "budget.amount=3"]
    assert suite.call("run", *small, "--set", 'tables=["main_pretraining"]') == 0
    assert not (suite.runs / "similarity").exists(), "no table needs it"
    assert suite.call("run", *small, "--set", TABLES) == 0
    files = {path: path.read_bytes() for path in (suite.runs / "similarity").glob("*.jsonl")}
    kinds = [line["kind"] for path in files for line in read_lines(path)]
    assert sorted(kinds) == ["attention"] * 4 + ["similarity"] * 2
    report = suite.folder / "report" / "tiny"
    drawn = [
        (report / f"{name}.png").read_bytes()
        for name in ("representational_similarity", "attention_patterns")
    ]
    assert suite.call("run", *small, "--set", TABLES) == 0
    assert files == {
        path: path.read_bytes() for path in (suite.runs / "similarity").glob("*.jsonl")
    }
    assert drawn == [
        (report / f"{name}.png").read_bytes()
        for name in ("representational_similarity", "attention_patterns")
    ]
