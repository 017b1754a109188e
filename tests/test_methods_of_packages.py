"""Methods of other packages."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import methods
from benchmark.settings.base import ConfigError

MODULE = """
from dataclasses import dataclass
from benchmark.training.method import LifelongMethod

@dataclass
class Theirs(LifelongMethod):
    title = "Theirs"

NO_METHOD = 1
"""


def offer(name: str, value: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a package in this folder offer a method."""
    (folder / "theirs_package").mkdir(exist_ok=True)
    (folder / "theirs_package" / "theirs.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(methods, "_find_entry_points", lambda: (EntryPoint(name, value, methods.GROUP),))


def test_a_package_offers_a_method(tmp_path, monkeypatch) -> None:
    """Oracle: it is listed and built as a file of the clone is, and its stages have a signature of its own."""
    offer("theirs", "theirs_package.theirs:Theirs", tmp_path, monkeypatch)
    assert "theirs" in methods.names() and "naive" in methods.names()
    kind = methods.find("theirs")
    assert kind is sys.modules["theirs_package.theirs"].Theirs
    assert methods.build("theirs").options() == {}
    with pytest.raises(ConfigError, match="no_such_option"):
        methods.build("theirs", {"no_such_option": 1})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mine", "theirs_package.theirs:Theirs", "its module must be called mine, as it is theirs_package.theirs"),
        ("theirs", "theirs_package.theirs:NO_METHOD", "no subclass of LifelongMethod"),
        ("naive", "theirs_package.theirs:Theirs", "more than one method is called naive"),
    ],
)
def test_what_a_package_cannot_offer(name: str, value: str, message: str, tmp_path, monkeypatch) -> None:
    """Oracle: the message names the entry point and the cure."""
    offer(name, value, tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=message):
        methods.find(name)
