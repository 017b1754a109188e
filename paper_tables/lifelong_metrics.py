"""Beyond the paper: forgetting, transfer and efficiency.

Take it to say how much was forgotten, and how much earlier a goal was reached.

Columns include log AP+, transfer, mean AP over the budget, and the budget to ER's final AP.
"""

from analysis.perplexity_tables import LifelongTable

EXHIBIT = LifelongTable(
    label="table:lifelong_metrics",
    caption="Forgetting, transfer and efficiency after the last domain.",
)
