"""What `benchmark.data` knows about a run's texts on this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from benchmark.errors import UserError
from benchmark.settings.suite import RunConfig


@dataclass(frozen=True)
class Texts:
    """The texts of a run.

    `keys` maps the name of each text to a hash of its tokens and of the tokenizer: the domains, the
    probes, and the sources, which are the texts that a mixed domain or probe consists of. It is
    empty if not all of them are tokenised. `validation` maps each domain and probe to the hashes
    under which its validation text may be recorded, with masks and without. `sizes` are the numbers
    of tokens of the domains, `valid_tokens` is the number that an evaluation reads. `problem` says
    why a text is not here.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    validation: Mapping[str, Collection[str]] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    valid_tokens: int = 0
    problem: UserError | None = None


@dataclass(frozen=True)
class TextFinder:
    """Looks at the texts of a run, and prepares none."""

    find: Callable[[RunConfig], Texts]
    # name -> key of the texts that are tokenised, up to the first that is not
    find_first_keys: Callable[[RunConfig], dict[str, str]]
    # name of each text that is here -> its keys, one for each tokenizer that is here
    find_prepared_keys: Callable[[RunConfig], dict[str, set[str]]]
