"""What is known of a run's texts on this machine, as the room of data tells it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from benchmark.errors import UserError
from benchmark.settings.suite import RunConfig


@dataclass(frozen=True)
class Texts:
    """The texts of a run.

    `keys` has by domain, probe and source a hash of its tokens and of the tokenizer. It is empty
    where not all of them are tokenised. `validation` has by domain and probe the hashes that its
    validation text may be recorded by, with masks and without. `sizes` are the tokens of each
    domain, `valid_tokens` those that an evaluation reads. `problem`: why a text is not here.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    validation: Mapping[str, Collection[str]] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    valid_tokens: int = 0
    problem: UserError | None = None


@dataclass(frozen=True)
class TextFinder:
    """Looks at the texts of a run; it makes nothing."""

    find: Callable[[RunConfig], Texts]
    # by name the keys of the texts that are tokenised, up to the first that is not
    find_first_keys: Callable[[RunConfig], dict[str, str]]
    # by name of each text that is here, the keys that it has with the tokenizers here
    find_prepared_keys: Callable[[RunConfig], dict[str, set[str]]]
