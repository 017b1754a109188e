"""Figure fig:few_time of the paper: half the train wall time."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:few_time",
    caption="AP and AP⁺ with half the train wall time from the second domain on.",
    blocks={"half_time": "Half train wall time"},
)
