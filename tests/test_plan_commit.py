"""The commit of a study's plan, which an archive names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmark.jobs.study import describe_plan
from benchmark.ledger.archive import (
    PLAN_COMMIT,
    Archives,
    ResultsError,
    find_plan_commit,
    lay_out,
)
from benchmark.ledger.store import Store


def test_a_plan_is_named_by_the_commit_that_holds_it(tmp_path: Path) -> None:
    """Oracle: git's own answer. A plan with changes that no commit holds is refused."""
    plan = tmp_path / "plan.md"

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert find_plan_commit(tmp_path) == ""
    git("init")
    plan.write_text("one claim")
    git("add", "plan.md")
    git("commit", "-m", "plan")
    first = git("rev-parse", "HEAD")
    assert find_plan_commit(tmp_path).startswith(f"{first} of 20")
    plan.write_text("another claim")
    with pytest.raises(ResultsError, match=r"plan\.md"):
        find_plan_commit(tmp_path)


def test_a_report_says_the_plan_of_its_archive(tmp_path: Path) -> None:
    """Oracle: by hand: the commit in the archive, and an empty text without one."""
    store = Store(tmp_path)
    assert describe_plan(store) == ""
    (tmp_path / PLAN_COMMIT).write_text("abc of 2026-11-29")
    assert "commit abc of 2026-11-29" in describe_plan(store)


def test_several_archives_have_the_plan_of_the_first(tmp_path: Path) -> None:
    """Oracle: by hand: the first of the archives that are asked for, also if it names no commit."""
    archives: Archives = {
        Path("main-s0.tar.gz"): {PLAN_COMMIT: b"one"},
        Path("main-s1.tar.gz"): {PLAN_COMMIT: b"two"},
        Path("old-s0.tar.gz"): {},
        Path("old-s1.tar.gz"): {PLAN_COMMIT: b"three"},
    }
    main = lay_out(archives, tmp_path / "main", ["main"])
    assert "commit one." in describe_plan(main)
    assert describe_plan(lay_out(archives, tmp_path / "old", ["old"])) == ""
