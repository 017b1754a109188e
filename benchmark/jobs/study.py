"""A study's folder, with all that others need to check it: suites, records of finished runs, and the report on them.

    FOLDER/SUITE.toml                  its suites
    FOLDER/records/SUITE-sSEED.tar.gz  the records of the finished runs of one seed, laid out as below `--runs`
    FOLDER/report/                     what `report` renders from these records, and `hardware.md` of each suite

The text itself is not there: records hold its sha256. Archives of the same records are the same bytes.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import html
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

from benchmark import records
from benchmark.data.documents import DataError
from benchmark.data.text_files import chunks
from benchmark.errors import UserError
from benchmark.files import LARGEST_RECORDS, is_missing, naming, read_bytes, read_text, whole_file
from benchmark.jobs.payloads import RenderReport, TrainRun
from benchmark.locks import Lock
from benchmark.record_checks import decode
from benchmark.record_lines import DoneLine, Hardware, Provenance, StageLine
from benchmark.records import RunRecords, crowded, load_runs
from benchmark.settings.suite import RunConfig, Suite, Suites, per_stage
from benchmark.settings.units import UNITS
from benchmark.store import Store, recorded_stages
from benchmark.training.method import Build
from benchmark.training.step_times import machine_of, stage_times, table_of


class ResultsError(UserError):
    """A study's folder that does not hold what it says."""


@dataclass(frozen=True)
class EndedStage:
    """A stage that ran to its end: how it began, and how it ended."""

    name: str  # of its run, and its place there
    start: StageLine
    done: DoneLine

    @property
    def provenance(self) -> Provenance:
        return self.start["provenance"]

    @property
    def is_timed(self) -> bool:
        """Whether its budget was wall time that a clock measured."""
        return UNITS[self.start["budget"]["unit"]].is_wall_time


# what a comparison needs to be the same for all stages of a suite
_OF_ALL: dict[str, Callable[[Provenance], object]] = {
    "threads": lambda provenance: provenance["threads"],
    "processes": lambda provenance: provenance["world_size"],
    "precision": lambda provenance: provenance["precision"],
}


def check(suite: Suite, configs: Sequence[RunConfig], runs: Sequence[RunRecords], build: Build) -> Iterator[str]:
    """Check the records of a suite, and say what holds. Raises ResultsError or ConfigError for what does not."""
    ended = {run.id: list(_ended(run)) for run in runs}
    for run in runs:
        method = build(run.line["method"], run.line["options"])
        _check_budgets(run, ended[run.id], anew=method.group == "references")
    wanted = {config.id: config for config in configs}
    foreign = [run.id for run in runs if run.id not in wanted]
    if foreign:
        raise ResultsError(
            f"{suite.name}: {foreign[0]} is no run of the suite as it is written there: restore the suite's file, or "
            "remove the run from the archives"
        )
    stages = [stage for run in runs for stage in ended[run.id]]
    _check_hardware(suite.name, stages)
    _check_cores(suite.name, stages)
    machines = ", ".join(sorted({machine(stage.start) for stage in stages})) or "no machine yet"
    yield f"{suite.name}: {len(runs)} of {len(wanted)} runs, each within its budget; on {machines}"
    tables = {table for config in configs if config.id in ended and (table := table_of(config))}
    for run in runs:
        for index, stage in enumerate(ended[run.id]):
            _check_step_times(wanted[run.id], index, stage)
    for table in sorted(tables):
        digest = hashlib.sha256(read_bytes(table)).hexdigest()
        measured = f"{table.name} (sha256 {digest[:12]}), measured on {_named(machine_of(table))}"
        yield f"{suite.name}: its reference seconds are those of {measured}"


def hardware(runs: Sequence[RunRecords]) -> str:
    """What a suite's stages were trained on, as a table in Markdown; one that several runs share counts once."""
    lines = (line for run in runs for stage in run.stages for line in stage if line["kind"] == "stage")
    starts = {line["key"]: line for line in lines}  # of a stage that began anew the last
    rows = Counter(
        (
            machine(start),
            *(str(of(start["provenance"])) for of in _OF_ALL.values()),
            start["provenance"]["packages"].get("torch", ""),
        )
        for start in starts.values()
    )
    heads = ("Machine", *map(str.capitalize, _OF_ALL), "torch", "Stages")
    table = [heads, (":--",) * 5 + ("--:",), *((*row, str(count)) for row, count in sorted(rows.items()))]
    return "**What the stages were trained on.**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in table)


def machine(stage: StageLine) -> str:
    """The machine of a stage, in words."""
    return _named(stage["provenance"]["hardware"])


def _named(hardware: Hardware) -> str:
    return f"{hardware['device']} ({', '.join(filter(None, (hardware['cpu'], hardware.get('instructions'))))})"


def _ended(run: RunRecords) -> Iterator[EndedStage]:
    for index, lines in enumerate(run.stages):
        done = [line for line in lines if line["kind"] == "done"]
        start = [line for line in lines if line["kind"] == "stage"]
        if not done or not start:
            raise ResultsError(f"{run.id}: its stage {index} did not end: collect finished runs alone")
        yield EndedStage(f"{run.id}, stage {index}", start[-1], done[-1])


def _check_budgets(run: RunRecords, stages: Sequence[EndedStage], anew: bool) -> None:
    """`anew`: whether each stage may take the budget of all stages so far, as that of a reference does."""
    amount = run.line["config"]["budget"]["amount"]
    amounts = tuple(amount) if isinstance(amount, list) else amount
    given = took = over = 0.0  # a method may spend in a later stage what it left in earlier ones
    for index, stage in enumerate(stages):
        _check_budget(stage, per_stage(amounts, index))
        given += per_stage(amounts, index)
        took = took * (not anew) + per_stage(amounts, index) * sum(phase["share"] for phase in stage.start["phases"])
        over = max(took - given, over if anew else 0.0)
    if over > 1e-9 * given:
        raise ResultsError(f"{run.id}: its phases take {over:g} more than the budget of its stages")


def _check_budget(stage: EndedStage, amount: float) -> None:
    start, unit, spent = stage.start, stage.start["budget"]["unit"], stage.done["charged"]
    if start["budget"]["amount"] != amount:
        raise ResultsError(
            f"{stage.name}: trained with {start['budget']['amount']:g} {unit}, the suite says {amount:g}"
            ": correct the suite, or train again"
        )
    step, may = spent[unit] / max(spent["steps"], 1.0), amount * sum(phase["share"] for phase in start["phases"])
    if spent[unit] > may + 4 * step:  # one step of its dearest phase
        raise ResultsError(
            f"{stage.name}: {spent[unit]:g} {UNITS[unit].name} charged of {may:g}, more than a step over: train again"
        )
    if "weights" not in stage.done:
        raise ResultsError(
            f"{stage.name}: no hash of its weights, so nobody could repeat it: collect a run of today's code"
        )


def _check_hardware(suite: str, stages: Sequence[EndedStage]) -> None:
    """One precision, number of threads and processes, and kind of device; of wall times one model of CPU, too."""
    _check_same(suite, "device", stages, lambda of: of["hardware"]["device"])
    for what, value in _OF_ALL.items():
        _check_same(suite, what, stages, value)
    timed = [stage for stage in stages if stage.is_timed]
    _check_same(suite, "CPU under wall time", timed, lambda of: of["hardware"]["cpu"])


def _check_same(suite: str, what: str, stages: Sequence[EndedStage], value: Callable[[Provenance], object]) -> None:
    first: dict[object, str] = {}
    for stage in stages:
        first.setdefault(value(stage.provenance), stage.name)
    if len(first) > 1:
        places = "; ".join(f"{found} in {name}" for found, name in first.items())
        raise ResultsError(
            f"{suite}: stages differ in {what}: {places}: train again what differs, or move it to another suite"
        )


def _check_cores(suite: str, stages: Sequence[EndedStage]) -> None:
    slowed = {stage.start["key"]: f"{stage.name} ({share})" for stage in stages if (share := _lacked(stage))}
    if slowed:
        raise ResultsError(
            f"{suite}: other programs took cores under a budget of wall time: {'; '.join(slowed.values())}: "
            "train these stages again with nothing beside them"
        )


def _lacked(stage: EndedStage) -> str:
    return crowded([stage.done]) if stage.is_timed else ""


def _check_step_times(config: RunConfig, index: int, stage: EndedStage) -> None:
    """Whether reference seconds are steps times those of the suite's table. Raises ConfigError for what it lacks."""
    if (times := stage_times(config, index)) is None:
        return
    unit, phases = stage.start["budget"]["unit"], stage.done["phases"]
    unknown = {phase["name"] for phase in phases} - times.phases.keys()
    cost = times.set_up + sum(phase["steps"] * times.phases.get(phase["name"], 0.0) for phase in phases)
    charged = stage.done["charged"][unit]
    if unknown or abs(charged - cost) > 1e-6 * cost:
        raise ResultsError(
            f"{stage.name}: {charged:g} s charged for steps that take {cost:g} s by {table_of(config)}: restore "
            "the table that it was trained with"
        )


@contextlib.contextmanager
def alone(study: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for the same study, as far as its file system has locks.

    Its first suite's file is locked, for a study holds nothing that is not committed.
    """
    suites = sorted(study.glob("*.toml"))
    lock = Lock(suites[0], needed=False) if suites else None
    with contextlib.suppress(PermissionError):  # a suite that may only be read
        if lock:
            lock.acquire(lambda: print(f"waits for another process, which collects into {study}", file=sys.stderr))
    try:
        yield
    finally:
        if lock:
            lock.release()


RECORDS, REPORT, PAGE, HARDWARE = "records", "report", "index.html", "hardware.md"
LARGEST = 2**31  # bytes of records in an archive, or in a folder of a commit
BLOCK = 4096  # bytes that a file takes at least, so that no endless number of empty ones is written
LINK = "120000"  # git's mode of a link
RENDERED = {".csv", ".md", ".tex"}  # what must be the same bytes again; pictures depend on fonts and zlib


def collect(suite: Suite, configs: Sequence[RunConfig], store: Store, folder: Path) -> None:
    """Add the records of the suite's finished runs to the study in `folder`.

    What an archive holds already stays as it is. Raises ResultsError where a stage was trained again and came to other
    weights than those recorded.
    """
    with alone(folder):
        for seed in sorted({config.seed for config in configs}):
            archive = folder / RECORDS / f"{suite.name}-s{seed}.tar.gz"
            held = _members(archive) if archive.exists() else {}
            found = dict(held)
            for config in configs:
                if config.seed == seed and records.last(store.run_file(config), "done") is not None:
                    _refuse_unended(config, store, held)
                    for path in _files(config, store):
                        name = path.relative_to(store.root).as_posix()
                        _refuse_other_weights(name, held, path)
                        found.setdefault(name, read_bytes(path, LARGEST_RECORDS))
            if found != held:
                _write(archive, found)


def unpack(folder: Path, into: Path) -> Store:
    """The records of a study as a folder of `--runs`. Raises ResultsError for an archive that cannot be read."""
    for archive in sorted((folder / RECORDS).glob("*.tar.gz")):
        for name, content in _members(archive).items():
            _put(into, name, content, str(archive))
    return Store(into)


def _put(into: Path, name: str, content: bytes, source: str) -> None:
    """Write a file of an archive or a commit into a folder. Raises ResultsError for a name that would leave it."""
    path = into / name
    if into.resolve() not in path.resolve().parents:
        raise ResultsError(
            f"{source}: {name!r} would leave the folder; such an archive is not ours: restore it from a copy"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            path.write_bytes(content)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise ResultsError(
            f"{source}: {name!r} is a file and a folder; such an archive is not ours: restore it from a copy"
        ) from None


@dataclass(frozen=True)
class Opened:
    """Records that somebody named, in a folder laid out as that of `--runs`."""

    called: str
    folder: Path
    shown: tuple[str, ...] = ("suites/",)  # how the files of those runs begin that are meant

    def runs(self) -> dict[str, list[RunRecords]]:
        """The runs by suite, without suites that have none."""
        names = sorted(path.name for path in (self.folder / "suites").glob("*") if path.is_dir())
        loaded = {name: load_runs(self.folder, name) for name in names}
        meant = {
            name: [run for run in runs if f"suites/{name}/{run.id}.jsonl".startswith(self.shown)]
            for name, runs in loaded.items()
        }
        return {name: runs for name, runs in meant.items() if runs}


@contextlib.contextmanager
def opened(place: str) -> Iterator[Opened]:
    """Some records: a folder of `--runs`, a study's, or either as of a commit, FOLDER@COMMIT; or those of a report.

    Raises ResultsError for a place without records.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder, at, commit = place.rpartition("@")
        path = Path(place)
        if at and not path.exists():
            path = _of_commit(folder, commit, Path(scratch) / "commit")
        found = Opened(place, path)
        if not any((path / name).is_dir() for name in (RECORDS, "suites")):
            found = _of_report(found)
        if (found.folder / RECORDS).is_dir():
            found = replace(found, folder=unpack(found.folder, Path(scratch) / "runs").root)
        if not (found.folder / "suites").is_dir():
            if found.folder != path:
                raise ResultsError(
                    f"{place}: a report, whose records were in {found.folder}: call it from where it was rendered, "
                    "or give the folder of its records"
                )
            raise ResultsError(
                f"{place}: no records; give a folder of --runs, a study's as in results/, or FOLDER@COMMIT of one"
            )
        yield found


def _of_report(place: Opened) -> Opened:
    """The runs that a report shows, as their records are now; `place` itself where there is no report."""
    path = place.folder
    for report, shown in ((path, "suites/"), (path.parent, f"suites/{path.name}/")):
        if report.name == REPORT and (report.parent / RECORDS).is_dir():
            return Opened(f"{place.called} (the study {report.parent})", report.parent, (shown,))
    pages = [page for page in (path / PAGE, *sorted(path.glob(f"*/{PAGE}"))) if page.is_file()]
    found = [content for page in pages if (content := _read_page(page))]
    folders = list(dict.fromkeys(folder for folder, _ in found))
    if len(folders) > 1:
        raise ResultsError(f"{place.called}: reports of records in {' and in '.join(folders)}: give one of its folders")
    if not folders:
        return place
    files = tuple(run for _, runs in found for run in runs)
    return Opened(f"{place.called} (records in {folders[0]})", Path(folders[0]), files)


def _read_page(page: Path) -> tuple[str, list[str]] | None:
    """The folder of a report's records, and the files in it of the runs that it shows; None for another page."""
    text = read_text(page, "replace")
    folder = re.search(r'<meta name="records" content="([^"]+)">', text)
    content = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', text, re.DOTALL)
    if not folder or not content:
        return None
    try:
        return html.unescape(folder[1]), [str(run["record"]) for run in json.loads(content[1])["runs"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ResultsError(f"{page}: a report that was changed: render it again, or give its records' folder") from None


def _of_commit(folder: str, commit: str, into: Path) -> Path:
    """Write the files that a commit has in a folder, as they were committed."""
    if commit.startswith("-"):  # git would take it for an option
        raise ResultsError(f"{folder}@{commit}: no commit is called so; give FOLDER@COMMIT")
    into.mkdir()
    with tempfile.TemporaryFile() as said:
        try:
            with (
                _git(folder, said, "ls-tree", "-r", commit) as files,
                _git(folder, said, "cat-file", "--batch") as blobs,
            ):
                _write_files(files, blobs, into, f"{folder}@{commit}")
            if files.returncode or not any(into.iterdir()):
                raise LookupError
        except LookupError as error:  # git says in its own words why
            said.seek(0)
            [why, *_] = [*said.read().decode(errors="replace").splitlines(), error]
            raise ResultsError(
                f"{folder}@{commit}: no such folder in that commit ({why}); give FOLDER@COMMIT of one that has it"
            ) from None
        except OverflowError as error:
            raise ResultsError(
                f"{folder}@{commit}: {error}, which no records have: name the folder of the records alone"
            ) from None
    return into


def _git(folder: str, said: IO[bytes], *command: str) -> subprocess.Popen[bytes]:
    """A command of git that reads objects. It starts no program that a hostile repository's settings name.

    Filters, hooks and attributes are of commands on a work tree; a partial clone would fetch what it lacks.
    """
    settings = ("core.quotePath=false", "core.fsmonitor=false", "core.hooksPath=/dev/null", "protocol.allow=never")
    options = [option for setting in settings for option in ("-c", setting)]
    env = {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}  # the latter for git before 2.45
    git = ["git", *options, "-C", folder, *command]
    return subprocess.Popen(git, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)


def _write_files(files: subprocess.Popen[bytes], blobs: subprocess.Popen[bytes], into: Path, place: str) -> None:
    """Write the files that `git ls-tree` lists, which `git cat-file --batch` gives.

    Raises OverflowError for more bytes than LARGEST, or another thing than a file; LookupError for one that is
    not there.
    """
    listed, asked, given = cast(IO[bytes], files.stdout), cast(IO[bytes], blobs.stdin), cast(IO[bytes], blobs.stdout)
    room = LARGEST
    for line in listed:
        about, _, name = line.decode(errors="replace").rstrip("\n").partition("\t")
        mode, kind, key = about.split()
        if kind != "blob" or mode == LINK or name.startswith('"'):  # git quotes what breaks a line
            raise OverflowError(f"{name!r:.80} is no plain file")
        with contextlib.suppress(BrokenPipeError):  # it has said why
            asked.write(f"{key}\n".encode())
            asked.flush()
        found = given.readline().split()  # key, kind, size
        if len(found) != 3:
            raise LookupError(f"{name!r:.80} is missing")
        room -= int(found[2]) + BLOCK
        if room < 0:
            raise OverflowError(f"more than {LARGEST:,} bytes")
        _put(into, name, given.read(int(found[2])), place)
        given.read(1)  # the end of a line


def render(folder: Path, suites: Suites, write_report: RenderReport) -> Iterator[str]:
    """Render the report of each of the study's suites from its records, and say what these hold."""
    with alone(folder), tempfile.TemporaryDirectory() as scratch:
        store = unpack(folder, Path(scratch))
        _render(suites, store, folder / REPORT, write_report)
        for suite, configs in suites:
            done = f"{len(load_runs(store.root, suite.name))} of {len(configs)} runs"
            yield f"{suite.name}: {done} in {folder / RECORDS}, rendered to {folder / REPORT / suite.name}"
        yield f"next: `python run_all.py verify {shlex.quote(str(folder))}` checks it as others would"


def verify(folder: Path, suites: Suites, write_report: RenderReport, build: Build) -> Iterator[str]:
    """Check a study, and say line by line what was checked.

    Of the records see `benchmark.jobs.study`; the report is what they give. Raises ResultsError or ConfigError
    for the first that is not so.
    """
    with tempfile.TemporaryDirectory() as scratch:
        store = unpack(folder, Path(scratch) / "runs")
        for suite, configs in suites:
            yield from check(suite, configs, load_runs(store.root, suite.name), build)
        out = Path(scratch) / REPORT
        _render(suites, store, out, write_report)
        compared = _compare(folder / REPORT, out)
        yield f"report: {compared} tables rendered again from the records are the same"


def verify_stage(folder: Path, suites: Suites, key: str, build: Build, store: Store) -> Iterator[str]:
    """Train the stages of a run up to the one of `key` again below `store`, and compare its weights.

    Raises ResultsError where they are others, or where no run of the study has such a stage.
    """
    from benchmark.training.processes import join  # torch: not for a report alone

    with tempfile.TemporaryDirectory() as scratch:
        recorded = unpack(folder, Path(scratch))
        for config in (config for _, configs in suites for config in configs):
            keys = recorded_stages(config, recorded)
            if key in keys:
                with join() as alone:
                    TrainRun(config, build, store.root, keys.index(key))(alone, lambda: False)
                expected, actual = (_hash_of(where, key) for where in (recorded, store))
                if not store.stage_done(key):
                    raise ResultsError(
                        f"{config.id}: that stage has another key here: text or settings differ"
                        "; restore what the study was made with"
                    )
                if actual != expected:
                    raise ResultsError(
                        f"stage {key} of {config.id} came to weights {actual} on {_trained_on(store, key)}, recorded "
                        f"are {expected} on {_trained_on(recorded, key)}: run it with the code, packages and hardware "
                        "that the record names, or collect what it is now"
                    )
                yield f"stage {key} of {config.id}: the same weights, {expected}"
                return
    raise ResultsError(f"{folder}: no run has a stage {key!r}; records/*.tar.gz name theirs as stages/KEY")


def _files(config: RunConfig, store: Store) -> Iterator[Path]:
    """All that is recorded of a finished run. Raises RecordsError where the records of another lie."""
    keys = [key for key in recorded_stages(config, store) if store.stage_done(key)]
    places = [
        store.run_file(config),
        *(store.stage(key) / "records.jsonl" for key in keys),
        *(store.root / kind / f"{key}.jsonl" for kind in ("scores", "similarity") for key in keys),
        store.root / "scores" / "baselines.jsonl",
    ]
    return (path for path in places if not is_missing(path))


def _refuse_unended(config: RunConfig, store: Store, held: dict[str, bytes]) -> None:
    """Raise ResultsError for a run that is done and lacks a stage's records, which the study has not either."""
    for index, key in enumerate(recorded_stages(config, store)):
        if not store.stage_done(key) and f"stages/{key}/records.jsonl" not in held:
            raise ResultsError(f"{config.id}: its stage {index} did not end: collect finished runs alone")


def _refuse_other_weights(name: str, held: dict[str, bytes], path: Path) -> None:
    if name in held and name.startswith("stages/"):
        before, now = (_weights(content) for content in (held[name], read_bytes(path, LARGEST_RECORDS)))
        if before != now:
            raise ResultsError(
                f"{path}: the stage came to weights {now}, the study holds a record with {before}"
                ": remove one of the two"
            )


def _weights(content: bytes) -> str | None:
    lines = filter(None, map(decode, reversed(content.splitlines())))
    return next((line.get("weights") for line in lines if line["kind"] == "done"), None)


def _compare(committed: Path, rendered: Path) -> int:
    """Raises ResultsError for the first table that differs; returns how many there are."""
    ours, theirs = (
        {path.relative_to(root): path for path in sorted(root.rglob("*")) if path.suffix in RENDERED}
        for root in (committed, rendered)
    )
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            what = (
                "the records give no such table: remove it" if name in ours else "is missing: render the report again"
            )
            raise ResultsError(f"{committed / name}: {what}")
        if read_bytes(ours[name]) != read_bytes(theirs[name]):
            raise ResultsError(f"{committed / name}: the records give another table; render it again, edit nothing")
    return len(ours)


def _render(suites: Suites, store: Store, out: Path, write_report: RenderReport) -> None:
    with contextlib.redirect_stdout(io.StringIO()):  # it shows its tables
        for suite, configs in suites:
            write_report([(suite, configs)], store.root, out)
            made_on = hardware(load_runs(store.root, suite.name))
            with whole_file(out / suite.name / HARDWARE) as file:
                file.write(made_on.encode())
            (out / suite.name / PAGE).unlink()  # a megabyte of the same scripts each; `report` on the records makes it


def _hash_of(store: Store, key: str) -> str | None:
    return store.last_of_stage(key, "done").get("done", {}).get("weights")


def _trained_on(store: Store, key: str) -> str:
    return machine(cast(StageLine, store.last_of_stage(key)["stage"]))


def _members(archive: Path) -> dict[str, bytes]:
    try:
        plain = io.BytesIO()
        for chunk in chunks(archive):  # held against its checksum, and against what would expand without end
            if plain.write(chunk) and plain.tell() > LARGEST:
                raise tarfile.TarError(f"it holds more than {LARGEST:,} bytes")
        size = plain.tell()
        plain.seek(0)
        with tarfile.open(fileobj=plain, mode="r:") as tar:
            files = [one for one in tar.getmembers() if one.isreg()]
            if sum(one.size for one in files) > size:  # of holes, which take no room in an archive
                raise tarfile.TarError("its files are larger than itself")
            return {one.name: cast(IO[bytes], tar.extractfile(one)).read() for one in files}
    except DataError as error:
        raise ResultsError(f"{error}, or restore it from a copy") from None
    except (OSError, EOFError, tarfile.TarError) as error:
        raise ResultsError(f"{archive} is no archive of records ({error}): restore it from a copy") from None


def _write(archive: Path, members: dict[str, bytes]) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, content in sorted(members.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with whole_file(archive) as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
        packed.write(plain.getvalue())
