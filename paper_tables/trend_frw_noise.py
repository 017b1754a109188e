"""Figure fig:FRW of the paper: with and without function recovering warm-up and noise."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:FRW",
    caption="AP and AP⁺ with and without function recovering warm-up (FRW) and noise (δN).",
    blocks={"ablation": "Growing from BERT L6_D384 to L12_D768"},
    rows=("WE + DE", "WE + DE + FRW", "WE + DE + FRW + δN"),
)
