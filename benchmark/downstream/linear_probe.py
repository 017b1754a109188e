"""Linear probes: logistic regression on hidden states of a frozen model, which takes seconds.

A text is read whole, in windows of as many tokens as a row holds, and its states are averaged over
all its tokens. A pair's features are the states u and v of its texts, |u - v| and u * v, as in
SentEval (Conneau and Kiela 2018).

Shapes: R texts, D hidden size, F features of an example: D, or 4 D of a pair.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from benchmark import cancel
from benchmark.devices import choose_device
from benchmark.downstream.classifier import SavedModel, Texts, choose_prompt_domains
from benchmark.downstream.tasks import TaskData, fit_linear, score_predictions
from benchmark.ledger.records import ScoreLine
from benchmark.models import LanguageModel, load
from benchmark.settings.tasks import SPLITS, Prompt, Split

Features = dict[Split, NDArray[np.float32]]


def score_probe(checkpoint: SavedModel, data: TaskData, prompt: Prompt, columns: int) -> ScoreLine:
    """The score of a linear probe on a task.

    Nothing in it is random. Features are scaled to unit variance, for every model. `columns` is the
    largest number of tokens per forward pass. Raises DataError, ConfigError, and Stopped if asked
    to stop.
    """
    from sklearn.preprocessing import StandardScaler

    start = time.monotonic()
    features = compute_features(checkpoint, data, prompt, columns)
    best, predictions = fit_linear(data, features, StandardScaler())
    seconds = round(time.monotonic() - start, 3)
    return ScoreLine(
        protocol="linear_probe",
        prompt=prompt,
        seed=0,
        dev=best,
        precision="fp32",
        seconds=seconds,
        **score_predictions(data, predictions),
    )


def compute_features(
    checkpoint: SavedModel, data: TaskData, prompt: Prompt, columns: int
) -> Features:
    """The features (examples, F) of each split.

    A model with columns (PNN) or adapters (LoRA) uses those of the task's domain.
    """
    task_domain = checkpoint.find_index(data.task.domain)
    features = Features()
    model = load(checkpoint.folder).to(choose_device())
    model.prompts = prompt != "none"
    domains = choose_prompt_domains(checkpoint, data, prompt, 0)
    texts = checkpoint.encode_texts(data, uncut=True)
    for split in SPLITS:
        readers = []  # the domain by which each example is read
        for domain in domains[split]:
            has_prompt = domain >= 0
            readers.append(domain if has_prompt else task_domain)
        by_part = zip(*texts[split], strict=True)  # all texts, then all pairs if there are any
        means = [average_states(model, part, readers, columns) for part in by_part]
        if len(means) == 2:
            u, v = means
            means += [abs(u - v), u * v]
        features[split] = np.concatenate(means, axis=1)
    return features


@torch.inference_mode()
def average_states(
    model: LanguageModel, texts: Texts, domains: Sequence[int], columns: int
) -> NDArray[np.float32]:
    """The mean of the last hidden states over all tokens of each text, (R, D).

    The states of `<s>` and prompt are left out.
    """
    length = model.sequence_length - 2  # `<s>`, and room for a prompt
    device = next(model.parameters()).device
    windows = []
    for number, ids in enumerate(texts):
        for start in range(0, len(ids), length):
            windows.append((number, ids[start : start + length]))
    windows.sort(key=lambda window: len(window[1]))
    sums = np.zeros((len(texts), model.hidden_size))
    bos = model.vocabulary.special.bos
    # windows of one length, so that nothing is padded
    for size, group in groupby(windows, lambda window: len(window[1])):
        group_windows = list(group)
        rows = max(1, columns // (size + 2))
        for start in range(0, len(group_windows), rows):
            cancel.check()
            batch = group_windows[start : start + rows]
            numbers = [number for number, _ in batch]
            tokens = torch.tensor([[bos, *ids] for _, ids in batch], device=device)
            batch_domains = torch.tensor([domains[number] for number in numbers], device=device)
            states = model.hidden(tokens, batch_domains)[:, -size:]
            state_sums = states.double().sum(1)
            np.add.at(sums, numbers, state_sums.cpu().numpy())
    lengths = np.array([[len(ids)] for ids in texts])
    return (sums / lengths).astype(np.float32)
