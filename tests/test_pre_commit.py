"""The hooks that look at a commit before it is made."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def test_each_place_that_a_hook_watches_is_there() -> None:
    """Oracle: git's list of files: each alternative of a hook's pattern is a file of the project."""
    content = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repository in content["repos"] for hook in repository["hooks"]]
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = listing.stdout.splitlines()
    patterns = [part for hook in hooks for part in hook.get("files", "").strip("^()$").split("|") if part]
    assert len(patterns) == 3
    for pattern in patterns:
        assert any(re.fullmatch(pattern, file) for file in files), pattern
