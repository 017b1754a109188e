"""How many layers and heads to add for each of three domains (appendix of the paper).

Take it to choose how much to grow at a time.
"""

from analysis.perplexity_tables import PerplexityTable

EXHIBIT = PerplexityTable(
    label="table:expand_size",
    caption="AP and AP⁺ when the model grows by other numbers of layers and heads for each domain.",
    told=("budget",),
    suites=("expand_size",),
)
