"""`run_all.py grow`: a larger model from a Hugging Face folder of a known architecture, and how near it is."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from benchmark.downstream import discriminator
from benchmark.files import CHECKSUMS, whole_folder, write_checksums
from benchmark.instruments.evaluate_text import ModelOnText, on_text, open_folder
from benchmark.models import experts, lora, progressive
from benchmark.models.growth import Mode, grow
from benchmark.models.of_stage import load_left
from benchmark.models.transformer import configuration, load_network
from benchmark.models.weight_files import SHARD, WeightFiles
from benchmark.models.weights import logits_of, random_rows
from benchmark.record_lines import GrowthRecord
from benchmark.settings.base import ConfigError

ROWS = 64  # of the text, at most, that calibrate
COMPARED = 4  # rows of which the outputs are compared
OF_THE_SIZE = (
    "*.safetensors",
    "*.bin",
    "*.index.json",
    "config.json",
    discriminator.FILE,
    CHECKSUMS,
)  # no other file is


@dataclass(frozen=True)
class GrownCheckpoint:
    """What was done, and how near the larger model is to the one that it was grown from."""

    growth: GrowthRecord
    max_logit_difference: float
    perplexity: tuple[float, float] | None  # before and after, where there is a text

    def flat(self) -> dict[str, object]:
        """All of it by name."""
        nearness = {"max_logit_difference": self.max_logit_difference}
        if self.perplexity:
            nearness["perplexity_before"], nearness["perplexity_after"] = self.perplexity
        return {**self.growth, **nearness}


def grow_checkpoint(
    checkpoint: Path,
    layers: int,
    hidden_size: int,
    out: Path,
    mode: Mode = "exact",
    text: Path | None = None,
    seed: int = 0,
) -> GrownCheckpoint:
    """Grow the model in `checkpoint`, write it to `out` with its tokenizer, and say what was done and how near it is.

    Both models lie in their folders' files, of which memory holds what is being worked on. Files are as large as those
    of `checkpoint` where it has several.

    `text` measures the perplexity before and after, as `evaluate` does on either folder, and its first rows fit what
    cannot be exact; without it the outputs on random tokens are compared. Raises ConfigError for what cannot be
    grown, DataError for the text.
    """
    if out.exists():
        raise ConfigError(f"--out {out} exists already: name a new folder")
    for file, kind, cure in (
        (progressive.FILE, "columns (PNN)", "grow the model of another method"),
        (experts.FILE, "experts (Lifelong-MoE)", "grow the model of another method"),
        (lora.FILE, "adapters (LoRA)", "grow what `run_all.py export` makes of it, where they are in the weights"),
    ):
        if (checkpoint / file).is_file():
            raise ConfigError(f"cannot grow {checkpoint}: it has {kind}, whose sizes are those of its network: {cure}")
    opened = on_text(*open_folder(checkpoint), text) if text else None
    network = opened.model.network if opened else _network(checkpoint)
    rows = _rows_of(opened) if opened else random_rows(network, COMPARED, seed)
    before = _measured(network, rows, opened, checkpoint)
    with whole_folder(out) as folder, tqdm(unit=" weights", unit_scale=True, disable=None) as bar:

        def progress(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        grown, record = grow(
            network.cpu(),
            layers,
            hidden_size,
            mode=mode,
            noise=0.0 if mode == "exact" else 0.01,
            seed=seed,
            calibration=rows if opened else None,
            files=WeightFiles(folder, _shard(checkpoint), progress),
        )
        for path in checkpoint.iterdir():
            if path.is_file() and not any(path.match(pattern) for pattern in OF_THE_SIZE):
                shutil.copy2(path, folder)
        write_checksums(folder)
        del network
        if opened:
            opened.model.set_network(grown)
        after = _measured(grown, rows, opened, checkpoint)
    perplexities = (before[1], after[1]) if opened else None
    moved = max(
        (one.float() - other.float()).abs().max().item() for one, other in zip(before[0], after[0], strict=True)
    )
    return GrownCheckpoint(record, moved, perplexities)


def _network(checkpoint: Path) -> PreTrainedModel:
    """The network in a folder; the model of a stage is held against its records, as `open_folder` does."""
    if "text_vocabulary" in configuration(checkpoint):
        load_left(checkpoint)
    return load_network(checkpoint)


def _shard(checkpoint: Path) -> int:
    sizes = [file.stat().st_size for file in checkpoint.glob("*.safetensors")]
    return max(sizes) if len(sizes) > 1 else SHARD


def _rows_of(opened: ModelOnText) -> Tensor:
    """The first rows (ROWS, columns) of the text, masked as in training, with the prompt that `evaluate` reads with."""
    batch = next(opened.stream.validation(opened.newest, ROWS))
    return opened.model.with_prompts(batch.tokens, batch.domains)


@torch.no_grad()
def _measured(
    network: PreTrainedModel, rows: Tensor, opened: ModelOnText | None, checkpoint: Path
) -> tuple[list[Tensor], float]:
    """Logits of some rows, and what `evaluate` says of the network's model and the text (0 where there is none)."""
    logits = logits_of(network, rows[:COMPARED], checkpoint)
    return logits, opened.perplexity(opened.newest) if opened else 0.0
