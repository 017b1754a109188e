"""Figure fig:hyper_mas of the paper: MAS's penalty."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:hyper_mas",
    caption="AP and AP⁺ of MAS for different λ.",
    blocks={"mas_lambda": "Growing from BERT L6_D384 to L12_D768"},
)
