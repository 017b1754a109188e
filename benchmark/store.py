"""Where things lie below the folder of `--runs`, and the records of runs and stages there.

No torch here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from benchmark import records
from benchmark.records import (
    DoneLine,
    EvaluationLine,
    LineOfStage,
    Measured,
    RunLine,
    find_last,
    select_kind,
)


class NamedRun(Protocol):
    """A run as far as its place is concerned; `benchmark.settings.suite.RunConfig` is one."""

    @property
    def suite(self) -> str: ...

    @property
    def id(self) -> str: ...


@dataclass(frozen=True)
class Store:
    """Where things lie below the folder of `--runs`, but for copies of tokens."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def archive_mark(self) -> Path:
        """The file that marks records of a study.

        They are believed, though their text is not here.
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

    def run_file(self, config: NamedRun) -> Path:
        return self.root / "suites" / config.suite / f"{config.id}.jsonl"

    def scores_file(self, key: str) -> Path:
        """The file of downstream scores of the model that a stage ended with.

        It also says why others could not be computed.
        """
        return self.root / "scores" / f"{key}.jsonl"

    def examples_file(self, suite: str) -> Path:
        """The keys of a suite's examples in an archive, by the names of its tasks."""
        return self.root / "suites" / suite / "examples.json"

    def measures_file(self, key: str) -> Path:
        """The measures of the model that a stage ended with, beside its ancestors."""
        return self.root / "similarity" / f"{key}.jsonl"

    def heartbeat_file(self, config: NamedRun) -> Path:
        """The file of the run's Heartbeat."""
        return self.run_file(config).with_suffix(".json")

    def read_stage(self, key: str) -> list[LineOfStage]:
        """The records of a stage in the order of training."""
        return records.read_stage(self.stage_file(key))

    def is_stage_done(self, key: str) -> bool:
        return find_last(self.read_stage(key), DoneLine) is not None

    def read_run(self, config: NamedRun) -> list[records.LineOfRun]:
        """The records of a run; nothing of one that has not started."""
        return records.read(self.run_file(config), records.RUN)

    def read_stage_keys(self, config: NamedRun) -> list[str]:
        """The keys of the stages of a run that has started; none of one that has not."""
        line = find_last(self.read_run(config), RunLine)
        return line.stages if line else []


@dataclass(kw_only=True)
class RunRecords:
    """All records of one run.

    `line` is the run's own. `stages[i]` holds the lines of the i-th stage in the order of training,
    without what a resume took back; it is empty for a stage that has not started. `scores[i]` are
    the downstream scores of that stage's model, of all suites and settings, `baselines` those that
    need no model. Of two scores with one key the last counts. `start` is what the untouched start
    model measured, None where there is none. `similarities[i]` are the last lines of each kind that
    were measured of that stage's model.
    """

    line: RunLine
    lines: list[records.LineOfRun] = field(default_factory=list)  # all of its file
    stages: list[list[LineOfStage]] = field(default_factory=list)
    scores: list[list[records.ScoreLine]] = field(default_factory=list)
    # likewise, of all settings
    zero_shot: list[list[records.ZeroShotLine]] = field(default_factory=list)
    similarities: list[list[records.LineOfMeasures]] = field(default_factory=list)
    baselines: list[records.BaselineLine] = field(default_factory=list)
    start: records.Measures = None
    failure: records.FailedLine | None = None
    other_code: bool = False  # whether its method trained a stage with other code than now
    reads_domain: bool = False  # whether its method tells its model a text's domain at evaluation
    earlier: bool = False  # whether it is of an earlier version of its method, in an archive
    why: str = ""  # its records are not shown

    @property
    def id(self) -> str:
        return self.line.id

    @property
    def suite(self) -> str:
        return self.line.suite

    @property
    def row(self) -> str:
        return self.line.row

    @property
    def seed(self) -> int:
        return self.line.seed

    @property
    def domains(self) -> list[records.Titled]:
        return self.line.domains

    @property
    def matrix(self) -> list[records.Measures]:
        """The last evaluation of each finished stage; None for a stage that trained nothing."""
        return [find_last(stage, EvaluationLine) for stage in self.stages[: self.finished]]

    @property
    def finished(self) -> int:
        """Number of stages that ran to their end."""
        return sum(find_last(stage, DoneLine) is not None for stage in self.stages)


ENOUGH_CORES = 0.95  # the share of its cores below which a stage was slowed by something else
# seconds of a stage from which that share is known: the counters of cores tick every 10 ms
MEASURABLE = 5.0


def load_runs(runs: Path, suite: str) -> list[RunRecords]:
    """Load every run of a suite, in the order of the suite's rows, then of seeds.

    No runs: an empty list. Raises RecordsError for damaged files, and for records that do not
    belong together.
    """
    store = Store(runs)
    loaded: list[RunRecords] = []
    sizes: dict[str, tuple[float, Path]] = {}
    read_stage = functools.cache(store.read_stage)
    baselines = _read_baselines(store)
    for path in sorted((runs / "suites" / suite).glob("*.jsonl")):
        lines = records.read(path, records.RUN)
        line = find_last(lines, RunLine)
        if line is None:
            continue
        run = RunRecords(line=line, lines=lines, baselines=baselines)
        run.failure = lines[-1] if isinstance(lines[-1], records.FailedLine) else None
        if line.start:
            file = store.start_file(line.start)
            measures = select_kind(records.read(file, records.STAGE), records.LaterLine)
            untouched = _select_measured(line, measures)
            _check_bits(file, line, untouched, sizes)
            run.start = untouched if untouched.perplexity else None
        for key in line.stages:
            stage = _select_texts(line, read_stage(key))
            for evaluation in select_kind(stage, EvaluationLine):
                _check_bits(store.stage_file(key), line, evaluation, sizes)
            scored = records.read(store.scores_file(key), records.SCORES)
            scores = select_kind(scored, records.ScoreLine)
            measured = records.read(store.measures_file(key), records.MEASURES)
            run.stages.append(stage)
            newest = {(score.task, score.prompt, score.seed, score.key): score for score in scores}
            run.scores.append([*newest.values()])
            run.zero_shot.append(select_kind(scored, records.ZeroShotLine))
            run.similarities.append([*{type(measure): measure for measure in measured}.values()])
        _check_places(path, run)
        loaded.append(run)
    return sorted(loaded, key=lambda run: (run.line.row_index, run.seed, run.id))


def _read_baselines(store: Store) -> list[records.BaselineLine]:
    """The scores that need no model, the last one of each key."""
    newest: dict[tuple[str, ...], records.BaselineLine] = {}
    for line in records.read(store.scores_file("baselines"), records.BASELINES):
        newest[line.task, line.task_key, line.metric, line.window, line.name] = line
    return list(newest.values())


def _check_places(path: Path, run: RunRecords) -> None:
    """Raises RecordsError for a run with another's seed, stages, or failure."""
    wrong = ""
    domains = [domain.name for domain in run.domains]
    seed = re.search(r"-s(\d+)-[0-9a-f]{12}\Z", run.id)
    if seed and int(seed[1]) != run.seed:
        wrong = f"seed {run.seed} of run {run.id}"
    for index, (key, stage) in enumerate(zip(run.line.stages, run.stages, strict=True)):
        start = find_last(stage, records.StageLine)
        recorded = (start.key, start.index, start.domain) if start else None
        expected = (key, index, *domains[index : index + 1])
        if recorded and recorded != expected:
            wrong = wrong or f"stage {index} is recorded as {recorded}, not {expected}"
    if run.failure and run.failure.stage >= len(domains):
        wrong = f"failed in stage {run.failure.stage}, of stages 0 to {len(domains) - 1}"
    if wrong:
        raise records.RecordsError(f"{path}: {wrong}; {records.CURE}")


def _check_bits(
    path: Path,
    run: RunLine,
    measured: Measured | EvaluationLine,
    sizes: dict[str, tuple[float, Path]],
) -> None:
    """Raises RecordsError where a perplexity and its bits per byte do not go together.

    Bits per token over bits per byte are the bytes of a text's tokens, one number for all models.
    Where they are not, one of the two was changed. `sizes`: that number of each text, and the file
    that it is from.
    """
    for name, perplexity in measured.perplexity.items():
        bits = measured.bits_per_byte[name]
        text = run.texts.get(name)
        if text and perplexity and bits and perplexity > 1.001:  # else rounding is as large
            size = math.log2(perplexity) / bits
            expected, first = sizes.setdefault(text, (size, path))
            if abs(size / expected - 1) > 1e-6:
                raise records.RecordsError(
                    f"{path}: perplexity {perplexity:g} and {bits:g} bits per byte on {name} do "
                    f"not go together as in {first}; {records.CURE}"
                )


def make_empty_run(line: RunLine) -> RunRecords:
    """A run without records, so that tables can show that it is missing.

    `line`: see `RunConfig.describe`.
    """
    return RunRecords(
        line=line, stages=[[] for _ in line.domains], scores=[[] for _ in line.domains]
    )


def leave_out(run: RunRecords, why: str) -> RunRecords:
    """A copy of a run without its records, and without the stages and texts in its line.

    `why` is the reason.
    """
    line = replace(run.line, stages=[], unigram={}, texts={}, tokens={}, start="")
    return dataclasses.replace(make_empty_run(line), why=why)


def leave_out_older_texts(runs: Sequence[RunRecords]) -> list[RunRecords]:
    """The runs, but an empty one for each that was of another text than a newer run of its row.

    Seeds of a row are of one text. Where no text is here to tell which, as in an archive, the
    newest run does. Give runs of one suite, and only those that were asked for.
    """

    def list_texts(line: RunLine) -> dict[tuple[str, str, str], str]:
        validation = {(line.row, "validation", name): key for name, key in line.texts.items()}
        tokens = {(line.row, "all", name): key for name, key in line.tokens.items()}
        return validation | tokens

    newest: dict[tuple[str, str, str], str] = {}
    for line in sorted((run.line for run in runs), key=lambda line: line.time):
        newest |= list_texts(line)
    why = "its records are of another text than a newer run of the row"
    return [
        leave_out(run, why) if list_texts(run.line).items() - newest.items() else run
        for run in runs
    ]


def _select_texts(run: RunLine, stage: list[LineOfStage]) -> list[LineOfStage]:
    """A shared stage's lines with measures of the run's own texts alone.

    The evaluation at its end also has the measures of texts that came later.
    """
    later = select_kind(stage, records.LaterLine)
    start = find_last(stage, records.StageLine)
    if start is None or (start.texts == run.texts and not later):
        return stage
    lines: list[LineOfStage] = [line for line in stage if not isinstance(line, records.LaterLine)]
    end = find_last(lines, EvaluationLine)
    later_measures = _select_measured(run, later)
    for place, line in enumerate(lines):
        if not isinstance(line, EvaluationLine):
            continue
        names = [name for name in line.perplexity if start.texts.get(name) == run.texts.get(name)]
        perplexity = {name: line.perplexity[name] for name in names}
        bits_per_byte = {name: line.bits_per_byte[name] for name in names}
        if line is end:
            perplexity |= later_measures.perplexity
            bits_per_byte |= later_measures.bits_per_byte
        lines[place] = replace(line, perplexity=perplexity, bits_per_byte=bits_per_byte)
    return lines


def _select_measured(run: RunLine, lines: Sequence[records.LaterLine]) -> Measured:
    """The measures on a run's own texts."""
    own_lines = [line for line in lines if run.texts.get(line.domain) == line.text]
    return Measured(
        {line.domain: line.perplexity for line in own_lines},
        {line.domain: line.bits_per_byte for line in own_lines},
    )
