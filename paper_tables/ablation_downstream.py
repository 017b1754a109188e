"""Table 4 of the paper: ELLE's parts, one by one, downstream.

Take it to see which part of ELLE its downstream scores need.
"""

from analysis.score_tables import ScoreTable

EXHIBIT = ScoreTable(
    label="table:table4",
    caption=(
        "Downstream score ({score}, %) of combinations of WE, DE, FRW, δN and PT after the last "
        "domain."
    ),
    suites=("ablation",),
)
