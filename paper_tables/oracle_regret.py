"""Beyond the paper: losses above those of models that are trained anew up to each domain, as TiC-LM normalises."""

from analysis.perplexity_tables import RegretTable

EXHIBIT = RegretTable(
    label="table:oracle_regret",
    caption="Regret: the loss above that of an oracle trained anew, in nats.",
    blocks={},
)
