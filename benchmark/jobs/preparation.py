"""What `prepare` says of a suite's text and tasks, once they are tokenised and read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from benchmark.data.run_corpus import corpus_of
from benchmark.downstream.scoring import load_tasks
from benchmark.jobs.plan import data_key
from benchmark.settings.config import RunConfig, Suite
from benchmark.store import Store


def prepare(suite: Suite, configs: Sequence[RunConfig], store: Store) -> Iterator[str]:
    """Tokenise the domains of runs of the suite and read the suite's tasks; a line for each of them."""
    for config in {data_key(config): config for config in configs}.values():
        corpus = corpus_of(config, store, lambda text: print(text, file=sys.stderr))
        for domain in (*corpus.domains, *corpus.probes):
            yield (
                f"{domain.name}: {domain.info['documents']:,} documents, {len(domain.train):,} training and "
                f"{len(domain.valid):,} validation tokens, unigram perplexity {domain.info['unigram_perplexity']:,.1f}"
            )
        if note := config.tokenizer.note(config.domains):
            yield note
    for task, data in load_tasks(suite, store):
        yield (
            f"{task.name}: {len(data.train):,} training, {len(data.dev):,} dev and {len(data.test):,} test examples of "
            f"{len(data.labels)} classes"
        )
