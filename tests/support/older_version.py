"""Runs as the version left them whose keys of stages held the whole corpus."""

from __future__ import annotations

import json
import os

import torch

import methods
from benchmark import records
from benchmark.data.bpe import content_key
from benchmark.instruments.rekey import old_stage_keys
from benchmark.models import load
from benchmark.models.prompts import meet
from benchmark.models.weights import weights_hash
from benchmark.settings.config import digest
from benchmark.training import checkpoint
from benchmark.training.run import Run


def as_that_version_left_it(run: Run) -> list[str]:
    """Make of a trained run what it would have looked like: old keys, prompt rows of the whole stream."""
    corpus, config = run.corpus, run.config
    corpus_key = digest([content_key(corpus.tokenizer), [[domain.name, domain.key] for domain in corpus.domains]])
    keys = old_stage_keys(config, methods.build(config.method, config.options), corpus_key)
    for before, now in zip(keys, run.keys, strict=True):
        folder = run.store.stage(now)
        model = load(folder / "model")
        meet(model, [domain.name for domain in config.domains], seed=1)
        model.save(folder / "model", corpus.tokenizer)
        lines = records.read(folder / "records.jsonl")
        for line in lines:
            line.pop("texts", None)
            line.pop("trained", None)
            if line["kind"] == "done":
                line["weights"] = weights_hash(model)
            if line["kind"] == "stage":
                line["key"] = before
        (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        torch.save(checkpoint.load(folder / "method.pt"), folder / "method.pt")
        os.replace(folder, run.store.stage(before))
    line = records.read(run.store.run_file(config))[0]
    line.pop("texts")
    run.store.run_file(config).write_text(json.dumps({**line, "stages": keys}) + "\n")
    return keys
