"""A study's folder, with all that others need to check it.

It has suites, records of finished runs, and the report on them:

    FOLDER/SUITE.toml                  its suites
    FOLDER/records/SUITE-sSEED.tar.gz  records of the finished runs of one seed, as below `--runs`
    FOLDER/report/                     what `report` renders from them, and each suite's hardware.md

The text itself is not included, because records hold its sha256. Archives of the same records are
the same bytes.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.downstream.tasks import find_example_keys
from benchmark.files import replace_file
from benchmark.jobs.work import RenderReport, Train, Worker
from benchmark.ledger import archive, records, trained_again
from benchmark.ledger.archive import (
    RECORDS,
    ResultsError,
    check_suites,
    lay_out,
    read_archives,
    unpack,
)
from benchmark.ledger.ledger import Ledger
from benchmark.ledger.runs import RunRecords, check_other_files, load_runs
from benchmark.ledger.store import Store
from benchmark.settings.suite import RunConfig, Suite, Suites, pick_for_stage
from benchmark.settings.units import UNITS
from benchmark.training.declaration import open_ledger
from benchmark.training.method import Build

REPORT = "report"
PAGE = "index.html"
HARDWARE = "hardware.md"
# files that must be the same bytes when rendered again (pictures depend on fonts and zlib)
RENDERED = {".csv", ".md", ".tex"}


def collect(
    suite: Suite, configs: Sequence[RunConfig], runs: Path, folder: Path, build: Build
) -> list[str]:
    """Add the records of the suite's finished runs to the study in `folder`.

    See `archive.collect`. Raises RecordsError for records that no report accepts.
    """
    ledger = open_ledger(Store(runs), build)
    check_other_files(ledger.store, suite.name, {config.id for config in configs})
    found = find_example_keys(suite, configs, ledger.store)
    examples = {task: key for task, key in found.items() if key}
    return archive.collect(suite, configs, ledger, examples, folder)


def render(folder: Path, suites: Suites, write_report: RenderReport) -> Iterator[str]:
    """Render the report of each suite that has records, and say how many runs each suite has."""
    report = folder / REPORT
    with tempfile.TemporaryDirectory() as scratch:
        archives = read_archives(folder)
        for suite, configs in suites:
            store = lay_out(archives, Path(scratch) / suite.name, [suite.name])
            runs = load_runs(store.root, suite.name)
            _render_report(suite, configs, runs, store, report, write_report)
            outcome = f"{suite.name}: {len(runs)} of {len(configs)} runs in {folder / RECORDS}"
            if runs:
                outcome += f", rendered to {report / suite.name}"
            yield outcome
        command = f"python run_all.py verify {shlex.quote(str(folder))}"
        yield f"next: `{command}` checks it as others would"


def verify(folder: Path, suites: Suites, write_report: RenderReport, build: Build) -> Iterator[str]:
    """Check a study, and say what was checked.

    Each run must be one of the suites' and within its budget, and the report must be what the
    records render to. Raises ResultsError at the first violation.
    """
    with tempfile.TemporaryDirectory() as scratch:
        archives = read_archives(folder)
        out = Path(scratch) / REPORT
        # an archive's name is SUITE-sSEED.tar.gz
        suite_names = [archive.name.rpartition("-s")[0] for archive in archives]
        check_suites(folder, suites, suite_names)
        if not archives:
            raise ResultsError(
                f"{folder}: nothing to verify: {folder / RECORDS} holds no *.tar.gz; `collect` "
                "puts records there"
            )
        for suite, configs in suites:
            scratch_runs = Path(scratch) / "runs" / suite.name
            store = lay_out(archives, scratch_runs, [suite.name])
            runs = load_runs(store.root, suite.name)
            yield _verify_runs(suite, configs, runs, open_ledger(store, build), build)
            _render_report(suite, configs, runs, store, out, write_report)
        count = _compare_reports(folder / REPORT, out)
        yield f"report: {count} tables rendered again from the records are the same"


def _verify_runs(
    suite: Suite,
    configs: Sequence[RunConfig],
    runs: Sequence[RunRecords],
    ledger: Ledger,
    build: Build,
) -> str:
    """Check the runs of a suite, and say what was checked.

    Raises ResultsError for the first run that is not the suite's, exceeds its budget, or has
    records of another text, setting or version.
    """
    configs_by_id = {config.id: config for config in configs}
    earlier_count = 0
    for run in runs:
        if run.id not in configs_by_id:
            raise ResultsError(
                f"{suite.name}: {run.id} is no run of the suite as it is written there: "
                "restore the suite's file, or remove the run from the archives"
            )
        config = configs_by_id[run.id]
        method = build(run.line.method, run.line.options)
        check_budgets(config, run, is_reference=method.group == "references")
        view = ledger.view(config, run.lines)
        if view.why:
            raise ResultsError(f"{suite.name}: {run.id}: {view.why}")
        earlier_count += view.earlier
    outcome = f"{suite.name}: {len(runs)} of {len(configs_by_id)} runs, each within its budget"
    if earlier_count:
        outcome += f", {earlier_count} of an earlier version of their method"
    return outcome


def verify_stage(folder: Path, suites: Suites, key: str, build: Build, runs: Path) -> Iterator[str]:
    """Train a run again below `runs` up to the stage of `key`, and compare each stage's results.

    Weights and perplexities are compared. Earlier stages that `runs` already has are reused. Raises
    ResultsError if a stage differs from the study's by more than rounding, if no run of the study
    has the stage of `key`, if `runs` already has it, or if that stage has another key here.
    """
    from benchmark.training.processes import join

    with tempfile.TemporaryDirectory() as scratch:
        of_all_suites = unpack(folder, Path(scratch) / "all")
        store = Store(runs)
        runs_with_stage = []
        for _, configs in suites:
            for config in configs:
                if key in of_all_suites.read_stage_keys(config):
                    runs_with_stage.append(config)
        if not runs_with_stage:
            raise ResultsError(
                f"{folder}: no run has a stage {key!r}; records/*.tar.gz name theirs as stages/KEY"
            )
        config = runs_with_stage[0]
        # another suite may have trained its stages on another kind of CPU, to other weights
        recorded = unpack(folder, Path(scratch) / "suite", [config.suite])
        if store.is_stage_done(key):
            raise ResultsError(
                f"{runs} has stage {key} already, so nothing would be trained: give another --runs"
            )
        keys = recorded.read_stage_keys(config)
        last_stage = keys.index(key)
        with join() as world:
            train = Train(runs, config, key, build, last_stage)
            train(Worker(world))
        if not store.is_stage_done(key):
            raise ResultsError(
                f"{config.id}: that stage has another key here: text or settings differ; restore "
                "what the study was made with"
            )
        comparisons = [
            _compare_stage(stage, config, store, recorded) for stage in keys[: last_stage + 1]
        ]
        count = sum(comparison.count for comparison in comparisons)
        outcome = comparisons[-1].outcome
        yield f"stage {key} of {config.id}: {outcome}; {count} perplexities compared"


def _compare_stage(
    key: str, config: RunConfig, store: Store, recorded: Store
) -> trained_again.Comparison:
    """Compare a stage that was trained again with its records in the study.

    Raises ResultsError if they differ by more than rounding.
    """
    from benchmark.models import load

    load(store.stage_folder(key) / "model")  # checks its weights against its records
    comparison = trained_again.compare_stages(store.read_stage(key), recorded.read_stage(key))
    if comparison.grade == "other":
        raise ResultsError(
            f"stage {key} of {config.id} {comparison.outcome}: run it with the code, packages and "
            "hardware that the record names, or collect what it is now"
        )
    return comparison


# What `verify` checks in records before it compares their report


def check_budgets(config: RunConfig, run: RunRecords, is_reference: bool) -> None:
    """Check that each stage of a run ended, and within its budget.

    A stage may also spend what earlier stages left, and exceeds its budget by one step at most. A
    stage of a reference method, which trains on all domains so far, may spend all budgets so far.
    Raises ResultsError for the first stage that did not end or spent more.
    """
    budget = 0.0
    spent = 0.0
    tolerance = 0.0
    for index, lines in enumerate(run.stages):
        start = records.find_last(lines, records.StageLine)
        done = records.find_last(lines, records.StageDone)
        if not start or not done:
            raise ResultsError(
                f"{run.id}: its stage {index} did not end: collect finished runs alone"
            )
        unit = start.budget.unit
        charged = done.charged
        budget += pick_for_stage(config.budget.amount, index)
        if is_reference:  # in each stage it trains again from the start
            spent = 0.0
        spent += charged[unit]
        # enough for one step of its most expensive phase
        tolerance += 4 * charged[unit] / max(charged["steps"], 1.0)
        if spent > budget + tolerance:
            raise ResultsError(
                f"{run.id}, stage {index}: {spent:g} {UNITS[unit].name} charged until then of "
                f"{budget:g}, more than a step over: train again"
            )


def make_hardware_table(runs: Sequence[RunRecords]) -> str:
    """A table in Markdown of the machines that trained a suite's stages.

    A stage that several runs share counts once.
    """
    starts: dict[str, records.StageLine] = {}
    for run in runs:
        for lines in run.stages:
            for start in records.select_kind(lines, records.StageLine):
                starts[start.key] = start  # the last start, if the stage began again
    counts: Counter[tuple[str, ...]] = Counter()
    for start in starts.values():
        provenance = start.provenance
        hardware = provenance.hardware
        row = (
            trained_again.describe_machine(start),
            str(hardware.threads),
            str(hardware.count),
            provenance.precision,
            provenance.packages.get("torch", ""),
        )
        counts[row] += 1
    table: list[tuple[str, ...]] = [
        ("Machine", "Threads", "Processes", "Precision", "torch", "Stages"),
        (":--", ":--", ":--", ":--", ":--", "--:"),
    ]
    for setting, count in sorted(counts.items()):
        table.append((*setting, str(count)))
    table_lines = [f"| {' | '.join(cells)} |\n" for cells in table]
    return "**What the stages were trained on.**\n\n" + "".join(table_lines)


def describe_plan(store: Store) -> str:
    """A line for hardware.md: the plan's commit when runs were first collected, if recorded."""
    file = store.root / archive.PLAN_COMMIT
    commit = file.read_text(encoding="utf-8") if file.exists() else ""
    if commit:
        return f"\n{archive.PLAN} when runs were first collected: commit {commit}.\n"
    return ""


def _compare_reports(committed: Path, rendered: Path) -> int:
    """Compare the tables of two folders of reports, and return how many there are.

    Raises ResultsError for the first table that differs.
    """
    committed_tables = _read_tables(committed)
    rendered_tables = _read_tables(rendered)
    for name in sorted(committed_tables.keys() | rendered_tables.keys()):
        if committed_tables.get(name) != rendered_tables.get(name):
            raise ResultsError(
                f"{committed / name}: the records give another table, or none: render the report "
                "again, edit nothing"
            )
    return len(committed_tables)


def _read_tables(folder: Path) -> dict[Path, bytes]:
    """The content of each table in a folder of reports, without the .tex files of figures."""
    paths = [
        path
        for path in folder.rglob("*")
        if path.suffix in RENDERED and not path.with_suffix(".pdf").exists()
    ]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def _render_report(
    suite: Suite,
    configs: Sequence[RunConfig],
    runs: Sequence[RunRecords],
    store: Store,
    out: Path,
    write_report: RenderReport,
) -> None:
    """Render a suite's tables, figures and table of hardware, if it has records."""
    if runs:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its tables
            write_report([(suite, configs)], store.root, out)
        with replace_file(out / suite.name / HARDWARE) as file:
            file.write((make_hardware_table(runs) + describe_plan(store)).encode())
        # each page has the same megabyte of scripts, and `report` can make it from the records
        (out / suite.name / PAGE).unlink(missing_ok=True)
