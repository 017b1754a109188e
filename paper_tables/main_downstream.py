"""Table 2 of the paper: downstream scores of the final models.

Take it first where a suite has tasks.
"""

from analysis.score_tables import ScoreTable

EXHIBIT = ScoreTable(
    label="table:table2",
    caption="Downstream score ({score}, %) on each domain's task after the last domain.",
    blocks={
        "bert_base": "Growing from BERT L6_D384 to L12_D768",
        "bert_large": "Growing from BERT L12_D768 to L24_D1024",
    },
)
