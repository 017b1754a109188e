"""Half the train wall time, and a memory of a sixth: pre-training (appendix of the paper).

Take it to see whether perplexities hold with less time or memory.
"""

from analysis.perplexity_tables import PerplexityTable

EXHIBIT = PerplexityTable(
    label="table:few_time_memory",
    caption=("AP and AP⁺ with a smaller budget, and with a smaller memory."),
    suites=("half_time", "small_memory", "bert_base"),
    told=("budget", "memory"),
    only={"bert_base": ("ELLE",)},
)
