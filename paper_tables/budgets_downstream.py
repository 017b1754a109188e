"""Half the train wall time, and a memory of a sixth: downstream (appendix of the paper).

Take it to see whether downstream scores hold with less time or memory.
"""

from analysis.score_tables import ScoreTable

EXHIBIT = ScoreTable(
    label="table:downstream_few_time_memory",
    caption=(
        "Downstream score ({score}, %) after the last domain with a smaller budget, and with a "
        "smaller memory."
    ),
    blocks={
        "half_time": "Half train wall time from the second domain on",
        "small_memory": "Memory of 34M tokens",
        "bert_base": "Full train wall time and memory",
    },
    told=("budget.unit", "budget.amount", "data.memory_tokens"),
    only={"bert_base": ("ELLE",)},
)
