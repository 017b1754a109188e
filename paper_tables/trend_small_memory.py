"""Figure fig:few_memory of the paper: a small memory."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:few_memory",
    caption="AP and AP⁺ with a memory of 34M tokens a domain.",
    blocks={"small_memory": "Smaller memory"},
)
