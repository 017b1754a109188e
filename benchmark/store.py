"""Where things lie below the folder of `--runs`, and which stages a run is known to consist of. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmark import records


class NamedRun(Protocol):
    """A run as far as its place is concerned; `benchmark.settings.config.RunConfig` is one."""

    @property
    def suite(self) -> str: ...

    @property
    def id(self) -> str: ...


@dataclass(frozen=True)
class Store:
    """Where things lie below the folder of `--runs`."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    def stage(self, key: str) -> Path:
        return self.root / "stages" / key

    def run_file(self, config: NamedRun) -> Path:
        return self.root / "suites" / config.suite / f"{config.id}.jsonl"

    def beacon(self, config: NamedRun) -> Path:
        """Where a run in progress says how far it is."""
        return self.run_file(config).with_suffix(".json")

    def stage_done(self, key: str) -> bool:
        file = self.stage(key) / "records.jsonl"
        return file.exists() and any(line["kind"] == "done" for line in records.read(file))


def recorded_stages(config: NamedRun, store: Store) -> list[str]:
    """Keys of the stages of a run that has started, else nothing."""
    path = store.run_file(config)
    lines = records.read(path) if path.exists() else []
    return next((line["stages"] for line in reversed(lines) if line["kind"] == "run"), [])
