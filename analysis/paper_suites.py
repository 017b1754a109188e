"""What the paper's suites train, and which rows of a report train the same.

Tables show a number of the paper only beside such a row. The suites in `benchmark/suites/` say what
the paper trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from analysis.notes import group_names
from analysis.study import Study, find_header
from benchmark.ledger.runs import RunRecords
from benchmark.settings.decides import flatten, show_value
from benchmark.settings.load import expand, load_suite
from benchmark.settings.names import list_suite_names, make_slug
from benchmark.settings.suite import Model, Suite

GROWING = "elle"  # the method that grows by the ladders, and the slug of its row
TOLD = ("budget.unit", "budget.amount", "data.memory_tokens")  # noted if they differ


@cache
def read_suite(name: str) -> Suite | None:
    """A suite of `benchmark/suites/`, None for any other name."""
    if name in list_suite_names():
        return load_suite(name)
    return None


@cache
def read_models(name: str) -> dict[str, Model]:
    """The models of a suite's rows that have settings of their own, by slug."""
    suite = load_suite(name)
    rows = [row for row in suite.rows if row.name]
    return {make_slug(run.row): run.model for run in expand(suite, rows, [0])}


def find_rows(part: Study, suite: str) -> set[str]:
    """The slugs of the rows of a study of one suite that train what a suite of the paper does."""
    paper = read_suite(suite)
    if paper is None:
        return set()
    rows = {make_slug(run.row) for run in part.runs}
    others = {make_slug(run.row) for run in part.runs if not _trains_alike(run, paper)}
    return rows - others


def _trains_alike(run: RunRecords, paper: Suite) -> bool:
    """Whether a run trains the models of its row in a suite of the paper, on the suite's text.

    That is, the same architecture and ladder, stages of the sizes that these give, and domains of
    the same titles and data sets. Records that name no domain's text count as the suite's.
    """
    row_model = read_models(paper.name).get(make_slug(run.row), paper.model)
    model = row_model.model_dump(mode="json")
    own_model = run.line.config["model"]
    keys = ("architecture", "start", "head_size", "ladder")
    if any(own_model.get(key, model[key]) != model[key] for key in keys):
        return False
    headers = [find_header(stage) for stage in run.stages if stage]
    sizes = [(header.layers, header.hidden_size) for header in headers]
    ladder = [(size.layers, size.hidden_size) for size in row_model.ladder]
    if run.line.method != GROWING:
        ladder = ladder[:1] * len(ladder)
    if sizes != ladder[: len(sizes)]:
        return False
    domains = paper.model_dump(mode="json")["domains"]
    own_domains = run.line.config.get("domains", domains)
    titles = [domain.title for domain in run.domains]
    is_same_text = list(map(_list_data_sets, own_domains)) == list(map(_list_data_sets, domains))
    return is_same_text and titles == [domain.label for domain in paper.domains]


def _list_data_sets(domain: Mapping[str, Any]) -> set[tuple[Any, Any]]:
    """The path and configuration of a domain's data sets on the Hub, empty if it has none."""
    return {(dataset["path"], dataset.get("name")) for dataset in domain.get("datasets") or ()}


def is_paper_task(task: Mapping[str, Any], suite: str) -> bool:
    """Whether a suite of the paper has a task of this data set for the task's domain.

    A task whose record says nothing of its examples counts as one.
    """
    paper = read_suite(suite)
    if paper is None:
        return False
    if "dataset" not in task:
        return True
    dataset = task["dataset"] or {}
    papers = set()
    for found in paper.tasks:
        if found.dataset:
            papers.add((found.domain, found.dataset.path, found.dataset.name))
    return (task["domain"], dataset.get("path"), dataset.get("name")) in papers


def note_differences(part: Study, suite: str, rows: set[str]) -> list[str]:
    """A note on how these rows differ in TOLD from a suite of the paper with the same models."""
    paper = read_suite(suite)
    if paper is None:
        return []
    expected = flatten(paper.model_dump(mode="json"))
    pairs = []
    for run in part.runs:
        settings = {**expected, **flatten(run.line.config)}
        for key in TOLD:
            if make_slug(run.row) in rows and settings[key] != expected[key]:
                own = show_value(settings[key])
                difference = f"{key} is {own}, the paper's {show_value(expected[key])}"
                pairs.append((difference, run.row))
    count = len({run.row for run in part.runs})
    phrases = []
    for difference, names in group_names(pairs).items():
        where = "" if len(names) == count else f" ({', '.join(names)})"
        phrases.append(f"{difference}{where}")
    return [f"Beside the paper's numbers: {'; '.join(phrases)}."] if phrases else []
