"""Scores of tasks of lm-evaluation-harness, without fine-tuning: which of them a record is of. No torch here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from benchmark.records import LineOfScores, ZeroShotLine
from benchmark.settings.base import digest
from benchmark.settings.tasks import Evaluate

ZERO_SHOT = "zero shot"  # how such a score comes to be, beside the ways of fine-tuning


def score_key(stage: str, task: str, settings: Evaluate) -> str:
    """Of a task's scores of the model of a stage."""
    return digest({"stage": stage, "task": task, "few_shot": settings.few_shot, "limit": settings.limit})


def content_of(settings: Evaluate) -> str:
    """A hash of the files in the folder of one's own tasks; nothing where none is here, and records are believed."""
    folder = Path(settings.folder or "")
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if settings.folder else []
    names = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return digest(names) if names else ""


def zero_shot_scores(settings: Evaluate, stage: str, lines: Iterable[LineOfScores]) -> dict[str, ZeroShotLine]:
    """The scores of a stage's model by task, with the settings and files of now; of two the last."""
    content = content_of(settings)
    return {
        line.task: line
        for line in lines
        if isinstance(line, ZeroShotLine) and line.task in settings.tasks
        if line.key == score_key(stage, line.task, settings) and content in ("", line.content)
    }
