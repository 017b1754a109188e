"""The one view of a run's records that all readers share, and how it is loaded.

No torch here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmark.ledger import records
from benchmark.ledger.records import (
    EvaluationLine,
    LineOfStage,
    Measured,
    RunLine,
    StageDone,
    Titled,
    find_last,
    select_kind,
)
from benchmark.ledger.store import Store
from benchmark.ledger.texts import Texts
from benchmark.metrics import average_perplexity
from benchmark.settings.suite import RunConfig


def make_run_line(config: RunConfig) -> RunLine:
    """A run's line for the records, as far as it is known before it starts."""
    return RunLine(
        schema=records.SCHEMA,
        id=config.id,
        suite=config.suite,
        row=config.row,
        row_index=config.row_index,
        method=config.method,
        options=config.options,
        seed=config.seed,
        config=dump_settings(config),
        tasks=[task.model_dump(mode="json") for task in config.tasks],
        domains=[Titled(domain.name, domain.label) for domain in config.domains],
        probes=[Titled(probe.name, probe.label) for probe in config.probes],
    )


def dump_settings(config: RunConfig) -> dict[str, Any]:
    """A run's settings as its records hold them, without tasks and sections of executors."""
    return config.model_dump(mode="json", exclude={"tasks", "sections"})


@dataclass(kw_only=True)
class RunRecords:
    """The one view of a run: its settings, and all records that belong to it.

    `line` is the run's own line, or if it has not started, the line that it would have. `lines`
    are all lines of its file, empty if it has not started or they do not belong to it. `stages[i]`
    has the lines of the i-th stage in the order of training, without those that a resume cancelled.
    It is empty for a stage that has not started. `scores[i]` has the downstream scores of that
    stage's model, of all suites and settings, `baselines` the scores that need no model. Of two
    scores with one key the last counts. `start` has the measures of the start model before
    training, None if there are none. `ancestor_comparisons[i]` has the last line of each kind that
    compares that stage's model with its ancestors on the run's own texts.

    A ledger sets the other fields, see `benchmark.ledger.ledger.Ledger.view`.
    """

    line: RunLine
    lines: list[records.LineOfRun] = field(default_factory=list)
    stages: list[list[LineOfStage]] = field(default_factory=list)
    scores: list[list[records.ScoreLine]] = field(default_factory=list)
    # the same by lm-evaluation-harness, of all settings
    zero_shot: list[list[records.ZeroShotLine]] = field(default_factory=list)
    ancestor_comparisons: list[list[records.LineOfMeasures]] = field(default_factory=list)
    baselines: list[records.BaselineLine] = field(default_factory=list)
    start: records.Measures = None
    failure: records.FailedLine | None = None
    texts: Texts = field(default_factory=Texts)  # as they are on this machine
    other_code: bool = False  # whether its method trained a stage with other code than now
    reads_domain: bool = False  # whether its method tells its model a text's domain at evaluation
    earlier: bool = False  # whether it is of an earlier version of its method, in an archive
    why: str = ""  # why records that were found do not belong to it
    # in words, how the settings of those records differ
    differences: list[str] = field(default_factory=list)

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
    def has_begun(self) -> bool:
        """Whether it has recorded its stages: a run that failed before has only a FailedLine."""
        return find_last(self.lines, RunLine) is not None

    @property
    def keys(self) -> list[str]:
        """The keys of its stages, as far as they are known.

        Before all its text is tokenised, they are the keys of the first stages, because a stage
        does not depend on later ones.
        """
        return self.line.stages

    @property
    def matrix(self) -> list[records.Measures]:
        """The last evaluation of each finished stage, None for a stage that trained nothing."""
        return [find_last(stage, EvaluationLine) for stage in self.stages[: self.finished]]

    @property
    def finished(self) -> int:
        """The number of finished stages from the first one on, whichever run trained them."""
        count = 0
        for stage in self.stages:
            if find_last(stage, StageDone) is None:
                break
            count += 1
        return count

    @property
    def ap(self) -> float | None:
        """AP after the last finished stage, None without one or if it evaluated nothing."""
        if not self.finished:
            return None
        evaluation = self.matrix[-1]
        if not isinstance(evaluation, EvaluationLine):
            return None
        return self.compute_ap(evaluation, self.finished - 1)

    def compute_ap(self, evaluation: EvaluationLine, stage: int) -> float:
        """AP of an evaluation in a stage, over the domains so far.

        It is NaN if the records lack one of them, and infinite if one overflowed.
        """
        perplexities = []
        for domain in self.domains[: stage + 1]:
            value = evaluation.perplexity.get(domain.name, math.nan)
            perplexities.append(math.inf if value is None else value)
        return float(average_perplexity(perplexities, stage))


def list_charges(stage: Sequence[LineOfStage]) -> dict[str, float]:
    """What a stage has charged so far, by unit."""
    last_charge = find_last(stage, StageDone) or find_last(stage, EvaluationLine)
    return {**last_charge.charged} if last_charge else {}


def measure_wall_time(stage: Sequence[LineOfStage]) -> float:
    """Seconds of a stage so far, with evaluations and checkpoints, but without interruptions."""
    training = [line for line in stage if not isinstance(line, records.LaterLine)]
    return sum(
        line.time - previous.time
        for previous, line in pairwise(training)
        if not isinstance(line, records.ResumedLine)
    )


def load_runs(runs: Path, suite: str) -> list[RunRecords]:
    """Load every run of a suite, in the order of the suite's rows, then of seeds.

    Returns [] if there are none. Raises RecordsError for damaged files and copies of a run's file.
    """
    loader = RunLoader(Store(runs))
    loaded: list[RunRecords] = []
    for path in sorted((runs / "suites" / suite).glob("*.jsonl")):
        lines = loader.store.read_run_file(path)
        line = find_last(lines, RunLine)
        if line:
            loaded.append(loader.load(line, lines))
    return sorted(loaded, key=lambda run: (run.line.row_index, run.seed, run.id))


class RunLoader:
    """Loads runs of a store, and reads each file that runs share once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.read_stage = functools.cache(store.read_stage)
        self._read_scores = functools.cache(
            lambda key: records.read(store.scores_file(key), records.SCORES)
        )
        self._read_measures = functools.cache(
            lambda key: records.read(store.similarity_file(key), records.MEASURES)
        )

    @functools.cached_property
    def baselines(self) -> list[records.BaselineLine]:
        """The scores that need no model, the last one of each key."""
        newest: dict[tuple[str, ...], records.BaselineLine] = {}
        for line in records.read(self.store.scores_file("baselines"), records.BASELINES):
            newest[line.task, line.task_key, line.metric, line.window, line.name] = line
        return list(newest.values())

    def load(self, line: RunLine, lines: Sequence[records.LineOfRun]) -> RunRecords:
        """All records of a run, given its own line and all `lines` of its file.

        Raises RecordsError for damaged files.
        """
        run = RunRecords(line=line, lines=[*lines], baselines=self.baselines)
        if lines and isinstance(lines[-1], records.FailedLine):
            run.failure = lines[-1]
        if line.start:
            file = self.store.start_file(line.start)
            measures = select_kind(records.read(file, records.STAGE), records.LaterLine)
            untouched = _keep_own_later_measures(line, measures)
            run.start = untouched if untouched.perplexity else None
        for key in line.stages:
            stage = self.read_stage(key)
            # before a run has started, the texts that it is measured on are not known
            run.stages.append(_keep_own_perplexities(line, stage) if lines else stage)
            scored = self._read_scores(key)
            newest = {}
            for score in select_kind(scored, records.ScoreLine):
                newest[(score.task, score.prompt, score.seed, score.key)] = score
            run.scores.append([*newest.values()])
            run.zero_shot.append(select_kind(scored, records.ZeroShotLine))
            comparisons = keep_own_comparisons(line, self._read_measures(key))
            newest_comparisons = {type(comparison): comparison for comparison in comparisons}
            run.ancestor_comparisons.append([*newest_comparisons.values()])
        return run


def check_other_files(store: Store, suite: str, runs: Collection[str]) -> None:
    """Raise RecordsError for a copy among the files of a suite that are not of these `runs`.

    `runs` are ids. A caller that reads the files of these runs learns the same about them.
    """
    for path in sorted((store.root / "suites" / suite).glob("*.jsonl")):
        if path.stem not in runs:
            store.read_run_file(path)


def keep_own_comparisons(
    run: RunLine, lines: Sequence[records.LineOfMeasures]
) -> list[records.LineOfMeasures]:
    """A model's comparisons with its ancestors on a run's own validation texts.

    They include comparisons whose text is not recorded.
    """
    own_texts = {"", *run.texts.values()}
    return [line for line in lines if line.text in own_texts]


def leave_out(run: RunRecords, why: str, differences: Sequence[str] = ()) -> RunRecords:
    """A copy of a run without its records, and without the stages and texts in its line.

    With it tables can show that the run is missing. `why` is the reason, `differences` has in words
    how its settings, text and method differ.
    """
    line = replace(run.line, stages=[], unigram={}, texts={}, tokens={}, start="")
    return RunRecords(
        line=line,
        stages=[[] for _ in line.domains],
        scores=[[] for _ in line.domains],
        why=why,
        differences=[*differences],
    )


def leave_out_older_texts(runs: Sequence[RunRecords]) -> list[RunRecords]:
    """The runs, with an empty one for each that was of another text than a newer run of its row.

    All seeds of a row must have the same text. If no text is here to decide which, as in an
    archive, the newest run decides. Give runs of one suite, and only those that were asked for.
    """

    def list_texts(line: RunLine) -> dict[tuple[str, str, str], str]:
        validation = {}
        for name, key in line.texts.items():
            validation[(line.row, "validation", name)] = key
        tokens = {}
        for name, key in line.tokens.items():
            tokens[(line.row, "all", name)] = key
        return validation | tokens

    newest: dict[tuple[str, str, str], str] = {}
    for line in sorted((run.line for run in runs), key=lambda line: line.time):
        newest |= list_texts(line)
    why = "its records are of another text than a newer run of the row"
    return [
        leave_out(run, why) if list_texts(run.line).items() - newest.items() else run
        for run in runs
    ]


def _keep_own_perplexities(run: RunLine, stage: list[LineOfStage]) -> list[LineOfStage]:
    """The lines of a stage that several runs share, with perplexities only on this run's texts.

    Its last evaluation also gets what was measured later, on texts that other runs did not have.
    """
    later = select_kind(stage, records.LaterLine)
    start = find_last(stage, records.StageLine)
    if start is None or (start.texts == run.texts and not later):
        return stage
    lines: list[LineOfStage] = [line for line in stage if not isinstance(line, records.LaterLine)]
    end = find_last(lines, EvaluationLine)
    later_measures = _keep_own_later_measures(run, later)
    for place, line in enumerate(lines):
        if not isinstance(line, EvaluationLine):
            continue
        names = []
        for name in line.perplexity:
            if start.texts.get(name) == run.texts.get(name):
                names.append(name)
        perplexity = {name: line.perplexity[name] for name in names}
        bits_per_byte = {name: line.bits_per_byte[name] for name in names}
        if line is end:
            perplexity |= later_measures.perplexity
            bits_per_byte |= later_measures.bits_per_byte
        lines[place] = replace(line, perplexity=perplexity, bits_per_byte=bits_per_byte)
    return lines


def _keep_own_later_measures(run: RunLine, lines: Sequence[records.LaterLine]) -> Measured:
    """What was measured later on a run's own texts."""
    own_lines = [line for line in lines if run.texts.get(line.domain) == line.text]
    return Measured(
        {line.domain: line.perplexity for line in own_lines},
        {line.domain: line.bits_per_byte for line in own_lines},
    )
