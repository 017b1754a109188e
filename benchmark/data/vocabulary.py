"""The layout of the vocabulary, the same for every tokenizer, model and method.

Ids 0 to 3 are special (a published model keeps its own), then comes the text, then one prompt row for each domain that
the model has met. Prompt rows exist with and without prompts, so that all methods have the same softmax and the same
number of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

BOS, PAD, EOS, MASK = 0, 1, 2, 3
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<mask>")
"""Token of each special id."""


@dataclass(frozen=True)
class Special:
    """Ids of the special tokens. A published model has its own, and only a masked one needs `mask`."""

    bos: int = BOS
    pad: int = PAD
    eos: int = EOS
    mask: int = MASK


@dataclass(frozen=True)
class Vocabulary:
    """`text` ids of text (specials included), followed by one prompt row for each of `domains` (names)."""

    text: int
    domains: tuple[str, ...] = ()
    special: Special = Special()

    @property
    def size(self) -> int:
        """V: rows of the embedding."""
        return self.text + len(self.domains)

    @property
    def prompt_tokens(self) -> tuple[str, ...]:
        """Tokens of the prompt rows; token i has id `text` + i."""
        return tuple(f"<domain:{name}>" for name in self.domains)
