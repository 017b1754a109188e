"""The corpus of a run, as its settings say. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmark.data.tokens import Corpus, prepare
from benchmark.settings.config import RunConfig
from benchmark.store import Store


def corpus_of(config: RunConfig, store: Store, progress: Callable[[str], None] | None = None) -> Corpus:
    """The run's corpus; what is missing of it is tokenised. Raises DataError."""
    start = Path(config.start.folder) if config.start else None
    return prepare(config.domains, config.tokenizer, config.data, store.data, progress, config.probes, start)


def corpus_if_prepared(config: RunConfig, store: Store) -> Corpus | None:
    """The run's corpus if it needs no work."""

    class Unprepared(Exception):
        pass

    def refuse(text: str) -> None:  # reports come before the work that they announce
        raise Unprepared

    try:
        return corpus_of(config, store, refuse)
    except Unprepared:
        return None
