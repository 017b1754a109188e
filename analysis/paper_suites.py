"""What the paper's suites train, and how far a run trains the same.

A number of the paper's stands only beside a run that does. The suites in `benchmark/suites/` say
what the paper trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from analysis.study import Study, find_header
from benchmark.ledger.runs import RunRecords
from benchmark.settings.load import expand, load_suite
from benchmark.settings.names import list_suite_names, make_slug
from benchmark.settings.suite import Model, RunConfig, Suite
from benchmark.settings.units import UNITS

GROWING = "elle"  # the method that the ladders are of, and the paper's row


@cache
def read_suite(name: str) -> Suite | None:
    """A suite of `benchmark/suites/`; None for any other name."""
    if name in list_suite_names():
        return load_suite(name)
    return None


@cache
def _read_rows(name: str) -> dict[str, RunConfig]:
    """The rows of a suite that have settings of their own, by slug."""
    suite = read_suite(name)
    if suite is None:
        return {}
    rows = [row for row in suite.rows if row.name]
    return {make_slug(run.row): run for run in expand(suite, rows, [0])}


def _find_model(suite: str, row: str) -> Model | None:
    """What a row of a suite trains: its own ladder, or the suite's."""
    rows = _read_rows(suite)
    slug = make_slug(row)
    if slug in rows:
        return rows[slug].model
    found = read_suite(suite)
    return found.model if found else None


def count_alike_stages(run: RunRecords, suite: str) -> int:
    """How many of a run's first stages have the model of its row in a suite of the paper.

    That is, the same architecture, the same ladder until then, and the same size where the stage is
    recorded.
    """
    model = _find_model(suite, run.row)
    own = run.line.config["model"]
    if model is None or own.get("start") or own["architecture"] != model.architecture:
        return 0
    if own["head_size"] != model.head_size:
        return 0
    count = 0
    for stage, (rung, size) in enumerate(zip(own["ladder"], model.ladder, strict=False)):
        if (rung["layers"], rung["hidden_size"]) != (size.layers, size.hidden_size):
            break
        trained = size if run.line.method == GROWING else model.ladder[0]
        lines = run.stages[stage] if stage < len(run.stages) else []
        if lines:
            header = find_header(lines)
            if (header.layers, header.hidden_size) != (trained.layers, trained.hidden_size):
                break
        count += 1
    return count


def count_by_row(part: Study, suite: str) -> dict[str, int]:
    """`count_alike_stages` of each row of a study of one suite, by slug: the least of its runs."""
    counts: dict[str, int] = {}
    for run in part.runs:
        slug = make_slug(run.row)
        count = count_alike_stages(run, suite)
        counts[slug] = min(count, counts.get(slug, count))
    return counts


def trains_alike(part: Study, suite: str, settings: Sequence[str] = ()) -> bool:
    """Whether all rows train the models of a suite of the paper, with its values of settings.

    `settings`: names such as `budget.amount`.
    """
    found = read_suite(suite)
    if found is None:
        return False
    expected = found.model_dump(mode="json")
    for run in part.runs:
        config = run.line.config
        model = _find_model(suite, run.row)
        length = len(model.ladder) if model else 0
        if len(config["model"].get("ladder", ())) != length:
            return False
        if count_alike_stages(run, suite) < length:
            return False
        if any(_look_up(config, name) != _look_up(expected, name) for name in settings):
            return False
    return True


def is_other_text(run: RunRecords, stage: int, suite: str) -> bool:
    """Whether one of the domains so far is of other text than that of a suite of the paper.

    The suite's are data sets of the Hub. Records that name no domain's text count as the suite's.
    """
    paper = read_suite(suite)
    if paper is None:
        return True
    expected = paper.model_dump(mode="json")["domains"]
    domains = run.line.config.get("domains", [])[: stage + 1]
    own = [_list_data_sets(domain.get("datasets")) for domain in domains]
    return own != [_list_data_sets(domain["datasets"]) for domain in expected[: len(own)]]


def is_paper_task(task: Mapping[str, Any], domain: str, suite: str) -> bool:
    """Whether a suite of the paper has a task of this data set, for the domain of this title.

    A task whose record says nothing of its examples counts as one.
    """
    paper = read_suite(suite)
    if paper is None:
        return False
    if "dataset" not in task:
        return True
    names = {found.name for found in paper.domains if found.label == domain}
    own = _list_data_sets([task["dataset"]])
    papers = []
    for found in paper.tasks:
        if found.domain in names:
            papers.append(found.model_dump(mode="json"))
    return any(own == _list_data_sets([found["dataset"]]) for found in papers)


def _list_data_sets(datasets: Sequence[Mapping[str, Any] | None] | None) -> set[tuple[Any, Any]]:
    """The path and configuration of each data set of the Hub. No data set: own files, or none."""
    named = [dataset for dataset in datasets or () if dataset]
    return {(dataset["path"], dataset.get("name")) for dataset in named}


def find_domain(suite: str, task: str) -> str:
    """The title of the domain that a task of a suite of the paper is of, "" for no such task."""
    paper = read_suite(suite)
    if paper is None:
        return ""
    domains = {domain.name: domain.label for domain in paper.domains}
    tasks = {found.title or found.name: found.domain for found in paper.tasks}
    return domains.get(tasks.get(task, ""), "")


def note_differences(part: Study, suite: str) -> list[str]:
    """In what runs differ from a suite of the paper that leaves their models the same.

    A bracket stands beside these, too. They are the budget, the memory, and where text is from.
    """
    paper = read_suite(suite)
    if paper is None:
        return []
    expected = paper.model_dump(mode="json")
    rows: dict[str, dict[str, None]] = {}
    for run in part.runs:
        for difference in _list_differences(run.line.config, expected, suite):
            rows.setdefault(difference, {})[run.row] = None
    count = len({run.row for run in part.runs})
    phrases = []
    for difference, differing in rows.items():
        where = "" if len(differing) == count else f" ({', '.join(differing)})"
        phrases.append(f"{difference}{where}")
    if phrases:
        return [f"Beside the paper's numbers: {'; '.join(phrases)}."]
    return []


def _list_differences(
    config: Mapping[str, Any], expected: Mapping[str, Any], suite: str
) -> list[str]:
    differences = []
    if any(_look_up(config, key) != _look_up(expected, key) for key in BUDGET):
        own_budget = describe_budget(config["budget"])
        paper_budget = describe_budget(expected["budget"])
        differences.append(f"budgets are {own_budget} per stage, the paper's {paper_budget}")
    memory = _look_up(config, MEMORY)
    if memory is not None and memory != _look_up(expected, MEMORY):
        differences.append(
            f"the memory holds {memory:,} tokens per domain, the paper's "
            f"{_look_up(expected, MEMORY):,}"
        )
    datasets = [domain.get("datasets") for domain in expected["domains"]]
    sources = [domain.get("datasets") for domain in config.get("domains", [])]
    if sources and sources != datasets[: len(sources)]:
        differences.append(f"texts are not those of the suite {suite}")
    return differences


BUDGET = ("budget.unit", "budget.amount")
MEMORY = "data.memory_tokens"


def describe_budget(budget: Mapping[str, Any]) -> str:
    """The amounts of a budget, as `60,000, 24,000 seconds` or `10 steps`."""
    amount = budget["amount"]
    amounts = amount if isinstance(amount, list | tuple) else [amount]
    unit = UNITS[budget["unit"]]
    numbers = []
    for value in amounts:
        numbers.append(f"{value:,.4g}" if value < 1000 else f"{value:,.0f}")
    return f"{', '.join(numbers)} {unit.amounts or unit.name}"


def _look_up(config: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted name, as in records: lists, and one amount for all stages as one."""
    value: Any = config
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, list | tuple):
        values = list(value)
        if len({*map(repr, values)}) == 1:
            return values[0]
        return values
    return value
