"""Beyond the paper: the matrix of stages and domains, over models that are trained anew up to each domain."""

from analysis.pictures import MatrixFigure

EXHIBIT = MatrixFigure(
    label="fig:oracle_matrix",
    caption="Perplexity of each domain after each stage, over that of the oracle that was trained anew up to it.",
    blocks={},
    oracle=True,
)
