"""Equal tuning: what is tried, what is chosen, and runs with what was chosen."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

import methods
from benchmark.jobs import tuning
from benchmark.ledger.records import EvaluationLine, select_kind
from benchmark.ledger.runs import load_runs
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.suite import RunConfig, Suite, Tuned
from benchmark.training.batch_parts import check_method
from run_all import main
from tests.support import tiny_suite
from tests.support.published_models import published

RATE = "training.learning_rate"


def check(run: RunConfig) -> None:
    check_method(run, methods.build(run.method, run.options))


def search(
    suite: Suite, count: int = 5, check: tuning.Check = check, domain_count: int = 2
) -> Suite:
    spaces = {name: methods.find(name).search_space for name in methods.list_names()}
    rows = methods.list_rows(suite)
    return tuning.make_search(suite, rows, spaces, count, domain_count, methods.list_runs, check)


def pick(suite: Suite, searching: Suite, perplexities: dict[str, float]) -> Suite:
    rows = methods.list_rows(suite)
    return tuning.pick(suite, rows, searching, perplexities, methods.list_runs)


@pytest.mark.parametrize("domain_count", [2, 4])
def test_all_rows_get_as_many_on_the_first_domains(domain_count: int) -> None:
    """Oracle: the rule: each row has five different trials, its own configuration first, and the
    same ones when asked again. They have one seed, the first domains with their sizes, and no tasks
    or probes. The tuned suite says how many domains there were.
    """
    suite = load_suite("demo", {"methods": ["baselines", "controls"], "seeds": [3, 4]})
    whole = {row.name: row for row in methods.list_rows(suite)}
    searching = search(suite, domain_count=domain_count)
    by_row = itertools.groupby(searching.rows, key=lambda trial: trial.name.rpartition(" ")[0])
    for name, trials in ((name, list(trials)) for name, trials in by_row):
        own = whole.pop(name)
        assert len(trials) == 5 and (trials[0].options, trials[0].set) == (own.options, own.set)
    assert not whole and searching == search(suite, domain_count=domain_count)
    runs = methods.list_runs(searching)
    assert len({run.id for run in runs}) == len(runs) == len(searching.rows)
    [first, *_] = methods.list_runs(load_suite("demo"))
    for run in runs:
        assert run.domains == first.domains[:domain_count]
        assert run.model.ladder == first.model.ladder[:domain_count]
        assert (run.seed, run.suite, run.tasks, run.probes) == (3, "demo-tune", (), ())
    perplexities = {trial.name: 1.0 for trial in searching.rows}
    tuned = pick(suite, searching, perplexities).tuned
    assert tuned and tuned.domains == domain_count


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tiny_suite.write(tmp_path)
    path.write_text('tables = ["main_pretraining"]\n' + path.read_text())
    monkeypatch.chdir(tmp_path)
    return path


def test_a_search_is_a_suite_and_so_is_the_best(suite: Path, capsys: Any) -> None:
    """Oracle: the paper's average perplexity, computed by hand from the records of the last stage:
    each tuned row is its trial with the lowest. The file of trials is what `make_search` gives.
    """
    tune = ["tune", str(suite), "--configurations", "2"]
    assert main(tune) == 0
    assert "tiny-tune.toml" in (told := capsys.readouterr().out) and " 4 trials" in told
    assert load_suite("tiny-tune.toml") == search(load_suite(str(suite)), 2)
    assert main(tune) == 0
    assert "4 of the 4 trials in tiny-tune.toml" in capsys.readouterr().out
    assert main(["run", "tiny-tune.toml", "--parallel", "1"]) == 0
    assert main(tune) == 0
    trials = {row.name: row for row in load_suite("tiny-tune").rows}
    judged: dict[str, list[tuple[float, str]]] = {}
    for run in load_runs(Path("runs"), "tiny-tune"):
        last = select_kind(run.stages[-1], EvaluationLine)[-1].perplexity
        ap = math.exp(sum(math.log(last[domain.name] or 0.0) for domain in run.domains) / 2)
        judged.setdefault(run.row.rpartition(" ")[0], []).append((ap, run.row))
    tuned = load_suite("tiny-tuned")
    assert [row.name for row in tuned.rows] == list(judged)
    for row in tuned.rows:
        best = trials[min(judged[row.name])[1]]
        assert (row.options, row.set.get(RATE)) == (best.options, pytest.approx(best.set.get(RATE)))
    assert tuned.tuned == Tuned(configurations=2, spent=24.0, unit="steps")
    assert main(["run", "tiny-tuned", "--parallel", "1"]) == 0
    table = Path("report/tiny-tuned/main_pretraining.md").read_text()
    assert "best of 2 configurations" in table


def test_a_row_that_no_configuration_trains_is_named() -> None:
    """Oracle: by hand: if all trials of ER failed, ER is named. If one did not, it is the best."""
    suite = load_suite("demo", {"methods": ["naive", "er"]})
    searching = search(suite, 2)
    perplexities = {"Naive 0": 30.0, "Naive 1": 20.0, "ER 0": math.inf, "ER 1": math.inf}
    with pytest.raises(ConfigError, match=r"no .*row 'ER' in demo-tune\.toml"):
        pick(suite, searching, perplexities)
    chosen = pick(suite, searching, {**perplexities, "ER 1": 9.0})
    assert [row.options for row in chosen.rows] == [
        searching.rows[1].options,
        searching.rows[3].options,
    ]


def test_a_rate_is_scaled_in_every_stage() -> None:
    """Oracle: by hand: the search has two of five rates. The best factor then scales all five."""
    suite = load_suite("demo", {"methods": ["naive"], RATE: [1e-3, 2e-3, 3e-3, 4e-3, 5e-3]})
    searching = search(suite, 2)
    perplexities = dict(zip([row.name for row in searching.rows], (2.0, 1.0), strict=True))
    factor = searching.rows[1].set[RATE][0] / 1e-3
    assert searching.rows[1].set[RATE] == pytest.approx([1e-3 * factor, 2e-3 * factor])
    [row] = pick(suite, searching, perplexities).rows
    assert row.set[RATE] == pytest.approx(
        [rate * factor for rate in (1e-3, 2e-3, 3e-3, 4e-3, 5e-3)]
    )


def test_what_a_suite_says_is_said_in_its_search_and_its_tuned_suite(suite: Path) -> None:
    """Oracle: the settings of the suite's own runs, with settings that the optimizer would not
    choose, and without any, so that the optimizer chooses.
    """
    for said in ({"training.fused_maps": "whole", "training.decay": "all"}, {}):
        whole = load_suite(str(suite), {"training.optimizer": "muon", **said})
        expected = [
            (run.training.fused_maps, run.training.decay) for run in methods.list_runs(whole)
        ]
        searching = search(whole, 1)
        perplexities = {row.name: 1.0 for row in searching.rows}
        tuned = pick(whole, searching, perplexities)
        for written in (searching, tuned):
            path = suite.parent / f"{written.name}.toml"
            tuning._write(path, written, "a comment")
            runs = methods.list_runs(load_suite(str(path)))
            assert [(run.training.fused_maps, run.training.decay) for run in runs] == expected


def test_twelve_configurations_are_twelve_rates_where_there_are_no_options() -> None:
    """Oracle: by hand: the twelve factors differ, and are powers of sqrt(2) from 1/8 to 8."""
    suite = load_suite("demo", {"methods": ["naive"], RATE: 1e-3})
    searching = search(suite, 12)
    rates = [row.set.get(RATE, 1e-3) for row in searching.rows]
    halves = [2 * math.log2(rate / 1e-3) for rate in rates]
    assert len({round(half) for half in halves}) == 12
    assert all(abs(half - round(half)) < 1e-9 and abs(half) <= 6 for half in halves)


def test_rows_that_begin_with_a_published_model_are_tuned(suite: Path, tmp_path: Path) -> None:
    """Oracle: the row's own runs: trials begin with the same model and size, at other rates."""
    start = published(tmp_path / "start", "gpt")
    whole = load_suite(str(suite), {"model.start": str(start), "model.ladder": []})
    runs = methods.list_runs(search(whole))
    assert {(run.start, run.model) for run in runs} == {
        (run.start, run.model) for run in methods.list_runs(whole)
    }
    assert len({run.training.learning_rate for run in runs if run.method == "naive"}) == 5
