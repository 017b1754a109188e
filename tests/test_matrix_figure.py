"""The figure of the matrix of stages and texts."""

from typing import Any

import numpy as np
import pytest

import paper_tables
from analysis.study import Study
from benchmark.records import load_runs
from tests.support import synthetic


@pytest.fixture
def study(tmp_path) -> Study:
    synthetic.write(tmp_path / "runs", "demo")
    return Study("demo", load_runs(tmp_path / "runs", "demo"))


def test_the_matrix_shows_each_domain_and_probe_after_each_stage(study, drawn):
    """Oracle: the perplexities of the last evaluations, averaged over the seeds here; a missing stage is blank."""
    for run in study.runs:
        run.line["probes"] = [{"name": "wiki", "title": "Wiki"}]
        for stage in run.stages:
            for line in stage:
                if line["kind"] == "evaluation":
                    line["perplexity"] = {**line["perplexity"], "wiki": 7.0 + run.seed}
        if run.row == "MAS":
            run.stages[4] = []
    paper_tables.load("stage_domain_matrix").render(study)
    texts: dict[Any, list[str]] = {}
    for text in drawn[0].axes[0].texts:
        texts.setdefault(text.get_gid(), []).append(text.get_text())
    titles = texts.pop(None)
    assert list(texts) == list(dict.fromkeys(run.row for run in study.runs))
    er = [
        [line for line in stage if line["kind"] == "evaluation"][-1]
        for run in study.of("demo")
        if run.row == "ER"
        for stage in run.stages
    ]
    expected = [
        np.mean([end["perplexity"][name] for end in (er[i], er[i + 5])])
        for i in range(5)
        for name in ("wb", "ns", "rev", "bio", "cs", "wiki")
    ]
    assert texts["ER"] == [f"{value:.3g}" for value in expected]
    assert titles[-6:] == ["WB", "Ns", "Rev", "Bio", "CS", "Wiki"]
    assert len(texts["MAS"]) == 4 * 6
