"""Where text comes from: what is found, what is skipped and counted, and errors with their cure."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import json
import os
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest
import zstandard

from benchmark.data import corpus, docstrings, documents
from benchmark.data.documents import DataError, Document
from benchmark.settings.texts import Domain, HubDataset


def read(domain: Domain, valid_share: float = 0.1) -> tuple[list[Document], Counter[str]]:
    skipped: Counter[str] = Counter()
    return list(corpus.read(domain, valid_share, skipped)), skipped


def domain(*train: Path, valid: tuple[Path, ...] = (), **more: Any) -> Domain:
    return Domain(name="own", train=tuple(map(str, train)), valid=tuple(map(str, valid)), **more)


def texts(docs: list[Document], split: str = "") -> list[str]:
    return [document.text for document in docs if document.split == split or not split]


def json_lines(*lines: object) -> bytes:
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


def pack(content: bytes, name: str) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(content)
    return zstandard.compress(content) if name.endswith(".zst") else content


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(content, path.name))
    return path


TEXTS = [
    "plain",
    "Zürich, 東京, 🙂, \u0000, <s></s>",
    " kept \r\n as it is\t\n",
    "line\u2028separator",
    "a\nb",
]


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 100, 2**18])
def test_json_lines_and_text_come_back_as_they_were(
    tmp_path, monkeypatch, packing: str, chunk: int
) -> None:
    """Oracle: the texts that were written, whatever the size of the chunks that are read."""
    monkeypatch.setattr("benchmark.data.documents.CHUNK", chunk)
    lines = write(tmp_path / f"a.jsonl{packing}", json_lines(*({"text": text} for text in TEXTS)))
    assert texts(read(domain(lines))[0]) == TEXTS
    for number, text in enumerate(TEXTS):
        write(tmp_path / f"folder/{number}.txt{packing}", text.encode())
    assert texts(read(domain(tmp_path / "folder"))[0]) == TEXTS


def test_byte_order_mark_crlf_and_another_field(tmp_path) -> None:
    """By hand: two records with a `body`, in lines 1 and 3. The empty line is counted, and the byte
    order mark is no text.
    """
    path = write(
        tmp_path / "a.jsonl", b"\xef\xbb\xbf" + b'{"body": "one", "text": 3}\r\n\r\n{"body": "two"}'
    )
    docs, skipped = read(domain(path, text_field="body"))
    assert texts(docs) == ["one", "two"]
    assert [document.source for document in docs] == [f"{path}:1", f"{path}:3"]
    assert skipped == {"blank": 1}


def test_files_globs_and_folders_name_the_same_files(tmp_path, monkeypatch) -> None:
    """Oracle: the three files, sorted by path."""
    for name in ("b/2.jsonl", "a/1.jsonl.gz", "c.jsonl"):
        write(tmp_path / name, json_lines({"text": name}))
    expected = ["a/1.jsonl.gz", "b/2.jsonl", "c.jsonl"]
    assert texts(read(domain(tmp_path))[0]) == expected
    for pattern in (
        "**/*.jsonl*",
        "**",
        "**/*",
    ):  # the last two match the folders too, and all in them
        assert texts(read(domain(tmp_path / pattern))[0]) == expected
    assert texts(read(domain(*(tmp_path / name for name in expected)))[0]) == expected
    monkeypatch.chdir(tmp_path)
    assert texts(read(domain(Path("a"), Path("b/*"), Path("c.jsonl")))[0]) == expected


def test_what_is_useless_is_skipped_and_counted(tmp_path) -> None:
    """By hand: the counts. Hidden files, pipes and sockets are left out uncounted, links to folders
    are followed, and nothing waits for a pipe.
    """
    write(
        tmp_path / "a.jsonl",
        json_lines({"text": "x"}, {"text": ""}, {"text": " \n"}, {"text": None}, {"text": "x"}),
    )
    write(tmp_path / "b.txt", b"x")
    write(tmp_path / "c.txt", b"")
    write(tmp_path / "notes.md", b"x")
    write(tmp_path / ".hidden.txt", b"hidden")
    write(tmp_path / "._a.txt", b"of a Mac")
    write(tmp_path / ".ipynb_checkpoints" / "a.txt", b"hidden")
    os.mkfifo(tmp_path / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.txt"))
    write(tmp_path.parent / "elsewhere" / "d.txt", b"linked")
    (tmp_path / "folder").symlink_to(tmp_path.parent / "elsewhere")
    docs, skipped = read(domain(tmp_path))
    assert (
        sorted(texts(docs))
        == ["linked", "x"]
        == sorted(texts(read(domain(tmp_path / "**/*.txt"))[0]))
    )
    assert skipped == {
        "blank": 3,
        "duplicate": 2,
        "empty file": 1,
        "file of another format": 1,
    }


ERRORS = {
    "not an object": ("a.jsonl", b'{"text": "x"}\n["x"]\n', ":2: a list"),
    "no field": ("a.jsonl", b'{"body": "x", "id": 1}\n', ":1: no field 'text'; there are body, id"),
    "not a string": ("a.jsonl", b'{"text": 7}\n', ":1: field 'text' is a int"),
    "not UTF-8": ("a.jsonl", b'{"text": "x"}\n\n{"text": "\xe9"}\n', ":3: byte 0xe9 "),
    "not UTF-8, text": ("a.txt", b"one\ntwo\n\xe9 three\n", ": byte 0xe9 "),
    "cut in a character": ("a.txt.gz", "one\né".encode()[:-1], ": byte 0xc3 "),
    "surrogate": ("a.jsonl", b'{"text": "x\\ud800"}\n', ":1: character 1 "),
    "UTF-16": ("a.txt", "as Windows has it".encode("utf-16-le"), ": 17 of 34 characters are NUL"),
    "UTF-16 lines": (
        "a.jsonl",
        json_lines({"text": "x"}).decode().encode("utf-16-le"),
        ":1: not JSON (Expecting",
    ),
}


@pytest.mark.parametrize(("name", "content", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_name_file_and_line(tmp_path, name: str, content: bytes, message: str) -> None:
    """Oracle: the line where the fault was put."""
    path = write(tmp_path / name, content)
    with pytest.raises(DataError) as error:
        read(domain(path))
    assert str(error.value).startswith(f"{path}{message}")


FIELDS = ("title", "meta.body")
RECORDS = [
    {"id": i, "title": f"Title {i}", "meta": {"body": f'Body "{i}",\n東京.', "x": [i]}}
    for i in range(700)
]


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "lines.json", "a.JSON.gz", "a.csv", "a.csv.zst", "a.parquet"]
)
def test_a_record_is_the_same_in_every_format(tmp_path, name: str) -> None:
    """Oracle: the titles and bodies that pandas, pyarrow or json wrote, with a blank line between
    title and body.
    """
    frame = pandas.DataFrame(
        [{"title": r["title"], "meta.body": r["meta"]["body"]} for r in RECORDS]
    )
    if ".csv" in name:
        content = frame.to_csv(index=False).encode()
    elif name.endswith(".parquet"):
        datasets.Dataset.from_list(RECORDS).to_parquet(tmp_path / name)
    else:
        content = (
            json_lines(*RECORDS)
            if "a.j" not in name or name == "a.jsonl"
            else json.dumps(RECORDS).encode()
        )
    path = tmp_path / name if name.endswith(".parquet") else write(tmp_path / name, content)
    expected = [f'Title {i}\n\nBody "{i}",\n東京.' for i in range(700)]
    for spec in (path, tmp_path):
        assert texts(read(domain(spec, text_field=FIELDS))[0]) == expected
    with pytest.raises(DataError, match=r":[123]: .*'meta\.text'"):
        read(domain(path, text_field="meta.text"))


def test_a_field_inside_may_be_null_and_tables_beside_documents_are_not_read(tmp_path) -> None:
    """By hand: a null, also of `meta` itself, counts as blank. A field whose own name is
    `meta.body` goes before `body` in `meta`.
    """
    rows = [
        {"meta": None},
        {"meta": {"body": None}},
        {"meta": {"body": "b"}},
        {"meta": {}, "meta.body": "c"},
    ]
    write(tmp_path / "a.jsonl", json_lines(*rows))
    write(tmp_path / "metadata.json", b"{}")
    write(tmp_path / "table.csv", b"x")
    docs, skipped = read(domain(tmp_path, text_field="meta.body"))
    assert texts(docs) == ["b", "c"] and skipped == {"blank": 2, documents.SKIPPED_TABLE: 2}


def test_what_is_broken_is_skipped_and_named_where_the_domain_says_so(tmp_path) -> None:
    """By hand: ten broken lines are named, the others counted. Odd values in other fields than the
    text are no error.
    """
    odd = [
        '{"text": "a", "id": ' + "9" * 5000 + "}",
        '{"text": "b", "x": "\\ud800"}',
        '{"x": 1, "text": "c", "x": 2}',
    ]
    bad = ['{"text": "d"', '{"text": "\\ud800"}', '["e"]', '{"text": 7}']
    path = write(
        tmp_path / "a.jsonl",
        "\n".join([*odd, *bad, *['{"text": "f"'] * 20, '{"text": "g"}']).encode(),
    )
    write(tmp_path / "b.txt", b"\xe9")
    files = [tmp_path / name for name in ("a.jsonl", "b.txt")]
    docs, skipped = read(domain(*files, on_error="skip"))
    assert texts(docs) == ["a", "b", "c", "g"]
    named = [f"broken: {path}:{line}" for line in range(4, 14)]
    assert skipped == {**dict.fromkeys(named, 1), "more that are broken": 14 + 1, "empty file": 1}
    with pytest.raises(DataError, match=r"a\.jsonl:4: .*JSON.*on_error = .skip"):
        read(domain(*files))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b'text\nh\n"i"x\nj\n'),
        ("a.csv", b"text\nh\n\xe9\nj\n"),
        ("a.json", b'[{"text": "h"}, {"text": "i"]'),
    ],
)
def test_a_file_that_cannot_be_read_on_is_an_error_where_documents_are_skipped(
    tmp_path, name: str, content: bytes
) -> None:
    """Oracle: the row "j" after the damage is good, so to skip the rest would lose text. The error
    does not offer `on_error`, which would not help.
    """
    path = write(tmp_path / name, content)
    with pytest.raises(DataError) as error:
        read(domain(path, on_error="skip"))
    assert str(error.value).startswith(f"{path}:") and "on_error" not in str(error.value)


@pytest.mark.parametrize("size", [1, 8, 19])
def test_of_a_book_pages_are_held_out(tmp_path, size: int) -> None:
    """Oracle: the pieces join to the book. There are 6 to 8 pieces per file on average, and one
    piece in all is held out. If there are enough documents, none is cut.
    """
    book = "".join(f"This is line {i} of the book.\n" for i in range(8000))[: 12_000 * size]
    for part in range(size):
        write(tmp_path / f"{part:02}.txt", book[part * 12_000 :][:12_000].encode())
    docs, _ = read(domain(tmp_path), valid_share=1e-9)
    assert "".join(texts(docs)) == book
    pages = len(docs)
    assert 6 * size <= pages <= 8 * size and len(texts(docs, "valid")) == 1
    write(tmp_path / "more.txt", b"x" * 100)
    for part in range(size, 20):
        write(tmp_path / f"{part:02}.txt", b"%d" % part)
    assert len(texts(read(domain(tmp_path), valid_share=1e-9)[0])) == 21, (
        "there are enough documents"
    )


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.txt.gz", "a.txt.zst"])
def test_truncated_and_damaged_archives_are_errors(tmp_path, name: str) -> None:
    """Oracle: a gzip file that is cut anywhere, even to nothing, is never read as a shorter text.
    Overwritten bytes are an error in both formats.
    """
    whole = pack(b"".join(json_lines({"text": f"document {i} " * 5}) for i in range(1000)), name)
    path = tmp_path / name
    for size in (0, 1, 10, len(whole) // 2, len(whole) - 1) if name.endswith(".gz") else ():
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=f"{path}: truncated or damaged"):
            read(domain(path))
    path.write_bytes(whole[:200] + bytes(100) + whole[300:])
    with pytest.raises(DataError):
        read(domain(path))


def test_zstd_that_is_not_installed_says_what_to_install(tmp_path, monkeypatch) -> None:
    """The rule of docs/your_own_text.md: `.zst` needs the extra `zstd`, which this test makes
    impossible to import.
    """
    path = write(tmp_path / "a.txt.zst", b"x")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(DataError, match=r"pip install -e \.\[zstd\]"):
        read(domain(path))


def test_long_documents_are_cut_at_lines_and_nothing_is_lost(tmp_path, monkeypatch) -> None:
    """Oracle: the pieces join to the text. Each piece but the last ends at the end of a line. A
    text of one line is cut between words, a text without blanks at the limit.
    """
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 50)
    monkeypatch.setattr("benchmark.data.documents.CHUNK", 64)
    lines = "".join(f"{i} is a line\n" for i in range(100))
    words = " ".join(map(str, range(1000)))
    letters = "".join(chr(ord("a") + i % 25) * (i // 25) for i in range(400))
    for text, end in ((lines, "\n"), (words, " "), (letters, "")):
        for path in (
            write(tmp_path / "a.txt", text.encode()),
            write(tmp_path / "a.jsonl", json_lines({"text": text})),
        ):
            pieces = texts(read(domain(path))[0])
            assert "".join(pieces) == text
            assert max(map(len, pieces)) <= 50 < len(text)
            assert all(piece.endswith(end) for piece in pieces[:-1])


def test_the_split_is_by_document_and_stays(tmp_path) -> None:
    """Oracle: the splits are disjoint and complete, with a share within five standard errors. A
    document keeps its split if the other documents change.
    """
    many = [f"document {i}" for i in range(5000)]
    docs, _ = read(domain(write(tmp_path / "a.jsonl", json_lines(*({"text": t} for t in many)))))
    train, valid = texts(docs, "train"), texts(docs, "valid")
    assert set(train).isdisjoint(valid)
    assert sorted(train + valid) == sorted(many)
    assert abs(len(valid) - 500) < 5 * (5000 * 0.1 * 0.9) ** 0.5
    fewer, _ = read(
        domain(
            write(tmp_path / "b.jsonl", json_lines(*({"text": t} for t in ["new", *many[::-7]])))
        )
    )
    assert set(texts(fewer, "valid")) - {"new"} == set(valid) & set(many[::-7])
    more, _ = read(domain(tmp_path / "a.jsonl"), valid_share=0.2)
    assert set(valid) < set(texts(more, "valid"))


def test_what_is_held_out_is_neither_trained_on_nor_validated_on(tmp_path) -> None:
    """Oracle: the fifth with the largest SHA-256, computed here. Validation text is unchanged."""
    many = [f"document {i}" for i in range(1000)]
    path = write(tmp_path / "a.jsonl", json_lines(*({"text": t} for t in many)))
    expected = [
        t for t in many if int(hashlib.sha256(t.encode()).hexdigest()[:16], 16) / 16**16 >= 0.8
    ]
    assert len(expected) > 100
    everything, _ = read(domain(path))
    docs, skipped = read(domain(path).model_copy(update={"hold_out": 0.2}))
    assert texts(docs, "valid") == texts(everything, "valid")
    assert texts(docs, "train") == [t for t in texts(everything, "train") if t not in set(expected)]
    assert skipped == {"held out": len(expected)}
    valid = write(tmp_path / "valid.jsonl", json_lines({"text": expected[0]}))
    docs, _ = read(domain(path, valid=(valid,)).model_copy(update={"hold_out": 0.2}))
    assert texts(docs, "valid") == expected[:1]
    assert set(texts(docs, "train")).isdisjoint(expected)


def test_copies_that_differ_in_case_blanks_or_unicode_form_are_copies(tmp_path) -> None:
    """By hand: four forms of one text are copies, of which the first stays. Each form by itself
    would be in the same split. Text of a validation file is not trained on.
    """
    forms = ["One  text, ﬁne\n", "one text, fine", "ONE TEXT, FINE", "One\ttext,\u00a0fine "]
    others = ["onetext, fine", "one text fine"]
    docs, skipped = read(
        domain(write(tmp_path / "a.jsonl", json_lines(*({"text": t} for t in [*forms, *others]))))
    )
    assert texts(docs) == [forms[0], *others] and skipped == {"duplicate": 3}
    splits = set()
    for number, form in enumerate(forms):
        [alone], _ = read(
            domain(write(tmp_path / f"{number}.jsonl", json_lines({"text": form}))), valid_share=0.5
        )
        splits.add(alone.split)
    assert len(splits) == 1
    held = write(tmp_path / "held.jsonl", json_lines({"text": " \n".join(forms[0].split())}))
    docs, _ = read(domain(tmp_path / "a.jsonl", valid=(held,)))
    assert texts(docs, "train") == others


def test_the_pieces_of_a_document_are_in_one_split(tmp_path, monkeypatch) -> None:
    """Oracle: all pieces of a book are in one split, or held out together. The share of books in
    validation is within five standard errors.
    """
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 50)
    books = [
        " ".join(f"{name}{i}" for i in range(60)) for name in (f"word{n}x" for n in range(300))
    ]
    path = write(tmp_path / "a.jsonl", json_lines(*({"text": book} for book in books)))
    splits: dict[str, set[str]] = {}
    for document in (docs := read(domain(path), valid_share=0.3)[0]):
        splits.setdefault(document.source, set()).add(document.split)
    assert len(splits) == 300 and len(docs) > 3000 and all(len(of) == 1 for of in splits.values())
    assert abs(sum(of == {"valid"} for of in splits.values()) - 90) < 5 * (300 * 0.3 * 0.7) ** 0.5
    left, _ = read(domain(path).model_copy(update={"hold_out": 0.3}))
    pieces = Counter(document.source for document in docs)
    assert 0 < len(left) < len(docs) and all(
        pieces[of] == n for of, n in Counter(d.source for d in left).items()
    )


def test_identity_follows_the_settings_and_a_folder_that_is_a_dataset(tmp_path) -> None:
    """By hand: three settings and the files of a dataset's folder change the identity.
    tests/test_prepare.py shows that the content of other files does, too.
    """
    path = write(tmp_path / "a.txt", b"one")

    def identity(share: float = 0.1, **more: Any) -> Any:
        return corpus.identify(domain(path, **more), share, tmp_path / "notes")

    assert (
        len({identity(), identity(0.2), identity(text_field="body"), identity(valid=(path,))}) == 4
    )
    dataset = Domain(name="own", datasets=(HubDataset(path=str(tmp_path / "set")),))
    known = set()
    for content in (b"one", b"two"):
        write(tmp_path / "set" / "a.txt", content)
        known.add(corpus.identify(dataset, 0.1, tmp_path / "notes"))
    assert len(known) == 2


def package(folder: Path, name: str) -> None:
    def doc(text: str) -> str:
        return json.dumps(f"{text} ".ljust(220, "."), ensure_ascii=False)

    write(
        folder / name / "__init__.py",
        f"""{doc("of the package")}
raise RuntimeError("imported")
class Outer:
    {doc("of a class")}
    @property
    def method(self):
        {doc("of a method")}
        class Local:
            {doc("of a local class")}
if True:
    async def function():
        {doc("of a function")}
else:
    def function():
        {doc("of another function")}
def short():
    "Too short."
def same():
    {doc("of a class")}
def odd():
    "\\ud800{"." * 220}"
def none():
    return {doc("no docstring")}
""".encode(),
    )
    write(
        folder / name / "sub/module.py",
        f"# -*- coding: latin-1 -*-\n{doc('of a modulé')}".encode("latin-1"),
    )
    write(folder / name / "tests/test_a.py", doc("of a test").encode())
    write(folder / name / "not-importable/a.py", doc("of data").encode())
    write(folder / name / "python2.py", b"print 'no'")


def test_docstrings_of_a_package_are_found_without_importing_it(tmp_path, monkeypatch) -> None:
    """By hand: the docstrings that `package` writes. To import that package raises an error."""
    package(tmp_path, "a_package_of_the_tests")
    monkeypatch.syspath_prepend(str(tmp_path))
    docs, skipped = read(Domain(name="docs", packages=("a_package_of_the_tests",)))
    name = "a_package_of_the_tests"
    assert [(document.text.rstrip(". "), document.source) for document in docs] == [
        ("of the package", name),
        ("of a class", f"{name}:Outer"),
        ("of a method", f"{name}:Outer.method"),
        ("of a local class", f"{name}:Outer.method.Local"),
        ("of a function", f"{name}:function"),
        ("of another function", f"{name}:function"),
        ("of a modulé", f"{name}.sub.module"),
    ]
    assert skipped == {
        "docstring under 200 characters": 1,
        "duplicate": 1,
        "docstring with a lone surrogate": 1,
        "module that does not parse": 1,
    }
    assert name not in sys.modules


def test_docstrings_of_the_standard_library() -> None:
    """Oracle: `inspect.cleandoc` of the docstrings of imported objects. There are 1 to 5 MB, enough
    for a domain, and no docstrings of tests.
    """
    docs, _ = docstrings.read_package("stdlib")
    by_source = {document.source: document.text for document in docs}
    for source, imported in {
        "json:dumps": json.dumps,
        "inspect:Signature": inspect.Signature,
        "gzip:GzipFile.__init__": gzip.GzipFile.__init__,
        "inspect": inspect,
    }.items():
        assert by_source[source] == inspect.cleandoc(str(imported.__doc__))
    assert not [
        source
        for source in by_source
        if source.startswith(("test", "pytest", "numpy", "idlelib.idle_test"))
    ]
    assert 1e6 < sum(len(document.text.encode()) for document in docs) < 5e6
    assert docstrings.read_versions(["stdlib", "sklearn", "numpy"]).keys() == {
        "python",
        "scikit-learn",
        "numpy",
    }
