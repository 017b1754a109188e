"""A model whose weights, gradients and moments are spread over the processes.

It is for what no GPU holds whole. torch's `fully_shard` (FSDP2) gathers the weights of a block when
it computes, and lets go of them. What blocks compute is not kept for the backward pass but computed
again (Chen et al. 2016, "Training deep nets with sublinear memory cost", arXiv 1604.06174). Only
the steps of a phase see any of it: between them the model is whole, in main memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from benchmark.models import LanguageModel
from benchmark.training.processes import World


class Shards(nn.Module):
    """This process's part of a model, `model`, while a phase trains it.

    `bring_back` brings back to the full model what the part has learned.
    """

    def __init__(self, model: LanguageModel, world: World) -> None:
        super().__init__()
        self._full_model = [model]  # in a list it is no part of this module
        self._device = world.device
        self.model = copy.deepcopy(model)
        blocks = self.model.architecture.layers(self.model.network)
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if world.size > 1:
            mesh = init_device_mesh(world.device.type, (world.size,))
            for part in (*blocks, self):
                fully_shard(part, mesh=mesh)
        model.to("cpu")

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        """The result of `compute`.

        Embeddings and head are gathered meanwhile, as a block is when it is called.
        """
        return compute()

    def bring_back(self) -> None:
        """Let the full model be on the device, as trained so far.

        All processes must ask for it at once.
        """
        [model] = self._full_model
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), self.model.parameters(), strict=True):
                parameter.copy_(gather(part))
        model.to(self._device)

    @contextmanager
    def hold_whole(self) -> Iterator[None]:
        """Inside the block the model is brought back. Afterwards it goes to main memory again."""
        self.bring_back()
        yield
        self._full_model[0].to("cpu")


def gather(value: Any) -> Any:
    """The whole of a sharded tensor, or of all in dicts and lists.

    All processes must ask for it at once.
    """
    if isinstance(value, Mapping):
        return {key: gather(part) for key, part in value.items()}
    if isinstance(value, list):
        return [gather(part) for part in value]
    if isinstance(value, DTensor):
        return value.full_tensor().cpu()
    return value


def take_local_part(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, without its history: to look at it and to change it."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    return tensor


def spread(state: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """An optimizer's state of a parameter, sharded as the parameter is.

    Tensors of another shape than the parameter's stay as they are.
    """
    if not isinstance(parameter, DTensor):
        return dict(state)
    parts = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            value = distribute_tensor(
                value, parameter.device_mesh, parameter.placements, src_data_rank=None
            )
        parts[key] = value
    return parts
