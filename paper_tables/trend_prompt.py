"""Figure fig:prompt of the paper: with and without domain prompts."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:prompt",
    caption="AP and AP⁺ with and without domain prompts (PT).",
    blocks={"ablation": "Growing from BERT L6_D384 to L12_D768"},
    rows=("WE + DE + FRW + δN", "WE + DE + FRW + δN + PT"),
)
