"""The list of every key of a suite, docs/suite_keys.md, rendered from the settings' descriptions.

python -m docs.suite_keys > docs/suite_keys.md
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from benchmark.jobs import executors
from benchmark.settings.decides import list_purposes
from benchmark.settings.names import list_executor_names
from benchmark.settings.suite import Suite
from docs.reference import link_pages

INTRODUCTION = """\
# Suite keys

<!-- rendered by `python -m docs.suite_keys`: change the settings' descriptions, not this page -->

A suite is a TOML file in `benchmark/suites/`, or anywhere.

- `extends = "other"` at its top takes over all of another suite. Give only what differs.
- Paths are relative to the suite's file. `${NAME}` in a path is read from the environment.
- `--set data.memory_tokens=1000` on the command line overrides one key. A row's `set` does the same
  for this row. `--set tasks.chemprot.max_epochs=2` overrides a key of the entry with this name.
- A key that is not listed here is an error.
- The options of a method are the fields of its class in `methods/`.

Column "decides" says what is done again if you change the key: the weights of models, the text that
they read, rows of tables, scores of tasks, or only scores by fine-tuning. A "place" says where
files lie. Their content counts, not their place.

Change these first: `methods`, `seeds`, `domains`, `budget.amount`, `model.ladder`."""

# One for each section, valid in a suite that extends the demo.
EXAMPLES = {
    "": 'methods = ["naive", "er"]',
    "[[rows]]": 'rows = [{ name = "ER, 30%", method = "er", options = { replay_ratio = 0.3 } }]',
    "[[domains]]": 'probes = [{ name = "json", packages = ["json"] }]',
    "[[domains.datasets]]": (
        'probes = [{ name = "news", datasets = [{ path = "allenai/c4", name = "realnewslike" }] }]'
    ),
    "[[domains.sources]]": (
        'probes = [{ name = "mix", sources = [{ packages = ["json"], weight = 0.7 }, '
        '{ packages = ["email"], weight = 0.3 }] }]'
    ),
    "[tokenizer]": 'tokenizer = { vocabulary = 1024, domains = ["python"] }',
    "[data]": "data.memory_tokens = 100_000",
    "[model]": "model.dropout = 0.1",
    "[[model.ladder]]": (
        "model.ladder = [{ layers = 1, hidden_size = 16 }, { layers = 1, hidden_size = 16 }, "
        "{ layers = 2, hidden_size = 24 }, { layers = 2, hidden_size = 24 }, "
        "{ layers = 3, hidden_size = 32 }]"
    ),
    "[training]": "training = { batch_size = 16, learning_rate = 4e-3 }",
    "[budget]": 'budget = { unit = "steps", amount = [800, 400, 400, 400, 400] }',
    "[replay]": (
        'probes = [{ name = "json", packages = ["json"] }]\nreplay = { text = "json", share = 0.1 }'
    ),
    "[[tasks]]": (
        'tasks = [{ name = "parts", domain = "scipy", docstrings = {}, metric = "accuracy" }]'
    ),
    "[tasks.dataset]": (
        'tasks = [{ name = "mnli", domain = "python", dataset = { path = "nyu-mll/glue", '
        'name = "mnli", text_field = "premise", pair_field = "hypothesis" } }]'
    ),
    "[tasks.docstrings]": (
        'tasks = [{ name = "parts", domain = "scipy", docstrings = { classes = 3 } }]'
    ),
    "[finetuning]": 'finetuning = { protocols = ["linear_probe"], stages = "every" }',
    "[evaluate]": 'evaluate = { tasks = ["hellaswag"], limit = 100 }',
    "[slurm]": 'slurm = { partition = "gpu", time = 600 }',
    "[slurm.prepare]": 'slurm.prepare = { partition = "cpu", mem = "64GB" }',
    "[slurm.train]": "slurm.train = { nodes = 2, gpus_per_node = 4 }",
}

TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "",
}
PURPOSES = list_purposes(Suite)
SAID = 10_000  # larger limits are left out, because no reader meets them
LIMITS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}

Schema = dict[str, Any]  # of JSON Schema, as pydantic writes it


def render() -> str:
    """The page, in Markdown."""
    suite = Suite.model_json_schema()
    suite["required"].remove("name")  # its default is the file's name
    del suite["properties"]["tuned"]  # nobody writes it by hand
    for name in list_executor_names():
        if settings := executors.find(name).settings:
            section = settings.model_json_schema()
            suite["$defs"] |= {**section.pop("$defs"), section["title"]: section}
            suite["properties"][name] = {
                "$ref": f"#/$defs/{section['title']}",
                "description": f"what jobs ask of `--executor {name}`",
            }
    sections = list(_find_sections("", suite, suite["$defs"]))
    places: dict[str, list[str]] = {}  # by kind of section
    for place, schema in sections:
        places.setdefault(schema["title"], []).append(place)
    parts = [INTRODUCTION]
    for place, schema in sections:
        if place == places[schema["title"]][0]:
            header = ", ".join(places[schema["title"]]) or "At the top"
            lines = EXAMPLES[place].splitlines()
            example = "Example: " + ", ".join(f"`{line}`" for line in lines)
            table = "\n".join(_write_table(place, schema, sections))
            parts += [f"## {header}", schema["description"], example, table]
    return link_pages("\n\n".join(parts) + "\n")


def _find_sections(path: str, schema: Schema, known: Schema) -> Iterator[tuple[str, Schema]]:
    """A section of a suite file, then those inside it, each with its TOML header."""
    yield path, schema
    for key, value in schema["properties"].items():
        if name := _find_section(value):
            inner = f"{path.strip('[]')}.{key}".lstrip(".")
            yield from _find_sections(
                f"[[{inner}]]" if value.get("type") == "array" else f"[{inner}]", known[name], known
            )


def _find_section(value: Schema) -> str | None:
    """The name of the settings that a key contains, alone or in a list."""
    options = [value, value.get("items", {}), *value.get("anyOf", [])]
    return next((option["$ref"].rpartition("/")[2] for option in options if "$ref" in option), None)


def _write_table(
    place: str, schema: Schema, sections: Sequence[tuple[str, Schema]]
) -> Iterator[str]:
    """The keys of a section, except those that mean the same in the section around it."""
    around, outer = next(
        (
            (at, of)
            for at, of in sections
            if at and at.strip("[]") == place.strip("[]").rpartition(".")[0]
        ),
        ("", {}),
    )
    inherited = {key: value["description"] for key, value in outer.get("properties", {}).items()}
    own = {
        key: value
        for key, value in schema["properties"].items()
        if inherited.get(key) != value["description"]
    }
    same = [f"`{key}`" for key in schema["properties"] if key not in own]
    purposes = [PURPOSES.get(f"{place.strip('[]')}.{key}".lstrip("."), "") for key in own]
    decides = any(purposes)
    if own:
        yield f"| key | value | default |{' decides |' * decides} meaning |"
        yield f"| :-- | :-- | :-- |{' :-- |' * decides} :-- |"
    for (key, value), purpose in zip(own.items(), purposes, strict=True):
        default = "required" if key in schema.get("required", ()) else _describe_default(value)
        kind = _describe_type(value)
        column = f" {purpose} |" * decides
        yield f"| `{key}` | {kind} | {default} |{column} {value['description']} |"
    if same and not own:
        outer_keys = outer["properties"].items()
        lacks = [f"`{key}`" for key, value in outer_keys if key not in schema["properties"]]
        yield f"Its keys are those of {around}, without {', '.join(lacks)}."
    elif same:
        yield f"\n{', '.join(same)}: as in {around}."


def _describe_type(value: Schema) -> str:
    if _find_section(value):
        return "sections" if value.get("type") == "array" else "section"
    if "enum" in value:
        return ", ".join(f'`"{choice}"`' for choice in value["enum"])
    if "anyOf" in value:
        return " or ".join(filter(None, map(_describe_type, value["anyOf"])))
    if value["type"] == "array":
        items = value.get("prefixItems") or [value["items"]]
        number = f"{len(items)} " if "prefixItems" in value else ""
        if "enum" in items[0]:
            return f"list of {_describe_type(items[0])}"
        return f"list of {number}{TYPES[items[0]['type']]}s {_describe_limits(items[0])}".rstrip()
    if value["type"] == "object":
        return "table"
    return f"{TYPES[value['type']]} {_describe_limits(value)}".rstrip()


def _describe_limits(value: Schema) -> str:
    said = {limit: value[limit] for limit in LIMITS if value.get(limit, math.inf) <= SAID}
    return ", ".join(f"{LIMITS[limit]}{_write_number(number)}" for limit, number in said.items())


def _write_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def _describe_default(value: Schema) -> str:
    default = value.get("default")
    return (
        "" if default in (None, "", [], {}) or _find_section(value) else f"`{json.dumps(default)}`"
    )


if __name__ == "__main__":
    print(render(), end="")
