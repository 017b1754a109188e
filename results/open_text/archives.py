"""Source archives of the Python package index, pinned by file and sha256.

They are downloaded once and read in memory. Nothing of them is unpacked to the disk or run.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from email import message_from_bytes
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import URLError
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from benchmark.errors import UserError
from benchmark.files import hash_file, replace_file

INDEX = "https://pypi.org/simple"
PAGES = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
TIMEOUT = 120.0  # seconds without an answer
LARGEST_PAGE = 50_000_000  # bytes of an index page
LARGEST_ARCHIVE = 200_000_000  # bytes
LARGEST_CONTENT = 3_000_000_000  # bytes of all files of an archive
LARGEST_FILE = 8_000_000  # bytes of a file that is read
OSI = "License :: OSI Approved :: "


class Archive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source archive; its licence is in the words of its metadata."""

    package: str
    version: str
    file: str
    sha256: str
    licence: str


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if tag == "a" and address:
            self.addresses.append(address)


def find_index() -> str:
    """The index that pip is configured with, else the public one."""
    if index := os.environ.get("PIP_INDEX_URL"):
        return index
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or INDEX


def download(archive: Archive, folder: Path, index: str) -> Path:
    """The archive's file in `folder`, downloaded if it is not there.

    Raises UserError where the index lacks it, or its sha256 is another.
    """
    path = folder / archive.file
    if path.exists():
        _check(archive, str(path), hash_file(path), "delete it and try again")
        return path
    address = _find_address(archive, index)
    sha256 = hashlib.sha256()
    size = 0
    with replace_file(path) as file:
        for chunk in _read_chunks(address):
            size += len(chunk)
            if size > LARGEST_ARCHIVE:
                raise UserError(f"{address}: over {LARGEST_ARCHIVE:,} bytes: take a smaller one")
            sha256.update(chunk)
            file.write(chunk)
        cure = f"try again, or take another index (--index {INDEX})"
        _check(archive, address, sha256.hexdigest(), cure)
    return path


def _check(archive: Archive, place: str, sha256: str, cure: str) -> None:
    """Raises UserError for another sha256 than the archive's."""
    if sha256 != archive.sha256:
        raise UserError(
            f"{place}: its sha256 is {sha256}, that of {archive.file} in the table "
            f"{archive.sha256}: {cure}"
        )


def _read_chunks(address: str) -> Iterator[bytes]:
    try:
        with _open(address) as answer:
            while chunk := answer.read(2**20):
                yield chunk
    except (TimeoutError, ConnectionError, HTTPException) as error:
        raise UserError(f"{address}: {error!r}: try again") from None


def find_source_archives(package: str, index: str) -> dict[str, str]:
    """The addresses of a package's source archives, by the names of the files.

    Raises UserError.
    """
    page = f"{index.rstrip('/')}/{package}/"
    if page.startswith("file:"):
        page += "index.html"
    with _open(page) as answer:
        content = answer.read(LARGEST_PAGE)
        base = answer.geturl()
        is_json = "json" in (answer.headers.get("Content-Type") or "")
    if is_json:
        addresses = [file["url"] for file in json.loads(content)["files"]]
    else:
        links = _Links()
        links.feed(content.decode())
        addresses = links.addresses
    found = {}
    for address in addresses:
        name = PurePosixPath(unquote(urlsplit(address).path)).name
        if name.endswith(".tar.gz"):
            found[name] = urljoin(base, address)
    return found


def _find_address(archive: Archive, index: str) -> str:
    addresses = find_source_archives(archive.package, index)
    if archive.file not in addresses:
        raise UserError(
            f"{index}: no file {archive.file!r} of {archive.package!r}: give an index that has it "
            f"(--index {INDEX})"
        )
    return addresses[archive.file]


def _open(address: str):  # type: ignore[no-untyped-def]  # what urlopen returns has no public type
    request = urllib.request.Request(address, headers={"Accept": PAGES})
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except URLError as error:
        raise UserError(f"{address}: {error}: try again, or give another --index") from None


def read_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The name and content of each regular file of an archive, in its order.

    Names are without the archive's own folder. Links, devices and files over LARGEST_FILE are left
    out. Raises UserError where all files together are over LARGEST_CONTENT.
    """
    size = 0
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            size += member.size
            if size > LARGEST_CONTENT:
                raise UserError(f"{path}: its files are over {LARGEST_CONTENT:,} bytes: leave it")
            if member.isfile() and member.size <= LARGEST_FILE:
                file = archive.extractfile(member)
                if file is not None:
                    yield member.name.partition("/")[2], file.read()


def read_licence(metadata: bytes) -> str:
    """The licence that a package's metadata (PKG-INFO) names, else nothing.

    It is its expression, else what the Open Source Initiative calls it, else its first words.
    """
    message = message_from_bytes(metadata)
    if expression := message.get("License-Expression"):
        return str(expression)
    classifiers = [str(value) for value in message.get_all("Classifier", [])]
    names = [value.removeprefix(OSI) for value in classifiers if value.startswith(OSI)]
    if names:
        return ", ".join(names)
    return str(message.get("License") or "").split("\n")[0].strip()
