"""Figure fig:same_layer of the paper: which layers to copy."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:same_layer",
    caption="AP and AP⁺ when copying layers not copied before, the first, or the last.",
    blocks={"copied_layer": "Growing from BERT L6_D384 to L12_D768"},
)
