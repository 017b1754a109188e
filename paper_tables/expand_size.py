"""How many layers and heads to add for each of three domains (appendix of the paper)."""

from analysis.perplexity_tables import PerplexityTable

EXHIBIT = PerplexityTable(
    label="table:expand_size",
    caption="AP and AP⁺ when the model grows by 0, 2, 4 or 6 layers and heads for each domain.",
    blocks={"expand_size": "Growing from BERT L6_D384, 7,200 s a domain"},
)
