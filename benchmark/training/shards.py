"""A model whose weights, gradients and moments are spread over the processes.

It is for models whose training does not fit on one GPU. torch's `fully_shard` (FSDP2) gathers the
weights of a block when the block computes, then frees them. Activations of blocks are not kept for
the backward pass but computed again (Chen et al. 2016, "Training deep nets with sublinear memory
cost", arXiv 1604.06174). Only the steps of a phase use shards. During a phase the whole model waits
in main memory. For evaluations, checkpoints and the phase's end it is updated on the device.
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
    """This process's part (`model`) of a full model, while a phase trains it.

    `bring_back` copies the trained weights of all parts into the full model.
    """

    def __init__(self, model: LanguageModel, world: World) -> None:
        super().__init__()
        self._full_model = [model]  # in a list, so that it is no submodule
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

        FSDP gathers embeddings and head for this call, and each block when the block is called.
        """
        return compute()

    def bring_back(self) -> None:
        """Update the full model with what was trained so far, and move it to the device.

        All processes must call this together.
        """
        [model] = self._full_model
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), self.model.parameters(), strict=True):
                parameter.copy_(gather(part))
        model.to(self._device)

    @contextmanager
    def unshard_temporarily(self) -> Iterator[None]:
        """Bring the full model back inside the block, then move it to main memory again."""
        self.bring_back()
        yield
        self._full_model[0].to("cpu")


def gather(value: Any) -> Any:
    """A value with sharded tensors replaced by full ones on the CPU, also in dicts and lists.

    All processes must call this together.
    """
    if isinstance(value, Mapping):
        return {key: gather(part) for key, part in value.items()}
    if isinstance(value, list):
        return [gather(part) for part in value]
    if isinstance(value, DTensor):
        return value.full_tensor().cpu()
    return value


def take_local_part(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, detached, to read it or to change it in place."""
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
