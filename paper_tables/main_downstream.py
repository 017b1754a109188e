"""Table 2 of the paper: downstream scores of the final models.

Take it first where a suite has tasks.
"""

from analysis.score_tables import ScoreTable

EXHIBIT = ScoreTable(
    label="table:table2",
    caption="Downstream score ({score}, %) on each domain's task after the last domain.",
    suites=("bert_base", "bert_large"),
)
