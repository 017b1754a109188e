"""The corpus of a run, as its settings say. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmark.data.tokens import Corpus, Poll, Unprepared, prepare
from benchmark.settings.suite import RunConfig
from benchmark.store import Store


def corpus_of(
    config: RunConfig,
    store: Store,
    progress: Callable[[str], None] | None = None,
    check: bool = True,
    makes: bool = True,
    poll: Poll = lambda waits: None,
) -> Corpus:
    """The run's corpus; what is missing of it is tokenised. Raises DataError, and Unprepared as `prepare` does.

    `check`: hold all ids against their checksums first, which raises DamagedFile. `poll`: see `prepare`.
    """
    start = Path(config.start.folder) if config.start else None
    given = (config.domains, config.tokenizer, config.data, store.data, progress, config.probes, start)
    corpus = prepare(*given, poll=poll, makes=makes)
    for text in (*corpus.domains, *corpus.probes) if check else ():
        text.check()
    return corpus


def corpus_if_prepared(config: RunConfig, store: Store) -> Corpus | None:
    """The run's corpus if it needs no work; its ids are not read, and nothing is made."""
    try:
        return corpus_of(config, store, check=False, makes=False)
    except Unprepared:
        return None
