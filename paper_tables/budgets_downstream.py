"""Half the train wall time, and a memory of a sixth: downstream (appendix of the paper)."""

from analysis.score_tables import ScoreTable

EXHIBIT = ScoreTable(
    label="table:downstream_few_time_memory",
    caption=(
        "Downstream score (F1, %) after the last domain with half the train wall time, and "
        "with a memory of 34M tokens."
    ),
    blocks={
        "half_time": "Half train wall time",
        "small_memory": "Smaller memory",
        "bert_base": "Full train wall time and memory",
    },
    only={"bert_base": ("ELLE",)},
)
