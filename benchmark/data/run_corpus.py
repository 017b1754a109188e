"""The corpus of a run, as its settings say. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmark.data.tokens import Corpus, prepare
from benchmark.settings.config import RunConfig
from benchmark.store import Store


def corpus_of(
    config: RunConfig, store: Store, progress: Callable[[str], None] | None = None, check: bool = True
) -> Corpus:
    """The run's corpus; what is missing of it is tokenised. Raises DataError.

    `check`: hold all ids against their checksums first, which raises DamagedFile.
    """
    start = Path(config.start.folder) if config.start else None
    corpus = prepare(config.domains, config.tokenizer, config.data, store.data, progress, config.probes, start)
    for text in (*corpus.domains, *corpus.probes) if check else ():
        text.check()
    return corpus


def corpus_if_prepared(config: RunConfig, store: Store) -> Corpus | None:
    """The run's corpus if it needs no work; its ids are not read."""

    class Unprepared(Exception):
        pass

    def refuse(text: str) -> None:  # reports come before the work that they announce
        raise Unprepared

    try:
        return corpus_of(config, store, refuse, check=False)
    except Unprepared:
        return None
