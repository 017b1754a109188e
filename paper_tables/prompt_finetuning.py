"""Table 5 of the paper: the final model fine-tuned with no, a wrong and the right prompt.

Take it to see whether a model needs to be told a text's domain.

If a picked prompt was measured, the table has it, too.
"""

from analysis.score_tables import PromptTable

EXHIBIT = PromptTable(
    label="table:table5",
    caption=(
        "Downstream score ({score}, %) after the last domain, fine-tuned with different domain "
        "prompts."
    ),
    suites=("bert_base",),
)
