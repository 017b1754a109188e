"""`run_all.py upgrade`: convert records and suites of version 1 to this version.

Keys and settings got other names when each setting began to declare what it decides. A record gets
a new key only if its old key is the one that version 1 would compute for its run, so that no record
passes for another. All other records keep their old keys, as results of an earlier version of their
method. The next version drops this file and its command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmark.downstream.tasks import make_score_key
from benchmark.downstream.zero_shot import make_score_key as make_zero_shot_key
from benchmark.errors import UserError
from benchmark.files import replace_file, write_json
from benchmark.ledger.archive import RECORDS, read_archive, write_archive
from benchmark.ledger.keys import StageKey
from benchmark.ledger.records import SCHEMA, STAGE_FILE
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.load import load_suite
from benchmark.settings.names import list_executor_names, list_suite_names, make_row_slug
from benchmark.settings.suite import RunConfig, Size, Suite, pick_for_stage
from benchmark.settings.tasks import Evaluate, Finetuning, Task
from benchmark.training.declaration import find_stage_times, make_stage_keys, plan_stage
from benchmark.training.method import (
    Build,
    LifelongMethod,
    Stage,
    choose_optimizer,
    keeps_optimizer,
    list_phases,
)

Record = dict[str, Any]  # a line of a file of records
Files = dict[str, list[Record]]  # lines by the path of their file below `--runs`

SETTINGS = {"training.clip": "training.max_grad_norm"}
OPTIONS = {"replay": "replay_ratio"}  # old names of methods' options
# removed options with their defaults: of ELLE and its variants, and of EWC
GONE_OF_ELLE: Record = {"adaptive": 0}
GONE_OF_EWC: Record = {"fisher": "per_sample"}
# old and new names of a phase's fields
PHASE = {"rates": "lr_multipliers", "branch": "discard_after"}
SCORE = {"how": "protocol"}  # old and new names of a score's fields
# new names in suites' files, by a pattern of the old name
IN_SUITES = {
    r"\bclip(?=\"? *=)": "max_grad_norm",
    r"\bhow(?= *= *\[)": "protocols",
    r"\bfew_shot(?= *=)": "num_fewshot",
    r"\breplay(?= *= *[\d\[])": "replay_ratio",
    r"(?<=[\s\"{]training\.)clip\b": "max_grad_norm",
}


def upgrade(places: Sequence[Path], build: Build) -> Iterator[str]:
    """Upgrade folders of `--runs`, studies, suites and tables of step times.

    Yields a line on each. Raises UserError for any other place. A call that was killed may be
    repeated.
    """
    files = [place for place in places if place.suffix == ".toml"]
    tables = [place for place in places if place.suffix == ".json"]
    folders = [place for place in places if place.suffix not in (".toml", ".json")]
    for folder in folders:
        files += sorted(folder.glob("*.toml"))
    for file in files:
        yield _upgrade_suite(file)
    for table in tables:
        yield _upgrade_step_times(table, build)
    suites = _load_suites([*map(str, files), *list_suite_names()])
    for folder in folders:
        if (folder / RECORDS).is_dir():
            yield _upgrade_study(folder, Names(build, suites))
        elif (folder / "suites").is_dir():
            yield _upgrade_runs(folder, Names(build, suites), bool(files))
        else:
            raise UserError(
                f"{folder}: give a folder of --runs, the folder of a study, a suite's .toml file, "
                "or a .json table of step times"
            )


def _upgrade_suite(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    renamed = text
    for pattern, name in IN_SUITES.items():
        renamed = re.sub(pattern, name, renamed)
    if renamed == text:
        return f"{file}: nothing to rename"
    with replace_file(file) as stream:
        stream.write(renamed.encode())
    return f"{file}: renamed"


def _upgrade_step_times(file: Path, build: Build) -> str:
    content = json.loads(file.read_text(encoding="utf-8"))
    for row in content["rows"]:
        row["options"] = rename_options(row["method"], row["options"], build)
        row["settings"] = _rename_keys(row["settings"], SETTINGS)
    write_json(file, content, indent=1)
    return f"{file}: {len(content['rows'])} rows of step times"


def _upgrade_study(folder: Path, names: Names) -> str:
    archives = {path: read_archive(path) for path in sorted((folder / RECORDS).glob("*.tar.gz"))}
    contents: dict[Path, Files] = {}
    for path, members in archives.items():
        contents[path] = {
            name: _parse(content) for name, content in members.items() if name.endswith(".jsonl")
        }
    for files in contents.values():
        names.learn(files)
    if not names.runs:
        return f"{folder}: nothing of version 1"
    for path, files in contents.items():
        members = {}
        for name, content in archives[path].items():
            if not name.endswith(".jsonl"):
                members[name] = content
        for name, lines in names.rename(files).items():
            members[name] = _encode(lines)
        write_archive(path, members)
    return f"{folder}: {names.summary}"


def _upgrade_runs(folder: Path, names: Names, has_suites: bool) -> str:
    """Rename what lies in a folder of `--runs`.

    The files of runs come last, so that a call that was killed can be repeated.
    """
    paths = [
        *folder.glob("suites/*/*.jsonl"),
        *folder.glob(f"stages/*/{STAGE_FILE}"),
        *folder.glob("scores/*.jsonl"),
        *folder.glob("similarity/*.jsonl"),
    ]
    files = {path.relative_to(folder).as_posix(): _parse(path.read_bytes()) for path in paths}
    names.learn(files)
    if not names.runs:
        return f"{folder}: nothing of version 1"
    names.rename(files)  # only counts: nothing is written before all scores are known
    if names.lost_scores and not has_suites:
        raise UserError(
            f"{folder}: nothing is renamed yet: {names.lost_scores} scores are of settings that no "
            "suite of this project has: also give the .toml files of their suites"
        )
    names.forget_counts()
    order = ("stages/", "scores/", "similarity/", "suites/")
    for kind in order:
        files_of_kind = {name: lines for name, lines in files.items() if name.startswith(kind)}
        for name, lines in files_of_kind.items():
            for new_name, new_lines in names.rename({name: lines}).items():
                _replace(folder / name, folder / new_name, new_lines)
    return f"{folder}: {names.summary}"


def _replace(old: Path, new: Path, lines: Sequence[Record]) -> None:
    """Write a file's new lines, and move it to its new path, or a stage's whole folder."""
    content = _encode(lines)
    if new.name == STAGE_FILE:
        if old.parent.exists():
            with replace_file(old) as stream:
                stream.write(content)
            if old.parent != new.parent and not new.parent.exists():
                old.parent.rename(new.parent)
        return
    with replace_file(new) as stream:
        stream.write(content)
    if old != new:
        old.unlink()
        for path in old.parent.glob(f"{old.stem}.*"):  # a run's heartbeat
            path.unlink()


def _load_suites(names: Sequence[str]) -> list[Suite]:
    """The suites of these names that load: scores may have been computed with their settings."""
    suites = []
    for name in names:
        try:
            suites.append(load_suite(name))
        except ConfigError:
            continue
    return suites


def _parse(content: bytes) -> list[Record]:
    """The lines of a file of records, without one that a killed process wrote in part."""
    lines = []
    for line in content.split(b"\n"):
        try:
            lines.append(msgspec.json.decode(line))
        except msgspec.DecodeError:
            continue
    return lines


def _encode(lines: Iterable[Record]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


@dataclass
class Names:
    """The new names of what version 1 recorded, if the old ones are as version 1 made them."""

    build: Build
    suites: Sequence[Suite]
    stages: dict[str, StageKey] = field(default_factory=dict)  # by the old key
    runs: dict[str, RunConfig] = field(default_factory=dict)  # by the old id
    tasks: dict[str, list[Record]] = field(default_factory=dict)  # settings by the task's name
    run_count: int = 0
    unproven: set[str] = field(default_factory=set)  # ids of runs with stages that keep old keys
    lost_scores: int = 0  # scores whose settings nobody knows

    @property
    def summary(self) -> str:
        parts = [f"{self.run_count} runs, {len(self.stages)} stages with new keys"]
        if self.unproven:
            parts.append(f"{len(self.unproven)} runs of an earlier version of their method")
        if self.lost_scores:
            parts.append(
                f"{self.lost_scores} scores are lost: give the .toml files of their suites, too"
            )
        return "; ".join(parts)

    def forget_counts(self) -> None:
        self.run_count = 0
        self.lost_scores = 0
        self.unproven.clear()

    def learn(self, files: Files) -> None:
        """Read the runs in these files, and check that their stages have the keys of version 1."""
        for name, lines in files.items():
            if not name.startswith("suites/"):
                continue
            for line in lines:
                if line["kind"] == "run" and line.get("schema", 1) == 1:
                    self._learn_run(line)

    def _learn_run(self, line: Record) -> None:
        """Learn a run's settings and tasks, and the new keys of its stages.

        A stage's new key is learned only if version 1 would compute its old key. Raises UserError
        if version 1 would compute another id for the run.
        """
        for task in line.get("tasks", []):
            versions = self.tasks.setdefault(task["name"], [])
            if task not in versions:
                versions.append(task)
        if make_old_id(line) != line["id"]:
            raise UserError(f"run {line['id']} is not what version 1 would call it: restore it")
        config = make_config(line, self.build)
        self.runs[line["id"]] = config
        old_keys = line.get("stages", [])
        tokens = line.get("tokens", {})
        learned = [tokens.get(text.name, "") for text in config.learned]
        if not old_keys or not all(learned):
            return
        try:
            method = self.build(config.method, config.options)
            expected = make_old_stage_keys(line["config"], config, method, learned)
        except ConfigError:  # the method or a table of step times is not here
            return
        stages = make_stage_keys(config, method, learned)
        for key, expected_key, stage in zip(old_keys, expected, stages, strict=True):
            if key == expected_key:
                self.stages[key] = stage

    def rename(self, files: Files) -> Files:
        """The files with the new names and lines."""
        renamed: Files = {}
        for name, lines in files.items():
            kind, *_ = name.split("/")
            if kind == "suites":
                new_name, new_lines = self._rename_run(name, lines)
            elif kind == "stages":
                key = name.split("/")[1]
                new_lines = [self._rename_stage_line(key, line) for line in lines]
                new_name = f"stages/{self._find_key(key)}/{STAGE_FILE}"
            elif kind == "scores":
                key = Path(name).stem
                new_lines = [self._rename_score(key, line) for line in lines]
                new_name = f"scores/{self._find_key(key)}.jsonl"
            elif kind == "similarity":
                new_lines = lines
                new_name = f"similarity/{self._find_key(Path(name).stem)}.jsonl"
            else:
                new_name = name
                new_lines = lines
            renamed[new_name] = new_lines
        return renamed

    def _find_key(self, key: str) -> str:
        return self.stages[key].key if key in self.stages else key

    def _rename_run(self, name: str, lines: Sequence[Record]) -> tuple[str, list[Record]]:
        new_name = name
        new_lines = []
        for line in lines:
            if line["kind"] == "run" and line.get("schema", 1) == 1:
                config = self.runs[line["id"]]
                self.run_count += 1
                if any(key not in self.stages for key in line.get("stages", [])):
                    self.unproven.add(line["id"])
                line = {
                    **line,
                    "schema": SCHEMA,
                    "id": config.id,
                    "options": config.options,
                    "config": config.model_dump(mode="json", exclude={"tasks", "sections"}),
                    "stages": [self._find_key(key) for key in line.get("stages", [])],
                }
                new_name = f"{name.rpartition('/')[0]}/{config.id}.jsonl"
            new_lines.append(line)
        return new_name, new_lines

    def _rename_stage_line(self, key: str, line: Record) -> Record:
        if line["kind"] != "stage":
            return line
        phases = [_rename_keys(phase, PHASE) for phase in line["phases"]]
        line = {**line, "phases": phases}
        if key in self.stages:
            stage = self.stages[key]
            line |= {"key": stage.key, "description": stage.description}
        return line

    def _rename_score(self, stage: str, line: Record) -> Record:
        """A score with its new key, if a suite here has the settings that it was computed with."""
        line = _rename_keys(line, SCORE)
        if line["kind"] == "baseline":
            return line
        new_stage = self._find_key(stage)
        if line["kind"] == "unscored":
            return line
        for old_key, new_key in self._list_score_keys(stage, new_stage, line):
            # the new key: a call that was killed has renamed it already
            if line["key"] in (old_key, new_key):
                return {**line, "key": new_key}
        self.lost_scores += 1
        return line

    def _list_score_keys(
        self, stage: str, new_stage: str, line: Record
    ) -> Iterator[tuple[str, str]]:
        """The old and the new key that a score has with the settings of each suite."""
        if line["kind"] == "zero_shot":
            for evaluate in self._list_evaluations():
                old_key = make_old_zero_shot_key(stage, line["task"], evaluate)
                yield old_key, make_zero_shot_key(new_stage, line["task"], evaluate)
            return
        for task in self.tasks.get(line["task"], []):
            for settings in self._list_finetunings():
                new_key = make_score_key(
                    new_stage,
                    Task.model_validate(task),
                    line["task_key"],
                    settings,
                    line["prompt"],
                    line["seed"],
                    line.get("protocol", "finetune"),
                )
                yield make_old_score_key(stage, task, line, settings), new_key

    def _list_finetunings(self) -> list[Finetuning]:
        """The settings of fine-tuning that scores may have, each once."""
        settings = {}
        for finetuning in (Finetuning(), *(suite.finetuning for suite in self.suites)):
            settings[finetuning.patience, finetuning.precision] = finetuning
        return list(settings.values())

    def _list_evaluations(self) -> list[Evaluate]:
        return [Evaluate(), *(suite.evaluate for suite in self.suites)]


def _rename_keys(content: Record, names: Mapping[str, str]) -> Record:
    return {names.get(key, key): value for key, value in content.items()}


def make_config(line: Record, build: Build) -> RunConfig:
    """The settings of a run of version 1, with today's names."""
    content = json.loads(json.dumps(line["config"]))
    training = content["training"]
    if "clip" in training:
        training["max_grad_norm"] = training.pop("clip")
    options = rename_options(line["method"], line["options"], build)
    tasks = line.get("tasks", [])
    return RunConfig.model_validate({**content, "options": options, "tasks": tasks})


def rename_options(method: str, options: Record, build: Build) -> Record:
    """Options with today's names, as far as the method has them."""
    try:
        names = build(method, {}).options()
    except ConfigError:
        return options
    new_names = {old: new for old, new in OPTIONS.items() if new in names}
    return _rename_keys(options, new_names)


# Ids, keys and signatures as version 1 made them. `raw`: a run's settings as version 1 recorded
# them.


def make_old_id(line: Record) -> str:
    raw = json.loads(json.dumps(line["config"]))
    for name in ("suite", "row_index", "tasks", "tuned", *list_executor_names()):
        raw.pop(name, None)
    for text in (*raw["domains"], *raw.get("probes", [])):
        text.pop("title")
        for part in (text, *text.get("sources", [])):
            part.pop("train")
            part.pop("valid")
    raw["tokenizer"].pop("folder")
    data = raw["data"]
    if data.get("memory_seed") == "fixed":
        data.pop("memory_seed")
    if data.get("max_valid_tokens"):
        data.pop("max_valid_bytes", None)
    raw["training"].pop("checkpoint_seconds")
    raw["budget"].pop("reference", None)
    model = raw["model"]
    model.pop("start", None)
    model.pop("revision", None)
    if model.get("init") == "fixed":
        model.pop("init")
    if raw.get("start"):
        raw["start"].pop("folder")
    return f"{make_row_slug(raw['row'])}-s{raw['seed']}-{digest(raw)}"


def make_old_stage_keys(
    raw: Record, config: RunConfig, method: LifelongMethod, texts: Sequence[str]
) -> list[str]:
    model_names = {"architecture", "head_size", "dropout"}
    if config.model.init != "fixed":
        model_names.add("init")
    not_common = {"checkpoint_seconds", "evaluations", "learning_rate", "warmup"}
    training = {key: value for key, value in raw["training"].items() if key not in not_common}
    common: Record = {
        "format": 3,
        "sequence_length": config.data.sequence_length,
        "model": {key: value for key, value in raw["model"].items() if key in model_names},
        "training": training,
    }
    if config.data.document_mask:
        common["document_mask"] = True
    count = len(config.domains)
    if config.replay and config.replay.share:
        common["replay"] = [config.replay.share, *texts[count:]]
    times = find_stage_times(config, method)
    keys: list[str] = []
    for index, text in enumerate(texts[:count]):
        budget = [config.budget.unit, pick_for_stage(config.budget.amount, index)]
        if config.budget.reference:
            budget.append(msgspec.to_builtins(times[index]))
        parts: Record = {
            **common,
            "domain": config.domains[index].name,
            "text": text,
            "ladder": [_name_size(size) for size in config.model.ladder[: index + 1]],
            "learning_rate": pick_for_stage(config.training.learning_rate, index),
            "warmup": pick_for_stage(config.training.warmup, index),
            "budget": budget,
            "seed": config.seed,
            "previous": keys[-1] if keys else None,
            **_describe_method(config, method, plan_stage(config, index)),
        }
        if config.places:
            parts["place"] = config.places[index]
        if config.domains[index].sources:
            parts["weights"] = [source.weight for source in config.domains[index].sources]
        if config.start and not index:
            parts["start"] = config.start.key
        keys.append(digest(parts))
    return keys


def _name_size(size: Size) -> str:
    return f"L{size.layers}_D{size.hidden_size}"


def _describe_method(config: RunConfig, method: LifelongMethod, stage: Stage) -> Record:
    phases = list_phases(method, stage)
    uses_memory = method.uses_memory(stage)
    parts: Record = {
        "signature": make_old_signature(method, stage),
        "memory_tokens": config.data.memory_tokens if uses_memory else None,
    }
    if uses_memory and config.data.memory_seed == "run":
        parts["memory_seed"] = "run"
    if any(getattr(phase.schedule, "over", "") == "stream" for phase in phases):
        parts["stream"] = stage.stream_info.budget
    if keeps_optimizer(phases):
        parts["keeps"] = "optimizer"
    if method.optimizer:
        optimizer = choose_optimizer(method, config.training)
        parts["optimizer"] = [optimizer.name, optimizer.options]
    return parts


def make_old_signature(method: LifelongMethod, stage: Stage) -> Record:
    signature = method.signature(stage)
    if "method" not in signature:  # a first stage that does not depend on the method
        return signature
    options = method.options()
    is_elle = "growth_mode" in options  # ELLE or a variant of it
    # version 1 also listed options with their default
    old_parts = {key: value for key, value in signature.items() if key not in options}
    if old_parts["method"] != "scratch":  # it had no options in its signature
        old_names = {new: old for old, new in OPTIONS.items()}
        old_parts |= _rename_keys(options, old_names)
    if is_elle:
        old_parts |= GONE_OF_ELLE
    if old_parts["method"] == "ewc":
        old_parts |= GONE_OF_EWC
    if is_elle:
        uses_noise = options["noise"] and options["width"] and options["growth_mode"] == "fpi"
        # stages that use noise have the method's version 2, with today's `noise`. In all others,
        # the old `noise` is 0.02 times today's
        if uses_noise:
            return {**old_parts, "version": 2}
        return {**old_parts, "noise": 0.02 * options["noise"]}
    if method.version > 1:
        old_parts["version"] = method.version
    return old_parts


def make_old_score_key(stage: str, task: Record, line: Record, settings: Finetuning) -> str:
    fields: Record = {
        "format": 1,
        "stage": stage,
        "data": line["task_key"],
        "prompt": line["prompt"],
        "seed": line["seed"],
    }
    if line.get("protocol") == "linear_probe":
        fields["how"] = "linear_probe"
        fields["task"] = {key: task[key] for key in ("name", "domain", "metric")}
    else:
        left_out = {"title", "seeds", "train", "dev", "test", "dataset", "docstrings"}
        fields["task"] = {key: value for key, value in task.items() if key not in left_out}
        fields["patience"] = settings.patience
        fields["precision"] = settings.precision
    return digest(fields)


def make_old_zero_shot_key(stage: str, task: str, settings: Evaluate) -> str:
    few_shot = settings.num_fewshot
    return digest({"stage": stage, "task": task, "few_shot": few_shot, "limit": settings.limit})
