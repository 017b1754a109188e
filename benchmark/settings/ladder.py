"""Sizes of models, and ladders of them by rule."""

from __future__ import annotations

from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from benchmark.settings.base import ConfigError, Settings, validate, validation_message


class Size(Settings):
    """One rung of a ladder. The feed-forward layer is four times as wide."""

    layers: int = Field(gt=0, description="Transformer layers")
    hidden_size: int = Field(gt=0, description="width of the hidden states, a multiple of head_size")

    def __str__(self) -> str:
        return f"L{self.layers}_D{self.hidden_size}"


class LadderRule(Settings):
    """A ladder by rule: it begins with a size, and is larger by so much after every so many domains."""

    first: Size = Field(description="the size that it begins with")
    every: int = Field(gt=0, description="so many domains have one size")
    layers: int = Field(0, ge=0, description="so many layers more")
    hidden_size: int = Field(0, ge=0, description="so much wider")

    def rungs(self, domains: int) -> list[dict[str, int]]:
        """The size for each domain, as a suite would list them."""
        layers, hidden_size = self.first.layers, self.first.hidden_size
        steps = [domain // self.every for domain in range(domains)]
        return [
            {"layers": layers + step * self.layers, "hidden_size": hidden_size + step * self.hidden_size}
            for step in steps
        ]


def list_rungs(content: dict[str, Any], place: str) -> dict[str, Any]:
    """A suite's content with its ladder as a list, one size a domain. Raises ConfigError for a rule that is none."""
    model = content.get("model")
    if not isinstance(model, dict) or not isinstance(rule := model.get("ladder"), dict):
        return content
    try:
        rungs = validate(TypeAdapter(LadderRule), rule).rungs(len(content.get("domains", ())))
    except ValidationError as error:
        raise ConfigError(validation_message(error, f"{place}: model.ladder", LadderRule)) from None
    return {**content, "model": {**model, "ladder": rungs[1:] if model.get("start") else rungs}}
