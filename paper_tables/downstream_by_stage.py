"""Downstream scores of every method's model after every stage (appendix of the paper).

Take it to see after which stage a task's score was won or lost.
"""

from analysis.score_tables import StageScoreTable

EXHIBIT = StageScoreTable(
    label="table:f1",
    caption="Downstream score ({score}, %) on each domain's task after each stage.",
    suites=("bert_base",),
)
