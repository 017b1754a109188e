"""Validation text without the documents that are near copies of training text.

Only validation text loses these documents. Training text, and so weights, stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmark.data.documents import DataError
from benchmark.data.leaks import NGRAM_WORDS, find_validation_leaks
from benchmark.data.tokens import (
    Corpus,
    DataCache,
    DomainInfo,
    DomainTokens,
    check_length,
    describe_cure,
    measure_unigram_perplexity,
    number_documents,
    number_sources,
)
from benchmark.files import check_checksums
from benchmark.settings.base import digest
from benchmark.settings.suite import Data

NEAR_COPIES = "near copies of training text"  # why a validation document is left out


def decontaminate(corpus: Corpus, data: Data, cache: DataCache) -> Corpus:
    """The corpus without the validation documents that are near copies of training text.

    Training text is that of all domains and probes, so all rows of a suite are measured on the
    same text. With `data.near_copies = "keep"` the documents stay, and `DomainInfo` has their
    number. Raises DataError if too little is left, and what `DataCache.make_once` raises.
    """
    leaks = find_validation_leaks(corpus, cache)

    def clean(domain: DomainTokens) -> DomainTokens:
        copies: set[int] = set()
        for found in leaks.values():
            copies.update(found[domain.name])
        if not copies:
            return domain
        if data.near_copies == "keep":
            info = cast(DomainInfo, {**domain.info, "near_copies": len(copies)})
            return replace(domain, info=info)
        return _leave_out(domain, sorted(copies), corpus, data, cache)

    return replace(
        corpus,
        domains=tuple(clean(domain) for domain in corpus.domains),
        probes=tuple(clean(probe) for probe in corpus.probes),
    )


def _leave_out(
    domain: DomainTokens, copies: Sequence[int], corpus: Corpus, data: Data, cache: DataCache
) -> DomainTokens:
    """A domain without the validation documents `copies`. Its files are made once."""
    key = digest([domain.key, copies])
    make = partial(_write, domain, copies, corpus)
    folder = cache.make_once("decontaminated", key, make)
    check_checksums(folder, describe_cure(folder))
    info = {**domain.info, **json.loads((folder / "info.json").read_text(encoding="utf-8"))}
    if not info["valid_sources"]:  # empty in the file to replace the domain's own
        del info["valid_sources"]
    valid = np.fromfile(folder / "valid.bin", domain.train.dtype)
    rest = replace(
        domain,
        valid=valid,
        valid_key=key,
        valid_sizes=tuple(info.pop("valid_sizes")),
        info=cast(DomainInfo, info),
    )
    try:
        check_length(rest, data)
    except DataError as error:
        raise DataError(
            f"{error}. {len(copies):,} validation documents of {domain.name!r} stand in training "
            f"text, at least half of their runs of {NGRAM_WORDS} words: give others, or set "
            'data.near_copies = "keep" for published splits'
        ) from None
    return rest


def _write(domain: DomainTokens, copies: Sequence[int], corpus: Corpus, folder: Path) -> None:
    """Write valid.bin and info.json of the documents that stay."""
    ids = np.asarray(domain.valid)
    numbers = number_documents(ids, corpus.special.eos)
    rest = ids[~np.isin(numbers, copies)]
    count = domain.info["valid_documents"]
    documents = [number for number in range(count) if number not in copies]
    sizes = [domain.valid_sizes[number] for number in documents]
    old_sources = domain.info.get("valid_sources")
    sources = [old_sources[number] for number in documents] if old_sources else documents
    size = corpus.text_vocabulary
    train_counts = np.bincount(np.asarray(domain.train), minlength=size)
    valid_counts = np.bincount(rest, minlength=size)
    info: dict[str, Any] = {
        "valid_documents": len(documents),
        "valid_bytes": sum(sizes),
        "valid_sizes": sizes,
        "skipped": {**domain.info["skipped"], NEAR_COPIES: len(copies)},
        "unigram_perplexity": measure_unigram_perplexity(train_counts, valid_counts),
        "valid_sources": number_sources(sources).get("valid_sources", []),
    }
    rest.tofile(folder / "valid.bin")
    (folder / "info.json").write_text(json.dumps(info), encoding="utf-8")
