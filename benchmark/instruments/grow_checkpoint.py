"""`run_all.py grow`: a larger model from a Hugging Face folder of a known architecture, and how near it is."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from benchmark.atomic import whole_folder
from benchmark.data import corpus
from benchmark.downstream import discriminator
from benchmark.models import architectures, lora, progressive
from benchmark.models.growth import Mode, grow
from benchmark.models.transformer import load_network
from benchmark.record_lines import GrowthRecord
from benchmark.settings.config import ConfigError, Domain

ROWS, COLUMNS = 64, 128  # at most, of the text that measures and calibrates
MASKED_SHARE = 0.15
OF_THE_SIZE = ("*.safetensors", "*.bin", "*.index.json", "config.json", discriminator.FILE)  # no other file is


@dataclass(frozen=True)
class GrownCheckpoint:
    """What was done, and how near the larger model is to the one that it was grown from."""

    growth: GrowthRecord
    max_logit_difference: float
    perplexity: tuple[float, float] | None  # before and after, where there is a text

    def flat(self) -> dict[str, object]:
        """All of it by name, for JSON."""
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

    `text` fits what cannot be exact and measures the perplexity before and after on other rows of it; without it
    the outputs on random tokens are compared. Raises ConfigError for what cannot be grown, DataError for the text.
    """
    if out.exists():
        raise ConfigError(f"--out {out} exists already: name a new folder")
    for kind, one in (("columns (PNN)", progressive), ("adapters (LoRA)", lora)):
        if (checkpoint / one.FILE).is_file():
            raise ConfigError(f"cannot grow {checkpoint}: it has {kind}, whose sizes are those of its network")
    network = load_network(checkpoint).eval()
    rows, mask = _rows_of_text(checkpoint, network, text) if text else (_random_rows(network, seed), None)
    inputs, targets = _masked(rows, mask, seed)
    half = len(rows) // 2 if text else 0
    calibration = inputs[:half] if text else None
    grown, record = grow(
        network,
        layers,
        hidden_size,
        mode=mode,
        noise=0.0 if mode == "exact" else 0.01,
        seed=seed,
        calibration=calibration,
    )
    grown.eval()
    before, after = _logits(network, inputs[half:]), _logits(grown, inputs[half:])
    perplexities = (_perplexity(before, targets[half:]), _perplexity(after, targets[half:])) if text else None
    with whole_folder(out) as folder:
        grown.save_pretrained(folder)
        for path in checkpoint.iterdir():
            if path.is_file() and not any(path.match(pattern) for pattern in OF_THE_SIZE):
                shutil.copy2(path, folder)
    return GrownCheckpoint(record, (before - after).abs().max().item(), perplexities)


def _rows_of_text(checkpoint: Path, network: PreTrainedModel, text: Path) -> tuple[Tensor, int | None]:
    """Token ids (rows, columns), and the id of the mask token if the model predicts masked ones."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    columns = min(COLUMNS, network.config.max_position_embeddings // 2)
    documents = corpus.read(Domain(name="text", train=(str(text),)), 0.5, Counter())
    ids: list[int] = []
    for document in islice(documents, 10_000):
        ids += tokenizer(document.text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) >= ROWS * columns:
            break
    rows = min(ROWS, len(ids) // columns)
    if rows < 2:
        raise ConfigError(f"--text {text} has {len(ids)} tokens; give at least {2 * columns}")
    masked = architectures.of(network.config.model_type).masked
    mask = tokenizer.mask_token_id if masked else None
    return torch.tensor(ids[: rows * columns]).view(rows, columns), mask


def _random_rows(network: PreTrainedModel, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    columns = min(COLUMNS, network.config.max_position_embeddings // 2)
    return torch.randint(network.config.vocab_size, (4, columns), generator=generator)


def _masked(rows: Tensor, mask: int | None, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (-100: not predicted) of masked tokens, or of the next one."""
    if mask is None:
        return rows, torch.cat([rows[:, 1:], torch.full((len(rows), 1), -100)], dim=1)
    chosen = torch.rand(rows.shape, generator=torch.Generator().manual_seed(seed)) < MASKED_SHARE
    return rows.masked_fill(chosen, mask), rows.masked_fill(~chosen, -100)


@torch.no_grad()
def _logits(network: PreTrainedModel, inputs: Tensor) -> Tensor:
    return torch.cat([network(row.unsqueeze(0)).logits for row in inputs]).float()


def _perplexity(logits: Tensor, targets: Tensor) -> float:
    return math.exp(F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item())
