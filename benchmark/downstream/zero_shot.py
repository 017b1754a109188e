"""Zero-shot scores on lm-evaluation-harness's tasks: which records belong to a suite.

No torch here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from benchmark.files import hash_file
from benchmark.ledger.records import LineOfScores, ZeroShotLine
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.decides import describe
from benchmark.settings.suite import RunConfig
from benchmark.settings.tasks import Evaluate

ZERO_SHOT = "zero shot"  # the protocol in their records, besides those of fine-tuning


def make_score_key(stage: str, task: str, settings: Evaluate) -> str:
    """The key of the scores of a stage's model on a task."""
    return digest({"stage": stage, "task": task, **describe(settings, "score")})


def check_before_training(configs: Iterable[RunConfig]) -> None:
    """Raise ConfigError if the harness is not installed, or a run has a masked model."""
    # here, because it imports torch, which suites without the harness do not need
    from benchmark.models import architectures

    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            "[evaluate] tasks need lm-evaluation-harness: `pip install -e .[lm-eval]`"
        )
    for config in configs:
        name = config.model.architecture
        if architectures.load(name).masked:
            raise ConfigError(
                f"[evaluate] tasks: row {config.row!r} has a masked model ({name}), which does not "
                "say how likely a text is: take another model.architecture, or leave the tasks out"
            )


def hash_task_files(settings: Evaluate) -> str:
    """A hash of the files in `folder`, the user's own tasks.

    It is "" if there are none here. Then records with any files count.
    """
    if not settings.folder:
        return ""
    folder = Path(settings.folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    hashes = {}
    for path in files:
        name = path.relative_to(folder).as_posix()
        hashes[name] = hash_file(path)
    return digest(hashes) if hashes else ""


def select_zero_shot_scores(
    settings: Evaluate, stage: str, lines: Iterable[LineOfScores]
) -> dict[str, ZeroShotLine]:
    """The scores of a stage's model by task, with the current settings and files.

    Of several scores of a task, the last counts.
    """
    content = hash_task_files(settings)
    scores: dict[str, ZeroShotLine] = {}
    for line in lines:
        if not isinstance(line, ZeroShotLine) or line.task not in settings.tasks:
            continue
        if content not in ("", line.content):
            continue
        if line.key == make_score_key(stage, line.task, settings):
            scores[line.task] = line
    return scores
