"""Table 1 of the paper: every method after every domain, for three ladders.

Take it first: each method's perplexity after each domain.
"""

from analysis.perplexity_tables import PerplexityTable

EXHIBIT = PerplexityTable(
    label="table:table1",
    caption=(
        "Average perplexity (AP) and average increased perplexity (AP⁺) after each domain "
        "under {budget}."
    ),
    reading=(
        "AP: geometric mean of the perplexities on all domains met so far. AP⁺: mean rise of the "
        "perplexity on earlier domains since their own training ended. Lower is better. {size}"
    ),
    suites=("bert_base", "bert_large", "gpt_base"),
)
