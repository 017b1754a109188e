"""Table 3 of the paper: ELLE's parts, one by one, in pre-training.

Take it to see which part of ELLE its perplexity needs.
"""

from analysis.perplexity_tables import PerplexityTable

EXHIBIT = PerplexityTable(
    label="table:table3",
    caption=(
        "AP and AP⁺ of combinations of width expansion (WE), depth expansion (DE), function "
        "recovering warm-up (FRW), noise on split neurons (δN) and domain prompts (PT)."
    ),
    suites=("ablation",),
)
