"""Files: written whole or not at all, read whole, and held against what was written."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import time
import uuid
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, Any, NoReturn, TypedDict

from benchmark.errors import UserError

NO_FILE = errno.EINVAL, errno.EISDIR, errno.ENXIO, errno.EAGAIN  # a device, a folder, a socket, a pipe
LARGEST = 2**28  # bytes of JSON, TOML or text that is read whole; the largest tokenizers have a tenth of it
LARGEST_RECORDS = 2**30  # bytes of a file of records: a line of an evaluation has a few thousand
WHOLE = (".json", ".txt", ".model", ".jinja")  # how files end that libraries read whole in a model's folder
_ENOUGH = 2**16  # bytes, which most files of records do not reach: one call reads them


class Refused(OSError):
    """What is no file, or too large for one. Unlike the system's errors it names its cure, and needs no second one."""


def expanded(path: str) -> Path:
    """A path in which `~` stands for a home. Raises Refused where no user has that name."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise Refused(errno.EINVAL, "no user of that name has a home here; correct the path", path) from None


def regular(path: Path) -> Path:
    """The path of a file. Raises Refused for that of a pipe; whoever opens it tells of what is missing, or a folder."""
    try:
        mode = path.stat().st_mode  # asked once: between two questions somebody may remove the file
    except (OSError, ValueError):
        return path
    if not (S_ISREG(mode) or S_ISDIR(mode)):
        _refuse(path)
    return path


def read_bytes(path: Path | str, largest: int = LARGEST) -> bytes:
    """A file's bytes, for who reads a hundred thousand small ones: `Path.read_bytes` takes half as long again.

    Raises OSError, for what is no file one whose `errno` is in NO_FILE, for more than `largest` bytes one of EFBIG;
    waits for no pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        parts = [os.read(descriptor, _ENOUGH)]
        if not 0 < len(parts[0]) < _ENOUGH:  # nothing, or perhaps without end
            status = os.fstat(descriptor)
            if not S_ISREG(status.st_mode):
                _refuse(path)
            _check_size(path, status.st_size, largest)
        size = len(parts[0])
        while part := os.read(descriptor, _ENOUGH):
            parts.append(part)
            size += len(part)
            _check_size(path, size, largest)  # of one that grows, too
        return b"".join(parts)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def read_text(path: Path | str, errors: str = "strict") -> str:
    """A file's text in UTF-8, with the line ends of Unix. Raises as `read_bytes` does, and UnicodeDecodeError."""
    return read_bytes(path).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, as `object_pairs_hook` of its reader. Raises ValueError for a key of two different values."""
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, value in pairs:
            if found[key] != value:  # readers take one or the other
                raise ValueError(f"{key!r:.60} stands twice in one object, with different values")
    return found


def bounded(path: Path, largest: int = LARGEST) -> Path:
    """The path of a file that a library reads whole. Raises OSError as `regular` and `read_bytes` do."""
    if (place := regular(path)).is_file():
        _check_size(path, place.stat().st_size, largest)
    return path


def is_missing(path: Path | str) -> bool:
    """Whether nothing lies at a path. Raises OSError for a file in the place of a folder, and for a link to nothing.

    Else what was written would be taken for what never was.
    """
    try:
        os.stat(path)  # not a Path's, which takes longer: a survey asks for tens of thousands
    except FileNotFoundError:
        place = str(path)
        for _ in range(3):  # it, its folder, and the one above, as far as these are not there either
            if os.path.islink(place) and not os.path.exists(place):
                raise OSError(errno.ENOENT, "a link to nothing; put a file in its place, or remove it", place) from None
            place = os.path.dirname(place)
            if os.path.exists(place):
                break
        return True
    return False


def names_in(folder: Path) -> list[str]:
    """What is in a folder; nothing without one. Raises OSError as `is_missing` does, and for a file in its place."""
    return [] if is_missing(folder) else os.listdir(folder)


def jsonl_files(folder: Path) -> list[Path]:
    """The JSON Lines files in a folder, sorted; none without one. Raises OSError where a glob would find nothing."""
    names = names_in(folder)
    return sorted(folder / name for name in names if name.endswith(".jsonl"))


def _check_size(path: Path | str, size: int, largest: int) -> None:
    if size > largest:
        raise Refused(
            errno.EFBIG,
            f"has {size:,} bytes, and such a file at most {largest:,}: restore it from a copy, or remove it",
            str(path),
        )


def _refuse(path: Path | str) -> NoReturn:
    raise Refused(
        errno.EINVAL, "no file but a pipe, a socket or a device; put a file in its place, or remove it", str(path)
    )


@functools.cache
def kernel() -> str:
    """What tells machines apart, and containers with numbers of processes of their own."""
    with contextlib.suppress(OSError):
        boot = read_text("/proc/sys/kernel/random/boot_id").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def lives(pid: int, since: int | None = None) -> bool:
    """Whether a process lives, one that started then: numbers are given again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    now = started(pid)
    return now is None or since is None or now == since


def started(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; -1 if it is dead and only waits for its parent to see it."""
    try:
        fields = read_text(f"/proc/{pid}/stat", "replace").rpartition(") ")[2].split()
    except OSError:
        return None
    return -1 if fields[0] in "ZX" else int(fields[19])


# what is being written: its name, the machine, number and start of the process that writes, and something random
_WRITTEN = re.compile(r"\.(.+)\.([0-9a-f]{8})([0-9a-f]{6})([0-9a-f]{10})[0-9a-f]{8}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the disk that name no file name this one: a full disk must be found.

    Libraries in Rust (safetensors, tokenizers) raise exceptions of their own, and say the error's number in words,
    and the name of a file of theirs where they could not begin one.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:
        said = re.search(r"\(os error (\d+)\)( at path \".*\")?$", str(error))
        if not said:
            raise
        raise OSError(int(said[1]), os.strerror(int(said[1])), str(path)) from error


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which replaces `path` once the block has ended without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_of(path)
    beside = _beside(path)
    try:
        with naming(path):
            with beside.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, content: Any, indent: int | None = None) -> None:
    with whole_file(path) as file:
        file.write(json.dumps(content, indent=indent).encode())


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which replaces `folder` once the block has ended without an error."""
    _sweep_of(folder)
    beside = _beside(folder)
    beside.mkdir(parents=True)
    try:
        with naming(folder):
            yield beside
        mode = beside.stat().st_mode
        for path in (*beside.rglob("*"), beside):
            _share_as(mode, path)
            sync(path)
        if folder.exists():  # a folder cannot be replaced in one step: the old one is moved aside first
            old = _beside(folder)
            os.replace(folder, old)
            os.replace(beside, folder)
            remove(old)
        else:
            os.replace(beside, folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _share_as(mode: int, path: Path) -> None:
    """Let those read and write a file whom the folder's mode, which is made by the umask, lets into the folder.

    safetensors gives a file to its user alone, whatever the umask.
    """
    status = path.lstat()
    if stat.S_ISREG(status.st_mode) and (lacking := mode & 0o666 & ~status.st_mode):
        with contextlib.suppress(PermissionError):  # a file system without modes
            path.chmod(stat.S_IMODE(status.st_mode) | lacking)


LEFT = 3600.0  # seconds after which nobody writes a file of a report any more


def sweep(folder: Path, older: float = 0.0) -> None:
    """Remove what writers that were killed have left in a folder.

    With `older` others may write there: then only what a process of this machine left that is dead, and what another
    machine's did so many seconds ago.
    """
    for path in folder.glob(".*." + 32 * "[0-9a-f]"):
        with contextlib.suppress(FileNotFoundError):  # another process has swept it, or ended its writing
            dead = _is_left(path.name) if older else True
            if dead or (dead is None and time.time() - path.stat().st_mtime >= older):
                _remove_any(path)


def _sweep_of(path: Path) -> None:
    """Remove what killed processes of this machine have left of this file or folder, and would for good."""
    with contextlib.suppress(OSError):  # it is in nobody's way
        for one in os.scandir(path.parent):
            if one.name.startswith(f".{path.name}.") and _is_left(one.name, path.name):
                _remove_any(path.with_name(one.name))


def _is_left(name: str, of: str | None = None) -> bool | None:
    """Whether that is what a dead process wrote, of the file `of` if one is given; None where this one cannot tell."""
    found = _WRITTEN.fullmatch(name)
    if not found or of not in (None, found[1]) or found[2] != _machine():
        return None
    return not lives(int(found[3], 16), int(found[4], 16) or None)


def _remove_any(path: Path) -> None:
    if path.is_dir():
        remove(path)
    else:
        path.unlink()


def remove(folder: Path) -> None:
    """Remove a folder with all in it. An error names it: the library names a file without its folder."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _beside(path: Path) -> Path:
    since = started(os.getpid()) or 0
    return path.with_name(f".{path.name}.{_machine()}{os.getpid():06x}{since:010x}{uuid.uuid4().hex[:8]}")


@functools.cache
def _machine() -> str:
    return f"{zlib.crc32(kernel().encode()):08x}"


def sync(path: Path) -> None:
    """A crash of the machine must not leave an empty file under the final name, nor lose the name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):  # some file systems sync files only
            raise
    finally:
        os.close(descriptor)


CHECKSUMS = "checksums.json"
NOT_READ = {CHECKSUMS, "README.md"}  # people edit the latter, and nothing is computed from it
PART = 2**22  # bytes read at once
SEAL = "crc32"  # the field of a JSON file that guards the others


class DamagedFile(UserError):
    """A file that is not what was written: its name, what is wrong, and the cure."""


class FileChecksum(TypedDict):
    """What a file must be."""

    bytes: int
    crc32: str  # eight hexadecimal digits


def write_checksums(folder: Path) -> None:
    """Write down what the files in `folder` are now, at any depth. It replaces what was written down before."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in NOT_READ)
    found = {
        path.relative_to(folder).as_posix(): FileChecksum(bytes=path.stat().st_size, crc32=_crc32(path))
        for path in files
    }
    write_json(folder / CHECKSUMS, found, indent=1)


def check_checksums(folder: Path, cure: str, sizes_alone: Collection[str] = (), named: Collection[str] = ()) -> None:
    """Hold the files in `folder` against what `write_checksums` wrote down; of `sizes_alone` no more than the size.

    Files that must be among those that were written down are `named`.

    A process reads each file once, unless it changes meanwhile. A snapshot of the Hub is held against the names of its
    files (`check_snapshot`). Of another folder without checksums, of an earlier version or of other people's software,
    nothing is said. Raises DamagedFile.
    """
    only_files(folder)
    path = folder / CHECKSUMS
    if not path.exists():
        check_snapshot(folder)
        return
    known = _read(path, cure)
    if not known.keys() >= set(named):
        raise DamagedFile(f"{path} is damaged: {cure}")
    for name, one in known.items():
        file, size = folder / name, one["bytes"]
        if not file.is_file():
            raise DamagedFile(f"{file} is missing: {cure}")
        now = file.stat()
        if now.st_size != size:
            raise DamagedFile(f"{file} has {now.st_size:,} bytes instead of {size:,}: {cure}")
        if name not in sizes_alone and _crc32_once(file, now.st_mtime_ns, now.st_ino) != one["crc32"]:
            raise DamagedFile(f"{file} is damaged (its checksum is another): {cure}")


def only_files(folder: Path) -> None:
    """Raise DamagedFile for what is neither a file nor a folder in a folder, not deeper, or in its place.

    Likewise for a file that is too large to be read whole, as its name says that it will be. Libraries open what a
    model's folder holds by names of their own, and a pipe waits for ever.
    """
    try:
        if regular(folder).is_dir():
            for inside in sorted(os.scandir(folder), key=lambda one: one.name):
                if not inside.is_file(follow_symlinks=False) and not inside.is_dir(follow_symlinks=False):
                    regular(Path(inside.path))
                if inside.name.endswith(WHOLE):
                    bounded(Path(inside.path))
    except OSError as error:
        raise DamagedFile(f"{error.filename}: {error.strerror}") from None


def _read(path: Path, cure: str) -> dict[str, FileChecksum]:
    """What `write_checksums` wrote down. Raises DamagedFile for what it does not: of no files, all would be right."""
    import msgspec  # here, for --help has no packages

    try:
        known = msgspec.json.decode(read_bytes(path), type=dict[str, FileChecksum])
    except (msgspec.DecodeError, ValueError, RecursionError):
        known = {}
    if not known or not all(one["bytes"] >= 0 and re.fullmatch("[0-9a-f]{8}", one["crc32"]) for one in known.values()):
        raise DamagedFile(f"{path} is damaged: {cure}")
    return known


def check_snapshot(folder: Path, without: str = "") -> None:
    """Hold the files of a Hub snapshot, without those that end so, against the digests that name what they link to.

    The Hub's cache calls a large file by its SHA-256, another by the SHA-1 that git has for it. Another folder has no
    such links, and nothing is said of it. Raises DamagedFile.
    """
    for path in sorted(folder.glob("*")):
        blob = path.resolve()
        if blob.parent.name != "blobs" or (without and path.name.endswith(without)) or not blob.is_file():
            continue
        now = blob.stat()
        if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob.name) and blob.name != _digest_once(
            blob, now.st_mtime_ns, now.st_ino
        ):
            cure = f"remove {blob.parents[1]}, and `run_all.py prepare` fetches it again"
            raise DamagedFile(f"{path} is damaged (its digest is not {blob.name}): {cure}")


def sha256(files: Sequence[Path]) -> str:
    """A hash of files and their names; a process reads them once, unless one changes meanwhile."""
    stats = [path.stat() for path in files]
    return _sha256_once(tuple(files), tuple((stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats))


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a JSON file with a field more, which guards the others."""
    return {**content, SEAL: _seal_of(content)}


def unseal(path: Path, cure: str) -> dict[str, Any]:
    """What `seal` was given, from a JSON file; one of an earlier version has no seal. Raises DamagedFile."""
    try:
        found: dict[str, Any] = json.loads(read_text(path))
        seal = found.pop(SEAL, None)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise DamagedFile(f"{path} is damaged: {cure}") from None
    if seal is not None and seal != _seal_of(found):
        raise DamagedFile(f"{path} is damaged (its checksum is another): {cure}")
    return found


def _seal_of(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def _crc32(path: Path) -> str:
    total = 0
    with path.open("rb") as file:
        while part := file.read(PART):
            total = zlib.crc32(part, total)
    return f"{total:08x}"


@functools.lru_cache(maxsize=4096)
def _digest_once(blob: Path, changed: int, inode: int) -> str:
    """The digest that the Hub's cache would name the content of a file by, of the kind of its present name."""
    total = hashlib.sha256() if len(blob.name) == 64 else hashlib.sha1(b"blob %d\0" % blob.stat().st_size)
    with blob.open("rb") as file:
        while part := file.read(PART):
            total.update(part)
    return total.hexdigest()


@functools.lru_cache(maxsize=16)
def _sha256_once(files: tuple[Path, ...], now: tuple[tuple[int, int, int], ...]) -> str:
    """The hash of files of these sizes, times of change and inodes."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while part := file.read(PART):
                total.update(part)
        total.update(path.name.encode())
    return total.hexdigest()


@functools.lru_cache(maxsize=4096)
def _crc32_once(path: Path, changed: int, inode: int) -> str:
    """The checksum of a file that was last changed at `changed`, in nanoseconds."""
    return _crc32(path)
