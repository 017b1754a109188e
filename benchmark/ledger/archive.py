"""Archives of the records in a study's folder, and how they are written and read.

    FOLDER/records/SUITE-sSEED.tar.gz  records of the finished runs of one seed, as below `--runs`

They do not contain the text itself, only its SHA-256. Archives of the same records have the same
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
PLAN_COMMIT = "plan_commit"  # in an archive: the plan's commit when the archive was begun
Archives = dict[Path, dict[str, bytes]]  # the content of each file of each archive


class ResultsError(UserError):
    """A study's folder does not contain what it should contain."""


def check_suites(folder: Path, suites: Suites, names: Collection[str]) -> None:
    """Raise ResultsError for a name that no suite of the study has.

    Nobody would read the records of such a suite.
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

    Lines that an archive has stay as they are, and later lines of the same files are added.
    `examples` maps each task that was scored here to the key of its examples. The returned lines
    count the stages that an archive had already, by how the weights here compare with its own.
    Raises ResultsError if they differ by more than rounding, or if a run has other stages than in
    the archive.
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

    Returns "" without a plan or git. Raises ResultsError if the plan has uncommitted changes.
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
    """Whether a run has recorded its end, and all its stages are done."""
    lines = ledger.store.read_run(config)
    if not lines or not isinstance(lines[-1], records.RunDone):
        return False  # this needs no text, which may not be here
    run = ledger.view(config)
    return run.has_begun and run.finished == len(config.domains)


def _list_files(config: RunConfig, store: Store) -> Iterator[Path]:
    """All files below `--runs` with records of a finished run."""
    run = records.find_last(store.read_run(config), records.RunLine)
    stages = run.stages if run else []
    keys = [key for key in stages if store.is_stage_done(key)]
    paths = [
        store.run_file(config),
        *map(store.stage_file, keys),
        *map(store.scores_file, keys),
        *map(store.similarity_file, keys),
        store.scores_file("baselines"),
    ]
    if run and run.start:
        paths.append(store.start_file(run.start))
    return (path for path in paths if path.exists())


def _merge_file(archive: Path, path: Path, old_content: bytes) -> bytes:
    """The new content of a file in an archive: its old lines, then the lines that came later.

    If a run's file was written again, the archive keeps the old content. If a stage was trained
    again, only its later measures are added. Raises ResultsError if the run has other stages.
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
    """In words, how the weights of a stage below `--runs` compare with the archive's.

    Raises ResultsError if they differ by more than rounding.
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
    """The old content, then the lines of `content` that it lacks.

    If a stage's file has old content, only its lines of kind "later" are added.
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
    """In words, the weights that a stage's file records, or the stages of a run's file.

    Returns "" for other files, which only grow.
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
    """Write the records of a study, or only of these suites, to `into` as a folder of `--runs`.

    Raises ResultsError for an archive that cannot be read.
    """
    return lay_out(read_archives(folder), into, suites)


def read_archives(folder: Path) -> Archives:
    """The archives of a study, in the order of their names."""
    return {path: read_archive(path) for path in sorted((folder / RECORDS).glob("*.tar.gz"))}


def lay_out(archives: Archives, into: Path, suites: Collection[str]) -> Store:
    """Write the files in the archives of these suites, with measures that other archives add.

    Without names it writes the files of all suites. Two kinds of CPU train a stage to weights that
    differ in rounding, and then the archive of each suite has its own version of the stage. If
    several of these suites have it, the version of the last archive is written.
    """

    def is_asked_for(archive: Path) -> bool:
        return not suites or archive.name.rpartition("-s")[0] in suites

    names: set[str] = set()
    for archive, members in archives.items():
        if is_asked_for(archive):
            names |= members.keys()
    contents: dict[str, bytes] = {}
    # archives that are asked for come last, so that their versions of stages win
    for archive in sorted(archives, key=is_asked_for):
        for name, content in archives[archive].items():
            if name in names:
                old_content = contents.get(name, b"")
                contents[name] = _add_content(Path(name), old_content, content)
    # as a report says when runs were first collected, it needs the first archive's commit
    first_archive = next(filter(is_asked_for, archives), None)
    contents.pop(PLAN_COMMIT, None)
    if first_archive and PLAN_COMMIT in archives[first_archive]:
        contents[PLAN_COMMIT] = archives[first_archive][PLAN_COMMIT]
    for name, content in contents.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    store = Store(into)
    (into / "suites").mkdir(parents=True, exist_ok=True)
    store.archive_mark.touch()
    return store


def _add_content(path: Path, old_content: bytes, content: bytes) -> bytes:
    """A file's content, merged with the content that the next archive has for it.

    If they have different results, the next archive's content wins.
    """
    if path.suffix != ".jsonl":
        return content
    if old_content:
        old_result = _describe_result(path, old_content)
        if old_result != _describe_result(path, content):
            return content
    if path.name == records.STAGE_FILE:
        # the next archive's training wins, and gets the later measures of those before
        return _join_lines(path, content, old_content)
    # suites that share models share these files, and each suite adds its measures
    return _join_lines(path, old_content, content)


@contextlib.contextmanager
def open_suites(place: Path, suites: Collection[str] = ()) -> Iterator[dict[str, Path]]:
    """The folder with the records of each suite, by its name: of these, or of all with records.

    From a study's folder each suite is laid out by itself: two may share a stage that their CPUs
    trained to other weights. Raises ResultsError for a place without records of any suite.
    """
    if not (place / RECORDS).is_dir():
        names = suites or [path.name for path in sorted((place / "suites").glob("*/"))]
        if not names:
            raise ResultsError(
                f"{place}: no records; give a folder of --runs, or a study's as in results/"
            )
        yield dict.fromkeys(names, place)
        return
    archives = read_archives(place)
    names = suites or dict.fromkeys(archive.name.rpartition("-s")[0] for archive in archives)
    with tempfile.TemporaryDirectory() as scratch:
        yield {name: lay_out(archives, Path(scratch) / name, [name]).root for name in names}


def read_archive(archive: Path) -> dict[str, bytes]:
    """The content of each file in an archive, by name.

    Raises ResultsError for an archive that is damaged, or not ours.
    """
    try:
        # decompressed at once, because this compares the checksum
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
    """Write an archive whose bytes depend only on its members."""
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
