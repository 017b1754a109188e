"""A network whose weights lie in the files of a Hugging Face folder, so that no more memory is needed than is in use.

A file of safetensors is the length of its header (8 bytes, little-endian), the header (JSON: of each tensor its type,
its shape, and where among the bytes after the header it lies), and these bytes.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmark.settings.base import ConfigError

SHARD = 5 * 10**9  # bytes; a single file where no more are needed
_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_ALIGNMENT = 8  # bytes, as safetensors' own


class WeightFiles:
    """The files that hold one network's weights.

    Args:
        folder: where they are made.
        shard: bytes that a file may have, if it holds more than one tensor.
        progress: told how many numbers are written, and of how many.
    """

    def __init__(self, folder: Path, shard: int = SHARD, progress: Callable[[int, int], None] = lambda done, of: None):
        self.folder = folder
        self.shard = shard
        self.progress = progress
        self._maps: list[mmap.mmap] = []
        self._written = self._numbers = 0

    def hold(self, network: PreTrainedModel) -> None:
        """Make the folder of a network without weights (on the device "meta"); its parameters are then in the files.

        What a forward pass reads of them it lets go of, layer for layer. Raises ConfigError where the disk is full.
        """
        parameters = self._begin(network)
        split = split_torch_state_dict_into_shards(
            parameters, filename_pattern="model{suffix}.safetensors", max_shard_size=self.shard
        )
        held: dict[Tensor, nn.Parameter] = {}
        for name, tensors in split.filename_to_tensors.items():
            views = self._file(self.folder / name, {one: parameters[one] for one in tensors})
            held.update({parameters[one]: nn.Parameter(view) for one, view in views.items()})
        if split.is_sharded:
            index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
            (self.folder / "model.safetensors.index.json").write_text(
                json.dumps(index, indent=2, sort_keys=True) + "\n"
            )
        for module in network.modules():
            own = {name: held[parameter] for name, parameter in module._parameters.items() if parameter is not None}
            module._parameters.update(own)
            if own:
                module.register_forward_hook(lambda *_: self._let_go())
        every = network.state_dict(keep_vars=True)  # tied ones twice, as they are written
        self._numbers = sum(tensor.numel() for name, tensor in every.items() if name.endswith("weight"))

    def _begin(self, network: PreTrainedModel) -> dict[str, Tensor]:
        """Write all but the weights. Returns the parameters, tied ones once, by the names that transformers gives them.

        In the file they have other names than in the network where older versions had (GPT-NeoX): what it calls tensors
        that hold nothing but a number says which.
        """
        parameters: list[tuple[str, Tensor]] = list(network.named_parameters())
        numbered = {name: torch.tensor([number]) for number, (name, _) in enumerate(parameters)}
        network.save_pretrained(self.folder, state_dict=numbered)
        saved = self.folder / "model.safetensors"
        named = {name: parameters[int(number)][1] for name, number in load_file(saved).items()}
        saved.unlink()
        return named

    def written(self, weight: Tensor) -> None:
        """Some more of the weights are written: they need not stay in memory."""
        self._let_go()
        self._written += weight.numel()
        self.progress(self._written, self._numbers)

    def _let_go(self) -> None:
        for one in self._maps:
            one.madvise(mmap.MADV_DONTNEED)  # the pages are the file's, so nothing is lost

    def _file(self, path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """A file of zeros for some tensors, and what of it is whose."""
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        ends = [0]
        for name, tensor in tensors.items():
            ends.append(ends[-1] + tensor.nbytes)
            header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": ends[-2:]}
        begin = json.dumps(header).encode()
        begin += b" " * (-len(begin) % _ALIGNMENT)
        begin = len(begin).to_bytes(8, "little") + begin
        with path.open("w+b") as file:
            file.write(begin)
            file.flush()
            self._reserve(file.fileno(), len(begin) + ends[-1])
            whole = mmap.mmap(file.fileno(), len(begin) + ends[-1])
        self._maps.append(whole)
        places = zip(tensors.items(), ends, strict=False)
        return {
            name: torch.frombuffer(whole, dtype=one.dtype, count=one.numel(), offset=len(begin) + at).view(one.shape)
            for (name, one), at in places
        }

    def _reserve(self, file: int, size: int) -> None:
        """A full disk has to be noticed here: a process that writes into a mapped file would be killed by it."""
        try:
            os.posix_fallocate(file, 0, size) if hasattr(os, "posix_fallocate") else os.truncate(file, size)
        except OSError as error:
            raise ConfigError(
                f"no room for {size:,} bytes in {self.folder.parent}: {error.strerror}"
                "; free some, or name a folder on another disk"
            ) from None
