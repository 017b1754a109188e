"""The settings of fine-tuning on each task (appendix of the paper).

Take it to print how models were fine-tuned, as an appendix does.
"""

from analysis.setting_tables import HyperparameterTable

EXHIBIT = HyperparameterTable(
    label="tab:finetune",
    caption="Hyper-parameters of fine-tuning on the downstream tasks.",
    suites=("bert_base", "bert_large", "half_time", "small_memory", "ablation"),
)
