"""Half the train wall time, and a memory of a sixth: pre-training (appendix of the paper).

Take it to see whether perplexities hold with less time or memory.
"""

from analysis.perplexity_tables import PerplexityTable

EXHIBIT = PerplexityTable(
    label="table:few_time_memory",
    caption=("AP and AP⁺ with a smaller budget, and with a smaller memory."),
    blocks={
        "half_time": "Half train wall time from the second domain on",
        "small_memory": "Memory of 34M tokens",
        "bert_base": "Full train wall time and memory",
    },
    told=("budget.unit", "budget.amount", "data.memory_tokens"),
    only={"bert_base": ("ELLE",)},
)
