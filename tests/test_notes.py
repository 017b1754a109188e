"""Footnotes of tables."""

from __future__ import annotations

import pandas as pd

from analysis.notes import unequal_budgets


def test_a_note_on_budgets_names_six_rows_in_their_unit():
    """Oracle: by hand; a row that takes next to nothing in a stage says 0."""
    spent = {
        **{f"equal {i}": 40.0 for i in range(9)},
        **{f"other {i}": 10.0 + i for i in range(7)},
        "all at once": 3e-4,
    }
    stages = pd.DataFrame(
        [{"done": True, "stage": 0, "unit": "reference", "row": row, "charged": value} for row, value in spent.items()]
    )
    others = ", ".join(f"other {i} {10 + i}" for i in range(6))
    note = f"Budgets differ in stage WB: typically 40 s, but {others} and 2 other rows."
    assert unequal_budgets(stages, ["WB"]) == [note]
    late = stages[~stages["row"].str.startswith("other")]
    assert unequal_budgets(late, ["WB"]) == ["Budgets differ in stage WB: typically 40 s, but all at once 0."]
