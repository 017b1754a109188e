"""Which domain is a text from? A rule that asks nothing but the pre-trained model and the memory.

The paper leaves to future work that the prompt is picked automatically, "by training a domain discriminator" (its
analysis of domain prompts). The classifier here is multinomial logistic regression on the mean of the model's own
token embeddings, scaled to unit variance, and fitted to the memory of the domains seen.

Shapes: R texts, D hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmark.models import LanguageModel, load
from benchmark.training.method import Phase
from benchmark.training.stream import Stream

MEMORY_ROWS = 2000  # of a domain
Texts = Sequence[Sequence[int]]  # ids
Pick = Callable[[Texts], list[int]]  # the domain of each of R texts without `<s>`, as an index of the stream


def fit(folder: Path, stream: Stream, seen: int) -> Pick:
    """What picks domains for the checkpoint in `folder`, fitted to the memory of the first `seen` of them."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model, stream, rows = load(folder), copy.copy(stream), MEMORY_ROWS * seen
    stream.masked = False  # whole texts
    memory = stream.batch(seen, Phase("memory", memory=1.0, domain="previous"), 0, 0, rows, range(rows))
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier.fit(mean_embeddings(model, memory.tokens.tolist()), memory.domains.numpy())
    return lambda texts: classifier.predict(mean_embeddings(model, texts)).tolist()


def mean_embeddings(model: LanguageModel, texts: Texts) -> NDArray[np.float64]:
    """The mean of the token embeddings of each text, (R, D), `<s>` left out. Needs no forward pass."""
    embedding: Any = model.network.get_input_embeddings()
    table = embedding.weight.detach().cpu().double().numpy()
    bos = model.vocabulary.special.bos
    return np.stack([table[[token for token in text if token != bos]].mean(0) for text in texts])
