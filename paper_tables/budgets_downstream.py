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
    suites=("half_time", "small_memory", "bert_base"),
    told=("budget", "memory"),
    only={"bert_base": ("ELLE",)},
)
