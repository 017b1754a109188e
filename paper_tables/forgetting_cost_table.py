"""The numbers of `forgetting_cost`; the paper has nothing like it."""

from analysis.perplexity_tables import ForgettingCostTable

EXHIBIT = ForgettingCostTable(
    label="table:forgetting_cost",
    caption="AP⁺ after the last domain, and what the whole stream cost, as a multiple of the cheapest row's.",
    blocks={},
)
