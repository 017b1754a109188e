"""AP of five methods against the budget: the first picture of README.md.

Take it for the demo's picture, of five methods alone.

README.md shows it for the records of results/demo.
"""

from analysis.curves import TrendFigure
from analysis.metrics import AP

EXHIBIT = TrendFigure(
    label="fig:ap",
    caption="AP of five methods against the budget spent.",
    rows=("Naive", "ER", "PNN", "ELLE", "ELLE (exact)"),
    metrics=(AP,),
    width=4.3,  # a column of a paper has room for it
)
