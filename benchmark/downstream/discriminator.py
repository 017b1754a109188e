"""Which domain is a text from? A rule that asks nothing but the pre-trained model and the memory.

The paper leaves to future work that the prompt is picked automatically, "by training a domain discriminator" (its
analysis of domain prompts). The classifier here is multinomial logistic regression on the mean of the model's own
token embeddings, fitted to the memory of the domains seen.

Shapes: R texts, D hidden size, C domains seen.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmark.files import DamagedFile, read_json, write_json
from benchmark.models import LanguageModel, load
from benchmark.models.devices import own_device
from benchmark.settings.base import ConfigError
from benchmark.training.method import Phase
from benchmark.training.stream import Stream

FILE = "domain_discriminator.json"  # beside the model in its checkpoint folder
MEMORY_ROWS, VALIDATION_ROWS = 2000, 100  # of a domain


@dataclass(frozen=True)
class Discriminator:
    """A linear classifier of mean token embeddings: argmax over C of embeddings @ weights.T + bias.

    `accuracy` was measured on rows of validation text, in 0..1: {"classifier": ...}.
    """

    domains: list[int]  # (C,) indices of the stream
    weights: list[list[float]]  # (C, D)
    bias: list[float]  # (C,)
    accuracy: dict[str, float] = field(default_factory=dict)

    def pick(self, embeddings: NDArray[np.float64]) -> NDArray[np.int64]:
        """The domain, an index of the stream, of each mean embedding (R, D)."""
        logits = embeddings @ np.array(self.weights).T + np.array(self.bias)
        return np.array(self.domains)[logits.argmax(1)]

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))


def read(folder: Path) -> Discriminator:
    """The discriminator of a checkpoint. Raises ConfigError when it has none, DamagedFile."""
    if not (folder / FILE).is_file():
        raise ConfigError(
            f"{folder} has no {FILE}, which picks prompts: it is made when a suite with tasks scores its final models "
            "that have prompts"
        )
    cure = "remove it, and scoring makes it again"
    try:
        return Discriminator(**read_json(folder / FILE, cure))
    except TypeError as error:
        raise DamagedFile(f"{folder / FILE} is damaged ({error}): {cure}") from None


def create(folder: Path, stream: Stream, seen: int) -> Discriminator:
    """Fit the discriminator of the checkpoint in `folder` on the memory of the first `seen` domains, and keep it there.

    One that is there already is read. Raises ConfigError when there are fewer than two domains to tell apart.
    """
    if (folder / FILE).is_file():
        return read(folder)
    model = load(folder).to(own_device())
    stream = copy.copy(stream)
    stream.masked = False  # whole texts
    rows = MEMORY_ROWS * seen
    memory = stream.batch(seen, Phase("memory", memory=1.0, domain="previous"), 0, 0, rows, range(rows))
    fitted = fit(model, memory.tokens.tolist(), memory.domains.numpy())
    valid = [next(iter(stream.validation(domain, VALIDATION_ROWS))) for domain in range(seen)]
    texts = [row for batch in valid for row in batch.tokens.tolist()]
    truth = torch.cat([batch.domains for batch in valid]).numpy()
    fitted.accuracy["classifier"] = float((fitted.pick(mean_embeddings(model, texts)) == truth).mean())
    fitted.save(folder)
    return fitted


def pick(folder: Path, texts: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The domain of each of R texts (ids without `<s>`), by the classifier of the checkpoint in `folder`.

    Raises ConfigError when it has none.
    """
    return read(folder).pick(mean_embeddings(load(folder), texts))


def fit(model: LanguageModel, texts: Sequence[Sequence[int]], domains: NDArray[np.int64]) -> Discriminator:
    """Logistic regression on the mean embeddings, scaled to unit variance for the fit. Raises ConfigError."""
    from sklearn.linear_model import LogisticRegression

    present = np.unique(domains)
    if len(present) < 2:
        raise ConfigError("a domain discriminator needs texts of two domains; the memory holds one or none")
    embeddings = mean_embeddings(model, texts)
    mean, scale = embeddings.mean(0), embeddings.std(0) + 1e-12
    fitted = LogisticRegression(max_iter=1000).fit((embeddings - mean) / scale, domains)
    weights, bias = fitted.coef_, fitted.intercept_
    if len(present) == 2:  # scikit-learn then gives the logit of the second class only
        weights, bias = np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
    weights = weights / scale
    return Discriminator(present.tolist(), weights.tolist(), (bias - weights @ mean).tolist())


def mean_embeddings(model: LanguageModel, texts: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """The mean of the token embeddings of each text, (R, D), `<s>` left out. Needs no forward pass."""
    embedding: Any = model.network.get_input_embeddings()
    table = embedding.weight.detach().cpu().double().numpy()
    bos = model.vocabulary.special.bos
    return np.stack([table[[token for token in text if token != bos]].mean(0) for text in texts])
