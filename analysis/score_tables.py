"""Tables of downstream scores (F1, or accuracy where the task says so), in percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pandas as pd

from analysis import notes
from analysis.exhibits import AVERAGE, PROMPT_ROWS, TableExhibit, add_printed
from analysis.study import Study, average_by_domain
from analysis.tables import Block, Cell, Column, Table, TableRow
from benchmark.records import ZeroShotLine
from benchmark.settings.names import make_slug

PROBES = "Linear probes: logistic regression on the mean states of whole texts, of frozen models"
PROMPTED = "ELLE"  # the paper's row with prompts
# label; whether it competes; scores, a line a seed and a column a domain; row and stage of the
# printed numbers
ScoredRow = tuple[str, bool, pd.DataFrame, str, str]


@dataclass(frozen=True, kw_only=True)
class ScoreTable(TableExhibit):
    """Score of each row's final model on each domain's task, and their average; a block a suite.

    `only`: the rows to show of a suite, where it is not all of them.
    """

    by_stage: ClassVar[bool] = (
        False  # whether a block is one row's, a line a stage: none is the best
    )
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def _build(self, study: Study) -> Table:
        titles = {name: title for part in study.parts for name, title in part.tasks.items()}
        columns = [
            Column(title, lower=None if self.by_stage else False)
            for title in [*titles.values(), AVERAGE]
        ]
        if study.whole_task:
            columns.append(Column(study.whole_task, lower=False))
            titles[""] = study.whole_task
        blocks = self._make_blocks(study, titles)
        below = _describe_scores(pd.concat([study.scores, study.probes]), titles)
        if leaked := [note for part in study.parts for note in notes.note_leaks(part)]:
            clean = self._make_blocks(study.without_leaks, titles)
            below += [*leaked, *self._note_leaks(blocks, clean, columns)]
        return self.finish_measurements(study, columns, blocks, below, scores=True)

    def _make_blocks(self, study: Study, titles: dict[str, str]) -> list[Block]:
        return [
            Block(heading, tuple(self._make_rows(part, lines, titles)), part.suite)
            for part in study.parts
            for heading, lines in self.collect_lines(part)
        ]

    def _note_leaks(
        self, blocks: Sequence[Block], clean: Sequence[Block], columns: Sequence[Column]
    ) -> list[str]:
        """The numbers without leaks of each column that leaks touch; `clean` are the blocks without
        them.
        """
        pairs = [
            (f"{block.title}, {row.label}" if self.by_stage else row.label, row.cells, less.cells)
            for block, without in zip(blocks, clean, strict=True)
            for row, less in zip(block.rows, without.rows, strict=True)
        ]
        notes = []
        for j, column in enumerate(columns):
            if any(cells[j] != less[j] for _, cells, less in pairs):
                numbers = (
                    f"{label} {less[j].number if less[j].values else 'not known'}"
                    for label, cells, less in pairs
                    if cells[j].values
                )
                said = (
                    ", ".join(numbers) if any(less[j].values for *_, less in pairs) else "not known"
                )
                notes.append(f"{column.name} without leaked test examples: {said}.")
        return notes

    def collect_lines(self, part: Study) -> list[tuple[str, list[ScoredRow]]]:
        """The blocks of a suite: heading, and the lines in it."""
        chosen = self.only.get(part.suite, ())
        runs = {run.row: run for run in part.runs if not chosen or run.row in chosen}
        last = len(part.runs[0].domains) - 1
        lines = [
            (row, True, _average_seeds(part.scores, row, last), row, str(len(run.domains)))
            for row, run in runs.items()
        ]
        shown = [(self.choose_heading(part), lines + ([] if chosen else _collect_baselines(part)))]
        if len(part.probes[(part.probes["stage"] == last) & part.probes["headline"]]):
            lines = [
                (f"{row}, linear probe", True, _average_seeds(part.probes, row, last), "", "")
                for row in runs
            ]
            shown.append((PROBES, lines))
        return shown

    def _make_rows(
        self, part: Study, lines: list[ScoredRow], titles: dict[str, str]
    ) -> list[TableRow]:
        printed, names = self.select_printed(part), list(part.tasks)
        stream = [*dict.fromkeys(column for _, _, column, _ in printed if column != AVERAGE)]
        if part.stage_titles != stream or set(part.scores["how"]) == {"linear_probe"}:
            printed = {}
        average, of_domains = (
            AVERAGE if len(names) == len(stream) else "",
            [name for name in titles if name],
        )
        rows = []
        for label, competes, means, row, stage in lines:
            cells = [_make_cell(means, name) if name in names else Cell() for name in of_domains]
            cells.append(_make_average_cell(means, names))
            beside = [
                printed.get((make_slug(row), stage, column, "F1"))
                for column in [*(titles[name] for name in of_domains), average]
            ]
            cells = list(map(add_printed, cells, beside))
            if "" in titles:
                cells.append(
                    _make_cell(means, "") if "" in means or (row and part.probes.empty) else Cell()
                )
            rows.append(TableRow(label, tuple(cells), competes))
        if (
            self.by_stage and part.suite in part.only_last
        ):  # no score of the models before is to come
            rows[:-1] = [
                replace(row, cells=tuple(replace(c, missing=False) for c in row.cells))
                for row in rows[:-1]
            ]
        return rows


@dataclass(frozen=True, kw_only=True)
class PromptTable(ScoreTable):
    """The final models that have domain prompts, fine-tuned with no, a wrong, the right, and a
    picked prompt.

    The paper has no picked prompt; it is shown where it was measured.
    """

    def collect_lines(self, part: Study) -> list[tuple[str, list[ScoredRow]]]:
        final = _find_final_scores(part)
        prompts = PROMPT_ROWS | (
            {"picked": "picked prompt"} if "picked" in set(final["prompt"]) else {}
        )
        rows = dict.fromkeys(run.row for run in part.runs)
        with_prompts = [row for row in rows if "right" in set(final[final["row"] == row]["prompt"])]
        lines = [
            (
                f"{row}, {label}",
                True,
                average_by_domain(
                    final[(final["row"] == row) & (final["prompt"] == prompt)], ["seed"]
                ),
                prompt if row == PROMPTED else row,
                "5",
            )
            for row in with_prompts or [PROMPTED]
            for prompt, label in prompts.items()
        ]
        return [(self.choose_heading(part), lines)]


@dataclass(frozen=True, kw_only=True)
class StageScoreTable(ScoreTable):
    """The scores of every row's model after each stage; a block a row."""

    by_stage = True

    def collect_lines(self, part: Study) -> list[tuple[str, list[ScoredRow]]]:
        stages = {run.row: range(len(run.domains)) for run in part.runs}
        return [
            (
                row,
                [
                    (f"M{i + 1}", True, _average_seeds(part.scores, row, i), row, str(i + 1))
                    for i in of_row
                ],
            )
            for row, of_row in stages.items()
        ]


@dataclass(frozen=True, kw_only=True)
class ZeroShotTable(TableExhibit):
    """Scores by lm-evaluation-harness of every row's model after each stage, beside its AP; a block
    a row.
    """

    def _build(self, study: Study) -> Table:
        metrics = {
            line.task: _choose_metric(line)
            for run in study.runs
            for lines in run.zero_shot
            for line in lines
        }
        blocks = []
        for part in study.parts:
            for row, run in {run.row: run for run in part.runs}.items():
                lines = (
                    self._make_row(part, row, stage, metrics) for stage in range(len(run.domains))
                )
                blocks.append(Block(row, tuple(lines), part.suite))
        about = (
            f"Metrics: {', '.join(f'{task} {name}' for task, name in metrics.items())}. Nobody has "
            "looked for these "
            "tasks' examples in the training text of the stream."
        )
        columns, below = [Column("AP"), *map(Column, metrics)], [about] if metrics else []
        return self.finish_measurements(study, columns, blocks, below, scores=True)

    def _make_row(self, part: Study, row: str, stage: int, metrics: Mapping[str, str]) -> TableRow:
        ends = part.ends[(part.ends["row"] == row) & (part.ends["stage"] == stage)]
        runs = [run for run in part.runs if run.row == row and len(run.zero_shot) > stage]
        said = [{line.task: line.values for line in run.zero_shot[stage]} for run in runs]
        values = [
            tuple(of[task][name] for of in said if name in of.get(task, {}))
            for task, name in metrics.items()
        ]
        cells = [
            Cell(tuple(ends["ap"]), missing=ends.empty),
            *(Cell(of, digits=3, missing=not of) for of in values),
        ]
        return TableRow(f"M{stage + 1}", tuple(cells))


def _choose_metric(line: ZeroShotLine) -> str:
    """The metric that a table shows of a task: normalised accuracy where there is one, accuracy, or
    the first.
    """
    return next(
        (name for name in ("acc_norm", "acc") if name in line.values), next(iter(line.values))
    )


def _find_final_scores(part: Study) -> pd.DataFrame:
    return part.scores[part.scores["stage"] == len(part.runs[0].domains) - 1]


def _average_seeds(scores: pd.DataFrame, row: str, stage: int) -> pd.DataFrame:
    """The scores that tables show of a row's models after a stage: a line a seed, a column a
    domain.
    """
    shown = (scores["row"] == row) & (scores["stage"] == stage) & scores["headline"]
    return average_by_domain(scores[shown], ["seed"])


def _make_cell(means: pd.DataFrame, domain: str) -> Cell:
    """The score on a domain's task of each pre-training seed; `means` over fine-tuning seeds, a
    column a domain.
    """
    values = tuple(100 * means[domain].dropna()) if domain in means else ()
    return Cell(values, digits=1, missing=not values)


def _make_average_cell(means: pd.DataFrame, domains: Sequence[str]) -> Cell:
    """The mean over tasks of each pre-training seed that has them all; `means` as for `_make_cell`."""
    values = tuple(100 * means.reindex(columns=list(domains)).dropna().mean(axis=1))
    return Cell(values, digits=1, missing=not values and bool(domains))


def _collect_baselines(part: Study) -> list[ScoredRow]:
    """Rows for what needs no model, on the very data that the final models were scored on."""
    return [
        (f"Baseline: {name}", False, average_by_domain(lines, ["seed"]), "", "")
        for name, lines in part.measured_baselines.groupby("name", sort=False)
    ]


def _describe_scores(scores: pd.DataFrame, titles: Mapping[str, str]) -> list[str]:
    """Say which task and metric stand for which domain, and over how many fine-tuning seeds."""
    if not titles:
        return ["No downstream task is of any of these domains."]
    if scores.empty:
        return []
    tasks = scores.drop_duplicates("domain").set_index("domain")
    texts = [
        f"{titles[d]}: {tasks['task'][d]} ({tasks['metric'][d].replace('_', '-')})"
        for d in titles
        if d in tasks.index
    ]
    counts = scores[scores["how"] == "finetune"]["finetuning_seeds"]
    over = " to ".join(str(count) for count in sorted({counts.min(), counts.max()}))
    fine_tuned = f"Of each pre-training seed it is the mean over fine-tuning seeds: {over}."
    return [f"Tasks: {'; '.join(texts)}.", fine_tuned if len(counts) else f"{PROBES}."]
