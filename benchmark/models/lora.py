"""Low-rank adapters on a frozen language model, one set a domain (Hu et al. 2021, "LoRA", arXiv 2106.09685).

y = W x + B A x at every linear map of the transformer layers, A (r, inputs) and B (outputs, r), B zero at first. The
first domain is the model itself; each later one has its own A and B over it.

Shapes: B rows, T columns of a row, K predicted positions a row, D hidden size, V_text vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from benchmark.models import transformer
from benchmark.models.progressive import domain_index, for_each
from benchmark.models.transformer import LanguageModel

FILE = "adapters.safetensors"  # in the folder of a saved model, which is the frozen model's Hugging Face folder


class Adapter(nn.Module):
    """base + B A x for x (..., inputs) and base (..., outputs), added up in the matrix product: one pass less."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor, base: Tensor) -> Tensor:
        low = self.down(inputs).flatten(0, -2)
        return torch.addmm(base.flatten(0, -2), low, self.up.weight.T).view_as(base)


class LoraModel(LanguageModel):
    """A frozen language model with a set of adapters for each domain but the first; the newest set learns.

    A row is read with the adapters of its own domain; a domain that has none yet is read with the newest. The network
    stays as transformers made it: the adapters add to what its linear maps put out.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model.network, model.vocabulary)
        self.adapters = nn.ModuleList()
        self._active = 0  # 0: the network alone
        for index, module in enumerate(linear_maps(model.network)):
            module.register_forward_hook(partial(self._adapt, index))
        self.train(model.training)

    def add(self, rank: int) -> None:
        """Adapters for the next domain, drawn from torch's generator; all else is frozen."""
        self.requires_grad_(False)
        new = nn.ModuleList(Adapter(*_sizes(module), rank) for module in linear_maps(self.network))
        self.adapters.append(new.to(next(self.parameters()).device))

    def hidden(self, tokens: Tensor, domains: Tensor) -> Tensor:
        """See LanguageModel. In training mode all rows go through the newest adapters, the only ones that learn:
        looking up the domains would make the step wait for the device, and break the compiled graph."""

        def encode(active: int, tokens: Tensor, domains: Tensor) -> Tensor:
            self._active = active
            return super(LoraModel, self).hidden(tokens, domains)

        newest = len(self.adapters)
        if self.training:
            return encode(newest, tokens, domains)
        return for_each(domains.clamp(max=newest), encode, tokens, domains)

    def _adapt(self, index: int, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not self._active:
            return output
        adapters: Any = self.adapters[self._active - 1]
        return adapters[index](inputs[0], output)

    def _write(self, folder: Path, tokenizer: Tokenizer) -> None:
        super()._write(folder, tokenizer)
        save_file(self.adapters.state_dict(), folder / FILE)


def linear_maps(network: PreTrainedModel) -> list[Any]:
    """The linear maps of the transformer layers, in order."""
    body: Any = network.base_model
    layers = body.h if network.config.model_type == "gpt2" else body.encoder.layer
    return [module for module in layers.modules() if isinstance(module, (nn.Linear, Conv1D))]


def load(folder: Path | str) -> LoraModel:
    """The model that `LoraModel.save` wrote, in evaluation mode."""
    model = LoraModel(transformer.load(folder))
    saved = load_file(Path(folder) / FILE)
    for _ in range(1 + max(int(name.partition(".")[0]) for name in saved)):
        model.add(rank=len(saved["0.0.down.weight"]))
    model.adapters.load_state_dict(saved)
    return model.eval()


class MergedEncoder(nn.Module):
    """The network with a domain's adapters added into its weights, to be fine-tuned: (B, T) ids, mask -> (B, T, D)."""

    def __init__(self, model: LoraModel, adapters: Iterable[Any]) -> None:
        super().__init__()
        with torch.no_grad():
            for module, adapter in zip(linear_maps(model.network), adapters, strict=False):
                change = adapter.up.weight @ adapter.down.weight
                module.weight += change.T if isinstance(module, Conv1D) else change
        self.network = model.network.requires_grad_()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        body: Any = self.network.base_model
        return body(input_ids, attention_mask=attention_mask).last_hidden_state


def load_column(folder: Path | str, domain: str) -> MergedEncoder:
    """The network of `domain`, one without adapters on the newest. Raises ConfigError for an unknown domain."""
    model = load(folder)
    index = min(domain_index(Path(folder), domain), len(model.adapters))
    adapters: Any = model.adapters[index - 1] if index else []
    return MergedEncoder(model, adapters)


def _sizes(module: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear map; transformers' Conv1D keeps its weight the other way round."""
    outputs, inputs = module.weight.T.shape if isinstance(module, Conv1D) else module.weight.shape
    return inputs, outputs
