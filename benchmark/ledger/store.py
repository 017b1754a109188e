"""The paths below the folder of `--runs`, and the records of runs and stages in it.

No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmark.ledger import records
from benchmark.ledger.records import LineOfStage, RunLine, StageDone, find_last
from benchmark.settings.suite import RunConfig


@dataclass(frozen=True)
class Store:
    """The paths below the folder of `--runs`, except copies of tokens."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def archive_mark(self) -> Path:
        """The file that marks the records of a study.

        They are believed although their text is not here.
        """
        return self.root / "archive"

    @property
    def is_archive(self) -> bool:
        return self.archive_mark.exists()

    def stage_folder(self, key: str) -> Path:
        return self.root / "stages" / key

    def stage_file(self, key: str) -> Path:
        """The records of a stage."""
        return self.stage_folder(key) / records.STAGE_FILE

    def start_file(self, key: str) -> Path:
        """The measures of a start model before anything was trained."""
        return self.root / "starts" / f"{key}.jsonl"

    def run_file(self, config: RunConfig) -> Path:
        return self.root / "suites" / config.suite / f"{config.id}.jsonl"

    def scores_file(self, key: str) -> Path:
        """The file of downstream scores of the model that a stage ended with.

        It also says why others could not be computed.
        """
        return self.root / "scores" / f"{key}.jsonl"

    def examples_file(self, suite: str) -> Path:
        """The keys of a suite's examples in an archive, by the names of its tasks."""
        return self.root / "suites" / suite / "examples.json"

    def similarity_file(self, key: str) -> Path:
        """The file that compares the model that a stage ended with to its ancestors."""
        return self.root / "similarity" / f"{key}.jsonl"

    def heartbeat_file(self, config: RunConfig) -> Path:
        """The file of the run's Heartbeat."""
        return self.run_file(config).with_suffix(".json")

    def read_stage(self, key: str) -> list[LineOfStage]:
        """The records of a stage in the order of training."""
        return records.read_stage(self.stage_file(key))

    def is_stage_done(self, key: str) -> bool:
        return find_last(self.read_stage(key), StageDone) is not None

    def read_run(self, config: RunConfig) -> list[records.LineOfRun]:
        """The records of a run, an empty list if it has not started."""
        return self.read_run_file(self.run_file(config))

    def read_run_file(self, path: Path) -> list[records.LineOfRun]:
        """The records of a run in a file.

        Raises RecordsError for another version of the schema, and for a copy of a run's file,
        because runs are found by the names of their files.
        """
        lines = records.read(path, records.RUN)
        for line in lines:
            if isinstance(line, RunLine):
                records.check_schema(line, path)
        run = find_last(lines, RunLine)
        if run and run.id != path.stem:
            own = path.with_name(f"{run.id}.jsonl")
            cure = "remove the copy" if own.exists() else "give it that name, or remove it"
            raise records.RecordsError(
                f"{path} holds the run {run.id}, whose own file is {own.name}: {cure}"
            )
        return lines

    def read_stage_keys(self, config: RunConfig) -> list[str]:
        """The keys of a run's stages, an empty list if the run has not started."""
        line = find_last(self.read_run(config), RunLine)
        return line.stages if line else []
