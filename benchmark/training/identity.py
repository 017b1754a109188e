"""The identity of a run's results, and whether its records are of it.

All that reads a result asks here. No torch here. docs/how_it_works.md has the list. A run's id says
its settings and its seed. The keys of its stages say the rest.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmark.data.documents import NotHere
from benchmark.data.tokens import (
    Corpus,
    find_first_keys,
    find_prepared_corpus,
    find_prepared_keys,
    hash_data_settings,
)
from benchmark.records import EndedLine, LineOfRun, RunLine, StageLine, find_last, select_kind
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig
from benchmark.store import RunRecords, Store, leave_out
from benchmark.training.keys import hash_code, make_stage_keys
from benchmark.training.method import Build, LifelongMethod


@dataclass(frozen=True)
class Identity:
    """The identity of a run, and the records that are of it.

    `keys` are those of its stages. Before its text is tokenised (`prepared`) they are those of the
    first stages, as far as their domains are: a stage does not depend on later ones.
    """

    keys: list[str]
    lines: list[LineOfRun]
    prepared: bool
    code: tuple[str, str]  # its method, and a hash of that one's code
    why: str = ""  # its records are not of it
    earlier: bool = False  # they are of an earlier version of its method, in an archive
    sizes: tuple[int, ...] = ()  # tokens of each domain, where they are prepared
    valid_tokens: int = 0  # of all that an evaluation reads, where they are

    def had_other_code(self, start: StageLine | None) -> bool:
        """Whether the run's method trained a stage with other code than now.

        No where the stage's method is unknown.
        """
        # archives have stages without `method` and `method_code`
        if start is None:
            return False
        method, method_code = self.code
        return start.method == method and start.method_code != method_code


class Identities:
    """The identities of runs below a folder of `--runs`.

    A text that several runs have is looked at once.
    """

    def __init__(self, store: Store, build: Build) -> None:
        self.store = store
        self.build = build
        self._corpora: dict[str, Corpus | NotHere | None] = {}
        self._prepared_keys: dict[str, dict[str, set[str]]] = {}
        self._first_keys: dict[str, dict[str, str]] = {}

    def identify(self, config: RunConfig, lines: list[LineOfRun] | None = None) -> Identity:
        """The identity of a run, and whether its records are of its text and method's version.

        Records are believed of a text that is not here. They are believed of a text of the Hub,
        which counts by its name. They are believed in an archive, which also keeps runs of an
        earlier version of their method: its code was another then, and so may its keys be. `lines`
        are given by whoever has read them. Raises NotHere for a text that is not here, and of which
        nothing is recorded.
        """
        method = self.build(config.method, config.options)
        corpus = self._find_corpus(config)
        if lines is None:
            lines = self.store.read_run(config)
        run_line = find_last(lines, RunLine)
        is_new = not (run_line or self.store.is_archive)
        keys: list[str] = []
        tokens: dict[str, str] = {}
        sizes: tuple[int, ...] = ()
        valid_tokens = 0
        if isinstance(corpus, Corpus):
            tokens = corpus.keys
            sizes = tuple(domain.info["tokens"] for domain in corpus.domains)
            texts = (*corpus.domains, *corpus.probes)
            valid_tokens = sum(len(text.valid) for text in texts)
        elif run_line and (self.store.is_archive or self._agrees(config, run_line.tokens)):
            keys = run_line.stages
            tokens = run_line.tokens
        elif corpus and is_new:
            raise corpus
        elif is_new:  # a domain that was added leaves the stages before it as they are
            tokens = self._find_first_keys(config)
        if tokens:
            count = sum(domain.name in tokens for domain in config.domains)
            text_keys = [tokens.get(text.name, "") for text in config.learned]
            keys = make_stage_keys(config, method, text_keys)[:count]
        why = ""
        earlier = False
        if run_line and keys != run_line.stages and self._keeps(run_line, method):
            earlier = True
            keys = run_line.stages
        if run_line and not keys:
            why = (
                "its text or tokenizer has changed, or is not prepared here: `run` sees which "
                "records are of it"
            )
        elif run_line and (keys != run_line.stages or run_line.tokens not in ({}, tokens)):
            why = (
                "its records are of another text, tokenizer, or version or signature of its "
                "method: `run` trains anew"
            )
        return Identity(
            keys=keys,
            lines=[] if why else lines,
            prepared=isinstance(corpus, Corpus),
            code=(config.method, hash_code(type(method).__module__)),
            why=why,
            earlier=earlier,
            sizes=sizes,
            valid_tokens=valid_tokens,
        )

    def leave_out(self, run: RunRecords, config: RunConfig | None = None) -> RunRecords:
        """The run, or an empty one that says why its records are not of its settings.

        Without `config` the settings are those that were recorded with the run. Of recorded
        settings a method, a start model or a table of step times that is not here tells nothing, as
        a text.
        """
        try:
            config_of_run = config or RunConfig.model_validate(run.line.config)
            identity = self.identify(config_of_run, run.lines)
        except (ConfigError, ValueError):
            if config:
                raise
            return run
        if identity.why:
            return leave_out(run, identity.why)
        starts = [find_last(stage, StageLine) for stage in run.stages]
        # not in an archive, whose report is what its records give, whatever is refactored later
        other_code = not self.store.is_archive and any(map(identity.had_other_code, starts))
        reads_domain = self.build(config_of_run.method, config_of_run.options).reads_domain()
        return dataclasses.replace(
            run,
            other_code=other_code,
            earlier=identity.earlier,
            reads_domain=reads_domain,
        )

    def _keeps(self, run_line: RunLine, method: LifelongMethod) -> bool:
        """Whether this is an archive of a run that its method trained with other code than now.

        The last stage of the run decides.
        """
        if not self.store.is_archive or not run_line.stages:
            return False
        lines = self.store.read_stage(run_line.stages[-1])
        start = find_last(lines, StageLine)
        return start is not None and start.method_code != hash_code(type(method).__module__)

    def _agrees(self, config: RunConfig, recorded: Mapping[str, str]) -> bool:
        """Whether each text that is here is the recorded one."""
        key = hash_data_settings(config)
        if key not in self._prepared_keys:
            self._prepared_keys[key] = find_prepared_keys(config, self.store)
        texts = self._prepared_keys[key]
        return all(recorded.get(name) in keys for name, keys in texts.items())

    def _find_first_keys(self, config: RunConfig) -> dict[str, str]:
        key = hash_data_settings(config)
        if key not in self._first_keys:
            self._first_keys[key] = find_first_keys(config, self.store)
        return self._first_keys[key]

    def _find_corpus(self, config: RunConfig) -> Corpus | NotHere | None:
        key = hash_data_settings(config)
        if key not in self._corpora:
            try:
                self._corpora[key] = find_prepared_corpus(config, self.store)
            except NotHere as error:
                self._corpora[key] = error
        return self._corpora[key]


def name_further_seeds(configs: Sequence[RunConfig], identities: Identities) -> list[str]:
    """A line that names the seeds that are trained with the same runs and not shown.

    The list is empty where there are none.
    """
    if not configs:
        return []
    folder = identities.store.run_file(configs[0]).parent
    names = {path.stem for path in folder.glob("*.jsonl")}
    pattern = re.compile(r".*-s(\d+)-[0-9a-f]{12}")
    seeds = {int(match[1]) for match in map(pattern.fullmatch, names) if match}
    seeds -= {config.seed for config in configs}
    trained_seeds: set[int] = set()
    for seed in sorted(seeds):
        for config in configs:
            run = config.model_copy(update={"seed": seed})
            if run.id not in names:
                continue
            lines = identities.identify(run).lines
            if select_kind(lines, EndedLine):
                trained_seeds.add(seed)
    if not trained_seeds:
        return []
    seed_list = ", ".join(map(str, sorted(trained_seeds)))
    return [f"! seeds that are trained too and not shown: {seed_list}; --seeds chooses which are"]
