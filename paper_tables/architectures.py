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
    blocks={
        "bert_base": "Growing from BERT L6_D384 to L12_D768",
        "bert_large": "Growing from BERT L12_D768 to L24_D1024",
        "gpt_base": "Growing from GPT L6_D384 to L12_D768",
    },
)
