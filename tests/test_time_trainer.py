"""What transformers.Trainer is given where our loop is timed beside it."""

from __future__ import annotations

import numpy as np
import pytest

import methods
from benchmark.instruments.tiny_runs import Lab
from benchmark.training.learner import cross_entropy
from benchmark.training.method import Phase
from benchmark.training.stage_inputs import trainable_stage
from tests.tools import time_trainer


@pytest.mark.parametrize("architecture", ["bert", "gpt"])
def test_the_trainer_that_ours_is_timed_beside_learns_the_same(architecture: str, tmp_path) -> None:
    """Oracle: the cross-entropy of the targets where our batch says that they are predicted."""
    lab = Lab("naive", methods.build, tmp_path)
    config = lab.config(architecture)
    stream = lab.run(config, "run").stream
    network = trainable_stage(config, 0, stream).build(config.model.ladder[0]).network
    plain = type(network)(network.config).eval()
    batch = stream.batch(0, Phase("adapt"), 0, 0, 8, np.arange(8), None)
    logits = plain(input_ids=batch.tokens).logits
    at = logits.gather(1, batch.positions.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
    labels = time_trainer.labels_of(batch, stream.masked)
    loss = plain(input_ids=batch.tokens, labels=labels).loss
    assert loss.item() == pytest.approx(cross_entropy(at, batch.targets).item(), rel=1e-6)
