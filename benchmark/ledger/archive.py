"""Archives of records: what a study's folder holds of its runs, and how they are read again.

    FOLDER/records/SUITE-sSEED.tar.gz  records of the finished runs of one seed, as below `--runs`

The text itself is not there, as records hold its sha256. Archives of the same records are the same
bytes.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import subprocess
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from benchmark.errors import UserError
from benchmark.files import replace_file
from benchmark.ledger import records, trained_again
from benchmark.ledger.ledger import Ledger
from benchmark.ledger.store import Store
from benchmark.settings.suite import RunConfig, Suite, Suites

RECORDS = "records"
PLAN = "plan.md"  # of a study
PLAN_COMMIT = "plan_commit"  # in an archive: the commit of the plan when it was begun
Archives = dict[Path, dict[str, bytes]]  # the content of each file of each archive


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
    suite: Suite,
    configs: Sequence[RunConfig],
    ledger: Ledger,
    examples: Mapping[str, str],
    folder: Path,
) -> list[str]:
    """Add the records of the suite's finished runs to the study in `folder`.

    What an archive holds already stays as it is, and what came later to its files is added.
    `examples` has the key of the examples of each task that was scored here. Returns a line for
    each way in which stages came to what the study holds of them. Raises ResultsError where a stage
    was trained again and came to weights that differ by more than rounding, or a run to other
    stages.
    """
    store = ledger.store
    outcomes: dict[str, str] = {}  # by stage
    for seed in sorted({config.seed for config in configs}):
        archive = folder / RECORDS / f"{suite.name}-s{seed}.tar.gz"
        old_members = read_archive(archive) if archive.exists() else {}
        members = dict(old_members)
        for config in configs:
            if config.seed != seed or not _has_ended(config, ledger):
                continue
            for path in _list_files(config, store):
                name = path.relative_to(store.root).as_posix()
                if path.name == records.STAGE_FILE and name in old_members:
                    outcomes[path.parent.name] = _compare_files(archive, path, old_members[name])
                members[name] = _merge_file(archive, path, members.get(name, b""))
        if members and examples:
            name = store.examples_file(suite.name).relative_to(store.root).as_posix()
            members[name] = json.dumps({**examples}, sort_keys=True).encode()
        plan_commit = "" if old_members else find_plan_commit(folder)
        if members and plan_commit:
            members[PLAN_COMMIT] = plan_commit.encode()
        if members != old_members:
            write_archive(archive, members)
    counts = Counter(outcomes.values())
    return [
        f"{suite.name}: stages held already, {outcome}: {count}"
        for outcome, count in counts.items()
    ]


def find_plan_commit(folder: Path) -> str:
    """The commit and date of the last change of a study's plan.

    Empty without a plan or git. Raises ResultsError where the plan has changes that no commit
    holds.
    """
    plan = folder / PLAN
    if not plan.exists():
        return ""

    def ask_git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments, "--", PLAN]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        changes = ask_git("status", "--porcelain")
        commit = ask_git("log", "-1", "--format=%H of %cs")
    except (OSError, subprocess.SubprocessError):
        return ""
    if changes:
        raise ResultsError(
            f"{plan}: it differs from its last commit: commit the plan first, as records name it"
        )
    return commit


def _has_ended(config: RunConfig, ledger: Ledger) -> bool:
    """Whether a run has said that it ended, and all its stages are done."""
    lines = ledger.store.read_run(config)
    if not lines or not isinstance(lines[-1], records.RunDone):
        return False  # whether its text is here or not
    run = ledger.view(config)
    return run.has_begun and run.finished == len(config.domains)


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
    recorded_lines = records.parse(old_content, records.STAGE, path)
    comparison = trained_again.compare_stages(lines, recorded_lines)
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
        done = records.find_last(stage_lines, records.StageDone)
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
    return {path: read_archive(path) for path in sorted((folder / RECORDS).glob("*.tar.gz"))}


def lay_out(archives: Archives, into: Path, suites: Collection[str]) -> Store:
    """Write what the archives of these suites hold, and what others measured of it later.

    Without names it writes those of all suites. Two kinds of CPU train a stage to weights that
    differ in rounding. Then each suite has the stage that was trained for it. If suites with
    different ones are asked for together, the last archive's is written.
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


def read_archive(archive: Path) -> dict[str, bytes]:
    """The content of each file in an archive, by name.

    Raises ResultsError for an archive that is damaged, or not ours.
    """
    try:
        # as a whole, which is held against its checksum
        plain = gzip.decompress(archive.read_bytes())
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as tar:
            members = [tarfile.data_filter(member, str(archive.parent)) for member in tar]
            files = [member for member in members if member.isreg()]
            contents = {}
            for file in files:
                contents[file.name] = cast(IO[bytes], tar.extractfile(file)).read()
            return contents
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


def write_archive(archive: Path, members: dict[str, bytes]) -> None:
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
