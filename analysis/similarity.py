"""Average representational similarity of a stream of models (ARS; the paper's appendix, fig:similarity).

    ARS_j = -1 / ((j - 1) n) sum_{i<j} sum_{k<=n} KL(p_k^i || p_k^j)   in nats; the nearer to 0, the more alike

p_k^i is what the LM head of M_i says at the k-th of n positions of D_j's text. What the paper leaves open:

- Text. It samples masks "from the raw corpus D_j"; we take rows spread evenly over D_j's validation text. On text that
  it was trained on M_j is sharper than on any other, by how often it saw it, which differs between methods under one
  wall time; and validation has one set of masks for all models, methods and seeds, so all are compared at the same
  positions.
- Positions. BERT: those that hold <mask> (80% of the predicted ones). GPT: every text token.
- Prompts, columns and adapters. Each model reads D_j as evaluation does: M_j with those of D_j, its ancestors, which
  have none for D_j, with their newest. So M_i's predictions are those whose perplexity its records hold.
- Ancestors that were not trained (From scratch leaves all stages but the last out) have no ARS: a reason stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from analysis.metrics import representational_similarity
from benchmark.instruments.run_models import RunModels, record, sample
from benchmark.models import LanguageModel
from benchmark.records import SimilarityLine
from benchmark.settings.suite import RunConfig
from benchmark.store import Store
from benchmark.training.evaluate import LOGITS_AT_ONCE, evaluating
from benchmark.training.stream import Stream, predictions

# of D_j's validation text: about 2,000 positions in BERT's rows of 512 tokens and in the demo's of 64, where it is
# within 2% of the ARS over eight times as many, and off the same way for all methods
ROWS = 32
FORMAT = 1  # raised when the same settings come to mean another computation


def measure(config: RunConfig, store: Store) -> None:
    """Record the ARS of a run's finished stages from the second on, where that is not recorded."""
    record(config, store, "similarity", {"format": FORMAT, "rows": ROWS}, _similarity, first=1)


def _similarity(models: RunModels, index: int) -> SimilarityLine:
    missing = [f"M{i + 1}" for i in models.untrained(index)]
    if missing:
        reason = f"{', '.join(missing)} not trained"
        return SimilarityLine(ars=None, divergences=[], positions=0, reason=reason)
    found, positions = divergences(models.up_to(index), models.stream, index)
    ars = representational_similarity(found)
    return SimilarityLine(ars=ars, divergences=found, positions=positions, reason=None)


@torch.no_grad()
def divergences(models: Sequence[LanguageModel], stream: Stream, domain: int) -> tuple[list[float], int]:
    """The mean of KL(p^i || p^j) in nats for each ancestor i of the last model j, and over how many positions."""
    *ancestors, newest = models
    device = next(newest.parameters()).device
    totals, count = [0.0] * len(ancestors), 0
    rows = max(1, LOGITS_AT_ONCE // (predictions(stream.length, stream.masked) * stream.corpus.text_vocabulary))
    for batch in sample(stream, domain, ROWS, rows):
        batch = batch.to(device)
        masked = (
            batch.tokens.gather(1, batch.positions) == stream.corpus.special.mask
            if stream.masked
            else torch.ones_like(batch.targets) > 0
        )

        def predict(model: LanguageModel, batch: Any = batch, masked: Tensor = masked) -> Tensor:
            """Log probabilities (positions, V_text)."""
            with evaluating(model):
                return model(batch.tokens, batch.domains, batch.positions)[masked].float().log_softmax(-1)

        last = predict(newest)
        for i, ancestor in enumerate(ancestors):
            totals[i] += divergence(predict(ancestor), last).sum().item()
        count += int(masked.sum())
    return [total / count for total in totals], count


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """KL(p || q) in nats (n,) of log p and log q (n, V)."""
    return F.kl_div(other, one, reduction="none", log_target=True).sum(-1)
