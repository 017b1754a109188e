"""The memory that training takes on a device, computed before anything is trained.

Weights, gradients and moments are in fp32, as the suite trains. torch itself counts the bytes that
the forward pass keeps for the backward pass. It does so with fake tensors, so a model of any size
costs a second and no memory. Training takes more than this: what operators need while they work,
such as a tenth of the logits, and some 10% that the allocator cannot use.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedConfig

from benchmark.data.tokenizer import Vocabulary
from benchmark.models import LanguageModel, architectures

GIB = 2**30
FP32 = 4  # bytes


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes in the memory of one device, for a model with `parameters` parameters.

    `activations` are what the forward pass keeps for the backward pass, including the weights in
    the precision of matrix products. `copies` are further models of a method, such as a teacher.
    """

    parameters: int
    weights: int
    gradients: int
    moments: int
    activations: int
    copies: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.activations + self.copies


def estimate_memory(
    config: PreTrainedConfig,
    sequences: int,
    length: int,
    moments: int = 2,
    copies: int = 0,
    precision: torch.dtype = torch.bfloat16,
) -> TrainingMemory:
    """Estimate the memory that training a model of this configuration takes on one device.

    Args:
        sequences, length: of a micro-batch (`training.micro_batch_size`), its number of sequences
            and their tokens. The model is causal or masked.
        moments: numbers that the optimizer keeps for each parameter: 2 for adamw, 1 for muon's
            matrices and sgd.
        copies: further models that the method keeps: 1 for Logit-KD, DER++, EMA, self_replay.
        precision: of matrix products (`training.precision`).

    Raises ConfigError for an unknown architecture.
    """
    architecture = architectures.find(config.model_type)
    family: Any = architecture.families[architecture.model_types.index(config.model_type)]
    with FakeTensorMode():
        network = family._from_config(copy.deepcopy(config), attn_implementation="sdpa")
        model = LanguageModel(network, Vocabulary(config.vocab_size)).train()
        parameters = model.parameters_count
        activations = _count_kept_bytes(model, sequences, length, precision)
    bytes_of_model = FP32 * parameters
    return TrainingMemory(
        parameters=parameters,
        weights=bytes_of_model,
        gradients=bytes_of_model,
        moments=moments * bytes_of_model,
        activations=activations,
        copies=copies * bytes_of_model,
    )


def _count_kept_bytes(
    model: LanguageModel, sequences: int, length: int, precision: torch.dtype
) -> int:
    """Bytes that a forward pass keeps for the backward pass, beside the parameters."""
    weight_storages = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    # by storage. Tensors are kept, so that no storage is freed and its id reused
    activations: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        activations[tensor.untyped_storage()._cdata] = tensor
        return tensor

    tokens = torch.zeros(sequences, length, dtype=torch.long)
    domains = torch.zeros(sequences, dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", precision, enabled=precision != torch.float32),
    ):
        # the content of positions and targets does not matter, only their shape
        loss = model.compute_mean_loss(tokens, domains, tokens, tokens)
    sizes = [
        tensor.untyped_storage().nbytes()
        for storage, tensor in activations.items()
        if storage not in weight_storages
    ]
    del loss
    return sum(sizes)
