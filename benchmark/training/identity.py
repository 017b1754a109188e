"""The identity of a run's results, and whether its records are of it: all that reads a result asks.
No torch here.

docs/how_it_works.md has the list. A run's id says its settings and its seed; the keys of its stages
say the rest.
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

    def had_other_code(self, begun: StageLine | None) -> bool:
        """Whether the run's method trained a stage with other code than now. No where the stage's
        method is unknown.
        """
        # archives have stages without `method` and `method_code`
        return (
            begun is not None and begun.method == self.code[0] and begun.method_code != self.code[1]
        )


class Identities:
    """The identities of runs below a folder of `--runs`; a text that several have is looked at
    once.
    """

    def __init__(self, store: Store, build: Build) -> None:
        self.store, self.build = store, build
        self._corpora: dict[str, Corpus | NotHere | None] = {}
        self._here: dict[str, dict[str, set[str]]] = {}
        self._first: dict[str, dict[str, str]] = {}

    def identify(self, config: RunConfig, lines: list[LineOfRun] | None = None) -> Identity:
        """The identity of a run, and whether its records are of its text, tokenizer and method's
        version.

        Records are believed of a text that is not here, or is the Hub's, which counts by its name,
        and in an archive, which also keeps runs of an earlier version of their method: its code was
        another then, and so may its keys be. Raises NotHere for a text that is not here, and of
        which nothing is recorded.
        """
        method, corpus = self.build(config.method, config.options), self._find_corpus(config)
        lines = (
            self.store.read_run(config) if lines is None else lines
        )  # given by whoever has read them
        recorded, keys, tokens = find_last(lines, RunLine), list[str](), dict[str, str]()
        sizes: tuple[int, ...] = ()
        valid_tokens = 0
        if isinstance(corpus, Corpus):
            tokens, sizes = corpus.keys, tuple(domain.info["tokens"] for domain in corpus.domains)
            valid_tokens = sum(len(text.valid) for text in (*corpus.domains, *corpus.probes))
        elif recorded and (self.store.is_archive or self._agrees(config, recorded.tokens)):
            keys, tokens = recorded.stages, recorded.tokens
        elif corpus and not (recorded or self.store.is_archive):
            raise corpus
        elif not (
            recorded or self.store.is_archive
        ):  # a domain that was added leaves the stages before it as they are
            tokens = self._find_first_keys(config)
        if tokens:
            count = sum(domain.name in tokens for domain in config.domains)
            keys = make_stage_keys(
                config, method, [tokens.get(text.name, "") for text in config.learned]
            )[:count]
        why = ""
        earlier = recorded is not None and keys != recorded.stages and self._keeps(recorded, method)
        if recorded and earlier:
            keys = recorded.stages
        if recorded and not keys:
            why = "its text or tokenizer has changed, or is not prepared here: `run` sees which records are of it"
        elif recorded and (keys != recorded.stages or recorded.tokens not in ({}, tokens)):
            why = "its records are of another text, tokenizer, or version or signature of its method: `run` trains anew"
        return Identity(
            keys,
            [] if why else lines,
            isinstance(corpus, Corpus),
            (config.method, hash_code(type(method).__module__)),
            why,
            earlier,
            sizes,
            valid_tokens,
        )

    def leave_out(self, run: RunRecords, config: RunConfig | None = None) -> RunRecords:
        """The run, or an empty one that says why its records are not of its settings, or of those
        recorded with it.

        Of recorded settings a method, a start model or a table of step times that is not here tells
        nothing, as a text.
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
        begun = [find_last(stage, StageLine) for stage in run.stages]
        # not in an archive, whose report is what its records give, whatever is refactored later
        other_code = not self.store.is_archive and any(map(identity.had_other_code, begun))
        reads_domain = self.build(config_of_run.method, config_of_run.options).reads_domain()
        return dataclasses.replace(
            run,
            other_code=other_code,
            earlier=identity.earlier,
            reads_domain=reads_domain,
        )

    def _keeps(self, recorded: RunLine, method: LifelongMethod) -> bool:
        """Whether this is an archive of a run whose last stage its method trained with other code
        than now.
        """
        if not self.store.is_archive or not recorded.stages:
            return False
        begun = find_last(self.store.read_stage(recorded.stages[-1]), StageLine)
        return begun is not None and begun.method_code != hash_code(type(method).__module__)

    def _agrees(self, config: RunConfig, recorded: Mapping[str, str]) -> bool:
        """Whether each text that is here is the recorded one."""
        key = hash_data_settings(config)
        if key not in self._here:
            self._here[key] = find_prepared_keys(config, self.store)
        return all(recorded.get(name) in keys for name, keys in self._here[key].items())

    def _find_first_keys(self, config: RunConfig) -> dict[str, str]:
        key = hash_data_settings(config)
        if key not in self._first:
            self._first[key] = find_first_keys(config, self.store)
        return self._first[key]

    def _find_corpus(self, config: RunConfig) -> Corpus | NotHere | None:
        key = hash_data_settings(config)
        if key not in self._corpora:
            try:
                self._corpora[key] = find_prepared_corpus(config, self.store)
            except NotHere as error:
                self._corpora[key] = error
        return self._corpora[key]


def name_further_seeds(configs: Sequence[RunConfig], identities: Identities) -> list[str]:
    """A line that names the seeds with which the same runs are trained, and which are not shown; or
    none.
    """
    store, shown = identities.store, {config.seed for config in configs}
    names = {
        path.stem
        for config in configs[:1]
        for path in store.run_file(config).parent.glob("*.jsonl")
    }
    seeds = {
        int(name[1]) for name in map(re.compile(r".*-s(\d+)-[0-9a-f]{12}").fullmatch, names) if name
    } - shown
    runs = (
        config.model_copy(update={"seed": seed}) for seed in sorted(seeds) for config in configs
    )
    ended = (
        run.seed
        for run in runs
        if run.id in names and select_kind(identities.identify(run).lines, EndedLine)
    )
    said = ", ".join(map(str, dict.fromkeys(ended)))
    return (
        [f"! seeds that are trained too and not shown: {said}; --seeds chooses which are"]
        if said
        else []
    )
