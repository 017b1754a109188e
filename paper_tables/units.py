"""Beyond the paper: the same runs ranked by wall time, steps, tokens and FLOPs.

Take it to see whether the ranking depends on what is held equal.
"""

from analysis.perplexity_tables import UnitTable

EXHIBIT = UnitTable(
    label="table:units",
    caption="AP after equal wall time, steps, tokens or FLOPs in the last stage.",
    reading=(
        "Ranks are of the means, and not tested. A unit is empty where some run did not record it."
    ),
)
