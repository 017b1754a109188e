"""The texts of a suite: where they come from, and which of them is replayed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from benchmark.settings.base import NAME, Settings
from benchmark.settings.decides import NOTHING, PLACE, ROWS, TEXT, WEIGHTS

TextField = str | Annotated[tuple[str, ...], Field(min_length=1)]
OnError = Literal["stop", "skip"]


class HubSource(Settings):
    """The name, configuration and commit of a Hugging Face dataset."""

    path: Annotated[str, TEXT] = Field(
        description="its name on the Hub, e.g. 'allenai/c4' or 'nyu-mll/glue'"
    )
    name: Annotated[str | None, TEXT] = Field(
        None, description="its configuration, e.g. 'realnewslike' or 'mnli'"
    )
    revision: Annotated[str | None, TEXT] = Field(
        None, description="a commit, so that it stays the same text"
    )


class HubDataset(HubSource):
    """A Hugging Face dataset, streamed (`pip install -e .[hf]`)."""

    split: Annotated[str, TEXT] = Field("train", description="the split that is read")
    files: Annotated[tuple[str, ...], TEXT] = Field(
        (),
        description="files to read instead of a configuration, as globs: .parquet, .csv, or "
        "JSON Lines of any name. Other columns may differ",
    )
    text_field: Annotated[TextField, TEXT] = Field("text", description="as in a domain")
    source_field: Annotated[str, TEXT] = Field("", description="as in a domain")
    documents: Annotated[int | None, TEXT] = Field(
        None, gt=0, description="how many documents are read at most"
    )


class Text(Settings):
    """Where text comes from: exactly one of `packages`, `train` and `datasets`."""

    packages: Annotated[tuple[str, ...], TEXT] = Field(
        (),
        description="installed packages whose docstrings are read. 'stdlib' is Python's own "
        "library",
    )
    train: Annotated[tuple[str, ...], PLACE] = Field(
        (),
        description="files, globs or folders of .jsonl, .txt, .json or .csv, also as .gz or .zst, "
        "or of .parquet",
    )
    valid: Annotated[tuple[str, ...], PLACE] = Field(
        (), description="files of validation text. Without them, a hash of each document decides"
    )
    text_field: Annotated[TextField, TEXT] = Field(
        "text",
        description='the field with the text. "meta.body" is a field inside another. A list '
        "joins several",
    )
    source_field: Annotated[str, TEXT] = Field(
        "",
        description="the field that says what a record was cut from, such as a book. Records that "
        "share it are one document for the split and for intervals",
    )
    on_error: Annotated[OnError, TEXT] = Field(
        "stop",
        description="what a broken document does. skip leaves it out and counts it",
    )
    cut_at_blank_lines: Annotated[bool, TEXT] = Field(
        False,
        description="cut a .txt file into documents, each to the first blank line after 2,000 "
        "characters",
    )
    datasets: tuple[HubDataset, ...] = Field(
        (), description="datasets of the Hugging Face Hub, read one after the other"
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
    """One source of a mixed domain, and how often a sequence comes from it."""

    weight: Annotated[float, WEIGHTS] = Field(
        1.0, gt=0, description="how often it is drawn, relative to the other sources"
    )


class Domain(Text):
    """One domain of the stream.

    Its text comes from `packages`, `train`, `datasets` or, mixed, from `sources`.
    """

    name: Annotated[str, WEIGHTS] = Field(
        pattern=NAME, max_length=60, description="its name in records, commands and other settings"
    )
    title: Annotated[str, NOTHING] = Field(
        "", description="its name in tables and figures (default: `name`)"
    )
    sources: tuple[WeightedText, ...] = Field((), description="several texts, mixed by weight")
    valid_share: Annotated[float | None, TEXT] = Field(
        None,
        gt=0,
        lt=1,
        description="share of its documents for validation (default: data.valid_share)",
    )
    hold_out: Annotated[float, TEXT] = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the documents that are kept from pre-training for tasks",
    )

    @property
    def parts(self) -> tuple[Domain, ...]:
        """Its sources, each as a domain with a name of its own, or itself if it is not mixed."""
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
    """General text beside the stream, such as a start model's own training text.

    Each training batch holds some of it, in every stage and for every method. The method chooses
    the rest of the batch. This text has no stage, and AP does not include it.
    """

    text: Annotated[str, ROWS] = Field(description="the name of the probe that is replayed")
    share: Annotated[float, WEIGHTS] = Field(
        ge=0, lt=1, description="its share of each batch. 0 is none"
    )
