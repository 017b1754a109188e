"""Reports: the tables and figures that suites name, rendered from the records of their runs."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

import methods
from analysis.catalogue import list_printed_blocks, load
from benchmark.downstream.tasks import find_example_keys, select_scores
from benchmark.downstream.zero_shot import select_zero_shot_scores
from benchmark.ledger.ledger import Ledger, name_further_seeds
from benchmark.ledger.runs import RunRecords, make_run_line
from benchmark.ledger.store import Store
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Suite, Suites
from benchmark.training.declaration import open_ledger

if TYPE_CHECKING:
    from analysis.exhibits import Exhibit
    from analysis.study import Study

LONGEST_NAME = 100  # characters of the folder of a report
Folders = Path | Mapping[str, Path]  # of `--runs`, the same for all suites or by suite


def write_report(suites: Suites, runs: Folders, out: Path, only_tables: bool = False) -> None:
    """Render the tables and figures of suites from the records below `runs`.

    Print the first table, and the names of the others. The files go to a folder in `out` that has
    the suite's name, or several suites' names with + between.
    """
    from analysis.page import render

    tables = dict.fromkeys(table for suite, _ in suites for table in suite.tables)
    study = load_study(suites, runs)
    exhibits = [load(name) for name in tables]
    missing = say_what_is_missing(study)
    if missing:
        print(f"! {missing}")
        return  # all cells would be empty
    folder = out / study.name
    render(study, exhibits, load, folder, only_tables)
    _print_exhibits(study, exhibits, folder)
    for suite, configs in suites:
        for line in name_further_seeds(configs, _open_ledger(runs, suite)):
            print(line)
    print(f"open {folder / 'index.html'} in a browser")


def _print_exhibits(study: Study, exhibits: Sequence[Exhibit], folder: Path) -> None:
    """Print the first table, and the names of the other exhibits."""
    from analysis.exhibits import TableExhibit
    from analysis.notes import note_edited_code, warn_of_baselines, warn_of_counting
    from analysis.tables import to_text

    warnings = [*warn_of_counting(study), *warn_of_baselines(study)]
    for part in study.parts:
        warnings += note_edited_code(part.stages)
    for warning in warnings:
        print(f"! {warning}")
    first = next((exhibit for exhibit in exhibits if isinstance(exhibit, TableExhibit)), None)
    names = [exhibit.name for exhibit in exhibits if exhibit is not first]
    if names:
        print(f"in {folder}: {', '.join(names)}")
    if first:
        table = first.build(study)
        left_out = ", printed without its notes" if table.notes else ""
        print(f"{folder / first.name}.md{left_out}:")
        print(to_text(dataclasses.replace(table, notes=(), warnings=())))
        print(table.reading)


def say_what_is_missing(study: Study) -> str:
    """A message that no records of a study are here, and the cure.

    Returns "" if there are any, even if they are left out.
    """
    if any(run.line.stages or run.why for run in study.runs):
        return ""
    return (
        f"no records of {study.name}: give the --runs where they are, "
        "or the folder of a study, results/NAME"
    )


def _open_ledger(runs: Folders, suite: Suite) -> Ledger:
    """The records of a suite."""
    folder = runs if isinstance(runs, Path) else runs[suite.name]
    return open_ledger(Store(folder), methods.build)


def load_study(suites: Suites, runs: Folders) -> Study:
    """The study of suites' runs from the records below `runs`.

    Its name is the suites' names, joined by "+", and shortened if it is too long. Records count
    only if they belong to their run's present settings, texts and method. If runs of a row are on
    different texts, only the newest texts count. Raises ConfigError for two suites of one name.
    """
    from analysis.study import Study

    names = [suite.name for suite, _ in suites]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(
            f"more than one suite is called {', '.join(repeated)}, so their runs would be taken "
            "for seeds of each other: give each once, or another name"
        )
    suite_runs = []
    command_arguments = {}
    for suite, configs in suites:
        ledger = _open_ledger(runs, suite)
        suite_runs += _load_suite_runs(suite, configs, ledger)
        command_arguments[suite.name] = _name_to_train(suite, ledger.store)
    blocks = list_printed_blocks()
    printed = {}  # by suite, the paper's suite whose numbers are shown beside its own
    for suite, _ in suites:
        printed[suite.name] = next((name for name in suite.built_in if name in blocks), "")
    joined = "+".join(names)
    only_last = (suite.name for suite, _ in suites if suite.finetuning.stages == "last")
    return Study(
        name=joined if len(joined) <= LONGEST_NAME else f"{names[0]}+{len(names) - 1}_more",
        runs=suite_runs,
        title="; ".join(dict.fromkeys(suite.title for suite, _ in suites)),
        paper=any(suite.paper for suite, _ in suites),
        command_arguments=command_arguments,
        printed=printed,
        only_last=frozenset(only_last),
    )


def _name_to_train(suite: Suite, store: Store) -> str:
    """The words that name a suite in a command that trains.

    They are the words of its call without `--runs ARCHIVE`: nothing is trained in an archive.
    """
    words = shlex.split(suite.command_arguments)
    if store.is_archive and "--runs" in words:
        place = words.index("--runs")
        del words[place : place + 2]
    return shlex.join(words)


def _load_suite_runs(
    suite: Suite, configs: Sequence[RunConfig], ledger: Ledger
) -> list[RunRecords]:
    """The records of a suite's runs, empty for a run that has none.

    A record has the place of its row in the suite of its time. If another suite shares a model,
    there may be scores on that suite's tasks. So the places of rows, tasks and settings of
    fine-tuning are taken from this suite.
    """
    recorded = ledger.read_suite(suite.name, configs)
    examples = find_example_keys(suite, configs, ledger.store)
    domains: dict[tuple[str, str], str] = {
        (task.name, task.metric): task.domain for task in suite.tasks
    }
    runs = []
    for config, run in zip(configs, recorded, strict=True):
        description = make_run_line(config)
        line = structs.replace(
            run.line,
            row_index=description.row_index,
            domains=description.domains,
            probes=description.probes,
            tasks=description.tasks,
        )
        scores = []
        for key, lines in zip(run.line.stages, run.scores, strict=False):
            scores.append(select_scores(suite, key, lines, examples))
        zero_shot = []
        for key, zero_shot_lines in zip(run.line.stages, run.zero_shot, strict=False):
            selection = select_zero_shot_scores(suite.evaluate, key, zero_shot_lines)
            zero_shot.append([*selection.values()])
        baselines = []
        for baseline in run.baselines:
            domain = domains.get((baseline.task, baseline.metric))
            if domain is not None:
                baselines.append(structs.replace(baseline, domain=domain))
        runs.append(
            dataclasses.replace(
                run,
                line=line,
                scores=scores or run.scores,
                baselines=baselines,
                zero_shot=zero_shot,
            )
        )
    return runs
