"""Names of rows that a table could not tell from lines of its own."""

from __future__ import annotations

import pytest

import methods
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.suite import Row


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
