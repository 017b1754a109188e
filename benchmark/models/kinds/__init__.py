"""Models that are more than a network: columns, adapters, experts, a kind a file.

Each file has `load(folder)`, the saved model, and `load_column(folder, domain)`, its part to fine-tune.
"""

from torch import Tensor, nn

from benchmark.models.transformer import LanguageModel


class Encoder(nn.Module):
    """A model to be fine-tuned, all of it: (B, T) ids and mask -> hidden states (B, T, D)."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model.requires_grad_()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model.encode(input_ids, attention_mask.bool())
