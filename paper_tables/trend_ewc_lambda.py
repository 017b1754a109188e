"""Figure fig:hyper_ewc of the paper: EWC's penalty."""

from analysis.curves import TrendFigure

EXHIBIT = TrendFigure(
    label="fig:hyper_ewc",
    caption="AP and AP⁺ of EWC for different λ.",
    blocks={"ewc_lambda": "Growing from BERT L6_D384 to L12_D768"},
)
