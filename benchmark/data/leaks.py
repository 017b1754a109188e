"""Which validation documents, and tests of tasks, nearly stand in the training text of a stream, or of the task.

They are looked for once; `copies/` in the folder of prepared data holds the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmark.data.copies import nearly
from benchmark.data.ids import Ids
from benchmark.data.tokens import Corpus, Place, Poll, cure, make_once
from benchmark.files import read_json, write_json
from benchmark.settings.base import digest
from benchmark.settings.texts import Domain

FORMAT = 1  # raised when other documents come to be copies
Text = tuple[str, Callable[[], Ids]]  # a key, and what reads its ids
Found = dict[str, dict[str, list[int]]]  # by domain, by text: numbers of its documents


def find_leaks(
    bpe: Tokenizer,
    eos: int,
    asked: Mapping[str, Text],
    texts: Mapping[str, Text],
    folder: Path,
    poll: Poll = lambda waits: None,
) -> Found:
    """Of each of `texts`, by name, the documents of each that is `asked` about that nearly stand in it; see `nearly`.

    Ids come from this tokenizer, and each document is followed by `eos`.
    """
    found: Found = {}
    for name, (key, read) in texts.items() if asked else ():

        def make(unfinished: Path) -> None:
            copies = nearly(bpe, eos, [np.asarray(read_asked()) for _, read_asked in asked.values()], read())  # noqa: B023
            write_json(unfinished / "copies.json", {"copies": copies})

        identity = digest([FORMAT, key, [key for key, _ in asked.values()]])
        made = make_once("copies", identity, Place(folder, lambda line: None, poll=poll), make)
        found[name] = dict(zip(asked, read_json(made / "copies.json", cure(made))["copies"], strict=True))
    return found


def list_learned(corpus: Corpus, learned: Sequence[Domain]) -> dict[str, Text]:
    """The training text of each domain that is learned, for `find_leaks`."""
    names = {text.name for text in learned}
    texts = (text for text in (*corpus.domains, *corpus.probes) if text.name in names)
    return {text.name: (text.key, partial(np.asarray, text.train)) for text in texts}


def find_validation_leaks(
    corpus: Corpus, learned: Sequence[Domain], folder: Path, poll: Poll = lambda waits: None
) -> Found:
    """Which documents of the validation text of each domain and probe nearly stand in training text."""
    asked = {text.name: (text.key, partial(np.asarray, text.valid)) for text in (*corpus.domains, *corpus.probes)}
    return find_leaks(corpus.tokenizer, corpus.special.eos, asked, list_learned(corpus, learned), folder, poll)
