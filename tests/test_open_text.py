"""The text that anybody can build: pinned archives, readers, copies, halves, checksums."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import random
import tarfile
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import methods
from tests.support.source_tree import ROOT

FOLDER = ROOT / "results" / "open_text"
METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: 1.0\nLicense: {}\n"
LICENCES = {"alpha": "MIT", "beta": "Zlib"}
TABLE = """
[sizes]
train = { small = 1_500, large = 50_000 }
valid = 50_000
dated_train = 50_000
dated_valid = 700

[domains.code]
read = "source"
files = '\\.py$'
skip = '^docs/'
each = 50_000
train = ["alpha"]
valid = ["beta"]

[domains.words]
read = "translations"
files = '\\.po$'
each = 50_000
train = ["alpha"]
valid = ["beta"]

[dated]
read = "releases"
files = '^CHANGES'
each = 50_000
periods = [[2001, 2002], [2003, 2004]]
train = ["alpha"]
"""


@pytest.fixture
def build_text(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("build_text")


def make_prose(name: str, words: int = 60) -> str:
    """Random words, drawn with the name as the seed, so that other names have other words."""
    chance = random.Random(name)
    return " ".join("".join(chance.choices("abcdefghij", k=6)) for _ in range(words))


def make_archive(package: str, files: dict[str, str], folder: Path) -> str:
    """Write a source archive and its page in an index. Returns its entry in the table."""
    name = f"{package}-1.0.tar.gz"
    path = folder / package / name
    path.parent.mkdir(parents=True)
    files = {**files, "PKG-INFO": METADATA.format(package, LICENCES[package])}
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            member = tarfile.TarInfo(f"{package}-1.0/{file}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo(f"{package}-1.0/link.py")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        archive.addfile(link)
    path.with_name("index.html").write_text(f'<a href="{name}#md5=0">{name}</a>')
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return (
        f'[[archives]]\npackage = "{package}"\nversion = "1.0"\nfile = "{name}"\n'
        f'sha256 = "{sha256}"\nlicence = "{LICENCES[package]}"\n'
    )


@pytest.fixture
def table(tmp_path):
    """A table of two packages, whose files have copies of each other, and their index."""
    texts = {name: make_prose(name) for name in "abcdefgh"}
    changes = ["Changes", f"1.3 (2003-05-06)\n---\n\n{texts['e']}"]
    changes += [f"1.2 (2002-03-04)\n---\n\n{texts['f']}", f"1.1\n===\n\n{texts['g']}"]
    changes += [f"1.0 (Jan 2, 2001)\n---\n\n{texts['h']}"]
    alpha = {f"src/{name}.py": texts[name] for name in "abc"}
    alpha["src/copy.py"] = texts["a"].upper().replace(" ", "\n")
    alpha["src/near.py"] = texts["b"] + " one word more"
    alpha["src/valid.py"] = texts["d"]
    alpha["src/head.py"] = f"# Copyright of somebody\n\n{make_prose('head')}"
    alpha["src/tiny.py"] = "x"
    alpha["src/long.py"] = alpha["src/again.py"] = " ".join(letter * 90 for letter in "abcd")
    alpha["docs/skipped.py"] = make_prose("skipped")
    alpha["CHANGES.rst"] = "\n\n".join(changes)
    messages = ["head", texts["a"], "", "", texts["b"]]
    alpha["po/de.po"] = "\n".join(f'msgid "x"\nmsgstr "{message}"\n' for message in messages)
    beta = {"src/d.py": texts["d"], "src/more.py": make_prose("more")}
    index = tmp_path / "index"
    entries = [make_archive(*pair, index) for pair in (("alpha", alpha), ("beta", beta))]
    path = tmp_path / "sources.toml"
    path.write_text(TABLE + "\n".join(entries))
    return SimpleNamespace(path=path, index=index.as_uri(), texts=texts)


def build(build_text, table, folder: Path, *options: str) -> int:
    arguments = [str(folder), "--index", table.index, "--sources", str(table.path), *options]
    return build_text.main(arguments)


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_domain_has_each_text_once_in_one_half(build_text, table, tmp_path):
    """Oracle: by hand: validation has the two texts of its package. Training has the texts of the
    other package that are no copy, no near copy, not in validation and not tiny. Copyright headers
    and messages without a translation are removed.
    """
    assert build(build_text, table, tmp_path / "out", "--record") == 0
    folder = tmp_path / "out" / "code"
    large = read(folder / "train_large.jsonl")
    valid = read(folder / "valid.jsonl")
    assert {line["text"] for line in valid} == {table.texts["d"], make_prose("more")}
    kept = {line["place"]: line["text"] for line in large}
    assert kept.pop("src/head.py") == make_prose("head")
    assert len(kept.keys() & {"src/a.py", "src/copy.py"}) == 1
    assert len(kept.keys() & {"src/b.py", "src/near.py"}) == 1
    assert len(kept.keys() & {"src/long.py", "src/again.py"}) == 1
    pairs = {f"src/{name}.py" for name in ("a", "copy", "b", "near", "long", "again")}
    assert kept.keys() - pairs == {"src/c.py"}
    (words,) = read(folder.with_name("words") / "train_large.jsonl")
    assert words["text"].split("\n") == [table.texts["a"], table.texts["b"]]
    small = read(folder / "train_small.jsonl")
    assert 0 < len(small) < len(large) and small == large[: len(small)]


def test_a_release_is_in_the_period_of_its_date(build_text, table, tmp_path):
    """Oracle: the dates in the change log. 1.1 has none and belongs to the release above it."""
    assert build(build_text, table, tmp_path / "out", "--record") == 0
    found = {}
    for period in ("2001_2002", "2003_2004"):
        for half in ("train", "valid"):
            for line in read(tmp_path / "out" / "dated" / period / f"{half}.jsonl"):
                assert line["period"] == period and line["date"] not in found
                found[line["date"]] = line["text"]
    assert found.keys() == {"2001-01-02", "2002-03-04", "2003-05-06"}
    assert all(table.texts[name] in found["2002-03-04"] for name in "fg")


def test_the_same_bytes_come_twice(build_text, table, tmp_path, capsys):
    """Oracle: an identity: a second build has the same bytes, and the checksums that the first one
    recorded. Another checksum in the record is an error that names the file.
    """
    first = tmp_path / "first"
    second = tmp_path / "second"
    assert build(build_text, table, first, "--record") == 0
    assert build(build_text, table, second) == 0
    files = [path.relative_to(first) for path in first.rglob("*.jsonl")]
    assert len(files) == 10
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)
    record = table.path.with_name("built.json")
    built = json.loads(record.read_text())
    built["code/valid.jsonl"]["sha256"] = "0" * 64
    record.write_text(json.dumps(built))
    assert build(build_text, table, second) == 2
    assert "code/valid.jsonl" in capsys.readouterr().err


def test_another_archive_is_refused(build_text, table, tmp_path, capsys):
    """Oracle: by hand: a changed checksum, a truncated file, and a name that the index lacks. The
    error names the file, and the cure if there is one. Nothing is built.
    """
    pinned = table.path.read_text()
    sha256 = hashlib.sha256((tmp_path / "index/alpha/alpha-1.0.tar.gz").read_bytes()).hexdigest()
    table.path.write_text(pinned.replace(sha256, "0" * 64))
    assert build(build_text, table, tmp_path / "out", "--record") == 2
    error = capsys.readouterr().err
    assert "alpha-1.0.tar.gz" in error and "0" * 64 in error and "--index" in error
    assert not list((tmp_path / "out").rglob("*.jsonl"))
    table.path.write_text(pinned)
    kept = tmp_path / "kept" / "archives" / "alpha-1.0.tar.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"torn")
    assert build(build_text, table, tmp_path / "kept", "--record") == 2
    error = capsys.readouterr().err
    assert str(kept) in error and sha256 in error and "delete" in error
    table.path.write_text(pinned.replace("alpha-1.0.tar.gz", "alpha-2.0.tar.gz"))
    assert build(build_text, table, tmp_path / "other", "--record") == 2
    assert "alpha-2.0.tar.gz" in capsys.readouterr().err


def test_a_licence_is_that_of_the_metadata(build_text, table, tmp_path, capsys):
    """Oracle: a changed or empty licence in the table is an error that names the metadata's."""
    right = table.path.read_text()
    for wrong in ('"GPL"', '""'):
        table.path.write_text(right.replace('"Zlib"', wrong))
        assert build(build_text, table, tmp_path / "out", "--record") == 2
        error = capsys.readouterr().err
        assert "'Zlib'" in error and wrong.replace('"', "'") in error


def test_a_licence_that_no_metadata_names_stands_in_the_table(
    build_text, table, tmp_path, capsys, monkeypatch
):
    """Oracle: by hand: with empty metadata the table's licence is taken, and "" is an error."""
    monkeypatch.setattr(build_text, "read_licence", lambda metadata: "")
    assert build(build_text, table, tmp_path / "out", "--record") == 0
    table.path.write_text(table.path.read_text().replace('"Zlib"', '""'))
    assert build(build_text, table, tmp_path / "other", "--record") == 2
    assert "beta-1.0.tar.gz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reader", "text", "parts"),
    [
        ("descriptions", '{"a": [{"description": "<p>One &c.</p>\\n two"}]}', ["One &c. two"]),
        ("descriptions", '"""Gets x.\n  :return: y"""\n"""Sets the x."""', ["Gets x."]),
        (
            "translations",
            'msgid ""\nmsgstr ""\n"head\\n"\n\nmsgid "a"\nmsgstr "ein \\"A\\""\n\n'
            'msgid "b"\nmsgid_plural "bs"\nmsgstr[0] "ein "\n"B"\nmsgstr[1] "viele B"\n',
            ['ein "A"', "ein B", "viele B"],
        ),
        ("source", "/* Copyright x */\n// SPDX: y\nint x; // licence\n", ["int x; // licence"]),
        (
            "releases",
            "ancestor: null\nreleases:\n  1.0.0:\n    changes:\n      minor:\n      - one\n"
            "    fragments:\n    - f.yml\n    release_date: '2020-02-03'\n",
            ["1.0.0:\n    changes:\n      minor:\n      - one"],
        ),
        ("releases", "Since 2020-01-02 no heading.\nOn 2020-01-02 and\n- 2020-01-02", []),
    ],
)
def test_readers_find_what_a_person_reads(build_text, reader, text, parts):
    """Oracle: by hand."""
    assert [part.text for part in build_text.READERS[reader].read(text)] == parts


def test_the_page_names_each_source_and_its_licence(build_text):
    """Oracle: the table that the text is built from."""
    sources = msgspec.toml.decode((FOLDER / "pins" / "sources.toml").read_bytes())
    rows = (FOLDER / "README.md").read_text().splitlines()
    for archive in sources["archives"]:
        assert archive["licence"], archive
        assert any(
            row.startswith(f"| {archive['package']} {archive['version']} | {archive['licence']} |")
            for row in rows
        ), archive
    used = {*sources["dated"]["train"]}
    for domain in sources["domains"].values():
        used |= {*domain["train"], *domain.get("valid", [])}
    assert used == {archive["package"] for archive in sources["archives"]}


def test_what_was_built_is_recorded_where_the_command_looks(build_text):
    """Oracle: the files that the study's suites read, each of which the record names."""
    record = FOLDER / "pins" / "sources.toml"
    built = json.loads(record.with_name("built.json").read_text())
    for suite in ("small.toml", "dated.toml"):
        for domain in msgspec.toml.decode((FOLDER / suite).read_bytes())["domains"]:
            for file in (*domain["train"], *domain["valid"]):
                assert file.removeprefix("../../data/open_text/") in built


def test_a_row_of_the_board_is_no_row_of_another_suite(tmp_path):
    """Oracle: the runs of each suite without the row: suites that extend the board's name their own
    rows.
    """
    for suite in FOLDER.glob("*.toml"):
        (tmp_path / suite.name).write_bytes(suite.read_bytes())
    before = {suite.name: len(runs) for suite, runs in methods.load_study_runs(tmp_path)}
    board = tmp_path / "small.toml"
    row = 'rows = [{ name = "Naive again", method = "naive" }]\n\n[tokenizer]'
    board.write_text(board.read_text().replace("[tokenizer]", row))
    after = {suite.name: len(runs) for suite, runs in methods.load_study_runs(tmp_path)}
    assert after == {**before, "small": before["small"] + 5}
