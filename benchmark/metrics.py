"""Average perplexity (AP), the metric that several packages need.

It is pure NumPy. `analysis.metrics` has the metrics that only tables show.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def average_perplexity(perplexity: ArrayLike, stage: ArrayLike) -> NDArray[np.float64]:
    """AP: geometric mean of the perplexities of the domains learned so far.

    Source: ELLE, "Evaluation Metrics".

    `perplexity` ends in an axis of domains, in the order of the stream. `stage` is the index (from
    0) of the domain being learned. Leading axes broadcast. A perplexity may be infinite.
    """
    values = np.asarray(perplexity, float)
    current = np.asarray(stage)
    is_learned = np.arange(values.shape[-1]) <= current[..., None]
    logarithms = np.where(is_learned, np.log(values), 0.0)
    return np.asarray(np.exp(logarithms.sum(-1) / (current + 1)))
