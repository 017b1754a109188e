"""What identifies a result, docs/how_it_works.md: what has changed must not pass as what was trained."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from benchmark.training.method import code_of

SHARED = "RATE = 1\n"
METHOD = """
from dataclasses import dataclass
from benchmark.training.method import LifelongMethod
from pack._shared import RATE

@dataclass
class Mine(LifelongMethod):
    weight: float = 1.0
"""


@pytest.mark.parametrize(
    ("file", "new", "changes"),
    [
        ("mine.py", METHOD.replace("1.0", "2.0"), True),
        ("_shared.py", "RATE = 2\n", True),
        ("_other.py", "", False),
        ("mine.py", '"""What it is."""\n' + METHOD.replace("1.0", "1.0  # so large"), False),
        ("mine.py", METHOD.replace("    weight", '    """Mine."""\n\n    weight'), False),
    ],
)
def test_the_hash_of_a_methods_code(tmp_path: Path, monkeypatch, file: str, new: str, changes: bool) -> None:
    """Oracle: by hand; what it takes from its package counts, comments, docstrings and other files do not."""

    def hashed() -> str:
        code_of.cache_clear()
        for name in [name for name in sys.modules if name.split(".")[0] == "pack"]:
            del sys.modules[name]
        return code_of(importlib.import_module("pack.mine").Mine)

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "pack").mkdir()
    for name, content in {"__init__": "", "_shared": SHARED, "mine": METHOD}.items():
        (tmp_path / "pack" / f"{name}.py").write_text(content)
    before = hashed()
    (tmp_path / "pack" / file).write_text(new)
    assert (hashed() != before) == changes
