"""What is known of a run's texts on this machine, as the room of data tells it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

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


class TextFinder(Protocol):
    """Looks at texts; it makes nothing."""

    def find(self, config: RunConfig) -> Texts: ...

    def find_first_keys(self, config: RunConfig) -> dict[str, str]:
        """By name the keys of the texts that are tokenised, up to the first that is not."""
        ...

    def find_prepared_keys(self, config: RunConfig) -> dict[str, set[str]]:
        """By name of each text that is here, the keys that it has with the tokenizers here."""
        ...
