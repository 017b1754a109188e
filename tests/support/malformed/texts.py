"""Cases of the texts of domains and tasks."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import zstandard

from tests.support.malformed import Case, nothing
from tests.support.malformed.making import RUNS, SUITE, TASK, lines, write


def corpora() -> Iterator[Case]:
    """Texts of domains, and of `evaluate`."""
    deep = b'{"text": ' + b"[" * 100_000
    good = lines(*({"text": f"word {i} of a text that is long enough"} for i in range(200)))
    packed, zipped = gzip.compress(good), zstandard.compress(good)
    for name, content, named in (
        ("a.jsonl", deep, "a.jsonl:1"),
        ("a.jsonl", good + b'{"text": "x"', "a.jsonl:201"),
        ("a.jsonl", good + b'{"text": "\xff"}', "a.jsonl:201"),
        ("a.jsonl", good + b'{"text": "\\ud800"}\n', "a.jsonl:201"),
        ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}\n", "a.jsonl:1"),
        ("a.jsonl", b'{"text": NaN}\n', "a.jsonl:1"),
        ("a.jsonl", good + b'{"text": "x", "text": "y"}\n', "a.jsonl:201: not JSON ('text' stands twice"),
        (".jsonl", good + b"x\n", ".jsonl:201"),
        ("a.jsonl.txt", b"\xff", "a.jsonl.txt:1"),
        ("a.jsonl", b'{"text": ["x"]}\n', "a.jsonl:1"),
        ("a.jsonl", b'["x"]\n', "a.jsonl:1"),
        ("a.jsonl", b'"x"\n', "a.jsonl:1"),
        ("a.jsonl", b'{"body": "x"}\n', "a.jsonl:1"),
        ("a.jsonl", b"\0\0\0\n", "a.jsonl:1"),
        ("a.jsonl", good[:50], "a.jsonl"),
        ("a.jsonl", b"", "a"),
        ("a.txt", b"\xff\xfe", "a.txt:1"),
        ("a.txt", b"", "a"),
        ("a.csv", b"x", "a.csv"),
        ("a.jsonl.gz", packed[: len(packed) // 2], "a.jsonl.gz"),
        ("a.jsonl.gz", packed[:20] + b"\0" + packed[21:], "a.jsonl.gz"),
        ("a.jsonl.gz", good, "a.jsonl.gz"),
        ("a.jsonl.gz", b"", "a.jsonl.gz"),
        ("a.jsonl.zst", zipped[: len(zipped) // 2], "a.jsonl.zst"),
        ("a.jsonl.zst", good, "a.jsonl.zst"),
        ("a.jsonl.gz", gzip.compress(bytes(2**25)), "a.jsonl.gz"),
        ("a.jsonl.zst", zstandard.compress(bytes(2**25)), "a.jsonl.zst"),
        ("a.txt.gz", gzip.compress(b"a" * 2**25), "a.txt.gz"),
    ):
        label = f"{name}: {content[:20]!r} {len(content)}"
        suite = ("prepare", SUITE, *RUNS, "--set", 'domains=[{{name="a", train=["{here}/' + name + '"]}}]')
        ladder = ("--set", "model.ladder=[{{layers=1, hidden_size=16}}]")
        yield Case(f"prepare {label}", (*suite, *ladder), (named,), write(name, content))
        if content != good[:50]:
            given = ("evaluate", "{place}/model", "--text", f"{{here}}/{name}")
            yield Case(f"evaluate {label}", given, (named,), write(name, content))
    for package in ("no_such_package", "os.path", "../x", "", "a b"):
        of_package = ("prepare", SUITE, *RUNS, "--set", f'domains=[{{{{name="a", packages=["{package}"]}}}}]')
        yield Case(
            f"package {package!r}", (*of_package, "--set", "model.ladder=[{{layers=1, hidden_size=16}}]"), ("package",)
        )


def places() -> Iterator[Case]:
    """Files, folders and globs, and what they find that is no text."""
    for name, make, named in (
        ("nothing.jsonl", None, "nothing.jsonl"),
        ("x" * 300 + ".jsonl", None, "xxx"),
        ("*.jsonl", None, "*.jsonl"),
        ("a/**", None, "/a"),
        ("folder", lambda here: (here / "folder").mkdir(), "folder"),
        ("folder", _linked_folder, "folder/link"),
        ("folder", _dangling, "folder/a.jsonl"),
        ("folder", _pipe, "folder/pipe.jsonl"),
        ("folder/*.jsonl", _pipe, "folder/pipe.jsonl"),
        ("folder/*.jsonl", _dangling, "folder/a.jsonl"),
        ("folder/*", _linked_folder, "folder/link"),
        ("folder/*", _inner_folder, "folder/inner"),
        ("**/*.jsonl", _named_like_a_file, "folder/c.jsonl"),
        ("a.jsonl", lambda here: (here / "a.jsonl").mkdir(), "a.jsonl"),
        ("a.jsonl", _dangling_file, "a.jsonl"),
        ("a.txt", _not_to_be_read, "a.txt: Input/output error"),
    ):
        suite = ("prepare", SUITE, *RUNS, "--set", 'domains=[{{name="a", train=["{here}/' + name + '"]}}]')
        ladder = ("--set", "model.ladder=[{{layers=1, hidden_size=16}}]")
        found = make.__name__ if make else "nothing"
        yield Case(f"prepare {name[:20]} {named[:20]} {found}", (*suite, *ladder), (named,), make or nothing)


def _linked_folder(here: Path) -> None:
    (here / "folder").mkdir()
    (here / "other").mkdir()
    (here / "other" / "b.jsonl").write_bytes(lines({"text": "x"}))
    (here / "folder" / "a.jsonl").write_bytes(lines({"text": "x"}))
    (here / "folder" / "link").symlink_to(here / "other")


def _inner_folder(here: Path) -> None:
    _linked_folder(here)
    (here / "folder" / "link").unlink()
    (here / "other").rename(here / "folder" / "inner")


def _named_like_a_file(here: Path) -> None:
    _inner_folder(here)
    (here / "folder" / "inner" / "b.jsonl").rename(here / "folder" / "inner" / "b.txt")
    (here / "folder" / "inner").rename(here / "folder" / "c.jsonl")


def _pipe(here: Path) -> None:
    (here / "folder").mkdir()
    (here / "folder" / "a.jsonl").write_bytes(lines(*({"text": f"word {i} of a text"} for i in range(200))))
    os.mkfifo(here / "folder" / "pipe.jsonl")


def _dangling(here: Path) -> None:
    (here / "folder").mkdir()
    (here / "folder" / "a.jsonl").symlink_to(here / "none.jsonl")


def _dangling_file(here: Path) -> None:
    (here / "a.jsonl").symlink_to(here / "none.jsonl")


def _not_to_be_read(here: Path) -> None:
    """A file whose bytes the kernel does not give, as a bad disk would not."""
    (here / "a.txt").symlink_to("/proc/self/mem")


def tasks() -> Iterator[Case]:
    """Files of a task's examples."""
    good = lines(*TASK)
    for content in (
        b"",
        b"x\n",
        b"[1]\n",
        b'{"text": "x"}\n',
        b'{"label": "x"}\n',
        good + b'{"text": "", "label": "a"}\n',
        good + b'{"text": 7, "label": "a"}\n',
        good + b'{"text": "x", "label": null}\n',
        good + b'{"text": "x", "label": "a", "label": "b"}\n',
        good + b'{"text": "x", "label": NaN}\n',
        good + b'{"text": "x", "label": ["a"]}\n',
        good + b'{"text": "x", "label": ' + b"9" * 5000 + b"}\n",
        good + b'{"text": "\\ud800", "label": "a"}\n',
        good + b'{"text": "x", "label": "\\ud800"}\n',
        good + b'{"text": "x", "text_pair": "y", "label": "a"}\n',
        good + b'{"text": "x", "label": "c"}\n',
        good + b"\xff\n",
        b'{"text": ' + b"[" * 100_000,
        lines({"text": "x", "label": "a"}, {"text": "y", "label": "a"}),
    ):
        yield _task(f"task {content[-30:]!r} {len(content)}", "bad.jsonl", content, good)
    packed = gzip.compress(good)
    for content in (packed[:-9], good, b"", gzip.compress(bytes(2**25))):
        yield _task(f"task gz {content[-30:]!r} {len(content)}", "bad.jsonl.gz", content, good)
    yield _task("task: no file", "none.jsonl", b"", good)
    yield _task("task: a folder", "bad.jsonl", None, good)


def _task(label: str, name: str, content: bytes | None, good: bytes) -> Case:
    text = (
        'tasks=[{{name="t", domain="a", dev="{here}/ok.jsonl", test="{here}/ok.jsonl", train="{here}/' + name + '"}}]'
    )

    def make(here: Path) -> None:
        (here / "ok.jsonl").write_bytes(good)
        if content is None:
            (here / name).mkdir()
        elif not name.startswith("none"):
            (here / name).write_bytes(content)

    runs = ("--runs", "{place}/runs")  # whose text is prepared
    return Case(label, ("prepare", SUITE, *runs, "--set", text), ("task 't'",), make)
