"""Beyond the paper: every row with the suite's own options, and with those that `run_all.py tune` chose."""

from analysis.perplexity_tables import TuningTable

EXHIBIT = TuningTable(
    label="table:tuning",
    caption="AP and AP⁺ after the last domain with the suite's own options, with the best of an equal search for every "
    "row, and with the cost of that search taken off the budget.",
    blocks={},
)
