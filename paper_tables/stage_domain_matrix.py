"""Beyond the paper: the perplexity of each domain and probe after each stage.

Take it to see which domain was forgotten when, and what became of a start model's text.
"""

from analysis.pictures import MatrixFigure

EXHIBIT = MatrixFigure(
    label="fig:stage_domain_matrix",
    caption="Perplexity on each domain after each stage.",
    preferred_rows=("Naive", "ER", "PNN", "ELLE", "ELLE (exact)"),
)
