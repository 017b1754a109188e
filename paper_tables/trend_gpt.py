"""Figure fig:gpt of the paper: all methods on GPT."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:gpt",
    caption="AP and AP⁺ of every method on GPT against the charged budget.",
    blocks={"gpt_base": "Growing from GPT L6_D384 to L12_D768"},
)
