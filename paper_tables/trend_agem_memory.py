"""Figure fig:hyper_gem of the paper: A-GEM's memory."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:hyper_gem",
    caption="AP and AP⁺ of A-GEM for different memory sizes.",
    blocks={"agem_memory": "Growing from BERT L6_D384 to L12_D768"},
)
