"""Where things lie below the folder of `--runs`, and which stages a run is known to consist of. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict

from benchmark import records


class NamedRun(Protocol):
    """A run as far as its place is concerned; `benchmark.settings.config.RunConfig` is one."""

    @property
    def suite(self) -> str: ...

    @property
    def id(self) -> str: ...


class Heartbeat(TypedDict):
    """How far a run in progress is, in a file that always says the last; other processes read it."""

    stage: int
    domain: str
    phase: str
    fraction: float  # of the stage's budget, 0 to 1
    seconds: float  # charged in this stage
    tokens_per_second: float
    time: float  # when this was written, in seconds since 1970


def read_heartbeat(path: Path) -> Heartbeat | None:
    """What a run in progress said last; None if nothing, or if a machine went down while it was written."""
    try:
        last: Heartbeat = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return last


@dataclass(frozen=True)
class Store:
    """Where things lie below the folder of `--runs`."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    def stage(self, key: str) -> Path:
        return self.root / "stages" / key

    def start_file(self, key: str) -> Path:
        """What was measured of a start model before anything was trained."""
        return self.root / "starts" / f"{key}.jsonl"

    def run_file(self, config: NamedRun) -> Path:
        return self.root / "suites" / config.suite / f"{config.id}.jsonl"

    def heartbeat(self, config: NamedRun) -> Path:
        """The file of the run's Heartbeat."""
        return self.run_file(config).with_suffix(".json")

    def stage_done(self, key: str) -> bool:
        return records.last(self.stage(key) / "records.jsonl", "done") is not None


def recorded_stages(config: NamedRun, store: Store) -> list[str]:
    """The keys of the stages of a run that has started; none of one that has not."""
    line = records.last(store.run_file(config), "run")
    return line["stages"] if line else []
