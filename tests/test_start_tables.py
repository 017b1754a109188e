"""The untouched start model in tables."""

import math

import pytest

from benchmark.ledger.records import EvaluationLine, Measured, Titled
from tests.support.synthetic import list_lines, load, study


def test_a_start_model_stands_in_tables_and_forgetting_counts_from_it(tmp_path):
    """By hand: the start model has made-up perplexities of 10, 20, 40 and so on for the domains and
    44 for the probe. All trained models have 55 for the probe.
    """
    data = study(tmp_path, seeds=2)
    for run in data.runs:
        run.line.probes = [Titled("wiki", "Wiki")]
        run.line.config["model"]["start"] = "/models/base"
        known = {domain.name: 10.0 * 2**i for i, domain in enumerate(run.domains)} | {"wiki": 44.0}
        run.start = Measured(known, dict.fromkeys(known, 2.0))
        for line in list_lines(run, EvaluationLine):
            line.perplexity["wiki"], line.bits_per_byte["wiki"] = 55.0, 1.0
    main = load("main_pretraining").build(data)
    row = next(row for row in main.blocks[0].rows if row.label == "Start model base, untouched")
    assert not row.competes and [cell.values for cell in row.cells[1:3]] == [
        (pytest.approx(200**0.5),),
        (),
    ]
    table = load("lifelong_metrics").build(data)
    assert table.columns[-1].group == "Nats above the start model"
    rows = {row.label: [cell.values for cell in row.cells] for row in table.blocks[0].rows}
    assert rows["ER"][-2:] == [(55.0, 55.0), (pytest.approx(math.log(55 / 44)),) * 2]
    data.runs[0].line.config["model"]["start"] = "other"
    assert list(data.starts) == ["Start model other", "Start model base"]
