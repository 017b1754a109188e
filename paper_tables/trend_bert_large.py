"""Figure fig:bert_large of the paper: the large BERT."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:bert_large",
    caption="AP and AP⁺ when growing a large BERT against the charged budget.",
    blocks={"bert_large": "Growing from BERT L12_D768 to L24_D1024"},
)
