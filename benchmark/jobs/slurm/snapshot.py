"""A copy of the code for jobs that start later, or start again: what was submitted is what runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from benchmark.errors import UserError
from benchmark.files import naming
from benchmark.jobs.slurm.private import for_the_user_alone, make_private
from benchmark.training.processes import COMMIT_FILE, ROOT, commit

CONTENT = ("benchmark", "methods", "analysis", "paper_tables", "run_all.py")


def take(folder: Path) -> Path:
    """Copy the code to `folder/<its hash>` unless it is there, and return that path.

    Raises UserError where others can write in `folder`, or where what is there is not that code.
    """
    with for_the_user_alone():
        return _take(folder)


def _take(folder: Path) -> Path:
    make_private(folder)
    kept = folder / digest(ROOT)
    if kept.exists():
        if digest(kept) != kept.name:
            raise UserError(f"the code in {kept} is not what it was: remove that folder, and it is copied again")
    else:
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as unfinished:
            copy = Path(unfinished) / kept.name
            with naming(copy):
                for path in _files(ROOT):
                    target = copy / path.relative_to(ROOT)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
                (copy / COMMIT_FILE).write_text(commit(), encoding="utf-8")
            try:
                os.rename(copy, kept)
            except OSError:
                if not kept.exists():  # else another process was faster
                    raise
    return kept


def digest(root: Path) -> str:
    """A hash of all files that a snapshot of `root` holds."""
    content = hashlib.sha256()
    for path in _files(root):
        content.update(path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:12]


def _files(root: Path) -> list[Path]:
    """The files of a snapshot in a fixed order, without what Python makes of them."""
    found = [path for name in CONTENT for path in sorted([root / name, *(root / name).rglob("*")])]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]
