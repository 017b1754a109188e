"""Which validation documents, and tests of tasks, nearly stand in the training text of a stream.

They are looked for once; `copies/` in the folder of prepared data holds the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmark.data.copies import nearly
from benchmark.data.ids import Ids
from benchmark.data.tokens import Corpus, Place, Poll, cure, make_once
from benchmark.files import read_json, write_json
from benchmark.settings.base import digest
from benchmark.settings.texts import Domain

FORMAT = 1  # raised when other documents come to be copies
Found = dict[str, dict[str, list[int]]]  # by domain, by text: numbers of its documents


def find_leaks(
    corpus: Corpus,
    learned: Sequence[Domain],
    asked: Mapping[str, tuple[str, Ids]],
    folder: Path,
    poll: Poll = lambda waits: None,
) -> Found:
    """The documents of each text that nearly stand in the training text of a domain that is learned; see `nearly`.

    `asked`: by name a text's key and its ids, each document followed by `</s>`.
    """
    found: Found = {}
    names = {text.name for text in learned if asked}
    for domain in (text for text in (*corpus.domains, *corpus.probes) if text.name in names):

        def make(unfinished: Path) -> None:
            texts = [np.asarray(ids) for _, ids in asked.values()]
            copies = nearly(corpus.tokenizer, corpus.special.eos, texts, domain.train)  # noqa: B023
            write_json(unfinished / "copies.json", {"copies": copies})

        identity = digest([FORMAT, domain.key, [key for key, _ in asked.values()]])
        made = make_once("copies", identity, Place(folder, lambda line: None, poll=poll), make)
        found[domain.name] = dict(zip(asked, read_json(made / "copies.json", cure(made))["copies"], strict=True))
    return found


def find_validation_leaks(
    corpus: Corpus, learned: Sequence[Domain], folder: Path, poll: Poll = lambda waits: None
) -> Found:
    """The same of the validation text of each domain and probe."""
    asked = {text.name: (text.key, text.valid) for text in (*corpus.domains, *corpus.probes)}
    return find_leaks(corpus, learned, asked, folder, poll)
