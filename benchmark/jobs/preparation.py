"""The lines and warnings of `prepare`, once a suite's text is tokenised and its tasks are read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from pathlib import Path

from benchmark.data.documents import FEW_DOCUMENTS
from benchmark.data.leaks import RUN, find_shared_documents, find_validation_leaks
from benchmark.data.tokens import BEYOND, Corpus, hash_data_settings, prepare_corpus
from benchmark.downstream.tasks import (
    TaskData,
    load_tasks,
    mark_in_prepared_stream,
    mark_in_stream,
    record_baselines,
)
from benchmark.models.transformer import load_network
from benchmark.settings.suite import RunConfig, Suite
from benchmark.store import Store

SENTENCE = 20  # tokens: documents that have fewer are single sentences


def prepare(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[str]:
    """Tokenise the domains of runs of the suite and read its tasks; a line for each, warnings, the next step."""
    store, corpora, problems = Store(runs), list[tuple[Corpus, RunConfig]](), list[str]()
    for config in {hash_data_settings(config): config for config in configs}.values():
        corpus = prepare_corpus(config, store, lambda text: print(text, file=sys.stderr))
        for domain in (*corpus.domains, *corpus.probes):
            skipped = ", ".join(f"{count:,} {reason}" for reason, count in domain.info["skipped"].items())
            yield (
                f"{domain.name}: {domain.info['documents']:,} documents, {len(domain.train):,} training and "
                f"{len(domain.valid):,} validation tokens, unigram perplexity {domain.info['unigram_perplexity']:,.1f}"
                + (f"; left out: {skipped}" if skipped else "")
            )
        yield from filter(None, [config.describe_expected_passes([domain.info["tokens"] for domain in corpus.domains])])
        problems += warn_of_text(corpus, config, store.data)
        corpora.append((corpus, config))
    for folder in {config.start.folder for config in configs if config.start}:
        load_network(folder)  # wrong weights are said now, not by the jobs that train
    tasks = load_tasks(suite, store)
    for data in tasks:
        leaks = f"; {sum(data.leaked):,} of test stand in train, too, or nearly" if any(data.leaked) else ""
        yield (
            f"{data.task.name}: {len(data.train):,} training, {len(data.dev):,} dev and {len(data.test):,} test "
            f"examples of {len(data.labels)} classes{leaks}"
        )
    record_baselines(mark_in_prepared_stream(tasks, configs[0], store), store.scores_file("baselines"))
    problems += chain.from_iterable(warn_of_tests_in_stream(*of, tasks, store.data) for of in corpora)
    yield from (f"! {warning}" for warning in dict.fromkeys(problems))
    yield (
        f"ready in {store.data}; next: `python run_all.py run {suite.called} --dry-run` says which runs there are, and "
        "how long"
    )


def warn_of_text(corpus: Corpus, config: RunConfig, folder: Path) -> Iterator[str]:
    """Warnings of a text on which perplexity tells little: few, copied or short documents, data that may change.

    `folder` keeps which validation documents are copies, so that a second call need not look for them again.
    """
    leaks = find_validation_leaks(corpus, config.learned, folder)
    for domain in (*corpus.domains, *corpus.probes):
        held_out = domain.info.get("valid_documents", FEW_DOCUMENTS)
        if held_out < FEW_DOCUMENTS:
            more = "Give more documents (a .txt file is one), its `valid` files, or a larger data.valid_share"
            if BEYOND in domain.info["skipped"]:
                more = "Give a larger data.max_valid_bytes or data.max_train_tokens"
            yield (
                f"{domain.name}: only {held_out} documents for validation, so its perplexity is theirs more than the "
                f"domain's. {more}"
            )
        for name, near in ((name, len(of[domain.name])) for name, of in leaks.items() if of[domain.name]):
            whose = "its training text" if name == domain.name else f"the training text of {name}"
            yield (
                f"{domain.name}: {near:,} of {held_out:,} validation documents stand in {whose}, at least half of "
                f"their runs of {RUN} words, so perplexity is lower for them. Take one of each pair out"
            )
        if (length := domain.info["tokens"] / domain.info["documents"]) < SENTENCE:
            yield (
                f"{domain.name}: documents have {length:.0f} tokens, so rows are glued of unrelated ones. Where they "
                "are sentences of longer texts, join them"
            )
    shared, held = find_shared_documents(corpus, folder), [domain.name for domain in corpus.domains]
    for first, other in combinations(held, 2):
        if count := len(shared[first][other]):
            yield (
                f"{other}: {count:,} of its validation documents stand in that of {first}, too, so what is learned of "
                "one is known of both. Let one of them keep these documents"
            )
    yield from filter(None, [config.tokenizer_note, name_moving_sets(config)])


def name_moving_sets(config: RunConfig) -> str:
    """The data sets of the Hub that name no commit, and why they should."""
    sets = [dataset for text in (*config.domains, *config.probes) for part in text.parts for dataset in part.datasets]
    moving = [each.path for each in (*sets, *(task.dataset for task in config.tasks)) if each and not each.revision]
    if not moving:
        return ""
    return f"{', '.join(dict.fromkeys(moving))}: no commit is named, so the text may change. Give `revision`"


def warn_of_tests_in_stream(
    corpus: Corpus, config: RunConfig, tasks: Sequence[TaskData], folder: Path
) -> Iterator[str]:
    """Warnings of tasks with test examples that models read in pre-training."""
    for name, of in mark_in_stream(tasks, corpus, config.learned, folder)[1].items():
        for data in tasks:
            if count := len(of[data.task.name]):
                yield (
                    f"{data.task.name}: {count:,} of {len(data.test):,} test examples stand in the training text of "
                    f"{name}, at least half of their runs of {RUN} words, so scores say less. Leave them out"
                )
