"""Beyond the paper: the perplexity of each domain and probe after each stage."""

from analysis.pictures import MatrixFigure

EXHIBIT = MatrixFigure(
    label="fig:stage_domain_matrix",
    caption="Perplexity on each domain after each stage.",
    blocks={},
)
