"""How far the scores of a run's models are, by what is recorded; the tasks themselves are not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from benchmark.downstream.tasks import scored_stages
from benchmark.errors import shown
from benchmark.files import DamagedFile
from benchmark.jobs.states import JobState, RunState, Scored
from benchmark.records import ScoreLine
from benchmark.settings.base import of_a_row
from benchmark.settings.suite import Suite
from benchmark.store import Store


class _Config(msgspec.Struct):
    """What a model's config.json says of prompts."""

    prompts: bool = False


_CONFIG = msgspec.json.Decoder(_Config)
Wanted = frozenset[tuple[str, str, int]]  # task, prompt and seed of each score
Known = dict[tuple[str, Wanted], Scored]  # the scores of a model that runs share, by what is asked for


def scored(suite: Suite, run: RunState, store: Store, evaluated: Sequence[bool], known: Known) -> tuple[Scored, ...]:
    """The scores of each model of a run that the suite's tasks are for, of those that are to be trained too.

    `evaluated` says of each stage whether its method evaluated it, and did not leave it out; `known` is what was found
    so far. Until its first stage is trained a run is taken for one without prompts, which is scored in one way only.
    """
    config, keys, trained = run.config, run.trained.keys, run.trained.stages
    stages = [stage for stage in scored_stages(suite, config) if stage < trained or run.state != "failed"]
    prompts = bool(stages) and _has_prompts(keys[:trained], store)
    found = []
    for stage in stages:
        wanted = _wanted(suite, prompts, stage == len(config.domains) - 1)
        if stage >= trained:
            name = keys[stage] if stage < len(keys) else f"{config.label}-{stage}"
            found.append(Scored(name, len(wanted)))
            continue
        if (keys[stage], wanted) not in known:
            known[keys[stage], wanted] = _of_model(keys[stage], wanted, store, evaluated[stage])
        found.append(known[keys[stage], wanted])
    return tuple(found)


def _of_model(key: str, wanted: Wanted, store: Store, evaluated: bool) -> Scored:
    """The scores of one model that are wanted. Raises RecordsError for a file with those of another."""
    lines = store.score_lines(key)
    there: dict[tuple[str, str, int], tuple[float, float]] = {}
    lost: list[tuple[tuple[str, str, int], str]] = []
    for line in lines:
        if (score := (line.task, line.prompt, line.seed)) not in wanted:
            continue
        if isinstance(line, ScoreLine):
            there[score] = line.time, line.seconds
        else:
            lost.append((score, line.error))
    missing = len(wanted) - len(there) if evaluated else 0
    errors = [error for score, error in lost if score not in there] if missing else []
    return Scored(key, missing, tuple(there.values()), shown(errors[-1]) if errors else "")


@of_a_row
def _wanted(suite: Suite, prompts: bool, final: bool) -> Wanted:
    """The scores of a run's final model or of another, by whether it has prompts."""
    ways = [way for way in suite.finetuning.prompts if final or way == "right"] if prompts else ["none"]
    seeds = {task.name: suite.finetuning.seeds_of(task) for task in suite.tasks}
    return frozenset((task, way, seed) for task, of in seeds.items() for seed in of for way in ways)


def unscored(states: Sequence[RunState], jobs: Iterable[JobState]) -> bool:
    """Whether scores are still to come that no job is for, nor one that failed, which is another matter."""
    scoring = [job for job in jobs if job.key.startswith("score-") and (job.under_way or job.state == "failed")]
    count = Counter(run for job in scoring for run in job.serves)  # a job scores a model, for all of its runs
    return any(sum(one.missing > 0 for one in state.trained.scored) > count[state.config.id] for state in states)


def _has_prompts(keys: Sequence[str], store: Store) -> bool:
    """Whether the last of these stages ended with a model that has domain prompts."""
    if not keys:
        return False
    path = store.stage(keys[-1]) / "model" / "config.json"
    try:
        return _CONFIG.decode(path.read_bytes()).prompts
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (msgspec.MsgspecError, OSError, ValueError, RecursionError):
        raise DamagedFile(
            f"{path} is damaged: restore it from a copy, or delete {store.stage(keys[-1])} to train that stage again"
        ) from None
