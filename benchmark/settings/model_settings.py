"""What a suite says of its models: architecture, sizes, and a model to start from. No torch here."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from benchmark.settings.architecture_names import known
from benchmark.settings.base import PATH_OR_NAME, Settings


class Size(Settings):
    """One rung of a ladder. The feed-forward layer is four times as wide."""

    layers: int = Field(gt=0, le=10_000, description="Transformer layers")
    hidden_size: int = Field(gt=0, le=1_000_000, description="width of the hidden states, a multiple of head_size")

    def __str__(self) -> str:
        return f"L{self.layers}_D{self.hidden_size}"


class Growth(Settings):
    """How a start model grows from each domain to the next, by methods that grow; in place of a ladder."""

    layers: int = Field(0, ge=0, le=10_000, description="so many layers more")
    width: float = Field(
        1.0,
        ge=1,
        le=1000,
        description="the hidden size times this, to the nearest whole head (or heads that share a key)",
    )


class Start(Settings):
    """The start model of a run: its folder on this machine, and a hash of what is in it."""

    folder: str
    key: str


class Model(Settings):
    """Architecture, and the ladder of sizes: one rung a domain. Methods that do not grow stay on the first.

    With `start` the stream begins with that model: architecture, head size, dropout and first rung are its own, and
    the ladder gives the others.
    """

    architecture: Annotated[str, AfterValidator(known)] = Field(
        "bert", description="the name of a file in benchmark/models/architectures/; see docs/how_it_works.md"
    )
    start: str | None = Field(
        None,
        description="begin with this model: a Hugging Face folder, or a name on the Hub",
        json_schema_extra=PATH_OR_NAME,
    )
    revision: str | None = Field(None, description="of a start model on the Hub: branch, tag or commit")
    grow: Growth | None = Field(None, description="with start, in place of a ladder")
    ladder: tuple[Size, ...] = Field((), description="one size a domain, none smaller than the one before")
    head_size: int = Field(64, gt=0, le=10_000, description="width of an attention head, the same on every rung")
    dropout: float = Field(0.1, ge=0, lt=1, description="of hidden states and attention, in training")

    @model_validator(mode="after")
    def _whole_heads(self) -> Model:
        if not self.start:
            if not self.ladder:
                raise ValueError("ladder: missing; give a size for each domain, or a model to start from")
            if self.grow or self.revision:
                raise ValueError("grow and revision go with start: name a model to start from, or leave them out")
        elif self.ladder and self.grow:
            raise ValueError("give a ladder or grow, not both")
        for smaller, size in pairwise(self.ladder):
            if size.layers < smaller.layers or size.hidden_size < smaller.hidden_size:
                raise ValueError(
                    f"ladder: {size} after {smaller}: a model can grow, not shrink: give sizes that never fall"
                )
        if self.start:
            return self  # the heads are those of the start model
        for size in self.ladder:
            if size.hidden_size % self.head_size:
                raise ValueError(
                    f"hidden_size {size.hidden_size} is not a multiple of head_size {self.head_size}"
                    ": change one of them"
                )
        return self
