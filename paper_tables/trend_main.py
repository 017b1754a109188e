"""AP and AP+ against the budget: the paper's main_exp, bert_*, gpt, few_*, hyper_* and same_layer
figures.
"""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:main_exp",
    caption="AP and AP⁺ against the charged budget.",
    blocks={},
)
