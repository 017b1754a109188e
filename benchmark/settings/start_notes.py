"""What has to be said of runs that begin with a published model: their sizes, and what the suite says in vain."""

from __future__ import annotations

from collections.abc import Iterable

from benchmark.settings.suite import RunConfig, Suite

DECIDED = ("model.architecture", "model.head_size", "tokenizer.")  # by the start model; the last with all its keys
NEW_NETWORKS = "model.dropout"  # used, but not by the start model


def start_notes(suite: Suite, configs: Iterable[RunConfig]) -> list[str]:
    """A line for each start model of runs of the suite, which `started` has completed."""
    return list(dict.fromkeys(_note(suite, config) for config in configs if config.start))


def _note(suite: Suite, config: RunConfig) -> str:
    first, *later = map(str, config.model.ladder)
    grows = f"methods that grow go on with {', '.join(later)}" if set(later) - {first} else "nothing grows"
    note = f"The stream begins with {config.model.start}, {config.model.architecture} {first}; {grows}."
    given = _given(suite, config)
    if unused := [key for key in given if key.startswith(DECIDED)]:
        note += f" What the suite says of {', '.join(unused)} is not used: the model decides that."
    if NEW_NETWORKS in given:
        note += f" {NEW_NETWORKS} is that of new networks alone, such as PNN's columns."
    return note


def _given(suite: Suite, config: RunConfig) -> list[str]:
    """The keys of model and tokenizer that the suite, what it extends, the command line or the run's row give."""
    of_suite = [f"model.{key}" for key in suite.model.model_fields_set]
    of_suite += [f"tokenizer.{key}" for key in suite.tokenizer.model_fields_set]
    rows = [row for row in suite.rows if row.method == config.method and row.name in ("", config.row)]
    return sorted({*of_suite, *(key for row in rows for key in row.set)})
