"""The settings of fine-tuning on each task (appendix of the paper)."""

from analysis.setting_tables import HyperparameterTable

EXHIBIT = HyperparameterTable(
    label="tab:finetune",
    caption="Hyper-parameters of fine-tuning on the downstream tasks.",
    blocks={"tasks": "Tasks of the paper"},
)
