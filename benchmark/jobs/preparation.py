"""`run_all.py prepare`: tokenise a suite's text, read its tasks, and print tables and warnings."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.data.decontamination import NEAR_COPIES
from benchmark.data.documents import FEW_DOCUMENTS
from benchmark.data.prepared import hash_texts, prepare_corpus
from benchmark.data.tokens import BEYOND, Corpus, DomainTokens
from benchmark.downstream.tasks import (
    TaskData,
    decontaminate_tasks,
    load_tasks,
    record_baselines,
)
from benchmark.jobs.text_table import align
from benchmark.ledger.store import Store
from benchmark.models.transformer import load_network
from benchmark.settings.suite import Data, RunConfig, Suite

SENTENCE = 20  # tokens: if documents have fewer on average, they are single sentences
DOMAIN_TITLES = (
    "domain",
    "documents kept",
    "training tokens",
    "validation documents",
    "validation tokens",
    "near copies",
    "unigram perplexity",
    "left out",
)
TASK_TITLES = ("task", "training", "dev", "test", "classes", "near copies")


def prepare(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[str]:
    """Tokenise the domains of a suite's runs and read its tasks.

    Yields tables, warnings and the next step.
    """
    store = Store(runs)
    warnings: list[str] = []
    text_configs = {hash_texts(config): config for config in configs}
    for config in text_configs.values():
        corpus = prepare_corpus(config, store, lambda text: print(text, file=sys.stderr))
        yield from align([DOMAIN_TITLES, *describe_domains(corpus)])
        sizes = [domain.info["tokens"] for domain in corpus.domains]
        passes = config.describe_expected_passes(sizes)
        if passes:
            yield passes
        warnings += warn_of_text(corpus, config)
    start_folders = {config.start.folder for config in configs if config.start}
    for folder in start_folders:
        load_network(folder)  # reports wrong weights now, and not only once jobs train
    tasks = load_tasks(suite, store)
    if tasks:
        tasks = decontaminate_tasks(tasks, configs[0], store)
        yield from align([TASK_TITLES, *map(describe_task, tasks)])
        record_baselines(tasks, store.scores_file("baselines"))
    for warning in dict.fromkeys(warnings):
        yield f"! {warning}"
    yield (
        f"ready in {store.data}; next: `python run_all.py run {suite.command_arguments} --dry-run` "
        "says which runs there are, and how long"
    )


def describe_domains(corpus: Corpus) -> Iterator[tuple[str, ...]]:
    """The cells of each domain and probe, in the order of DOMAIN_TITLES."""
    for domain in (*corpus.domains, *corpus.probes):
        info = domain.info
        skipped = {**info["skipped"]}
        near_copies = skipped.pop(NEAR_COPIES, 0)  # a column of its own
        left_out = [f"{count:,} {reason}" for reason, count in skipped.items()]
        yield (
            domain.name,
            f"{info['documents']:,}",
            f"{len(domain.train):,}",
            f"{info.get('valid_documents', 0):,}",
            f"{len(domain.valid):,}",
            _describe_copies(near_copies, info.get("near_copies", 0)),
            f"{info['unigram_perplexity']:,.1f}",
            ", ".join(left_out),
        )


def describe_task(data: TaskData) -> tuple[str, ...]:
    """The cells of a task from `decontaminate_tasks`, in the order of TASK_TITLES."""
    return (
        data.task.name,
        f"{len(data.train):,}",
        f"{len(data.dev):,}",
        f"{len(data.test):,}",
        f"{len(data.labels)}",
        _describe_copies(data.left_out, len(data.list_leaks())),
    )


def _describe_copies(left_out: int, kept: int) -> str:
    """The number of near copies, which are all left out or all kept: `3 left out`."""
    if left_out:
        return f"{left_out:,} left out"
    return f"{kept:,} kept" if kept else ""


def warn_of_text(corpus: Corpus, config: RunConfig) -> Iterator[str]:
    """One warning per kind of problem with the text or the tokenizer.

    Perplexity says little on few or short documents.
    """
    domains = (*corpus.domains, *corpus.probes)
    yield from _warn_of_few_documents(domains, config.data)
    short = []
    for domain in domains:
        length = domain.info["tokens"] / domain.info["documents"]
        if length < SENTENCE:
            short.append(f"{domain.name} ({length:.0f} tokens)")
    if short:
        yield (
            f"short documents: {', '.join(short)}, so a sequence joins unrelated ones. Where they "
            "are sentences of longer texts, join them"
        )
    yield from filter(None, [config.tokenizer_note, name_moving_sets(config)])


def _warn_of_few_documents(domains: Sequence[DomainTokens], data: Data) -> Iterator[str]:
    """One warning per cure, which names the domains with few validation documents that need it."""
    limits = ["data.max_valid_tokens" if data.max_valid_tokens else "data.max_valid_bytes"]
    if data.max_train_tokens:
        limits.append("data.max_train_tokens")
    names_by_cure: dict[str, list[str]] = {}
    for domain in domains:
        count = domain.info.get("valid_documents", FEW_DOCUMENTS)
        if count >= FEW_DOCUMENTS:
            continue
        if BEYOND in domain.info["skipped"]:
            cure = f"a larger {' or '.join(limits)}"
        else:
            cure = (
                "more documents (a .txt file is one, or set cut_at_blank_lines), `valid` files, "
                "or a larger data.valid_share"
            )
        names_by_cure.setdefault(cure, []).append(f"{domain.name} ({count})")
    for cure, names in names_by_cure.items():
        yield f"few documents for validation: {', '.join(names)}. Give {cure}"


def name_moving_sets(config: RunConfig) -> str:
    """A warning that names data sets of the Hub without a commit, empty if there are none."""
    names: list[str] = []
    for text in (*config.domains, *config.probes):
        for part in text.parts:
            for dataset in part.datasets:
                if not dataset.revision:
                    names.append(dataset.path)
    for task in config.tasks:
        if task.dataset and not task.dataset.revision:
            names.append(task.dataset.path)
    if not names:
        return ""
    moving = ", ".join(dict.fromkeys(names))
    return f"{moving}: no commit is named, so the text may change. Give `revision`"
