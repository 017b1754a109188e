"""Methods that are not there yet, and methods of other packages."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import methods
from benchmark.errors import UserError
from benchmark.instruments import conformance
from benchmark.instruments.interface_page import render
from benchmark.instruments.new_method import new_method
from benchmark.instruments.tiny_runs import Lab
from benchmark.settings.base import ConfigError


def test_a_new_method_and_its_test_run_as_they_stand(tmp_path, monkeypatch) -> None:
    """Oracle: its own test, which compares it with Naive; a check of its options; and the refusal to write twice."""
    for folder in ("methods", "tests"):
        (tmp_path / folder).mkdir()
    said = list(new_method("pull_down", tmp_path))
    assert said[-1] == "next: python run_all.py check pull_down"
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path / "methods")])
    test = (tmp_path / "tests" / "test_pull_down.py").read_text(encoding="utf-8")
    names: dict = {"__name__": "test_pull_down"}
    exec(compile(test, "test_pull_down.py", "exec"), names)
    for number, (strength, same) in enumerate(((0.0, True), (0.01, False))):
        (tmp_path / str(number)).mkdir()
        names["test_pull_down_without_a_penalty_is_naive"](strength, same, tmp_path / str(number))
    conformance.options_are_documented(Lab("pull_down", methods.build, tmp_path))
    with pytest.raises(UserError, match=r"pull_down.py is there already"):
        list(new_method("pull_down", tmp_path))


@pytest.mark.parametrize("lost", ["methods/l2_sp.py", "tests/test_l2_sp.py"])
def test_half_of_a_new_method_is_completed(lost: str, tmp_path) -> None:
    """Oracle: what a call that nothing disturbs writes. A disk that was full after the first file kept its name taken;
    a file that somebody has changed is not replaced."""
    for folder in ("methods", "tests"):
        (tmp_path / folder).mkdir()
    list(new_method("l2_sp", tmp_path))
    whole = {path: path.read_bytes() for path in tmp_path.rglob("*.py")}
    (tmp_path / lost).unlink()
    list(new_method("l2_sp", tmp_path))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.py")} == whole
    (tmp_path / lost).unlink()
    [other] = tmp_path.rglob("*.py")
    other.write_text("mine")
    with pytest.raises(UserError, match=f"{other.name} is there already"):
        list(new_method("l2_sp", tmp_path))
    assert not (tmp_path / lost).exists() and other.read_text() == "mine"


def test_the_page_of_the_interface_is_the_codes() -> None:
    """Oracle: the page in docs/, and that it has what a method cannot do without."""
    page = (Path(__file__).parent.parent / "docs" / "method_interface.md").read_text(encoding="utf-8")
    assert page == render()
    for name in ("after_step(learner)", "previous: Callable", "accumulate(batches)", "weight: float"):
        assert name in page


@pytest.mark.parametrize(("name", "message"), [("L2-SP", "cannot be called 'L2-SP'"), ("l2_sp", "no folder")])
def test_no_file_is_written_where_none_can_be(name: str, message: str, tmp_path) -> None:
    """Oracle: the message, and an empty folder."""
    with pytest.raises(UserError, match=message):
        list(new_method(name, tmp_path))
    assert not list(tmp_path.iterdir())


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
    monkeypatch.setattr(methods, "_points", lambda: (EntryPoint(name, value, methods.GROUP),))


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
