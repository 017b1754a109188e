"""Names of rows: when two are the same, which ones tables keep for lines of their own, and how files have them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache


@cache
def slug(label: str) -> str:
    """Two labels with the same slug name the same row: case, spaces, hyphens and Unicode's spelling do not count."""
    return re.sub(r"[\s_-]", "", unicodedata.normalize("NFKC", label)).casefold()


def same_labels(labels: Iterable[str]) -> list[str]:
    """The labels that are not alone with their slug: a table could not keep them apart."""
    known = list(labels)
    counts = Counter(map(slug, known))
    return sorted({label for label in known if counts[slug(label)] > 1}) if len(counts) < len(known) else []


# What tables call lines of their own
UNIGRAM = "Unigram perplexity of the domain"
START, UNTOUCHED = "Start model", ", untouched"
BASELINE = "Baseline: "


def is_of_tables(label: str) -> bool:
    """Whether a table may have a line of its own by this name, which a row of the suite could not be told from."""
    found = slug(label)
    is_start = found.startswith(slug(START)) and found.endswith(slug(UNTOUCHED))
    return found == slug(UNIGRAM) or is_start or found.startswith(slug(BASELINE))


@cache
def row_slug(row: str) -> str:
    """A row's name as file names have it."""
    return re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-")


def label_of(run: str) -> str:
    """Row and seed of a run, `elle-s0`, by its id."""
    return run.rpartition("-")[0]


def without_seed(label: str) -> str:
    """The slug of the row that a label is of."""
    return label.rpartition("-s")[0]
