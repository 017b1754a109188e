"""Programs that are not Python's, without which a test skips, but fails where all must run (`.ci/run` sets CI)."""

from __future__ import annotations

import os
import shutil

import pytest


def program(*names: str, package: str) -> str:
    """The path of the first of these that is installed; `package` is Debian's."""
    if path := next(filter(None, map(shutil.which, names)), None):
        return path
    reason = f"no {names[0]} on this machine (Debian: {package})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
