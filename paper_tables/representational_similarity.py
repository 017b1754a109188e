"""Figure fig:similarity of the paper: how alike a model and its ancestors are after each stage.

Take it to see how far models drift from their ancestors inside.
"""

from analysis.curves import SimilarityFigure

MEASURE = "similarity"
EXHIBIT = SimilarityFigure(
    label="fig:similarity",
    caption=(
        "Average representational similarity (ARS) of each model and its ancestors, minus a KL "
        "divergence: the nearer to 0, the more alike."
    ),
    suites=("bert_base",),
)
