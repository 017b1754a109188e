"""Scores by lm-evaluation-harness of every method's model after every stage, without fine-tuning
(not in the paper).
"""

from analysis.score_tables import ZeroShotTable

EXHIBIT = ZeroShotTable(
    label="table:zero_shot",
    caption="Scores of tasks without fine-tuning after each stage, beside the average perplexity (AP).",
    blocks={},
)
