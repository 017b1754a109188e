"""The hooks that look at a commit before it is made."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_each_place_that_a_hook_watches_is_there() -> None:
    """Oracle: git's list of files: each alternative of a hook's pattern matches one of them."""
    content = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = listing.stdout.splitlines()
    patterns = [
        part for group in re.findall(r"files: \^\((.+)\)\$", content) for part in group.split("|")
    ]
    assert len(patterns) == 5
    for pattern in patterns:
        assert any(re.fullmatch(pattern, file) for file in files), pattern
