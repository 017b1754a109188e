"""A study's folder, with all that others need to check it: suites, records of finished runs, and the report on them.

    FOLDER/SUITE.toml                  its suites
    FOLDER/records/SUITE-sSEED.tar.gz  the records of the finished runs of one seed, laid out as below `--runs`
    FOLDER/report/                     what `report` renders from these records, and `hardware.md` of each suite

The text itself is not there: records hold its sha256. Archives of the same records are the same bytes.
"""

from __future__ import annotations

import contextlib
import gzip
import html
import io
import json
import os
import re
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

from benchmark import records
from benchmark.data.documents import DataError
from benchmark.data.files import chunks
from benchmark.files import LARGEST_RECORDS, is_missing, naming, read_bytes, read_text, whole_file
from benchmark.jobs.payloads import RenderReport, TrainRun
from benchmark.jobs.study_checks import ResultsError, check, hardware, machine
from benchmark.jobs.study_lock import alone
from benchmark.record_checks import decode
from benchmark.record_lines import StageLine
from benchmark.records import RunRecords, load_runs
from benchmark.settings.suite import RunConfig, Suite, Suites
from benchmark.store import Store, recorded_stages
from benchmark.training.method import Build

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
    return Opened(f"{place.called} (records in {shown(folders[0])})", Path(folders[0]), files)


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

    Of the records see `benchmark.jobs.study_checks`; the report is what they give. Raises ResultsError or ConfigError
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
