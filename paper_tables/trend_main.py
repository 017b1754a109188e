"""AP and AP+ against the budget.

Take it to see when in the budget a method was ahead.

It takes the place of the paper's figures main_exp, bert_*, gpt, few_*, hyper_*, same_layer,
expansion, FRW and prompt.
"""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:main_exp",
    caption="AP and AP⁺ against the budget spent.",
)
