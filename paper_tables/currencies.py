"""Beyond the paper: the same runs ranked by wall time, steps, tokens and FLOPs."""

from analysis.currency_table import CurrencyTable

EXHIBIT = CurrencyTable(
    label="table:currencies",
    caption="AP when every row has spent the same in the last stage, by what is held equal.",
    blocks={},
)
