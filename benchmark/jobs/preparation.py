"""The lines and warnings of `prepare`, once a suite's text is tokenised and its tasks are read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence, Set
from itertools import combinations
from pathlib import Path

from benchmark.data.documents import FEW_DOCUMENTS
from benchmark.data.leaks import RUN, Found, find_shared_documents, find_validation_leaks
from benchmark.data.tokens import (
    BEYOND,
    Corpus,
    DomainTokens,
    hash_data_settings,
    prepare_corpus,
)
from benchmark.downstream.tasks import (
    TaskData,
    load_tasks,
    mark_in_prepared_stream,
    mark_in_stream,
    record_baselines,
)
from benchmark.jobs.text_table import align
from benchmark.models.transformer import load_network
from benchmark.settings.suite import RunConfig, Suite
from benchmark.store import Store

SENTENCE = 20  # tokens: documents that have fewer are single sentences
DOMAIN_TITLES = (
    "domain",
    "documents",
    "training tokens",
    "validation documents",
    "validation tokens",
    "near copies",
    "unigram perplexity",
    "left out",
)
TASK_TITLES = ("task", "training", "dev", "test", "classes", "in train", "in the stream")


def prepare(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[str]:
    """Tokenise the domains of a suite's runs and read its tasks; yield tables, warnings, next step."""
    store = Store(runs)
    corpora: list[tuple[Corpus, RunConfig]] = []
    warnings: list[str] = []
    for config in {hash_data_settings(config): config for config in configs}.values():
        corpus = prepare_corpus(config, store, lambda text: print(text, file=sys.stderr))
        corpora.append((corpus, config))
        leaks = find_validation_leaks(corpus, config.learned, store.data)
        yield from align([DOMAIN_TITLES, *describe_domains(corpus, leaks)])
        sizes = [domain.info["tokens"] for domain in corpus.domains]
        yield from filter(None, [config.describe_expected_passes(sizes)])
        warnings += warn_of_text(corpus, config, store.data)
    for folder in {config.start.folder for config in configs if config.start}:
        load_network(folder)  # wrong weights are told now, and not by the jobs that train
    tasks = load_tasks(suite, store)
    if tasks:
        marked = [
            task
            for corpus, config in corpora
            for task in mark_in_stream(tasks, corpus, config.learned, store.data)[0]
        ]
        yield from align([TASK_TITLES, *dict.fromkeys(map(describe_task, marked))])
        warnings += warn_of_tests(marked)
        prepared = mark_in_prepared_stream(tasks, configs[0], store)
        record_baselines(prepared, store.scores_file("baselines"))
    yield from (f"! {warning}" for warning in dict.fromkeys(warnings))
    yield (
        f"ready in {store.data}; next: `python run_all.py run {suite.called} --dry-run` says which "
        "runs there are, and how long"
    )


def describe_domains(corpus: Corpus, leaks: Found) -> Iterator[tuple[str, ...]]:
    """The cells of each domain and probe, below DOMAIN_TITLES; `leaks`: of `find_validation_leaks`."""
    for domain in (*corpus.domains, *corpus.probes):
        info = domain.info
        left_out = [f"{count:,} {reason}" for reason, count in info["skipped"].items()]
        yield (
            domain.name,
            f"{info['documents']:,}",
            f"{len(domain.train):,}",
            f"{info.get('valid_documents', 0):,}",
            f"{len(domain.valid):,}",
            _count(list_copies(domain, leaks)),
            f"{info['unigram_perplexity']:,.1f}",
            ", ".join(left_out),
        )


def describe_task(data: TaskData) -> tuple[str, ...]:
    """The cells of a task, below TASK_TITLES, whose test is marked by a stream."""
    return (
        data.task.name,
        f"{len(data.train):,}",
        f"{len(data.dev):,}",
        f"{len(data.test):,}",
        f"{len(data.labels)}",
        _count(data.leaked),
        _count(data.in_stream),
    )


def _count(found: Sequence[bool] | Set[int]) -> str:
    """How many were found; "" for none."""
    number = len(found) if isinstance(found, Set) else sum(found)
    return f"{number:,}" if number else ""


def list_copies(domain: DomainTokens, leaks: Found) -> set[int]:
    """The numbers of a domain's validation documents that nearly stand in any training text."""
    return {number for copies in leaks.values() for number in copies[domain.name]}


def warn_of_text(corpus: Corpus, config: RunConfig, folder: Path) -> Iterator[str]:
    """One warning per kind of text on which perplexity tells little: few, copied or short
    documents.

    `folder` keeps which validation documents are copies, so that a second call need not look for
    them again.
    """
    domains = (*corpus.domains, *corpus.probes)
    few: dict[str, list[str]] = {}
    for domain in domains:
        count = domain.info.get("valid_documents", FEW_DOCUMENTS)
        if count < FEW_DOCUMENTS:
            cure = (
                "more documents (a .txt file is one), `valid` files, or a larger data.valid_share"
            )
            if BEYOND in domain.info["skipped"]:
                cure = "a larger data.max_valid_bytes or data.max_train_tokens"
            few.setdefault(cure, []).append(f"{domain.name} ({count})")
    for cure, names in few.items():
        yield f"few documents for validation: {', '.join(names)}. Give {cure}"
    leaks = find_validation_leaks(corpus, config.learned, folder)
    copied = [domain.name for domain in domains if list_copies(domain, leaks)]
    if copied:
        yield (
            f"near copies: validation documents of {', '.join(copied)} stand in training text, at "
            f"least half of their runs of {RUN} words. Take one of each pair out"
        )
    short = [
        f"{domain.name} ({domain.info['tokens'] / domain.info['documents']:.0f} tokens)"
        for domain in domains
        if domain.info["tokens"] / domain.info["documents"] < SENTENCE
    ]
    if short:
        yield (
            f"short documents: {', '.join(short)}, so a row joins unrelated ones. Where they are "
            "sentences of longer texts, join them"
        )
    shared = find_shared_documents(corpus, folder)
    pairs = combinations([domain.name for domain in corpus.domains], 2)
    counts = {pair: len(shared[pair[0]][pair[1]]) for pair in pairs}
    overlaps = [f"{count:,} of {b} in {a}" for (a, b), count in counts.items() if count]
    if overlaps:
        yield (
            f"validation documents that two domains share: {', '.join(overlaps)}. What is learned "
            "of one domain is known of both. Let one of them keep these documents"
        )
    yield from filter(None, [config.tokenizer_note, name_moving_sets(config)])


def name_moving_sets(config: RunConfig) -> str:
    """The data sets of the Hub that name no commit, and why they should."""
    texts = (*config.domains, *config.probes)
    datasets = [dataset for text in texts for part in text.parts for dataset in part.datasets]
    names = [dataset.path for dataset in datasets if not dataset.revision]
    of_tasks = [task.dataset for task in config.tasks if task.dataset]
    names += [dataset.path for dataset in of_tasks if not dataset.revision]
    moving = dict.fromkeys(names)
    if not moving:
        return ""
    return f"{', '.join(moving)}: no commit is named, so the text may change. Give `revision`"


def warn_of_tests(tasks: Sequence[TaskData]) -> Iterator[str]:
    """One warning of all tasks with test examples that models read in pre-training, if there are
    any.
    """
    names = dict.fromkeys(data.task.name for data in tasks if data.in_stream)
    if names:
        yield (
            f"test examples in the stream: some of {', '.join(names)} stand in training text, at "
            f"least half of their runs of {RUN} words. Leave them out"
        )
