"""The texts of a suite: where they come from, and which of them is replayed."""

from __future__ import annotations

from operator import not_
from typing import Annotated, Literal

from pydantic import Field, model_validator

from benchmark.settings.base import BILLION, NAME, Settings

TextField = str | Annotated[tuple[str, ...], Field(min_length=1)]
OnError = Literal["stop", "skip"]


class HubDataset(Settings):
    """A Hugging Face dataset, streamed (`pip install -e .[hf]`)."""

    path: str = Field(description="the data set's name on the Hub, e.g. 'allenai/c4'")
    name: str | None = Field(None, description="its configuration, e.g. 'realnewslike'")
    revision: str | None = Field(None, exclude_if=not_, description="a commit of it, so that it stays the same text")
    split: str = Field("train", description="the split that is read")
    files: tuple[str, ...] = Field(
        (),
        exclude_if=not_,
        description="read these files (globs) and no configuration: .parquet, .csv, or JSON Lines whatever they are "
        "called, whose other columns may differ from file to file",
    )
    text_field: TextField = Field("text", description="the column that holds a document's text, as of a domain")
    documents: int | None = Field(None, gt=0, le=BILLION, description="read at most this many documents")


class Domain(Settings):
    """One domain of the stream. Exactly one of `packages`, `train`, `datasets` says where its text comes from."""

    name: str = Field(pattern=NAME, max_length=60, description="its name in records, commands and other settings")
    title: str = Field("", max_length=200, description="its label in tables and figures; default: the name")
    packages: tuple[str, ...] = Field((), description="docstrings of installed packages; 'stdlib' is Python's own")
    train: tuple[str, ...] = Field(
        (), description="files, globs or folders: .jsonl, .txt, .json, .csv, .parquet, plain, .gz or .zst"
    )
    valid: tuple[str, ...] = Field(
        (), description="as train, for validation; without it a hash of each document decides"
    )
    text_field: TextField = Field(
        "text", description='the field of a record that holds its text, "meta.body" one inside; a list joins several'
    )
    on_error: OnError = Field(
        "stop",
        exclude_if=lambda value: value == "stop",
        description="what a document does that is broken: skip leaves it out, counts and names it",
    )
    datasets: tuple[HubDataset, ...] = Field((), description="Hugging Face datasets, one after the other")
    hold_out: float = Field(
        0.0, ge=0, lt=1, description="share of the documents that pre-training never sees, for tasks made of them"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Domain:
        given = [kind for kind in ("packages", "train", "datasets") if getattr(self, kind)]
        if len(given) != 1:
            raise ValueError(f"give exactly one of packages, train, datasets (given: {', '.join(given) or 'none'})")
        if self.valid and not self.train:
            raise ValueError("valid goes with train: leave it out, other sources are split by a hash of each document")
        return self

    @property
    def label(self) -> str:
        return self.title or self.name


class Replay(Settings):
    """General text beside the stream, as a start model was trained on: the same in every stage and for every method.

    It is part of each batch that trains; the rest is what the method asks for. It has no stage, and is not in AP.
    """

    text: str = Field(description="the probe whose training text it is")
    share: float = Field(ge=0, lt=1, description="of a batch's rows; 0: none")
