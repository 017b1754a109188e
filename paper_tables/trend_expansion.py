"""Figure fig:expansion of the paper: growing in width, in depth, and in both."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:expansion",
    caption="AP and AP⁺ when growing in width, in depth and in both.",
    blocks={"ablation": "Growing from BERT L6_D384 to L12_D768"},
    rows=("WE + FRW", "DE + FRW", "WE + DE + FRW"),
)
