"""What docs/reproduce.md says that suites cost and commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import methods
import run_all
from analysis.catalogue import list_measures
from benchmark.jobs.state import Survey
from benchmark.ledger.store import Store
from benchmark.settings import load, names
from benchmark.settings.suite import pick_for_stage
from tests.support.pages import ROOT, list_blocks

PAGE = ROOT / "docs" / "reproduce.md"
TEXT = PAGE.read_text(encoding="utf-8")
# suite, runs, days, days after bert_base
COSTS = re.findall(r"^\| `(\w+)` \|[^|]*\| (\d+) \| (\d+) \| (\d*) ?\|$", TEXT, re.M)


def list_budgets(suite: str, runs: Path) -> tuple[int, dict[str, float]]:
    """How many runs a suite has, and the seconds of each stage by key: shared stages count once."""
    loaded = load.load_suite(suite)
    configs = methods.list_runs(loaded)
    survey = Survey(loaded, configs, methods.build, Store(runs), list_measures(loaded))
    seconds = {}
    for state in survey.read_states():
        for stage, key in enumerate(state.planned):
            seconds[key] = pick_for_stage(state.config.budget.amount, stage)
    return len(configs), seconds


@pytest.mark.parametrize(("suite", "runs", "days", "days_after"), COSTS)
def test_a_suite_costs_what_the_page_says(
    suite: str, runs: str, days: str, days_after: str, tmp_path: Path
) -> None:
    """Oracle: the budgets of the suite's stages, and of its stages that are not among bert_base's.
    `list suites` says the same.
    """
    count, seconds = list_budgets(suite, tmp_path)
    _, main = list_budgets("bert_base", tmp_path)
    rest = [amount for key, amount in seconds.items() if key not in main]
    assert (int(runs), int(days)) == (count, round(sum(seconds.values()) / 86_400))
    if days_after:
        assert int(days_after) == round(sum(rest) / 86_400)
    reason = names.read_reason(names.SUITES / f"{suite}.toml")
    assert f"{runs} runs, {days} days in all" in reason


def test_all_suites_of_the_paper_are_in_the_table() -> None:
    """Oracle: all suites but those that are small or not the paper's."""
    others = {"demo", "demo_bert", "methods_of_2026", "real_small"}
    assert {suite for suite, *_ in COSTS} == {*names.list_suite_names()} - others


def test_a_dry_run_on_slurm_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: the command's output with the page's site.toml. Three dots stand for any text."""
    [site] = [block.text for block in list_blocks(PAGE) if block.language == "toml"]
    (tmp_path / "site.toml").write_text(site)
    monkeypatch.setattr(load, "SITE", tmp_path / "site.toml")
    words = ["run", "bert_base", "--executor", "slurm", "--dry-run", "--runs", str(tmp_path)]
    assert run_all.main(words) == 0
    printed = capsys.readouterr().out
    [shown] = re.findall(r"^```text\n(  to submit.*?)```$", TEXT, re.M | re.S)
    for line in shown.splitlines():
        pattern = ".*".join(map(re.escape, line.split("...")))
        assert re.search(f"^{pattern}$", printed, re.M), line
