"""Half the train wall time, and a memory of a sixth: pre-training (appendix of the paper)."""

from analysis.perplexity_tables import PerplexityTable

EXHIBIT = PerplexityTable(
    label="table:few_time_memory",
    caption=(
        "AP and AP⁺ with half the train wall time from the second domain on, and with a "
        "memory of 34M tokens."
    ),
    blocks={
        "half_time": "Half train wall time",
        "small_memory": "Smaller memory",
        "bert_base": "Full train wall time and memory",
    },
    only={"bert_base": ("ELLE",)},
)
