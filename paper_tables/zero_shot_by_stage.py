"""Beyond the paper: scores of every method's model after every stage, without fine-tuning.

Take it where a suite has `[evaluate]`: scores of models as they are.

lm-evaluation-harness computes the scores.
"""

from analysis.score_tables import ZeroShotTable

EXHIBIT = ZeroShotTable(
    label="table:zero_shot",
    caption=(
        "Scores of tasks without fine-tuning after each stage, beside the average perplexity (AP)."
    ),
)
