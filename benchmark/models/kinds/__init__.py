"""Models that are more than a network: columns (progressive.py), and modules beside it (extended.py), as adapters are.

Either file has `load(folder)`, the saved model, and `load_column(folder, domain)`, its part to fine-tune.
"""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmark.models.transformer import LanguageModel


class Encoder(nn.Module):
    """A model to be fine-tuned, all of it: (B, T) ids and mask -> hidden states (B, T, D)."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model.requires_grad_()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model.encode(input_ids, attention_mask.bool())


class PlainEncoder(nn.Module):
    """A network to be fine-tuned, of a model whose modules are in its weights: (B, T) ids and mask -> (B, T, D)."""

    def __init__(self, network: PreTrainedModel) -> None:
        super().__init__()
        self.network = network.requires_grad_()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        body: Any = self.network.base_model
        return body(input_ids, attention_mask=attention_mask).last_hidden_state
