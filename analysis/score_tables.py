"""Tables of downstream scores (F1, or accuracy where the task says so), in percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pandas as pd

from analysis import paper_suites
from analysis.exhibits import AVERAGE, PROMPT_ROWS, TableExhibit, add_printed
from analysis.study import Study, average_by_domain
from analysis.tables import Block, Cell, Column, Table, TableRow
from benchmark.ledger.records import ZeroShotLine
from benchmark.settings.names import make_slug

PROBES = "Linear probes: logistic regression on the mean states of whole texts, of frozen models"
PROMPTED = "ELLE"  # the paper's row with prompts


class ScoredRow(NamedTuple):
    """A line of a table of scores."""

    label: str
    means: pd.DataFrame  # a line per seed, a column per domain
    row: str = ""  # its name in the printed numbers
    trained: str = ""  # the row whose model is scored, if its name is not `row`
    stage: str = ""  # in the printed numbers
    competes: bool = True


ScoredBlock = tuple[str, list[ScoredRow]]  # the heading, and the lines below it
Titles = Mapping[str, str]  # of the tasks, by domain


@dataclass(frozen=True, kw_only=True)
class ScoreTable(TableExhibit):
    """Score of each row's final model on each domain's task, and their average.

    A suite has one block, and another for linear probes beside fine-tuning.
    """

    # whether a block is one row with a line per stage, so that no line is marked as best
    by_stage: ClassVar[bool] = False

    def _build(self, study: Study) -> Table:
        titles: dict[str, str] = {}
        for part in study.parts:
            titles |= part.tasks
        lower = None if self.by_stage else False
        columns = [Column(title, lower=lower) for title in (*titles.values(), AVERAGE)]
        if study.whole_task:
            columns.append(Column(study.whole_task, lower=False))
            titles[""] = study.whole_task
        blocks = self._make_blocks(study, titles)
        footnotes = _describe_scores(pd.concat([study.scores, study.probes]), titles)
        if study.whole_task and any(run.reads_domain for run in study.runs):
            prompts = (
                f"{study.whole_task}: each text has the prompt of the last domain, so no model is "
                "told the answer."
            )
            footnotes = [" ".join([*footnotes, prompts])]
        return self.finish_measurements(study, columns, blocks, footnotes, scores=True)

    def _make_blocks(self, study: Study, titles: Titles) -> list[Block]:
        """The blocks of all suites."""
        blocks = []
        for part in study.parts:
            for heading, lines in self.collect_lines(part):
                rows = self._make_rows(part, lines, titles)
                blocks.append(Block(heading, tuple(rows), part.suite))
        return blocks

    def collect_lines(self, part: Study) -> list[ScoredBlock]:
        """The blocks of a suite: heading, and the lines in it."""
        lines = [_make_line(part, row, part.last_stage, row) for row in part.ranked_rows]
        if part.suite not in self.only:
            lines += _collect_baselines(part)
        blocks = [(self.choose_heading(part), lines)]
        if len(part.probes):
            probes = []
            for row in part.ranked_rows:
                means = _average_seeds(part.probes, row, part.last_stage)
                probes.append(ScoredRow(f"{row}, linear probe", means))
            blocks.append((PROBES, probes))
        return blocks

    def _make_rows(self, part: Study, lines: list[ScoredRow], titles: Titles) -> list[TableRow]:
        """The lines of a block, as a table shows them."""
        is_probed = set(part.scores["protocol"]) == {"linear_probe"}
        suite = self.find_paper_suite(part)
        tasks = part.runs[0].line.tasks
        paper_tasks = {task["domain"] for task in tasks if task["domain"]}
        # a domain's score is the mean of all its tasks, so each must be the paper's
        paper_tasks -= {
            task["domain"] for task in tasks if not paper_suites.is_paper_task(task, suite)
        }
        # only if each domain has the paper's task, because "" finds no printed number
        average_column = AVERAGE if len(paper_tasks) == len(part.stage_titles) else ""
        rows = []
        for line in lines:
            slug = make_slug(line.row)
            trained = line.trained or line.row
            printed = {} if is_probed else self.select_printed(part, trained)
            cells = []
            for domain, title in titles.items():
                if domain:
                    cell = _make_cell(line.means, domain) if domain in part.tasks else Cell()
                    column = title if domain in paper_tasks else ""
                    value = printed.get((slug, line.stage, column, "F1"))
                    cells.append(add_printed(cell, value))
            cell = _make_average_cell(line.means, list(part.tasks))
            value = printed.get((slug, line.stage, average_column, "F1"))
            cells.append(add_printed(cell, value))
            if "" in titles:
                # only linear probes score this task, so beside fine-tuning it is in their block
                is_scored = "" in line.means
                is_expected = is_scored or (line.row and part.probes.empty)
                cells.append(_make_cell(line.means, "") if is_expected else Cell())
            rows.append(TableRow(line.label, tuple(cells), line.competes))
        return rows


@dataclass(frozen=True, kw_only=True)
class PromptTable(ScoreTable):
    """The final models that have domain prompts, fine-tuned with each prompt.

    The prompts are none, a wrong one, the right one, and a picked one. The paper has no picked
    prompt, so it is shown only if it was measured.
    """

    def collect_lines(self, part: Study) -> list[ScoredBlock]:
        final = _find_final_scores(part)
        prompts = dict(PROMPT_ROWS)
        if "picked" in set(final["prompt"]):
            prompts["picked"] = "picked prompt"
        prompted_rows = set(final.loc[final["prompt"] == "right", "row"])
        rows = dict.fromkeys(run.row for run in part.runs)
        prompted = [row for row in rows if row in prompted_rows]
        lines = []
        for row in prompted or [PROMPTED]:
            scores = final[final["row"] == row]
            for prompt, label in prompts.items():
                selection = scores[scores["prompt"] == prompt]
                line = ScoredRow(
                    label=f"{row}, {label}",
                    means=average_by_domain(selection, ["seed"]),
                    row=prompt if row == PROMPTED else row,
                    trained=row,
                    stage="5",
                )
                lines.append(line)
        return [(self.choose_heading(part), lines)]


@dataclass(frozen=True, kw_only=True)
class StageScoreTable(ScoreTable):
    """The scores of every row's models after each stage that the suite scores, a block per row."""

    by_stage = True

    def collect_lines(self, part: Study) -> list[ScoredBlock]:
        first = part.last_stage if part.suite in part.only_last else 0
        stages = range(first, part.last_stage + 1)
        blocks = []
        for row in dict.fromkeys(run.row for run in part.runs):
            lines = [_make_line(part, row, stage, f"M{stage + 1}") for stage in stages]
            blocks.append((row, lines))
        return blocks


@dataclass(frozen=True, kw_only=True)
class ZeroShotTable(TableExhibit):
    """Scores by lm-evaluation-harness of every row's model after each stage, beside its AP.

    Each row has a block.
    """

    def _build(self, study: Study) -> Table:
        lines = []
        for run in study.runs:
            for stage, scores in enumerate(run.zero_shot):
                for score in scores:
                    name = _choose_metric(score)
                    lines.append([run.suite, run.row, stage, score.task, name, score.values[name]])
        place = ["suite", "row", "stage"]
        scores_of_runs = pd.DataFrame(lines, columns=[*place, "task", "metric", "value"])
        metrics = dict(zip(scores_of_runs["task"], scores_of_runs["metric"], strict=True))
        seeds = scores_of_runs.groupby([*place, "task"])["value"].agg(tuple).to_dict()
        ends = study.ends.groupby(place)["ap"].agg(tuple).to_dict()
        blocks = []
        for part in study.parts:
            runs = {run.row: run for run in part.runs}
            for row, run in runs.items():
                rows = []
                for stage in range(len(run.domains)):
                    ap = ends.get((part.suite, row, stage), ())
                    cells = [Cell(ap, missing=not ap)]
                    for task in metrics:
                        values = seeds.get((part.suite, row, stage, task), ())
                        cells.append(Cell(values, digits=3, missing=not values))
                    rows.append(TableRow(f"M{stage + 1}", tuple(cells)))
                blocks.append(Block(row, tuple(rows), part.suite))
        columns = [Column("AP"), *map(Column, metrics)]
        footnotes = []
        if metrics:
            names = ", ".join(f"{task} {name}" for task, name in metrics.items())
            footnotes.append(
                f"Metrics: {names}. Nobody has "
                "looked for these "
                "tasks' examples in the training text of the stream."
            )
        return self.finish_measurements(study, columns, blocks, footnotes, scores=True)


def _choose_metric(line: ZeroShotLine) -> str:
    """The metric that a table shows of a task.

    It is normalised accuracy if there is one, else accuracy, else the first metric.
    """
    return next(name for name in ("acc_norm", "acc", *line.values) if name in line.values)


def _find_final_scores(part: Study) -> pd.DataFrame:
    """The scores of the models after the last stage."""
    return part.scores[part.scores["stage"] == part.last_stage]


def _average_seeds(scores: pd.DataFrame, row: str, stage: int) -> pd.DataFrame:
    """The scores that tables show of a row's models after a stage.

    There is a line per seed and a column per domain.
    """
    is_model = (scores["row"] == row) & (scores["stage"] == stage)
    return average_by_domain(scores[is_model & scores["headline"]], ["seed"])


def _make_line(part: Study, row: str, stage: int, label: str) -> ScoredRow:
    means = _average_seeds(part.scores, row, stage)
    return ScoredRow(label, means, row, stage=str(stage + 1))


def _make_cell(means: pd.DataFrame, domain: str) -> Cell:
    """The score of each pre-training seed on a domain's task.

    `means` are over fine-tuning seeds, with a column per domain.
    """
    values: tuple[float, ...] = ()
    if domain in means:
        values = tuple(100 * means[domain].dropna())
    return Cell(values, digits=1, missing=not values)


def _make_average_cell(means: pd.DataFrame, domains: Sequence[str]) -> Cell:
    """The mean over tasks of each pre-training seed that has a score on all of them.

    `means` are as for `_make_cell`.
    """
    complete = means.reindex(columns=list(domains)).dropna()
    values = tuple(100 * complete.mean(axis=1))
    return Cell(values, digits=1, missing=not values and bool(domains))


def _collect_baselines(part: Study) -> list[ScoredRow]:
    """Rows of baselines without a model, on the same data as the scores of the final models."""
    lines = []
    for name, scores in part.measured_baselines.groupby("name", sort=False):
        means = average_by_domain(scores, ["seed"])
        lines.append(ScoredRow(f"Baseline: {name}", means, competes=False))
    return lines


def _describe_scores(scores: pd.DataFrame, titles: Titles) -> list[str]:
    """Say which task and metric stand for which domain, and how models are scored."""
    if not titles:
        return ["No downstream task is of any of these domains."]
    if scores.empty:
        return []
    tasks = scores.drop_duplicates("domain").set_index("domain")
    texts = []
    for domain, title in titles.items():
        if domain in tasks.index:
            metric = tasks["metric"][domain].replace("_", "-")
            texts.append(f"{title}: {tasks['task'][domain]} ({metric})")
    note = f"Tasks: {', '.join(texts)}."
    counts = scores[scores["protocol"] == "finetune"]["finetuning_seeds"]
    if not len(counts):
        return [f"{note} {PROBES}."]
    seeds = " to ".join(map(str, sorted({counts.min(), counts.max()})))
    return [f"{note} Of each pre-training seed it is the mean over fine-tuning seeds: {seeds}."]
