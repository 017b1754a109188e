"""Beyond the paper: the same runs ranked by wall time, steps, tokens and FLOPs."""

from analysis.perplexity_tables import UnitTable

EXHIBIT = UnitTable(
    label="table:units",
    caption="AP when every row has spent the same in the last stage, by what is held equal.",
    reading="Ranks are of the means, and not tested.",
    blocks={},
)
