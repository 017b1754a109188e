"""A study's folder, with all that others need to check it: suites, records of finished runs, and
the report on them.

    FOLDER/SUITE.toml                  its suites
    FOLDER/records/SUITE-sSEED.tar.gz  the records of the finished runs of one seed, laid out as below `--runs`
    FOLDER/report/                     what `report` renders from these records, and `hardware.md` of each suite

The text itself is not there: records hold its sha256. Archives of the same records are the same
bytes.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import shlex
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from benchmark import records
from benchmark.downstream.tasks import find_example_keys
from benchmark.errors import UserError
from benchmark.files import replace_file
from benchmark.jobs import trained_again
from benchmark.jobs.work import RenderReport, Train, Worker
from benchmark.settings.suite import RunConfig, Suite, Suites, pick_for_stage
from benchmark.settings.units import UNITS
from benchmark.store import RunRecords, Store, load_runs
from benchmark.training.identity import Identities
from benchmark.training.method import Build

RECORDS, REPORT, PAGE, HARDWARE = "records", "report", "index.html", "hardware.md"
Archives = dict[Path, dict[str, bytes]]  # the content of each file of each archive
RENDERED = {
    ".csv",
    ".md",
    ".tex",
}  # what must be the same bytes again; pictures depend on fonts and zlib


class ResultsError(UserError):
    """A study's folder that does not hold what it says."""


def check_suites(folder: Path, suites: Suites, names: Collection[str]) -> None:
    """Raises ResultsError where a name is not that of one of the study's suites: nobody would read
    its records.
    """
    known = [suite.name for suite, _ in suites]
    if others := sorted({*names} - {*known}):
        raise ResultsError(
            f"{folder} has no suite {others[0]!r}, only {', '.join(known)}: put its file there"
        )


def collect(
    suite: Suite, configs: Sequence[RunConfig], runs: Path, folder: Path, build: Build
) -> list[str]:
    """Add the records of the suite's finished runs to the study in `folder`.

    What an archive holds already stays as it is; what came later to its files is added. Returns a
    line for each way in which stages came to what the study holds of them. Raises ResultsError
    where a stage was trained again and came to weights that differ by more than rounding, or a run
    to other stages.
    """
    store = Store(runs)
    identities, here = Identities(store, build), find_example_keys(suite, store)
    examples = {task: key for task, key in here.items() if key}
    outcomes: dict[str, str] = {}  # by stage
    for seed in sorted({config.seed for config in configs}):
        archive = folder / RECORDS / f"{suite.name}-s{seed}.tar.gz"
        held = _read_archive(archive) if archive.exists() else {}
        members = dict(held)
        for config in configs:
            if config.seed == seed and records.select_kind(
                identities.identify(config).lines, records.EndedLine
            ):
                for path in _list_files(config, store):
                    name = path.relative_to(store.root).as_posix()
                    if path.name == records.STAGE_FILE and name in held:
                        outcomes[path.parent.name] = _compare_files(archive, path, held[name])
                    members[name] = _merge_file(archive, path, members.get(name, b""))
        if members and examples:
            name = store.examples_file(suite.name).relative_to(store.root).as_posix()
            members[name] = json.dumps(examples, sort_keys=True).encode()
        if members != held:
            _write_archive(archive, members)
    counts = Counter(outcomes.values())
    return [
        f"{suite.name}: stages held already, {outcome}: {count}"
        for outcome, count in counts.items()
    ]


def _list_files(config: RunConfig, store: Store) -> Iterator[Path]:
    """All that is recorded of a finished run here."""
    run = records.find_last(store.read_run(config), records.RunLine)
    keys = [key for key in (run.stages if run else []) if store.is_stage_done(key)]
    places = [
        store.run_file(config),
        *map(store.stage_file, keys),
        *map(store.scores_file, keys),
        *map(store.measures_file, keys),
        store.scores_file("baselines"),
        *([store.start_file(run.start)] if run and run.start else []),
    ]
    return (path for path in places if path.exists())


def _merge_file(archive: Path, path: Path, held: bytes) -> bytes:
    """The content that an archive is to hold of a file: what it has, and the lines that came later.

    A run's file that was written anew is left as the archive has it, and so is that of a stage
    which was trained again. Raises ResultsError where the run's stages are others.
    """
    content = path.read_bytes()
    if path.parent.parent.name != "suites" or not held:
        return _join_lines(path, held, content)
    was, now = (_describe_result(path, part) for part in (held, content))
    if was != now:
        raise ResultsError(
            f"{path}: came to {now}, the study holds a record with {was}: remove one of the two, "
            "this file or "
            f"{archive}, and collect again"
        )
    return _join_lines(path, held, content) if content.startswith(held) else held


def _compare_files(archive: Path, path: Path, held: bytes) -> str:
    """How a stage of `--runs` came to what the archive holds. Raises ResultsError where it did not."""
    here, recorded = (
        trained_again.read_training(records.parse(content, records.STAGE, path))
        for content in (path.read_bytes(), held)
    )
    comparison = trained_again.compare(here, recorded)
    if comparison.grade == "other":
        raise ResultsError(
            f"{path}: {comparison.outcome}: remove one of the two, this file or {archive}, and "
            "collect again"
        )
    return comparison.outcome


def _join_lines(path: Path, held: bytes, content: bytes) -> bytes:
    """The lines that are held, then those of the content that are new; of a stage only what was
    measured later.
    """
    known = set(held.splitlines())
    lines = [line for line in content.splitlines(keepends=True) if line.rstrip() not in known]
    if held and path.name == records.STAGE_FILE:
        lines = [
            line for line in lines if isinstance(records.STAGE.decode(line), records.LaterLine)
        ]
    return held + b"".join(lines)


def _describe_result(path: Path, content: bytes) -> str:
    """The weights that a stage's file records, or the stages of a run's; empty for other files,
    which only grow.
    """
    if path.name == records.STAGE_FILE:
        done = records.find_last(records.parse(content, records.STAGE, path), records.DoneLine)
        return f"weights {done.weights if done else None}"
    if path.parent.parent.name == "suites":
        run = records.find_last(records.parse(content, records.RUN, path), records.RunLine)
        return f"stages {', '.join(run.stages) if run else None}"
    return ""


def unpack(folder: Path, into: Path, suites: Collection[str] = ()) -> Store:
    """The records of a study, or of these suites of it, as a folder of `--runs`.

    Raises ResultsError for an archive that cannot be read.
    """
    return lay_out(read_archives(folder), into, suites)


def read_archives(folder: Path) -> Archives:
    """The archives of a study, in the order of their names."""
    return {path: _read_archive(path) for path in sorted((folder / RECORDS).glob("*.tar.gz"))}


def lay_out(archives: Archives, into: Path, suites: Collection[str]) -> Store:
    """Write what the archives of these suites hold, of all if none is named, and what others
    measured of it later.

    Where two archives have a stage with other weights, as two kinds of CPU come to, each suite has
    it as it was trained for that suite. Of those that are asked for together the last archive's
    counts.
    """

    def is_asked_for(archive: Path) -> bool:
        return not suites or archive.name.rpartition("-s")[0] in suites

    names = {
        name for archive, members in archives.items() if is_asked_for(archive) for name in members
    }
    joined: dict[str, bytes] = {}
    for archive in sorted(archives, key=is_asked_for):
        for name, content in archives[archive].items():
            if name not in names:
                continue
            path, before = Path(name), joined.get(name, b"")
            if path.suffix != ".jsonl" or (
                before and _describe_result(path, before) != _describe_result(path, content)
            ):
                joined[name] = content
            elif path.name == records.STAGE_FILE:
                joined[name] = _join_lines(path, content, before)
            else:  # suites that share models share their files, to which each adds what it measures
                joined[name] = _join_lines(path, before, content)
    for name, content in joined.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_bytes(content)
    store = Store(into)
    (into / "suites").mkdir(parents=True, exist_ok=True)
    store.archive_mark.touch()
    return store


@contextlib.contextmanager
def open_records(place: str, suites: Collection[str] = ()) -> Iterator[Path]:
    """The records in a folder of `--runs`, or in a study's, laid out as the former.

    Of a study only those of `suites`, if any is named. Raises ResultsError for other places.
    """
    folder = Path(place)
    with tempfile.TemporaryDirectory() as scratch:
        if (folder / RECORDS).is_dir():
            folder = unpack(folder, Path(scratch), suites).root
        if not (folder / "suites").is_dir():
            raise ResultsError(
                f"{place}: no records; give a folder of --runs, or a study's as in results/"
            )
        yield folder


def load_all_runs(folder: Path, build: Build) -> Iterator[RunRecords]:
    """All runs in a folder of `--runs`, by suite; empty ones where records are not of them."""
    identities = Identities(Store(folder), build)
    for path in sorted((folder / "suites").glob("*/")):
        yield from map(identities.leave_out, load_runs(folder, path.name))


def render(folder: Path, suites: Suites, write_report: RenderReport) -> Iterator[str]:
    """Render the report of each of the study's suites that has records, and say what these hold."""
    with tempfile.TemporaryDirectory() as scratch:
        archives = read_archives(folder)
        for suite, configs in suites:
            store = lay_out(archives, Path(scratch) / suite.name, [suite.name])
            runs = load_runs(store.root, suite.name)
            _render_report(suite, configs, runs, store, folder / REPORT, write_report)
            rendered = f", rendered to {folder / REPORT / suite.name}" if runs else ""
            yield f"{suite.name}: {len(runs)} of {len(configs)} runs in {folder / RECORDS}{rendered}"
        yield f"next: `python run_all.py verify {shlex.quote(str(folder))}` checks it as others would"


def verify(folder: Path, suites: Suites, write_report: RenderReport, build: Build) -> Iterator[str]:
    """Check a study, and say what was checked: its runs are the suites', within their budgets; its
    report is theirs.

    Raises ResultsError for the first that is not so.
    """
    with tempfile.TemporaryDirectory() as scratch:
        archives, out = read_archives(folder), Path(scratch) / REPORT
        check_suites(folder, suites, [archive.name.rpartition("-s")[0] for archive in archives])
        for suite, configs in suites:
            store = lay_out(archives, Path(scratch) / "runs" / suite.name, [suite.name])
            identities = Identities(store, build)
            runs, wanted = (
                load_runs(store.root, suite.name),
                {config.id: config for config in configs},
            )
            earlier = 0
            for run in runs:
                if run.id not in wanted:
                    raise ResultsError(
                        f"{suite.name}: {run.id} is no run of the suite as it is written there: "
                        "restore the suite's "
                        "file, or remove the run from the archives"
                    )
                is_reference = build(run.line.method, run.line.options).group == "references"
                check_budgets(wanted[run.id], run, anew=is_reference)
                identity = identities.identify(wanted[run.id], run.lines)
                if identity.why:
                    raise ResultsError(f"{suite.name}: {run.id}: {identity.why}")
                earlier += identity.earlier
            of_those = f", {earlier} of an earlier version of their method" if earlier else ""
            yield f"{suite.name}: {len(runs)} of {len(wanted)} runs, each within its budget{of_those}"
            _render_report(suite, configs, runs, store, out, write_report)
        compared = _compare_reports(folder / REPORT, out)
        yield f"report: {compared} tables rendered again from the records are the same"


def verify_stage(folder: Path, suites: Suites, key: str, build: Build, runs: Path) -> Iterator[str]:
    """Train the stages of a run up to the one of `key` again below `runs`, compare weights and
    perplexities of each, and audit its method.

    Earlier stages that are there already are taken. Raises ResultsError where perplexities of a
    stage are others, or weights differ by more than rounding, where no run of the study has such a
    stage, or where the method works off the clock.
    """
    from benchmark.instruments import conformance  # torch: not for a report alone
    from benchmark.training.processes import join

    with tempfile.TemporaryDirectory() as scratch:
        recorded, store = unpack(folder, Path(scratch)), Store(runs)
        having = (
            config
            for _, configs in suites
            for config in configs
            if key in recorded.read_stage_keys(config)
        )
        config = next(having, None)
        if not config:
            raise ResultsError(
                f"{folder}: no run has a stage {key!r}; records/*.tar.gz name theirs as stages/KEY"
            )
        if store.is_stage_done(key):
            raise ResultsError(
                f"{runs} has stage {key} already, so nothing would be trained: give another --runs"
            )
        keys = recorded.read_stage_keys(config)
        last_stage = keys.index(key)
        with join() as alone:
            Train(runs, config, key, build, last_stage)(Worker(alone))
        if not store.is_stage_done(key):
            raise ResultsError(
                f"{config.id}: that stage has another key here: text or settings differ; restore "
                "what the study "
                "was made with"
            )
        comparisons = [
            _compare_stage(stage, config, store, recorded) for stage in keys[: last_stage + 1]
        ]
        is_same = all(comparison.grade == "same" for comparison in comparisons)
        tolerance = trained_again.SAME if is_same else trained_again.ROUNDING
        both = [load_runs(where.root, config.suite) for where in (recorded, store)]
        there, here = (
            _list_measured(run, last_stage) for runs in both for run in runs if run.id == config.id
        )
        if difference := trained_again.find_difference(there, here, tolerance):
            raise ResultsError(f"{difference}: restore the archive, or collect what it is now")
        measured = len(there.keys() & here.keys())
        yield f"stage {key} of {config.id}: {comparisons[-1].outcome}; {measured} perplexities compared"
        with_options: Build = lambda name, options: build(name, config.options)  # noqa: E731
        try:
            tiny = conformance.TinyRuns(config.method, with_options, Path(scratch) / "tiny")
            conformance.works_on_the_clock_alone(tiny)
        except AssertionError as error:
            raise ResultsError(
                f"{config.id}: {error}; mend methods/{config.method}.py, and train again"
            ) from None
        yield f"{config.method} works on the clock alone"


def _compare_stage(
    key: str, config: RunConfig, store: Store, recorded: Store
) -> trained_again.Comparison:
    """Compare a stage with what is recorded. Raises ResultsError where they differ by more than
    rounding.
    """
    from benchmark.models import hash_weights, load

    here, there = (
        trained_again.read_training(where.read_stage(key)) for where in (store, recorded)
    )
    model = store.stage_folder(key) / "model"
    actual = hash_weights(load(model))
    if actual != here.weights:
        raise ResultsError(
            f"{model} has weights {actual}, its records say {here.weights}: remove {model.parent}, "
            "verify again"
        )
    comparison = trained_again.compare(here, there)
    if comparison.grade == "other":
        raise ResultsError(
            f"stage {key} of {config.id} {comparison.outcome}: run it with the code, packages and "
            "hardware that "
            "the record names, or collect what it is now"
        )
    return comparison


def _list_measured(run: RunRecords, last_stage: int) -> dict[str, float | None]:
    """The perplexities of stages of a run, of its start model and of unigram distributions, by what
    they are of.
    """
    unigrams, start = run.line.unigram, run.start.perplexity if run.start else {}
    measured: dict[str, float | None] = {
        f"{name} by its unigram": value for name, value in unigrams.items()
    }
    measured |= {f"{name} by the start model": value for name, value in start.items()}
    for stage, lines in enumerate(run.stages[: last_stage + 1]):
        perplexities = trained_again.list_perplexities(lines)
        measured |= {f"{place} in stage {stage}": value for place, value in perplexities.items()}
    return measured


# What `verify` asks of records before it looks at their report


def check_budgets(config: RunConfig, run: RunRecords, anew: bool) -> None:
    """Raises ResultsError for a run that did not end, or over its budget.

    A stage may spend what those before it left, and one step over; that of a reference, `anew`,
    what all had.
    """
    given = spent = over = 0.0
    for index, lines in enumerate(run.stages):
        start, done = (
            records.find_last(lines, records.StageLine),
            records.find_last(lines, records.DoneLine),
        )
        if not start or not done:
            raise ResultsError(
                f"{run.id}: its stage {index} did not end: collect finished runs alone"
            )
        unit, charged = start.budget.unit, done.charged
        given += pick_for_stage(config.budget.amount, index)
        spent = charged[unit] + (0.0 if anew else spent)
        over += 4 * charged[unit] / max(charged["steps"], 1.0)  # one step of its dearest phase
        if spent > given + over:
            raise ResultsError(
                f"{run.id}, stage {index}: {spent:g} {UNITS[unit].name} charged until then of "
                f"{given:g}, more than a "
                "step over: train again"
            )


def make_hardware_table(runs: Sequence[RunRecords]) -> str:
    """A table in Markdown of the machines that trained a suite's stages; one that several runs
    share counts once.
    """
    lines = (
        line
        for run in runs
        for stage in run.stages
        for line in stage
        if isinstance(line, records.StageLine)
    )
    starts = {line.key: line for line in lines}  # of a stage that began anew the last
    rows: Counter[tuple[str, ...]] = Counter()
    for start in starts.values():
        made = start.provenance
        torch = made.packages.get("torch", "")
        machine = trained_again.describe_machine(start)
        rows[
            machine, str(made.hardware.threads), str(made.hardware.count), made.precision, torch
        ] += 1
    heads = ("Machine", "Threads", "Processes", "Precision", "torch", "Stages")
    table = [
        heads,
        (":--",) * 5 + ("--:",),
        *((*row, str(count)) for row, count in sorted(rows.items())),
    ]
    return "**What the stages were trained on.**\n\n" + "".join(
        f"| {' | '.join(line)} |\n" for line in table
    )


def _compare_reports(committed: Path, rendered: Path) -> int:
    """Raises ResultsError for the first table that differs; returns how many there are."""
    ours, theirs = (
        {
            path.relative_to(root): path.read_bytes()
            for path in root.rglob("*")
            if path.suffix in RENDERED
        }
        for root in (committed, rendered)
    )
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise ResultsError(
                f"{committed / name}: the records give another table, or none: render the report "
                "again, edit nothing"
            )
    return len(ours)


def _render_report(
    suite: Suite,
    configs: Sequence[RunConfig],
    runs: Sequence[RunRecords],
    store: Store,
    out: Path,
    write_report: RenderReport,
) -> None:
    """The tables and figures of a suite, if it has records, and what its stages were trained on."""
    if runs:
        with contextlib.redirect_stdout(io.StringIO()):  # it shows its tables
            write_report([(suite, configs)], store.root, out)
        with replace_file(out / suite.name / HARDWARE) as file:
            file.write(make_hardware_table(runs).encode())
        # a megabyte of the same scripts each; `report` on the records makes it
        (out / suite.name / PAGE).unlink(missing_ok=True)


def _read_archive(archive: Path) -> dict[str, bytes]:
    """The content of each file in an archive, by name. Raises ResultsError for one that is damaged,
    or not ours.
    """
    try:
        plain = gzip.decompress(
            archive.read_bytes()
        )  # as a whole, which is held against its checksum
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as tar:
            safe = [tarfile.data_filter(member, str(archive.parent)) for member in tar]
            return {
                member.name: cast(IO[bytes], tar.extractfile(member)).read()
                for member in safe
                if member.isreg()
            }
    except (
        gzip.BadGzipFile,
        EOFError,
        zlib.error,
        tarfile.TarError,
        ValueError,
    ) as error:  # NUL in a name: the last
        raise ResultsError(
            f"{archive}: {error}; such an archive is not ours: restore it from a copy"
        ) from None


def _write_archive(archive: Path, members: dict[str, bytes]) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, content in sorted(members.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with (
        replace_file(archive) as file,
        gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed,
    ):
        packed.write(plain.getvalue())
