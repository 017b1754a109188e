"""Figure fig:bert_small of the paper: all methods on BERT."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:bert_small",
    caption="AP and AP⁺ of every method against the charged budget.",
    blocks={"bert_base": "Growing from BERT L6_D384 to L12_D768"},
)
