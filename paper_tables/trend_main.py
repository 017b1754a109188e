"""AP and AP+ against the budget: figures fig:main_exp, bert_small, bert_large, gpt, few_*, hyper_* and same_layer of the paper."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:main_exp",
    caption="AP and AP⁺ against the charged budget.",
    blocks={},
)
