"""Whether a record belongs to a run with its present settings, texts and method.

All code that reads a run's results asks `Ledger.view`. Only scores are chosen in
`benchmark.downstream`, by `select_scores` and `select_zero_shot_scores`, because they also depend
on the suite's tasks. docs/concepts.md lists what must be unchanged.

A run's id (`RunConfig.id`) covers its settings (benchmark/settings/decides.py) and its seed, the
keys of its stages cover the rest. Records also have the descriptions that the keys are hashes of,
so that a message can say what differs. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """What a ledger asks about a run's method. `benchmark.training.declaration` answers."""

    def make_keys(self, config: RunConfig, texts: Sequence[str]) -> list[StageKey]:
        """The keys of the run's stages. `texts` as for `benchmark.ledger.keys.make_stage_keys`."""
        ...

    def hash_code(self, config: RunConfig) -> str:
        """A hash of the code of the run's method."""
        ...

    def reads_domain(self, config: RunConfig) -> bool:
        """Whether the run's model is told a text's domain when it is evaluated."""
        ...


@dataclass(frozen=True)
class Match:
    """How the records of a run compare with its present settings, texts and method.

    `keys` are the keys of its stages, as far as they are known. `why` says why the records do not
    count, and is "" if they do. `differences` says in words how their settings differ. `is_earlier`
    says whether the run is of an earlier version of its method, in an archive.
    """

    keys: list[str]
    why: str = ""
    differences: Sequence[str] = ()
    is_earlier: bool = False


class Ledger:
    """The records below a folder of `--runs`, compared with runs' present settings and text."""

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
        """The view of a run: the keys of its stages, and its records if they count.

        If they do not count, `why` says so, and the view has no `lines`. Its `stages` are then what
        other runs recorded for the same keys. `lines` are the run's, if they are read already.
        `loader` caches the files that runs share. `texts.problem` of the view says which text is
        not on this machine.
        """
        if lines is None:
            lines = self.store.read_run(config)
        loader = loader or RunLoader(self.store)
        run_line = find_last(lines, RunLine)
        run = loader.load(run_line, lines) if run_line else None
        texts = self.texts.find(config)
        if run_line:
            match = self._match_records(config, run_line, texts)
        else:
            match = self._match_without_records(config, texts)
        if run is None or match.why:
            line = structs.replace(make_run_line(config), stages=match.keys)
            run = loader.load(line, [] if match.why else lines)
        run.texts = texts
        run.earlier = match.is_earlier
        run.why = match.why
        run.differences = [*match.differences]
        run.reads_domain = self.methods.reads_domain(config)
        if not self.store.is_archive:  # an archive's report depends only on its records
            code = self.methods.hash_code(config)
            starts = [find_last(stage, StageLine) for stage in run.stages]
            run.other_code = any(_had_other_code(start, config.method, code) for start in starts)
        return run

    def view_all(self, configs: Sequence[RunConfig]) -> list[RunRecords]:
        """The views of these runs, for which each shared file is read once."""
        loader = RunLoader(self.store)
        return [self.view(config, loader=loader) for config in configs]

    def _match_records(self, config: RunConfig, run_line: RunLine, texts: Texts) -> Match:
        """Whether the records of a run count.

        They do if its stages and its texts still have the recorded keys, and its perplexities are
        of the validation text that is here. If not all texts are here, the recorded keys of the
        texts may be believed. In an archive, the records of an earlier version of the method count
        although its stages would have other keys now.
        """
        is_believed = not texts.keys and self._can_believe(config, run_line)
        text_keys = run_line.tokens if is_believed else texts.keys
        stages = self._make_stage_keys(config, text_keys)
        keys = [stage.key for stage in stages]
        is_earlier = keys != run_line.stages and self._is_of_earlier_code(config, run_line)
        has_no_text_keys = is_believed and not keys  # an older record, without `tokens`
        if is_earlier or has_no_text_keys:
            keys = run_line.stages
        if not keys:
            return Match(keys, NOT_PREPARED)
        has_other_texts = bool(run_line.tokens) and run_line.tokens != text_keys
        if keys != run_line.stages or has_other_texts:
            differences = self._compare_stages(run_line, stages)
            reason = name_differences(differences) or ANOTHER
            why = f"its records are of {reason}: `run` trains anew"
            return Match(keys, why, differences, is_earlier)
        if _is_measured_otherwise(run_line, texts):
            return Match(keys, MEASURED_OTHERWISE, is_earlier=is_earlier)
        return Match(keys, is_earlier=is_earlier)

    def _match_without_records(self, config: RunConfig, texts: Texts) -> Match:
        """The keys of a run that has not begun, whose stages other runs may have trained.

        `why` says so if its row and seed have records of other settings.
        """
        text_keys = texts.keys
        if not text_keys and not self.store.is_archive:
            # an added domain does not change the stages before it, so their keys are known
            text_keys = self.texts.find_first_keys(config)
        keys = [stage.key for stage in self._make_stage_keys(config, text_keys)]
        differences = self._compare_settings(config)
        if not differences:
            return Match(keys)
        why = f"its row and seed have records of {name_differences(differences)}"
        return Match(keys, why, differences)

    def _can_believe(self, config: RunConfig, run_line: RunLine) -> bool:
        """Whether to believe the recorded keys of a run's texts if not all texts are here.

        An archive is believed. Other records are, unless a text that is here has another key.
        """
        if self.store.is_archive:
            return True
        texts = self.texts.find_prepared_keys(config)
        return all(run_line.tokens.get(name) in keys for name, keys in texts.items())

    def _make_stage_keys(self, config: RunConfig, text_keys: Mapping[str, str]) -> list[StageKey]:
        """The keys of a run's stages up to the first whose text has no key."""
        if not text_keys:
            return []
        count = sum(domain.name in text_keys for domain in config.domains)
        # "" stands for a text without a key. The stages that it would give a key are cut off
        learned = [text_keys.get(text.name, "") for text in config.learned]
        return self.methods.make_keys(config, learned)[:count]

    def _is_of_earlier_code(self, config: RunConfig, run_line: RunLine) -> bool:
        """Whether this is an archive of a run whose method now has other code.

        The last stage of the run decides.
        """
        if not self.store.is_archive or not run_line.stages:
            return False
        start = find_last(self.store.read_stage(run_line.stages[-1]), StageLine)
        return start is not None and start.method_code != self.methods.hash_code(config)

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
        """How the settings differ from the newest record of the same row and seed, in words."""
        recorded = find_newest_record(config, self.store)
        if recorded is None:
            return []
        return find_differences(describe_run(recorded), describe_run(config))

    # What tables show

    def read_recorded(self, suite: str) -> list[RunRecords]:
        """All recorded runs of a suite, viewed with their recorded settings.

        If the settings name a method, a start model or a table of step times that is not here, the
        run is believed.
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

    def read_suite(self, suite: str, configs: Sequence[RunConfig]) -> list[RunRecords]:
        """These runs of a suite, with an empty view for each run that has no records.

        All seeds of a row must have the same text: see `leave_out_older_texts`. Raises RecordsError
        for a file that cannot be used, such as a copy of a run's file, see `check_other_files`.
        """
        check_other_files(self.store, suite, {config.id for config in configs})
        runs = []
        for run in self.view_all(configs):
            # stages that other runs have trained for it are not yet its own
            runs.append(run if run.has_begun else leave_out(run, run.why, run.differences))
        return leave_out_older_texts(runs)


def _had_other_code(start: StageLine | None, method: str, code: str) -> bool:
    """Whether a run's method trained a stage with other code than now.

    Returns False if the stage's method is unknown, as in older archives.
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
    """The newest recorded settings of the same row and seed, except the run's own."""
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
    except ValueError:  # it has settings that no longer exist
        return None


def find_recorded_start(config: RunConfig, store: Store) -> RunConfig | None:
    """The run with the start model as the newest record of its row and seed describes it.

    Returns None if there is no such record, or if it has another `model.start`.
    """
    recorded = find_newest_record(config, store)
    if recorded is None or recorded.model.start != config.model.start:
        return None
    return config.model_copy(update={"model": recorded.model, "start": recorded.start})


def describe_run(config: RunConfig) -> dict[str, Any]:
    """The settings that decide which run a table shows, except those at their default."""
    return describe(config, *DECIDE_A_RUN)


def name_differences(differences: Sequence[str]) -> str:
    """A phrase with the first of these differences and the number of others, "" without any."""
    if not differences:
        return ""
    if any(difference.startswith("start.key:") for difference in differences):
        return "another start model (`status --why`)"
    count = len(differences) - 1
    rest = f" and {count} more (`status --why`)" if count else ""
    return f"other settings, {differences[0]}{rest}"


def name_further_seeds(configs: Sequence[RunConfig], ledger: Ledger) -> list[str]:
    """A line with further seeds for which these runs are trained too, but not shown.

    The list is empty if there are no such seeds.
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
