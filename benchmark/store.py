"""Where things lie below the folder of `--runs`, and which stages a run is known to consist of. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypedDict, cast

from benchmark import records
from benchmark.errors import all_shown
from benchmark.files import is_missing, names_in, read_bytes
from benchmark.record_checks import flaw_of_key, flaw_of_run
from benchmark.run_description import RunLine


class NamedRun(Protocol):
    """A run as far as its place is concerned; `benchmark.settings.suite.RunConfig` is one."""

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
    """What a run in progress said last; None if nothing, or nothing that it could be.

    A machine that goes down while it is written leaves a half.
    """
    import msgspec  # here, for --help has no packages

    try:
        return all_shown(msgspec.json.decode(read_bytes(path), type=Heartbeat))
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Store:
    """Where things lie below the folder of `--runs`, but for copies of tokens."""

    root: Path
    tokens: Path | None = None  # of copies on a node's own disk

    @property
    def data(self) -> Path:
        return self.tokens or self.root / "data"

    @cached_property
    def _stages(self) -> str:  # text, as of scores: a survey makes tens of thousands of paths, and a Path takes 3 us
        return str(self.root / "stages")

    @cached_property
    def _scores(self) -> str:
        return str(self.root / "scores")

    def stage(self, key: str) -> Path:
        return self.root.joinpath("stages", key)

    def start_file(self, key: str) -> Path:
        """What was measured of a start model before anything was trained."""
        return self.root / "starts" / f"{key}.jsonl"

    def run_file(self, config: NamedRun) -> Path:
        return self.root.joinpath("suites", config.suite, f"{config.id}.jsonl")

    def begun_runs(self, suite: str) -> set[str]:
        """The names of the files of a suite's runs: one question, where asking for each is many."""
        return set(names_in(self.root / "suites" / suite))

    def begun_stages(self) -> set[str]:
        """The keys of stages that have a folder."""
        return set(names_in(self.root / "stages"))

    def heartbeat(self, config: NamedRun) -> Path:
        """The file of the run's Heartbeat."""
        return self.run_file(config).with_suffix(".json")

    def last_of_stage(self, key: str, *kinds: str) -> dict[str, records.Record]:
        """Return what `records.last_of_each` does. Raises RecordsError where the records of another stage lie."""
        path = f"{self._stages}/{key}/{records.STAGE_FILE}"
        found = records.last_of_each(path, "stage", *kinds)
        if "stage" in found and (wrong := flaw_of_key(found["stage"], key)):
            raise records.RecordsError(f"{path}: {wrong}; {records.CURE}")
        return found

    def scores_of_stage(self, key: str) -> str:
        """The path of the file with the downstream scores of the model that a stage ended with."""
        return f"{self._scores}/{key}.jsonl"

    def stage_done(self, key: str) -> bool:
        """Whether the stage is trained. Raises RecordsError where the records of another stage lie."""
        return "done" in self.last_of_stage(key, "done")


def lines_of_run(config: NamedRun, store: Store) -> list[records.Record]:
    """What is recorded of a run; nothing of one that has not started."""
    return _lines(store.run_file(config))


def _lines(path: Path) -> list[records.Record]:
    return [] if is_missing(path) else records.read(path)


def run_line(path: Path) -> RunLine | None:
    """What a run's file says of it last, if it does. Raises RecordsError for a line that is not this run's."""
    lines = _lines(path)  # whole: its settings are more than its type names
    line = next((one for one in reversed(lines) if one["kind"] == "run"), None)
    if line and (wrong := flaw_of_run(line, path.stem)):
        raise records.RecordsError(f"{path}: {wrong}; {records.CURE}")
    return cast(RunLine | None, line)


def recorded_stages(config: NamedRun, store: Store) -> list[str]:
    """The keys of the stages of a run that has started; none of one that has not. Raises as `run_line`."""
    line = run_line(store.run_file(config))
    return line["stages"] if line else []
