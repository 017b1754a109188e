"""The three ladders with their training settings (appendix of the paper).

Take it to print what a comparison trained, as an appendix does.
"""

from analysis.setting_tables import ArchitectureTable

EXHIBIT = ArchitectureTable(
    label="tab:arch",
    caption=(
        "Model sizes, learning rate, steps of function recovering warm-up (FRW) and of "
        "training after it, share of steps with learning-rate warm-up, and train wall time."
    ),
    suites=("bert_base", "bert_large", "gpt_base"),
)
