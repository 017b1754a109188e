"""What `prepare` says of a suite's text and tasks, once they are tokenised and read, and what it warns of."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmark.data.documents import FEW_DOCUMENTS
from benchmark.data.tokens import Corpus, Ids, corpus_of
from benchmark.downstream.tasks import load_tasks
from benchmark.jobs.state import data_key
from benchmark.models.transformer import load_network
from benchmark.settings.suite import RunConfig, Suite
from benchmark.store import Store

BLOCK = 2**24  # ids that are looked through at once


def prepare(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[str]:
    """Tokenise the domains of runs of the suite and read its tasks; a line for each, warnings, what is next."""
    store, found = Store(runs), list[str]()
    for config in {data_key(config): config for config in configs}.values():
        corpus = corpus_of(config, store, lambda text: print(text, file=sys.stderr))
        for domain in (*corpus.domains, *corpus.probes):
            skipped = ", ".join(f"{count:,} {reason}" for reason, count in domain.info["skipped"].items())
            yield (
                f"{domain.name}: {domain.info['documents']:,} documents, {len(domain.train):,} training and "
                f"{len(domain.valid):,} validation tokens, unigram perplexity {domain.info['unigram_perplexity']:,.1f}"
                + (f"; left out: {skipped}" if skipped else "")
            )
        found += warnings(corpus, config)
    for folder in {config.start.folder for config in configs if config.start}:
        load_network(folder)  # what is wrong with its weights is said now, not by the jobs that train
    for task, data in load_tasks(suite, store):
        yield (
            f"{task.name}: {len(data.train):,} training, {len(data.dev):,} dev and {len(data.test):,} test examples of "
            f"{len(data.labels)} classes"
        )
    yield from filter(None, dict.fromkeys(config.start_note for config in configs))
    yield from (f"! {warning}" for warning in dict.fromkeys(found))
    yield (
        f"ready in {store.data}; next: `python run_all.py run {suite.called} --dry-run` says which runs there are, and "
        "how long"
    )


def warnings(corpus: Corpus, config: RunConfig) -> Iterator[str]:
    """What makes numbers on this text say less than they seem to."""
    for domain in (*corpus.domains, *corpus.probes):
        held_out = domain.info.get("valid_documents", FEW_DOCUMENTS)
        if held_out < FEW_DOCUMENTS:
            more = "Give more documents (a .txt file is one), its `valid` files, or a larger data.valid_share"
            if "beyond max_valid_tokens" in domain.info["skipped"]:
                more = "Give a larger data.max_valid_tokens"
            yield (
                f"{domain.name}: only {held_out} documents for validation, so its perplexity is theirs more than the "
                f"domain's. {more}"
            )
    yield from shared_documents(corpus)
    if note := config.tokenizer_note:
        yield note


def shared_documents(corpus: Corpus) -> Iterator[str]:
    """Which domains have documents in common, token by token: what one learns of the other is no transfer."""
    eos = corpus.special.eos
    texts = {text.name: _documents(text.valid, eos) for text in (*corpus.domains, *corpus.probes)}
    for domain in corpus.domains:
        texts[domain.name] = np.union1d(texts[domain.name], _documents(domain.train, eos))
    for (name, documents), (other, others) in combinations(texts.items(), 2):
        if both := len(np.intersect1d(documents, others)):
            yield (
                f"{name} and {other} share {both:,} documents: what a model learns or forgets of one is then text of "
                "the other too. Take them out of one"
            )


def _documents(ids: Ids, eos: int) -> NDArray[np.uint64]:
    """A hash of each document of some ids, once."""
    blocks = (np.flatnonzero(ids[start : start + BLOCK] == eos) + start + 1 for start in range(0, len(ids), BLOCK))
    ends = np.concatenate([np.zeros(1, int), *blocks])
    parts = (ids[start:end].tobytes() for start, end in pairwise(ends.tolist()) if end > start + 1)
    found = b"".join(hashlib.blake2b(part, digest_size=8).digest() for part in parts)
    return np.unique(np.frombuffer(found, np.uint64))
