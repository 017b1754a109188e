"""Figure fig:avg_f1 of the paper: downstream scores after each stage.

Take it for the scores after each stage as curves.

Each task has a panel, and so has their average.
"""

from analysis.curves import ScoreFigure

EXHIBIT = ScoreFigure(
    label="fig:avg_f1",
    caption="Downstream score ({score}, %) after each stage.",
    suites=("bert_base",),
)
