"""Forgetting against cost; the paper has nothing like it."""

from analysis.curves import ForgettingCostFigure

EXHIBIT = ForgettingCostFigure(
    label="fig:forgetting_cost",
    caption="AP⁺ after the last domain against what the whole stream cost, in each unit that differs; Pareto front.",
    blocks={},
)
