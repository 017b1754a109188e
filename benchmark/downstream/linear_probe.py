"""Linear probes: logistic regression on the hidden states of a frozen model. Seconds a model.

A text is read whole, in windows of as many tokens as a row holds, and its states are averaged over
all its tokens. Of a
pair the states u and v of both texts count, and |u - v| and u * v, as in SentEval (Conneau and Kiela 2018).

Shapes: R texts, D hidden size, F features of an example: D, or 4 D of a pair.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from benchmark.downstream.classifier import Asked, SavedModel, Texts, choose_prompt_domains
from benchmark.downstream.tasks import TaskData, fit_linear, score_predictions
from benchmark.models import LanguageModel, load
from benchmark.models.devices import choose_device
from benchmark.records import ScoreLine
from benchmark.settings.tasks import SPLITS, Prompt, Split
from benchmark.training.processes import Stopped

Features = dict[Split, NDArray[np.float32]]


def score_probe(checkpoint: SavedModel, data: TaskData, prompt: Prompt, columns: int) -> ScoreLine:
    """The score of a probe; nothing in it is random. Features are scaled to unit variance for it,
    as for all models.

    `columns`: of a forward pass at most. Raises DataError, ConfigError, and Stopped when asked to.
    """
    from sklearn.preprocessing import StandardScaler

    began = time.monotonic()
    features = compute_features(checkpoint, data, prompt, columns)
    best, predictions = fit_linear(data, features, StandardScaler())
    seconds = round(time.monotonic() - began, 3)
    result = score_predictions(data, predictions)
    return ScoreLine(
        how="linear_probe",
        prompt=prompt,
        seed=0,
        dev=best,
        precision="fp32",
        seconds=seconds,
        **result,
    )


def compute_features(
    checkpoint: SavedModel, data: TaskData, prompt: Prompt, columns: int
) -> Features:
    """The features (examples, F) of each split. A model with columns (PNN) or adapters (LoRA) reads
    with those of the task's domain.
    """
    own, features = checkpoint.find_index(data.task.domain), Features()
    model = load(checkpoint.folder).to(choose_device())
    model.prompts = prompt != "none"
    domains = choose_prompt_domains(checkpoint, data, prompt, 0)
    texts = checkpoint.encode_texts(data, whole=True)
    for split in SPLITS:
        read_with = [own if domain < 0 else domain for domain in domains[split]]
        parts = zip(*texts[split], strict=True)
        means = [
            average_states(model, part, read_with, columns, checkpoint.asked_to_stop)
            for part in parts
        ]
        if len(means) == 2:
            u, v = means
            means += [abs(u - v), u * v]
        features[split] = np.concatenate(means, axis=1)
    return features


@torch.inference_mode()
def average_states(
    model: LanguageModel, texts: Texts, domains: Sequence[int], columns: int, asked_to_stop: Asked
) -> NDArray[np.float32]:
    """The mean over all tokens of each text of their last hidden states (R, D), without those of
    `<s>` and prompt.
    """
    length, device = (
        model.sequence_length - 2,
        next(model.parameters()).device,
    )  # `<s>`, and room for a prompt
    windows = [
        (i, ids[k : k + length]) for i, ids in enumerate(texts) for k in range(0, len(ids), length)
    ]
    sums = np.zeros((len(texts), model.hidden_size))
    bos = model.vocabulary.special.bos
    for size, alike in groupby(
        sorted(windows, key=lambda window: len(window[1])), lambda window: len(window[1])
    ):
        group, rows = (
            list(alike),
            max(1, columns // (size + 2)),
        )  # of one length, so that nothing is padded
        for some in (group[k : k + rows] for k in range(0, len(group), rows)):
            if asked_to_stop():
                raise Stopped
            tokens = torch.tensor([[bos, *ids] for _, ids in some], device=device)
            which = torch.tensor([domains[i] for i, _ in some], device=device)
            states = model.hidden(tokens, which)[:, -size:].double().sum(1)
            np.add.at(sums, [i for i, _ in some], states.cpu().numpy())
    return (sums / np.array([[len(ids)] for ids in texts])).astype(np.float32)
