"""Records to tidy tables: one row an evaluation, a finished stage, or a downstream score.

All frames share the columns suite, row (label), row_index, method, run, seed, stage (index from 0).
A charged amount counts from the start of the run, in the budget's unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
from msgspec import structs

from analysis import metrics
from analysis.inference import estimate_document_variance
from analysis.metrics import Floats
from benchmark.metrics import average_perplexity
from benchmark.records import (
    AttentionLine,
    BaselineLine,
    DoneLine,
    EvaluationLine,
    Line,
    LineOfStage,
    Measures,
    Provenance,
    ScoreLine,
    SimilarityLine,
    Spent,
    StageLine,
    find_last,
    select_kind,
)
from benchmark.settings.names import make_slug
from benchmark.settings.units import list_recorded_units
from benchmark.store import ENOUGH_CORES, RunRecords

RUN = ["suite", "row", "row_index", "method", "run", "seed"]
_MEASURED = ("ap", "ap_plus", "log_ap_plus")


@dataclass(frozen=True)
class Study:
    """The runs of a report, and everything computed from them once.

    Rows compare within a suite: ask the `parts`, a study of each suite.

    `title`: those of its suites. `paper`: whether the runs are held against the paper. `called`:
    what stands for each suite on a command line. `printed`: the suite of the paper whose numbers
    stand beside each suite's, "" for none; a suite that is not there has its own. `only_last`:
    suites that fine-tune only the models after the last stage. `whole`: the study that this is a
    part of.
    """

    name: str
    runs: Sequence[RunRecords]
    title: str = ""
    paper: bool = False
    called: Mapping[str, str] = field(default_factory=dict)
    printed: Mapping[str, str] = field(default_factory=dict)
    only_last: frozenset[str] = frozenset()
    whole: Study | None = field(default=None, repr=False, compare=False)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """Every evaluation: ap, ap_plus, log_ap_plus, charged, seconds, steps, tokens, fraction,
        phase.

        `order` is its place among those of its stage, `begun` what was spent when that stage began,
        by unit. `learned`: neither before the first step of a stage nor before the end of the first
        stage; such values set a chart's scale.
        """
        units, lines = list_recorded_units(), []
        for run in self.runs:
            names, described = [domain.name for domain in run.domains], _describe_run(run)
            spent, finished = dict.fromkeys(("charged", *units), 0.0), np.full(len(names), np.nan)
            for index, stage in enumerate(run.stages):
                evaluations, done = select_kind(stage, EvaluationLine), find_last(stage, DoneLine)
                unit = find_header(stage).budget.unit if stage else ""
                known = [[select_measure(line, name) for name in names] for line in evaluations]
                perplexity = np.array(known, float).reshape(-1, len(names))
                measured = (
                    average_perplexity(perplexity, index),
                    metrics.average_increase(perplexity, finished, index),
                    metrics.average_increase(np.log(perplexity), np.log(finished), index),
                )
                for order, (line, *values) in enumerate(
                    zip(evaluations, *measured, perplexity, strict=True)
                ):
                    is_end = done is not None and line is evaluations[-1]
                    amounts = _sum_charges(spent, line.charged, unit).values()
                    lines.append(
                        (
                            *described,
                            index,
                            order,
                            line.phase,
                            line.fraction,
                            *amounts,
                            is_end,
                            spent,
                            *values,
                        )
                    )
                if done is None:
                    break
                if evaluations:  # a stage may train nothing, and then evaluates nothing
                    finished[index] = perplexity[-1, index]
                spent = _sum_charges(spent, done.charged, unit)
        columns = [
            *RUN,
            "stage",
            "order",
            "phase",
            "fraction",
            "charged",
            *units,
            "is_end",
            "begun",
        ]
        table = pd.DataFrame(lines, columns=[*columns, *_MEASURED, "perplexity"])
        table = table.astype(
            {"is_end": bool} | dict.fromkeys(_MEASURED, float)
        )  # an empty column has no type
        return table.assign(
            learned=(table["phase"] != "start") & (table["is_end"] | (table["stage"] > 0))
        )

    @cached_property
    def ends(self) -> pd.DataFrame:
        """The last evaluation of every stage that ran to its end."""
        return self.evaluations[self.evaluations["is_end"]].reset_index(drop=True)

    @cached_property
    def stages(self) -> pd.DataFrame:
        """Every stage that was started: domain, unit, amount, charged, seconds, hardware, code,
        packages, size, done.

        `shares` is the sum of its phases' shares of its budget, `cores` the share of its cores that
        other programs left it, NaN where that is not recorded.
        """
        started = (
            (run, index, stage)
            for run in self.runs
            for index, stage in enumerate(run.stages)
            if stage
        )
        lines = [_describe_stage(*place) for place in started]
        return pd.DataFrame(lines, columns=[*RUN, *_STAGE]).astype({"done": bool})

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Downstream scores: domain, task, task_key, how, prompt, metric, test, as means over
        `finetuning_seeds` seeds.

        `headline`: the prompt that tables show, the right one for models that were trained with
        prompts. Linear probes are here only where a suite fine-tunes nothing, see `probes`.
        """
        return self._scores[~self._scores["beside"]].reset_index(drop=True)

    @cached_property
    def probes(self) -> pd.DataFrame:
        """Linear probes beside fine-tuning on the same tasks, as `scores`."""
        return self._scores[self._scores["beside"]].reset_index(drop=True)

    @cached_property
    def _scores(self) -> pd.DataFrame:
        lines_of = [
            (run.suite, line) for run in self.runs for stage in run.scores for line in stage
        ]
        tuned = {suite for suite, line in lines_of if line.how == "finetune"}
        lines = []
        for run in self.runs:
            described = _describe_run(run)
            for stage, scores in enumerate(run.scores):
                same: dict[tuple[str, ...], dict[int, float]] = {}
                for score in scores:
                    same.setdefault(tuple(getattr(score, name) for name in _SCORE), {})[
                        score.seed
                    ] = score.test
                headline = "right" if any(score.prompt == "right" for score in scores) else "none"
                for key, tests in same.items():
                    *_, how, prompt, _ = key
                    beside = how != "finetune" and run.suite in tuned
                    means = (fmean(tests.values()), len(tests))
                    lines.append((*described, stage, *key, *means, prompt == headline, beside))
        columns = [*RUN, "stage", *_SCORE, "test", "finetuning_seeds", "headline", "beside"]
        return pd.DataFrame(lines, columns=columns).astype({"headline": bool, "beside": bool})

    @cached_property
    def similarities(self) -> pd.DataFrame:
        """The likeness of each stage's model and its ancestors: ars (nats, NaN where there is
        none), reason.
        """
        return self._collect_measures(SimilarityLine, ["ars"])

    @cached_property
    def attentions(self) -> pd.DataFrame:
        """The likeness of a stage's heads to their own ancestors and to others, as means; heads,
        maps, reason.
        """
        table = self._collect_measures(AttentionLine, ["own", "others", "heads", "maps"])
        for name in ("own", "others"):
            table[name] = [
                np.mean(np.array(values, float)) if values else np.nan for values in table[name]
            ]
        return table

    def _collect_measures(self, kind: type[Line], columns: list[str]) -> pd.DataFrame:
        """The records of one kind that a measure of the models wrote."""
        names = [*columns, "reason"]
        lines = [
            (*_describe_run(run), stage, *(getattr(line, name) for name in names))
            for run in self.runs
            for stage, lines in enumerate(run.similarities)
            for line in lines
            if isinstance(line, kind)
        ]
        return pd.DataFrame(lines, columns=[*RUN, "stage", *names])

    @cached_property
    def baselines(self) -> pd.DataFrame:
        """Downstream scores that need no model: task, task_key, domain, window, name, metric, test."""
        names = ["task", "task_key", "domain", "window", "name", "metric", "test"]
        lines = [
            [getattr(line, name) for name in names] for run in self.runs for line in run.baselines
        ]
        return pd.DataFrame(lines, columns=names).drop_duplicates(ignore_index=True)

    @cached_property
    def measured_baselines(self) -> pd.DataFrame:
        """The `baselines` on the very data that the final models were scored on, of a single suite."""
        last = len(self.runs[0].domains) - 1
        final = self.scores[(self.scores["stage"] == last) & self.scores["headline"]]
        windows = {line.window for run in self.runs for stage in run.scores for line in stage}
        of_task = self.baselines["task_key"].isin(set(final["task_key"]))
        return self.baselines[of_task & self.baselines["window"].isin({"", *windows})].assign(
            seed=0
        )

    @cached_property
    def above_unigram(self) -> pd.DataFrame:
        """Rows that predict no better than counts of their tokens: row, stage, ap, unigram (its
        AP).

        They are means over seeds after the last stage that a row has finished.
        """
        unigrams = {
            run.id: [run.line.unigram.get(domain.name, np.nan) for domain in run.domains]
            for run in self.runs
        }
        averages = [
            float(average_perplexity(unigrams[run], stage))
            for run, stage in self.ends[["run", "stage"]].itertuples(index=False)
        ]
        ends = self.ends.assign(unigram=np.array(averages, float))
        means = ends.groupby(["row", "stage"], sort=False)[["ap", "unigram"]].mean().reset_index()
        last = means[means["stage"] == means.groupby("row")["stage"].transform("max")]
        return last[last["ap"] >= last["unigram"]]

    @cached_property
    def finished(self) -> pd.DataFrame:
        """The evaluations of finished runs.

        `cores` is the share of its cores that a run had in its last stage, NaN where that is not
        known. `timed` says whether wall times of that stage compare: it had ENOUGH_CORES.
        """
        last = len(self.runs[0].domains) - 1
        ended = self.ends.loc[self.ends["stage"] == last, "run"]
        shares = self.stages[self.stages["stage"] == last].set_index("run")["cores"]
        evaluations = self.evaluations[self.evaluations["run"].isin(ended)]
        cores = evaluations["run"].map(shares).astype(float)
        return evaluations.assign(cores=cores, timed=cores >= ENOUGH_CORES)

    @cached_property
    def references(self) -> frozenset[str]:
        """Rows whose stages so far were given more than their budgets: others are measured against
        these.
        """
        amounts = self.stages.assign(given=self.stages["amount"] * self.stages["shares"])
        sums = amounts.groupby(["suite", "row", "run"])[["given", "amount"]].sum()
        return frozenset(sums.index[sums["given"] > 1.01 * sums["amount"]].get_level_values("row"))

    @cached_property
    def pooled(self) -> frozenset[str]:
        """Rows whose stages take more or less than their own budgets, as From scratch and
        references do.

        They train on all text so far at once, so no stage of theirs compares with one of the
        others'.
        """
        return frozenset(self.stages.loc[(self.stages["shares"] - 1).abs() > 0.01, "row"])

    @cached_property
    def suites(self) -> list[str]:
        return list(dict.fromkeys(run.suite for run in self.runs))

    def list_runs(self, suite: str) -> list[RunRecords]:
        return [run for run in self.runs if run.suite == suite]

    @property
    def suite(self) -> str:
        """The name of the suite, of a study of a single one."""
        return self.runs[0].suite

    @cached_property
    def parts(self) -> list[Study]:
        """A study of each suite, whose rows are those of one table."""
        return (
            [self]
            if len(self.suites) == 1
            else [self.select_suites([suite]) for suite in self.suites]
        )

    def select_suites(self, suites: Sequence[str]) -> Study:
        """The runs of these suites, in this order."""
        return replace(
            self,
            runs=[run for suite in suites for run in self.list_runs(suite)],
            whole=self.whole or self,
        )

    def select_rows(self, rows: Collection[str]) -> Study:
        """The runs of these rows."""
        return replace(self, runs=[run for run in self.runs if run.row in rows])

    @cached_property
    def without_leaks(self) -> Study:
        """The same runs, scored without the test examples that are known to stand in training text.

        NaN where no other example is left, and of a baseline that was scored before those in the
        stream were known.
        """
        scores = (line for run in self.runs for stage in run.scores for line in stage)
        known = {(line.task, line.task_key): line.in_stream for line in scores}
        runs = []
        for run in self.runs:
            same = [
                known.get((line.task, line.task_key), line.in_stream) == line.in_stream
                for line in run.baselines
            ]
            baselines = [
                line if is_same else structs.replace(line, test=np.nan)
                for line, is_same in zip(_drop_leaks(run.baselines), same, strict=True)
            ]
            runs.append(
                replace(
                    run, scores=[_drop_leaks(stage) for stage in run.scores], baselines=baselines
                )
            )
        return replace(self, runs=runs)

    @cached_property
    def without_copies(self) -> Study:
        """The runs that recorded perplexity without near copies of training text, with that
        perplexity.

        NaN where nothing of a text is left, and in a stage that knew of other copies in it than the
        last stage.
        """
        ends = [(run, find_last(run.stages[-1], EvaluationLine)) for run in self.runs]
        runs = [
            replace(
                run,
                stages=[_drop_copies(stage, find_header(run.stages[-1])) for stage in run.stages],
            )
            for run, end in ends
            if end and end.without_copies
        ]
        return replace(self, runs=runs)

    @property
    def tasks(self) -> dict[str, str]:
        """The titles of the domains that a downstream task is of, by name."""
        have = {task["domain"] for run in self.runs for task in run.line.tasks}
        return {
            domain.name: domain.title
            for run in self.runs
            for domain in run.domains
            if domain.name in have
        }

    @property
    def whole_task(self) -> str:
        """The title of the task of no domain, whose domain in `scores` is ""; "" where there is
        none.
        """
        tasks = (task for run in self.runs for task in run.line.tasks if not task["domain"])
        return next((task["title"] or task["name"] for task in tasks), "")

    @cached_property
    def apart(self) -> frozenset[str]:
        """Rows whose text, tokens or masks are not those of most: their perplexities compare with
        no others.
        """
        shared = self.on_most_texts[:1]
        return frozenset(
            run.row
            for run in self.runs
            for measure in shared
            if run.line.unigram and find_other_texts(run, measure)
        )

    @property
    def never_best(self) -> frozenset[str]:
        """Rows whose perplexities are marked in no table: references, and those on other texts."""
        return self.references | self.apart

    def compute_text_variance(self, suite: str, row: str, other: str, stage: int) -> float:
        """The variance that the choice of validation documents brings to the log ratio of two rows'
        AP after a stage.

        It is of the mean over the seeds that both have. 0 where no losses by document are recorded.
        """
        ours, theirs = (
            self._collect_losses(suite, row, stage),
            self._collect_losses(suite, other, stage),
        )
        seeds = ours.keys() & theirs.keys()
        changes, tokens = defaultdict[str, list[Floats]](list), dict[str, Floats]()
        for seed in seeds:
            for text, mine in ours[seed].items():
                change = mine[:, 1] - theirs[seed][text][:, 1]
                changes[text].append(change / len(seeds) / len(ours[seed]))
                tokens[text] = mine[:, 0]
        return sum(
            estimate_document_variance(np.sum(parts, axis=0), tokens[text])
            for text, parts in changes.items()
        )

    def _collect_losses(self, suite: str, row: str, stage: int) -> dict[int, dict[str, Floats]]:
        """Of each seed of a row the tokens and nats of each document, by the texts that are learned
        after a stage.
        """
        losses = {}
        for run in self.list_runs(suite):
            is_asked_for = make_slug(run.row) == make_slug(row) and run.finished > stage
            end = find_last(run.stages[stage], EvaluationLine) if is_asked_for else None
            if end and end.documents:
                learned = [domain.name for domain in run.domains[: stage + 1]]
                losses[run.seed] = {name: np.array(end.documents[name], float) for name in learned}
        return losses

    @cached_property
    def stage_titles(self) -> list[str]:
        """The name of each stage: by its domain, or by its place where runs meet the domains in
        different orders.
        """
        orders = {tuple(domain.title for domain in run.domains) for run in self.runs}
        longest = max(orders, key=len)
        return (
            list(longest)
            if len(orders) == 1
            else [f"Domain {place + 1}" for place in range(len(longest))]
        )

    @property
    def column_titles(self) -> list[str]:
        """The names of stages in columns that several suites share: by their place where domains
        differ.
        """
        titles = [part.stage_titles for part in self.parts]
        longest = max(titles, key=len)
        alike = all(each == longest[: len(each)] for each in titles)
        return longest if alike else [f"Domain {place + 1}" for place in range(len(longest))]

    @property
    def starts(self) -> dict[str, list[RunRecords]]:
        """The name of each start model in tables, and a run of each seed that begins with it."""
        starts: dict[str, dict[int, RunRecords]] = {}
        for run in self.runs:
            if run.start:
                name = Path(run.line.config["model"].get("start") or "").name
                starts.setdefault(name, {}).setdefault(run.seed, run)
        if len(starts) == 1:
            return {"Start model": [*next(iter(starts.values())).values()]}
        return {f"Start model {name}": [*runs.values()] for name, runs in starts.items()}

    @cached_property
    def on_most_texts(self) -> list[RunRecords]:
        """The runs on the texts that most rows have, the first such; none before a run has started."""
        kinds: list[list[RunRecords]] = []
        for run in self.runs:
            if run.line.unigram:
                kind = next((kind for kind in kinds if not find_other_texts(run, kind[0])), None)
                if kind is None:
                    kinds.append([run])
                else:
                    kind.append(run)
        return max(kinds, key=lambda kind: len({run.row for run in kind}), default=[])


def find_other_texts(run: RunRecords, measure: RunRecords) -> list[str]:
    """The titles of domains and probes whose text, tokens or masks in `run` are not those in
    `measure`.

    A domain that `measure` lacks counts, unless one of the two streams only goes on where the other
    ends.
    """
    line, other = run.line, measure.line
    mine, theirs = ({domain.name for domain in run_line.domains} for run_line in (line, other))
    apart = mine - theirs if theirs - mine else set()
    titles = {domain.name: domain.title for domain in (*line.domains, *line.probes)}
    apart |= {name for name, text in line.texts.items() if other.texts.get(name, text) != text}
    return [title for name, title in titles.items() if name in apart]


def count_copies(head: StageLine, text: str) -> dict[str, int]:
    """The validation documents of a text that nearly stand in the training text of a domain, as
    counts by domain.
    """
    info = head.data.get(text, {})
    counts = {text: info.get("near_copies"), **info.get("near_copies_in", {})}
    return {domain: count for domain, count in counts.items() if count}


def _drop_copies(stage: Sequence[LineOfStage], now: StageLine) -> list[LineOfStage]:
    """A stage's lines, with perplexities less the copies that the last stage knew of; `now` is its
    header.
    """
    lines = []
    for line in stage:
        if isinstance(line, EvaluationLine):
            without = {}
            for name, value in line.perplexity.items():
                known, copies = count_copies(find_header(stage), name), count_copies(now, name)
                less = line.without_copies.get(name, np.nan) if copies else value
                without[name] = less if known == copies else np.nan
            line = structs.replace(line, perplexity=without)
        lines.append(line)
    return lines


S = TypeVar("S", ScoreLine, BaselineLine)


def _drop_leaks(scores: Sequence[S]) -> list[S]:
    """Scores without leaks; records hold null where there are none, and where nothing else is left."""
    return [
        structs.replace(
            score, test=np.nan if score.test_without_leaks is None else score.test_without_leaks
        )
        if score.leaks or score.in_stream
        else score
        for score in scores
    ]


_SCORE = ["domain", "task", "task_key", "how", "prompt", "metric"]
_STAGE = [
    "stage",
    "domain",
    "unit",
    "amount",
    "shares",
    "charged",
    "seconds",
    "hardware",
    "code",
    "packages",
]
_STAGE += ["parameters", "trainable", "layers", "hidden_size", "cores", "done"]


def _describe_run(run: RunRecords) -> tuple[Any, ...]:
    return run.suite, run.row, run.line.row_index, run.line.method, run.id, run.seed


def _describe_stage(run: RunRecords, index: int, stage: Sequence[LineOfStage]) -> tuple[Any, ...]:
    head, done = find_header(stage), find_last(stage, DoneLine)
    unit = head.budget.unit
    charged = (done.charged[unit], done.charged["seconds"]) if done else (np.nan, np.nan)
    size = (head.parameters, head.trainable, head.layers, head.hidden_size)
    place = (
        index,
        head.domain,
        unit,
        head.budget.amount,
        sum(phase["share"] for phase in head.phases),
    )
    share = done.cores.share if done else None
    cores = np.nan if share is None else share
    packages = ", ".join(f"{name} {version}" for name, version in head.provenance.packages.items())
    made = (describe_hardware(head.provenance), head.provenance.code, packages)
    return (*_describe_run(run), *place, *charged, *made, *size, cores, done is not None)


def average_by_domain(scores: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The mean score on the tasks of each domain, a column each; NaN where one of them is."""
    tests = scores.groupby([*keys, "domain"])["test"]
    return tests.mean().where(tests.count() == tests.size()).unstack("domain")


def find_header(stage: Sequence[LineOfStage]) -> StageLine:
    """The line that a stage begins with."""
    return next(line for line in stage if isinstance(line, StageLine))


def describe_hardware(provenance: Provenance) -> str:
    """The hardware that decides how fast a step is, in words."""
    machine = provenance.hardware
    device = (
        machine.cpu if machine.device.lower() == "cpu" else f"{machine.count} × {machine.device}"
    )
    count = provenance.hardware.threads
    threads = (
        f", {count} {'thread' if count == 1 else 'threads'}"
        if machine.device.lower() == "cpu"
        else ""
    )
    processes = f", {provenance.hardware.count} processes" if provenance.hardware.count > 1 else ""
    return f"{device}{threads}{processes}, {provenance.precision}"


def select_measure(
    measured: Measures, name: str, what: Literal["perplexity", "bits_per_byte"] = "perplexity"
) -> float:
    """The measure of a domain or probe: infinite where it overflowed (null in records), NaN where
    they lack it.
    """
    value = getattr(measured, what).get(name, np.nan) if measured else np.nan
    return np.inf if value is None else value


def _sum_charges(spent: Spent, charged: Spent, unit: str) -> Spent:
    """The costs since the start of the run, by unit, and in the budget's as "charged"; NaN where
    unknown.
    """
    now = {**charged, "charged": charged[unit]}
    return {name: before + now.get(name, np.nan) for name, before in spent.items()}
