"""The texts of a suite: where they come from, and which of them is replayed."""

from __future__ import annotations

from operator import not_
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, model_validator

from benchmark.settings.base import NAME, Settings

TextField = str | Annotated[tuple[str, ...], Field(min_length=1)]
OnError = Literal["stop", "skip"]


class HubDataset(Settings):
    """A Hugging Face dataset, streamed (`pip install -e .[hf]`)."""

    path: str = Field(description="its name on the Hub, e.g. 'allenai/c4'")
    name: str | None = Field(None, description="its configuration, e.g. 'realnewslike'")
    revision: str | None = Field(
        None, exclude_if=not_, description="a commit, so that it stays the same text"
    )
    split: str = Field("train", description="the split that is read")
    files: tuple[str, ...] = Field(
        (),
        exclude_if=not_,
        description="these (globs) in place of a configuration: .parquet, .csv, or JSON Lines of "
        "any name, whose other columns may differ",
    )
    text_field: TextField = Field("text", description="as of a domain")
    documents: int | None = Field(None, gt=0, description="at most so many are read")


class Text(Settings):
    """Where text comes from: exactly one of `packages`, `train` and `datasets`."""

    packages: tuple[str, ...] = Field(
        (), description="docstrings of installed ones; 'stdlib' is Python's own"
    )
    train: tuple[str, ...] = Field(
        (), description="files, globs or folders: .jsonl, .txt, .json, .csv, .parquet; .gz, .zst"
    )
    valid: tuple[str, ...] = Field(
        (), description="the same for validation; default: by a hash of each document"
    )
    text_field: TextField = Field(
        "text", description='the field with the text, "meta.body" one inside; a list joins several'
    )
    on_error: OnError = Field(
        "stop",
        exclude_if=lambda value: value == "stop",
        description="what a broken document does; skip counts and names it",
    )
    cut_at_blank_lines: bool = Field(
        False,
        exclude_if=not_,
        description="a .txt file is many documents, each to the first blank line after 2,000 "
        "characters",
    )
    datasets: tuple[HubDataset, ...] = Field(
        (), description="of the Hugging Face Hub, one after the other"
    )

    @model_validator(mode="after")
    def _check_one_source(self) -> Text:
        fields = type(self).model_fields
        kinds = [kind for kind in ("packages", "train", "datasets", "sources") if kind in fields]
        sources = [kind for kind in kinds if getattr(self, kind)]
        if len(sources) != 1:
            raise ValueError(
                f"give exactly one of {', '.join(kinds)} (given: {', '.join(sources) or 'none'})"
            )
        if self.valid and not self.train:
            raise ValueError(
                "valid goes with train: leave it out, other sources are split by a hash of each "
                "document"
            )
        return self


class WeightedText(Text):
    """One source of a mixed domain, and how often a row of the domain comes from it."""

    weight: NonNegativeFloat | Annotated[tuple[NonNegativeFloat, ...], Field(min_length=2)] = Field(
        1.0,
        description="beside the others'; a list goes from value to value over the stage, in "
        "straight lines",
    )


class Domain(Text):
    """One domain of the stream.

    Its text comes from `packages`, `train`, `datasets` or, mixed, from `sources`.
    """

    name: str = Field(
        pattern=NAME, max_length=60, description="in records, commands and other settings"
    )
    title: str = Field("", description="in tables and figures; default: the name")
    sources: tuple[WeightedText, ...] = Field(
        (), exclude_if=not_, description="several texts, mixed by weight"
    )
    valid_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        exclude_if=lambda value: value is None,
        description="share of its documents for validation; default: data.valid_share",
    )
    hold_out: float = Field(
        0.0, ge=0, lt=1, description="share of the documents kept from pre-training, for tasks"
    )

    @model_validator(mode="after")
    def _check_some_always(self) -> Domain:
        def is_always(source: WeightedText) -> bool:
            weight = source.weight
            return min(weight if isinstance(weight, tuple) else (weight,)) > 0

        if self.sources and not any(map(is_always, self.sources)):
            raise ValueError("sources: each weight is 0 at some time: give one that is not")
        return self

    @property
    def parts(self) -> tuple[Domain, ...]:
        """Its sources, each as a domain with a name of its own; itself, where it is not mixed."""
        shared = {
            "name": self.name,
            "title": self.title,
            "valid_share": self.valid_share,
            "hold_out": self.hold_out,
        }
        parts = []
        for number, text in enumerate(self.sources, start=1):
            content = {**text.model_dump(exclude={"weight"}), **shared}
            part = Domain.model_validate(content)
            parts.append(part.model_copy(update={"name": f"{self.name}, source {number}"}))
        return tuple(parts) or (self,)

    @property
    def label(self) -> str:
        return self.title or self.name


class Replay(Settings):
    """General text beside the stream, as a start model was trained on.

    It is the same in every stage and for every method, and part of each batch that trains. The rest
    of a batch is what the method asks for. It has no stage, and is not in AP.
    """

    text: str = Field(description="the probe that it is")
    share: float = Field(ge=0, lt=1, description="of a batch's rows; 0: none")
