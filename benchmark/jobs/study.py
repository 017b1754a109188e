"""A study's folder, with all that others need to check it.

It holds suites, records of finished runs, and the report on them:

    FOLDER/SUITE.toml                  its suites
    FOLDER/records/SUITE-sSEED.tar.gz  records of the finished runs of one seed, as below `--runs`
    FOLDER/report/                     what `report` renders from them, and each suite's hardware.md

The text itself is not there, as records hold its sha256. Archives of the same records are the same
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

RECORDS = "records"
REPORT = "report"
PAGE = "index.html"
HARDWARE = "hardware.md"
Archives = dict[Path, dict[str, bytes]]  # the content of each file of each archive
# files that must be the same bytes again (pictures depend on fonts and zlib)
RENDERED = {".csv", ".md", ".tex"}


class ResultsError(UserError):
    """A study's folder that does not hold what it says."""


def check_suites(folder: Path, suites: Suites, names: Collection[str]) -> None:
    """Check that each name is that of one of the study's suites.

    Raises ResultsError where one is not, as nobody would read its records.
    """
    suite_names = [suite.name for suite, _ in suites]
    strangers = sorted({*names} - {*suite_names})
    if strangers:
        raise ResultsError(
            f"{folder} has no suite {strangers[0]!r}, only {', '.join(suite_names)}: "
            "put its file there"
        )


def collect(
    suite: Suite, configs: Sequence[RunConfig], runs: Path, folder: Path, build: Build
) -> list[str]:
    """Add the records of the suite's finished runs to the study in `folder`.

    What an archive holds already stays as it is, and what came later to its files is added. Returns
    a line for each way in which stages came to what the study holds of them. Raises ResultsError
    where a stage was trained again and came to weights that differ by more than rounding, or a run
    to other stages.
    """
    store = Store(runs)
    identities = Identities(store, build)
    example_keys = find_example_keys(suite, store)
    examples = {task: key for task, key in example_keys.items() if key}
    outcomes: dict[str, str] = {}  # by stage
    for seed in sorted({config.seed for config in configs}):
        archive = folder / RECORDS / f"{suite.name}-s{seed}.tar.gz"
        old_members = _read_archive(archive) if archive.exists() else {}
        members = dict(old_members)
        for config in configs:
            if config.seed != seed or not _has_ended(config, identities):
                continue
            for path in _list_files(config, store):
                name = path.relative_to(store.root).as_posix()
                if path.name == records.STAGE_FILE and name in old_members:
                    outcomes[path.parent.name] = _compare_files(archive, path, old_members[name])
                members[name] = _merge_file(archive, path, members.get(name, b""))
        if members and examples:
            name = store.examples_file(suite.name).relative_to(store.root).as_posix()
            members[name] = json.dumps(examples, sort_keys=True).encode()
        if members != old_members:
            _write_archive(archive, members)
    counts = Counter(outcomes.values())
    return [
        f"{suite.name}: stages held already, {outcome}: {count}"
        for outcome, count in counts.items()
    ]


def _has_ended(config: RunConfig, identities: Identities) -> bool:
    """Whether the records of a run say that it is finished."""
    lines = identities.identify(config).lines
    return bool(records.select_kind(lines, records.EndedLine))


def _list_files(config: RunConfig, store: Store) -> Iterator[Path]:
    """All files of `--runs` that record a finished run."""
    run = records.find_last(store.read_run(config), records.RunLine)
    stages = run.stages if run else []
    keys = [key for key in stages if store.is_stage_done(key)]
    paths = [
        store.run_file(config),
        *map(store.stage_file, keys),
        *map(store.scores_file, keys),
        *map(store.measures_file, keys),
        store.scores_file("baselines"),
    ]
    if run and run.start:
        paths.append(store.start_file(run.start))
    return (path for path in paths if path.exists())


def _merge_file(archive: Path, path: Path, old_content: bytes) -> bytes:
    """The content that an archive is to hold of a file: what it has, and the lines that came later.

    A run's file that was written anew is left as the archive has it, and so is that of a stage
    which was trained again. Raises ResultsError where the run's stages are others.
    """
    content = path.read_bytes()
    is_of_run = path.parent.parent.name == "suites"
    if not is_of_run or not old_content:
        return _join_lines(path, old_content, content)
    old_result = _describe_result(path, old_content)
    result = _describe_result(path, content)
    if old_result != result:
        raise ResultsError(
            f"{path}: came to {result}, the study holds a record with {old_result}: remove one of "
            f"the two, this file or {archive}, and collect again"
        )
    if content.startswith(old_content):
        return _join_lines(path, old_content, content)
    return old_content


def _compare_files(archive: Path, path: Path, old_content: bytes) -> str:
    """How a stage of `--runs` came to what the archive holds.

    Raises ResultsError where it did not.
    """
    lines = records.parse(path.read_bytes(), records.STAGE, path)
    training = trained_again.read_training(lines)
    recorded_lines = records.parse(old_content, records.STAGE, path)
    recorded = trained_again.read_training(recorded_lines)
    comparison = trained_again.compare(training, recorded)
    if comparison.grade == "other":
        raise ResultsError(
            f"{path}: {comparison.outcome}: remove one of the two, this file or {archive}, and "
            "collect again"
        )
    return comparison.outcome


def _join_lines(path: Path, old_content: bytes, content: bytes) -> bytes:
    """The old lines, then those of the content that are new.

    To a stage that has lines only what was measured later is added.
    """
    old_lines = set(old_content.splitlines())
    new_lines = [
        line for line in content.splitlines(keepends=True) if line.rstrip() not in old_lines
    ]
    if old_content and path.name == records.STAGE_FILE:
        new_lines = [
            line for line in new_lines if isinstance(records.STAGE.decode(line), records.LaterLine)
        ]
    return old_content + b"".join(new_lines)


def _describe_result(path: Path, content: bytes) -> str:
    """The weights that a stage's file records, or the stages of a run's file.

    Empty for other files, which only grow.
    """
    if path.name == records.STAGE_FILE:
        stage_lines = records.parse(content, records.STAGE, path)
        done = records.find_last(stage_lines, records.DoneLine)
        return f"weights {done.weights if done else None}"
    if path.parent.parent.name == "suites":
        run_lines = records.parse(content, records.RUN, path)
        run = records.find_last(run_lines, records.RunLine)
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
    """Write what the archives of these suites hold, and what others measured of it later.

    Without names it writes those of all suites. Where two archives have a stage with other weights,
    as two kinds of CPU come to, each suite has it as it was trained for that suite. Of suites that
    are asked for together the last archive's counts.
    """

    def is_asked_for(archive: Path) -> bool:
        return not suites or archive.name.rpartition("-s")[0] in suites

    names: set[str] = set()
    for archive, members in archives.items():
        if is_asked_for(archive):
            names |= members.keys()
    contents: dict[str, bytes] = {}
    for archive in sorted(archives, key=is_asked_for):
        for name, content in archives[archive].items():
            if name in names:
                old_content = contents.get(name, b"")
                contents[name] = _add_content(Path(name), old_content, content)
    for name, content in contents.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    store = Store(into)
    (into / "suites").mkdir(parents=True, exist_ok=True)
    store.archive_mark.touch()
    return store


def _add_content(path: Path, old_content: bytes, content: bytes) -> bytes:
    """A file's content with what the next archive holds of it."""
    if path.suffix != ".jsonl":
        return content
    if old_content:
        old_result = _describe_result(path, old_content)
        if old_result != _describe_result(path, content):
            return content
    if path.name == records.STAGE_FILE:
        return _join_lines(path, content, old_content)
    # suites that share models share their files, to which each adds what it measures
    return _join_lines(path, old_content, content)


@contextlib.contextmanager
def open_records(place: str, suites: Collection[str] = ()) -> Iterator[Path]:
    """The records in a folder of `--runs`, or in a study's, laid out as below `--runs`.

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
    """All runs in a folder of `--runs`, by suite.

    A run is empty where the records are not of it.
    """
    identities = Identities(Store(folder), build)
    for path in sorted((folder / "suites").glob("*/")):
        yield from map(identities.leave_out, load_runs(folder, path.name))


def render(folder: Path, suites: Suites, write_report: RenderReport) -> Iterator[str]:
    """Render the report of each of the study's suites that has records, and say what these hold."""
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

    Its runs are the suites', each within its budget, and its report is theirs. Raises ResultsError
    for the first that is not so.
    """
    with tempfile.TemporaryDirectory() as scratch:
        archives = read_archives(folder)
        out = Path(scratch) / REPORT
        check_suites(folder, suites, [archive.name.rpartition("-s")[0] for archive in archives])
        if not archives:
            raise ResultsError(
                f"{folder}: nothing to verify: {folder / RECORDS} holds no *.tar.gz; `collect` "
                "puts records there"
            )
        for suite, configs in suites:
            store = lay_out(archives, Path(scratch) / "runs" / suite.name, [suite.name])
            runs = load_runs(store.root, suite.name)
            yield _verify_runs(suite, configs, runs, Identities(store, build), build)
            _render_report(suite, configs, runs, store, out, write_report)
        count = _compare_reports(folder / REPORT, out)
        yield f"report: {count} tables rendered again from the records are the same"


def _verify_runs(
    suite: Suite,
    configs: Sequence[RunConfig],
    runs: Sequence[RunRecords],
    identities: Identities,
    build: Build,
) -> str:
    """Check the runs of a suite, and say what was checked.

    Raises ResultsError for the first that is none of the suite's, or over its budget.
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
        identity = identities.identify(config, run.lines)
        if identity.why:
            raise ResultsError(f"{suite.name}: {run.id}: {identity.why}")
        earlier_count += identity.earlier
    outcome = f"{suite.name}: {len(runs)} of {len(configs_by_id)} runs, each within its budget"
    if earlier_count:
        outcome += f", {earlier_count} of an earlier version of their method"
    return outcome


def verify_stage(folder: Path, suites: Suites, key: str, build: Build, runs: Path) -> Iterator[str]:
    """Train the stages of a run up to the one of `key` again below `runs`, and compare each.

    Weights and perplexities are compared, and the run's method is audited. Earlier stages that
    `runs` has already are taken. Raises ResultsError where perplexities of a stage are others, or
    weights differ by more than rounding, where no run of the study has such a stage, or where the
    method works off the clock.
    """
    from benchmark.instruments import conformance  # torch: not for a report alone
    from benchmark.training.processes import join

    with tempfile.TemporaryDirectory() as scratch:
        recorded = unpack(folder, Path(scratch))
        store = Store(runs)
        config = _find_config(suites, recorded, key)
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
        is_same = all(comparison.grade == "same" for comparison in comparisons)
        tolerance = trained_again.SAME if is_same else trained_again.ROUNDING
        recorded_run = _load_run(recorded, config)
        recorded_perplexities = _list_measured(recorded_run, last_stage)
        perplexities = _list_measured(_load_run(store, config), last_stage)
        difference = trained_again.find_difference(recorded_perplexities, perplexities, tolerance)
        if difference:
            raise ResultsError(f"{difference}: restore the archive, or collect what it is now")
        count = len(recorded_perplexities.keys() & perplexities.keys())
        outcome = comparisons[-1].outcome
        yield f"stage {key} of {config.id}: {outcome}; {count} perplexities compared"
        with_options: Build = lambda name, options: build(name, config.options)  # noqa: E731
        try:
            tiny = conformance.TinyRuns(config.method, with_options, Path(scratch) / "tiny")
            conformance.works_on_the_clock_alone(tiny)
        except AssertionError as error:
            raise ResultsError(
                f"{config.id}: {error}; mend methods/{config.method}.py, and train again"
            ) from None
        yield f"{config.method} works on the clock alone"


def _find_config(suites: Suites, recorded: Store, key: str) -> RunConfig | None:
    """The first run of a study that has a stage with this key."""
    for _, configs in suites:
        for config in configs:
            if key in recorded.read_stage_keys(config):
                return config
    return None


def _load_run(store: Store, config: RunConfig) -> RunRecords:
    """The records of a run in a store."""
    [run] = [run for run in load_runs(store.root, config.suite) if run.id == config.id]
    return run


def _compare_stage(
    key: str, config: RunConfig, store: Store, recorded: Store
) -> trained_again.Comparison:
    """Compare a stage with what is recorded.

    Raises ResultsError where they differ by more than rounding.
    """
    from benchmark.models import hash_weights, load

    training = trained_again.read_training(store.read_stage(key))
    recorded_training = trained_again.read_training(recorded.read_stage(key))
    model = store.stage_folder(key) / "model"
    weights = hash_weights(load(model))
    if weights != training.weights:
        raise ResultsError(
            f"{model} has weights {weights}, its records say {training.weights}: "
            f"remove {model.parent}, verify again"
        )
    comparison = trained_again.compare(training, recorded_training)
    if comparison.grade == "other":
        raise ResultsError(
            f"stage {key} of {config.id} {comparison.outcome}: run it with the code, packages and "
            "hardware that the record names, or collect what it is now"
        )
    return comparison


def _list_measured(run: RunRecords, last_stage: int) -> dict[str, float | None]:
    """The perplexities of stages of a run, by what they are of.

    Those of its start model and of unigram distributions come first.
    """
    perplexities: dict[str, float | None] = {}
    for name, unigram in run.line.unigram.items():
        perplexities[f"{name} by its unigram"] = unigram
    start_perplexities = run.start.perplexity if run.start else {}
    for name, perplexity in start_perplexities.items():
        perplexities[f"{name} by the start model"] = perplexity
    for stage, lines in enumerate(run.stages[: last_stage + 1]):
        for place, perplexity in trained_again.list_perplexities(lines).items():
            perplexities[f"{place} in stage {stage}"] = perplexity
    return perplexities


# What `verify` asks of records before it looks at their report


def check_budgets(config: RunConfig, run: RunRecords, is_reference: bool) -> None:
    """Check that each stage of a run ended, and within its budget.

    A stage may spend what those before it left, and one step over. That of a reference, which
    trains on all domains at once, may spend what all had. Raises ResultsError for another run.
    """
    budget = 0.0
    spent = 0.0
    tolerance = 0.0
    for index, lines in enumerate(run.stages):
        start = records.find_last(lines, records.StageLine)
        done = records.find_last(lines, records.DoneLine)
        if not start or not done:
            raise ResultsError(
                f"{run.id}: its stage {index} did not end: collect finished runs alone"
            )
        unit = start.budget.unit
        charged = done.charged
        budget += pick_for_stage(config.budget.amount, index)
        spent = charged[unit] + (0.0 if is_reference else spent)
        tolerance += 4 * charged[unit] / max(charged["steps"], 1.0)  # a step of its dearest phase
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
                starts[start.key] = start  # of a stage that began anew the last
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
    table += [(*row, str(count)) for row, count in sorted(counts.items())]
    table_lines = [f"| {' | '.join(cells)} |\n" for cells in table]
    return "**What the stages were trained on.**\n\n" + "".join(table_lines)


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
    """The content of each table in a folder of reports."""
    paths = [path for path in folder.rglob("*") if path.suffix in RENDERED]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


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
    """The content of each file in an archive, by name.

    Raises ResultsError for an archive that is damaged, or not ours.
    """
    try:
        # as a whole, which is held against its checksum
        plain = gzip.decompress(archive.read_bytes())
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as tar:
            members = [tarfile.data_filter(member, str(archive.parent)) for member in tar]
            files = [member for member in members if member.isreg()]
            return {file.name: cast(IO[bytes], tar.extractfile(file)).read() for file in files}
    except (
        gzip.BadGzipFile,
        EOFError,
        zlib.error,
        tarfile.TarError,
        ValueError,  # NUL in a name
    ) as error:
        raise ResultsError(
            f"{archive}: {error}; such an archive is not ours: restore it from a copy"
        ) from None


def _write_archive(archive: Path, members: dict[str, bytes]) -> None:
    """Write an archive whose bytes depend on its members alone."""
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
