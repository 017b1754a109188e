"""Names of rows that a table could not tell from lines of its own."""

from __future__ import annotations

import pytest

import methods
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.names import is_of_tables
from benchmark.settings.suite import Row
from tests.support.synthetic import load, study


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("unigram perplexity of the-domain", True),
        ("Baseline: majority", True),
        ("Start model, untouched", True),
        ("Start model gpt2, untouched", True),
        ("Start model", False),
        ("ER, untouched", False),
        ("Baseline", False),
    ],
)
def test_rows_are_not_called_as_lines_of_tables(name, refused):
    """Oracle: by hand: the lines that tables add, in any spelling that makes no difference to a row's name."""
    suite = load_suite("noise")
    suite = suite.model_copy(update={"rows": (*suite.rows, Row(method="er", name=name))})
    if refused:
        with pytest.raises(ConfigError, match=f"rows named {name}, as tables call lines of their own: give them names"):
            methods.rows(suite)
    else:
        assert methods.rows(suite)[-1].name == name


def test_names_of_lines_that_tables_add_are_known(tmp_path):
    """Oracle: the lines of two tables that do not compete, which are no rows of the suite; there are three."""
    data = study(tmp_path)
    rows = [row for name in ("main_pretraining", "main_downstream") for row in load(name).build(data).blocks[0].rows]
    assert [row.stub[0] for row in rows if is_of_tables(row.stub[0])] == [r.stub[0] for r in rows if not r.competes]
    assert sum(not row.competes for row in rows) == 3
