"""Figure fig:main_exp of the paper: AP against train wall time, and AP+ beside it."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:main_exp",
    caption="AP and AP⁺ against the charged budget.",
    blocks={"bert_base": "Growing from BERT L6_D384 to L12_D768"},
)
