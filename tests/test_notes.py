"""Footnotes of tables."""

from __future__ import annotations

import pandas as pd

from analysis.notes import contended, unequal_budgets


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


def test_a_note_on_cores_names_the_six_worst_stages():
    """Oracle: by hand: of eight stages that lacked cores the two that lacked least are counted."""
    stages = pd.DataFrame(
        [
            {"row": "ER", "seed": seed, "stage": 0, "unit": "seconds", "cores": 0.9 - seed / 100 if seed < 8 else 0.99}
            for seed in range(9)
        ]
    )
    worst = "; ".join(f"ER, seed {seed}, in stage WB ({90 - seed}%)" for seed in (7, 6, 5, 4, 3, 2))
    note = f"Other programs took cores, so wall times do not compare: {worst} and 2 other stages."
    assert contended(stages, ["WB"]) == [note]
