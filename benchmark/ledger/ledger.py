"""Whether a record is of a run as its settings, its texts and its method are now.

All that reads a result asks here. No torch here. docs/concepts.md has the list. A run's id says
its settings and its seed. The keys of its stages say the rest, and records have what these are
hashes of, so that "not this run's" is a difference that one can read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from msgspec import structs

from benchmark.ledger.keys import StageKey
from benchmark.ledger.records import (
    LineOfRun,
    RunDone,
    RunLine,
    StageLine,
    find_last,
    select_kind,
)
from benchmark.ledger.runs import (
    RunLoader,
    RunRecords,
    check_other_files,
    leave_out,
    leave_out_older_texts,
    load_runs,
    make_run_line,
)
from benchmark.ledger.store import Store
from benchmark.ledger.texts import TextFinder, Texts
from benchmark.settings.base import ConfigError
from benchmark.settings.decides import describe, find_differences
from benchmark.settings.suite import DECIDE_A_RUN, RunConfig

NOT_PREPARED = (
    "its text or tokenizer has changed, or is not prepared here: `run` sees which records are of it"
)
ANOTHER = "another text, tokenizer, or code that computed something else"
MEASURED_OTHERWISE = (
    "its perplexities are of other validation text, or measured as an earlier version did: `run` "
    "measures its models again"
)
ID = re.compile(r"(.*)-s(\d+)-[0-9a-f]{12}")  # of a run: row, seed and a hash


class Methods(Protocol):
    """What a run's method says of it, as the room of training tells it."""

    def make_keys(self, config: RunConfig, texts: Sequence[str]) -> list[StageKey]:
        """The keys of its stages. `texts` as for `benchmark.ledger.keys.make_stage_keys`."""
        ...

    def hash_code(self, config: RunConfig) -> str:
        """A hash of the code of its method."""
        ...

    def reads_domain(self, config: RunConfig) -> bool:
        """Whether its model is told a text's domain when it is evaluated."""
        ...


class Ledger:
    """The records below a folder of `--runs`, each held against what its run is of now."""

    def __init__(self, store: Store, texts: TextFinder, methods: Methods) -> None:
        self.store = store
        self.texts = texts
        self.methods = methods

    def view(
        self,
        config: RunConfig,
        lines: list[LineOfRun] | None = None,
        loader: RunLoader | None = None,
    ) -> RunRecords:
        """The view of a run: the keys of its stages, and its records if they are of it.

        If they are not of its text, settings or method's version, `why` says so, and it has no
        `lines`. Its stages are then those that another run may have trained. If a text is not here,
        what is recorded of it is believed. In an archive it always is. An archive also keeps runs
        of an earlier version of their method, whose code and keys were others. `lines` are the
        run's, if they are read already. `loader` has read what other runs share. Raises NotHere for
        a text that is not here and not recorded.
        """
        if lines is None:
            lines = self.store.read_run(config)
        run_line = find_last(lines, RunLine)
        loader = loader or RunLoader(self.store)
        run = loader.load(run_line, lines) if run_line else None
        texts = self.texts.find(config)
        is_believed = run_line and not texts.keys and self._agrees(config, run_line)
        text_keys = texts.keys
        if run_line and is_believed:
            text_keys = run_line.tokens
        elif not (text_keys or run_line or self.store.is_archive):
            if texts.problem:
                raise texts.problem
            # a domain that was added leaves the stages before it as they are
            text_keys = self.texts.find_first_keys(config)
        stage_keys: list[StageKey] = []
        if text_keys:
            count = sum(domain.name in text_keys for domain in config.domains)
            learned = [text_keys.get(text.name, "") for text in config.learned]
            stage_keys = self.methods.make_keys(config, learned)[:count]
        keys = [stage.key for stage in stage_keys]
        code = self.methods.hash_code(config)
        is_earlier = False
        why = ""
        differences: list[str] = []
        if run_line and keys != run_line.stages:
            is_earlier = self._keeps(run_line, code)
            if is_earlier or (is_believed and not keys):
                keys = run_line.stages
        if run_line and not keys:
            why = NOT_PREPARED
        elif run_line and (keys != run_line.stages or run_line.tokens not in ({}, text_keys)):
            differences = self._compare_stages(run_line, stage_keys)
            reason = name_differences(differences) or ANOTHER
            why = f"its records are of {reason}: `run` trains anew"
        elif run_line and _is_measured_otherwise(run_line, texts):
            why = MEASURED_OTHERWISE
        elif not run_line:
            differences = self._compare_settings(config)
            if differences:
                why = f"its row and seed have records of {name_differences(differences)}"
        if run is None or why:
            line = structs.replace(make_run_line(config), stages=keys)
            run = loader.load(line, [] if why else lines)
        run.texts = texts
        run.earlier = is_earlier
        run.why = why
        run.differences = differences
        run.reads_domain = self.methods.reads_domain(config)
        if not self.store.is_archive:  # its report is what its records give, whatever changes later
            starts = [find_last(stage, StageLine) for stage in run.stages]
            run.other_code = any(_had_other_code(start, config.method, code) for start in starts)
        return run

    def view_all(self, configs: Sequence[RunConfig]) -> list[RunRecords]:
        """The views of these runs; what they share is read once."""
        loader = RunLoader(self.store)
        return [self.view(config, loader=loader) for config in configs]

    def _agrees(self, config: RunConfig, run_line: RunLine) -> bool:
        """Whether this is an archive, or each text that is here is the recorded one."""
        if self.store.is_archive:
            return True
        texts = self.texts.find_prepared_keys(config)
        return all(run_line.tokens.get(name) in keys for name, keys in texts.items())

    def _keeps(self, run_line: RunLine, code: str) -> bool:
        """Whether this is an archive of a run that its method trained with other code than now.

        The last stage of the run decides.
        """
        if not self.store.is_archive or not run_line.stages:
            return False
        start = find_last(self.store.read_stage(run_line.stages[-1]), StageLine)
        return start is not None and start.method_code != code

    def _compare_stages(self, run_line: RunLine, stage_keys: Sequence[StageKey]) -> list[str]:
        """What differs in the first stage that is recorded with another key, in words."""
        for key, stage in zip(run_line.stages, stage_keys, strict=False):
            if key == stage.key:
                continue
            start = find_last(self.store.read_stage(key), StageLine)
            if start is None or not start.description:
                return []
            return [
                difference
                for difference in find_differences(start.description, stage.description)
                if not difference.startswith("stage before")
            ]
        return []

    def _compare_settings(self, config: RunConfig) -> list[str]:
        """What differs in the newest record of the same row and seed, in words."""
        recorded = find_newest_record(config, self.store)
        if recorded is None:
            return []
        return find_differences(describe_run(recorded), describe_run(config))

    # What tables show

    def read_recorded(self, suite: str) -> list[RunRecords]:
        """All runs of a suite that are recorded, held against their recorded settings.

        If these name a method, a start model or a table of step times that is not here, the run is
        believed.
        """
        loader = RunLoader(self.store)
        runs = []
        for run in load_runs(self.store.root, suite):
            try:
                config = RunConfig.model_validate(run.line.config)
                viewed_run = self.view(config, run.lines, loader)
            except (ConfigError, ValueError):
                runs.append(run)
                continue
            if not viewed_run.has_begun:
                viewed_run = leave_out(run, viewed_run.why, viewed_run.differences)
            runs.append(viewed_run)
        return runs

    def read_all(self) -> Iterator[RunRecords]:
        """All runs that are recorded, by suite."""
        for path in sorted((self.store.root / "suites").glob("*/")):
            yield from self.read_recorded(path.name)

    def read_suite(self, suite: str, configs: Sequence[RunConfig]) -> list[RunRecords]:
        """These runs of a suite, an empty one where there are no records.

        Seeds of a row are of one text: see `leave_out_older_texts`. Raises RecordsError for records
        that no report takes, see `check_other_files`.
        """
        check_other_files(self.store, suite, {config.id for config in configs})
        runs = []
        for run in self.view_all(configs):
            # stages that other runs have trained for it are not yet its own
            runs.append(run if run.has_begun else leave_out(run, run.why, run.differences))
        return leave_out_older_texts(runs)


def _had_other_code(start: StageLine | None, method: str, code: str) -> bool:
    """Whether a run's method trained a stage with other code than now.

    No where the stage's method is unknown, as in older archives.
    """
    if start is None:
        return False
    return start.method == method and start.method_code != code


def _is_measured_otherwise(run_line: RunLine, texts: Texts) -> bool:
    """Whether a run's perplexities are of another validation text than the one that is here."""
    return any(
        name in texts.validation and key not in texts.validation[name]
        for name, key in run_line.texts.items()
    )


def find_newest_record(config: RunConfig, store: Store) -> RunConfig | None:
    """The settings that are recorded last of the same row and seed, if they are not these."""
    newest: RunLine | None = None
    for path in store.run_file(config).parent.glob(f"{config.label}-*.jsonl"):
        match = ID.fullmatch(path.stem)
        if not match or f"{match[1]}-s{match[2]}" != config.label or path.stem == config.id:
            continue
        line = find_last(store.read_run_file(path), RunLine)
        if line and (newest is None or line.time > newest.time):
            newest = line
    if newest is None:
        return None
    try:
        return RunConfig.model_validate(newest.config)
    except ValueError:  # of settings that are no longer there
        return None


def find_recorded_start(config: RunConfig, store: Store) -> RunConfig | None:
    """The run with the start model that the newest record of its row and seed describes.

    None if there is no such record.
    """
    recorded = find_newest_record(config, store)
    if recorded is None or recorded.model.start != config.model.start:
        return None
    return config.model_copy(update={"model": recorded.model, "start": recorded.start})


def describe_run(config: RunConfig) -> dict[str, Any]:
    """The settings that decide which run a table shows, but those with their default."""
    return describe(config, *DECIDE_A_RUN)


def name_differences(differences: Sequence[str]) -> str:
    """What records are of in place of a run, by the first difference; "" without any."""
    if not differences:
        return ""
    if any(difference.startswith("start.key:") for difference in differences):
        return "another start model (`status --why`)"
    count = len(differences) - 1
    rest = f" and {count} more (`status --why`)" if count else ""
    return f"other settings, {differences[0]}{rest}"


def name_further_seeds(configs: Sequence[RunConfig], ledger: Ledger) -> list[str]:
    """A line that names the seeds that are trained with the same runs and not shown.

    The list is empty where there are none.
    """
    if not configs:
        return []
    folder = ledger.store.run_file(configs[0]).parent
    names = {path.stem for path in folder.glob("*.jsonl")}
    seeds = set()
    for match in map(ID.fullmatch, names):
        if match:
            seeds.add(int(match[2]))
    seeds -= {config.seed for config in configs}
    trained_seeds: set[int] = set()
    for seed in sorted(seeds):
        for config in configs:
            run = config.model_copy(update={"seed": seed})
            if run.id not in names:
                continue
            if select_kind(ledger.view(run).lines, RunDone):
                trained_seeds.add(seed)
    if not trained_seeds:
        return []
    seed_list = ", ".join(map(str, sorted(trained_seeds)))
    return [f"! seeds that are trained too and not shown: {seed_list}; --seeds chooses which are"]
