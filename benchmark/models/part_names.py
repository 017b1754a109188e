"""Names of a model's parameters that are the same in every architecture, as far as its parts are."""

from __future__ import annotations

from benchmark.models.transformer import LanguageModel


def part_names(model: LanguageModel) -> dict[str, str]:
    """What each parameter is called here, by its name in the model.

    A parameter of the i-th transformer layer is `layers.i.` and what its architecture calls it there, one of an
    embedding table `embeddings.j.` likewise, where the tables are of tokens, positions and types, as far as there are
    such. All others keep their names.
    """
    architecture, network = model.architecture, model.network
    places = {f"layers.{i}": layer for i, layer in enumerate(architecture.layers(network))}
    places |= {f"embeddings.{j}": table.module for j, table in enumerate(architecture.places(network).tables)}
    known = {id(p): f"{place}.{name}" for place, part in places.items() for name, p in part.named_parameters()}
    return {name: known.get(id(parameter), name) for name, parameter in model.named_parameters()}
