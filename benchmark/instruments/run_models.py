"""The models of a run, one after the other, and what is measured on them once.

What is measured stands in `analysis/model_similarity.py`, which this room must not import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import takewhile

from msgspec import structs

from benchmark import records
from benchmark.data.tokens import corpus_of
from benchmark.locks import Lease
from benchmark.models import LanguageModel, load
from benchmark.models.devices import own_device
from benchmark.records import DoneLine, EvaluationLine, GrowthRecord, LineOfMeasures, LineOfStage
from benchmark.settings.base import digest
from benchmark.settings.suite import RunConfig
from benchmark.store import Store
from benchmark.training.learner import Batch
from benchmark.training.run import stream_of
from benchmark.training.stream import Stream


class RunModels:
    """The models that the stages of a run ended with, on the GPU where there is one; each is loaded once.

    `keys` are those of its finished stages, from the first on.
    """

    def __init__(self, config: RunConfig, store: Store) -> None:
        self.config, self.store = config, store
        self.keys = list(takewhile(store.stage_done, store.recorded_stages(config)))
        self.device = own_device()
        self._models: dict[int, LanguageModel] = {}

    @cached_property
    def stream(self) -> Stream:
        return stream_of(self.config, corpus_of(self.config, self.store))

    def after(self, index: int) -> LanguageModel:
        """The model after a stage, in evaluation mode."""
        if index not in self._models:
            self._models[index] = load(self.store.stage(self.keys[index]) / "model").to(self.device)
        return self._models[index]

    def up_to(self, last: int) -> list[LanguageModel]:
        """The models after all stages up to `last`."""
        return [self.after(index) for index in range(last + 1)]

    def untrained(self, last: int) -> list[int]:
        """The stages up to `last` without a trained model; a method may leave early stages out."""
        return [i for i in range(last + 1) if not any(isinstance(line, EvaluationLine) for line in self._lines(i))]

    def growth(self, index: int) -> GrowthRecord | None:
        """What the stage's growth said of itself; None where nothing grew."""
        return next(line.growth for line in reversed(self._lines(index)) if isinstance(line, DoneLine))

    def _lines(self, index: int) -> list[LineOfStage]:
        return records.read_stage(self.store.stage_file(self.keys[index]))


def sample(stream: Stream, domain: int, rows: int, at_once: int) -> Iterator[Batch]:
    """At most `rows` rows spread evenly over a domain's validation text, in batches of `at_once`.

    The same rows and masks for every model, method and seed.
    """
    stride = -(-stream.valid_blocks[domain] // rows)
    return stream.validation(domain, at_once, 0, stride)


def record_measurement(
    config: RunConfig,
    store: Store,
    kind: str,
    settings: Mapping[str, int],
    compute: Callable[[RunModels, int], LineOfMeasures],
    first: int = 0,
) -> None:
    """Append what `compute` says of the models of a run's finished stages from `first` on, where that is not there.

    A stage's key stands for all of its ancestors, so key and settings name a record. Whoever wants the same at the
    same time waits and finds it.
    """
    models, said = RunModels(config, store), False
    for index, stage_key in list(enumerate(models.keys))[first:]:
        path = store.measures_file(stage_key)
        key = digest({"kind": kind, "stage": stage_key, **settings})
        path.parent.mkdir(parents=True, exist_ok=True)
        with Lease(path.with_suffix(".lock")) as lease:
            if any(known.key == key for known in records.read(path, records.MEASURES)):
                continue
            if not said:
                print(f"{config.row}, seed {config.seed}: measuring {kind}", file=sys.stderr)
                said = True
            line = compute(models, index)
            lease.check()
            domain = config.domains[index].name
            records.append(path, structs.replace(line, key=key, stage_key=stage_key, domain=domain))
