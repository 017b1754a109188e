"""Turns records into tidy tables: one line per evaluation, started stage, or downstream score.

Tables of runs share the columns suite, row (label), row_index, method, run, seed, stage (index from
0). The amount `charged` is in the budget's unit. It counts from the start of the run in
`evaluations`, and from the start of the stage in `stages`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import pandas as pd
from msgspec import structs

from analysis import metrics
from analysis.inference import estimate_document_variance
from analysis.metrics import Floats
from benchmark.ledger.records import (
    AttentionLine,
    EvaluationLine,
    Line,
    LineOfStage,
    Measures,
    Provenance,
    ScoreLine,
    SimilarityLine,
    Spent,
    StageDone,
    StageLine,
    find_last,
    select_kind,
)
from benchmark.ledger.runs import RunRecords
from benchmark.metrics import average_perplexity
from benchmark.settings.names import make_slug
from benchmark.settings.units import list_recorded_units

RUN = ["suite", "row", "row_index", "method", "run", "seed"]
Values = dict[str, Any]  # a line of a table, by its columns
_MEASURED = ("ap", "ap_plus", "log_ap_plus", "unigram")
ENOUGH_CORES = 0.95  # a stage with a smaller share of its cores was slowed by something else


@dataclass(frozen=True)
class Study:
    """The runs of a report, and everything computed from them once.

    Rows compare only within a suite: `parts` has a study of each suite.

    `title`: the titles of its suites. `paper`: whether the runs are compared with the paper.
    `command_arguments`: by suite, the words that name it on a command line. `printed`: by suite,
    the paper's suite whose numbers stand beside its own, "" for none. For a suite that is missing
    there, it is the paper's suite of the same name. `only_last`: suites that fine-tune only the
    models after the last stage. `whole`: the study that this is a part of.
    """

    name: str
    runs: Sequence[RunRecords]
    title: str = ""
    paper: bool = False
    command_arguments: Mapping[str, str] = field(default_factory=dict)
    printed: Mapping[str, str] = field(default_factory=dict)
    only_last: frozenset[str] = frozenset()
    whole: Study | None = field(default=None, repr=False, compare=False)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """Every evaluation: its place, its costs and its perplexities.

        The columns are ap, ap_plus, log_ap_plus, perplexity (of each domain), charged, seconds,
        steps, tokens, flops, fraction, phase, is_end. `order` is the evaluation's place in its
        stage. `begun` is what was spent when that stage began, by unit. `unigram` is the AP of the
        unigram distributions. `learned` is false before the first step of a stage and before the
        end of the first stage. Only values with `learned` set a chart's scale.
        """
        units = list_recorded_units()
        lines = [line for run in self.runs for line in _describe_evaluations(run, units)]
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
            *_MEASURED,
            "perplexity",
        ]
        table = pd.DataFrame(lines, columns=columns)
        # an empty column has no type
        table = table.astype({"is_end": bool} | dict.fromkeys(_MEASURED, float))
        is_after_start = table["phase"] != "start"
        is_past_first_stage = table["is_end"] | (table["stage"] > 0)
        return table.assign(learned=is_after_start & is_past_first_stage)

    @cached_property
    def ends(self) -> pd.DataFrame:
        """The last evaluation of every stage that ran to its end."""
        return self.evaluations[self.evaluations["is_end"]].reset_index(drop=True)

    @cached_property
    def stages(self) -> pd.DataFrame:
        """Every stage that was started: its domain, its budget, its costs and its size.

        The columns are those of _STAGE. `shares` is the sum of the phases' shares of the stage's
        budget, `recover` and `adapt` are the steps of these phases. `cores` is the share of the
        stage's cores that other programs left to it, NaN if that is not recorded.
        """
        lines = [
            _describe_stage(run, index, stage)
            for run in self.runs
            for index, stage in enumerate(run.stages)
            if stage
        ]
        return pd.DataFrame(lines, columns=[*RUN, *_STAGE]).astype({"done": bool})

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Downstream scores, as means over `finetuning_seeds` seeds.

        The columns are domain, task, task_key, protocol, prompt, metric, test. `headline`: whether
        tables show this prompt, the right one for models that were trained with prompts. Linear
        probes are here only if a suite fine-tunes nothing, else in `probes`.
        """
        return self._scores[~self._scores["beside"]].reset_index(drop=True)

    @cached_property
    def probes(self) -> pd.DataFrame:
        """Linear probes of suites that also fine-tune, with the columns of `scores`."""
        return self._scores[self._scores["beside"]].reset_index(drop=True)

    @cached_property
    def _scores(self) -> pd.DataFrame:
        fine_tuned = {
            run.suite
            for run in self.runs
            for stage in run.scores
            for score in stage
            if score.protocol == "finetune"
        }
        lines: list[Values] = []
        for run in self.runs:
            is_fine_tuned = run.suite in fine_tuned
            for stage, scores in enumerate(run.scores):
                place = {**_describe_run(run), "stage": stage}
                for score in _average_scores(scores, is_fine_tuned):
                    lines.append(place | score)
        columns = [*RUN, "stage", *_SCORE, "test", "finetuning_seeds", "headline", "beside"]
        return pd.DataFrame(lines, columns=columns).astype({"headline": bool, "beside": bool})

    @cached_property
    def similarities(self) -> pd.DataFrame:
        """The similarity of each stage's model to its ancestors: `ars` and `reason`.

        `ars` is in nats, NaN if there is none.
        """
        return self._collect_measures(SimilarityLine, ["ars"])

    @cached_property
    def attentions(self) -> pd.DataFrame:
        """The similarity of a stage's heads to their own ancestors and to other heads, as means.

        The columns are own, others, heads, maps, reason.
        """
        table = self._collect_measures(AttentionLine, ["own", "others", "heads", "maps"])
        for name in ("own", "others"):
            means = []
            for values in table[name]:
                means.append(np.mean(np.array(values, float)) if values else np.nan)
            table[name] = means
        return table

    def _collect_measures(self, kind: type[Line], columns: list[str]) -> pd.DataFrame:
        """The records of one kind that a measure of the models wrote."""
        names = [*columns, "reason"]
        lines = [
            {**_describe_run(run), "stage": stage, **structs.asdict(line)}
            for run in self.runs
            for stage, measures in enumerate(run.ancestor_comparisons)
            for line in measures
            if isinstance(line, kind)
        ]
        return pd.DataFrame(lines, columns=[*RUN, "stage", *names])

    @cached_property
    def baselines(self) -> pd.DataFrame:
        """Downstream scores that need no model, each with its task and its data."""
        names = ["task", "task_key", "domain", "window", "name", "metric", "test"]
        scores = [score for run in self.runs for score in run.baselines]
        lines = [[getattr(score, name) for name in names] for score in scores]
        return pd.DataFrame(lines, columns=names).drop_duplicates(ignore_index=True)

    @cached_property
    def measured_baselines(self) -> pd.DataFrame:
        """The `baselines` on the same data as the scores of the final models.

        The study is of a single suite.
        """
        is_last = self.scores["stage"] == self.last_stage
        final = self.scores[is_last & self.scores["headline"]]
        windows = {score.window for run in self.runs for stage in run.scores for score in stage}
        is_of_task = self.baselines["task_key"].isin(set(final["task_key"]))
        is_of_window = self.baselines["window"].isin({"", *windows})
        return self.baselines[is_of_task & is_of_window].assign(seed=0)

    @cached_property
    def above_unigram(self) -> pd.DataFrame:
        """Rows that predict no better than the unigram distributions: row, stage, ap, unigram.

        The values are means over seeds after the last stage that a row has finished.
        """
        groups = self.ends.groupby(["row", "stage"], sort=False)
        means = groups[["ap", "unigram"]].mean().reset_index()
        last_stages = means.groupby("row")["stage"].transform("max")
        final = means[means["stage"] == last_stages]
        return final[final["ap"] >= final["unigram"]]

    @cached_property
    def finished(self) -> pd.DataFrame:
        """The evaluations of finished runs.

        `cores` is the share of its cores that a run had in its last stage. For a last stage too
        short to tell, it is the least share of the run's other stages, NaN if all are too short.
        `timed` says whether wall times of the last stage compare, because it had ENOUGH_CORES.
        """
        runs = self.ends.loc[self.ends["stage"] == self.last_stage, "run"]
        last_stages = self.stages[self.stages["stage"] == self.last_stage]
        shares = last_stages.set_index("run")["cores"]
        shares = shares.fillna(self.stages.groupby("run")["cores"].min())
        evaluations = self.evaluations[self.evaluations["run"].isin(runs)]
        cores = evaluations["run"].map(shares).astype(float)
        return evaluations.assign(cores=cores, timed=cores >= ENOUGH_CORES)

    @cached_property
    def references(self) -> frozenset[str]:
        """Rows that were given more than the budgets of their stages so far.

        Other rows are measured against these.
        """
        amounts = self.stages.assign(given=self.stages["amount"] * self.stages["shares"])
        sums = amounts.groupby(["suite", "row", "run"])[["given", "amount"]].sum()
        index = sums.index[sums["given"] > 1.01 * sums["amount"]]
        return frozenset(index.get_level_values("row"))

    @cached_property
    def pooled(self) -> frozenset[str]:
        """Rows whose stages take more or less than their own budgets.

        From scratch and the references do. They train on all text so far at once, so none of their
        stages compares with a stage of the other rows.
        """
        surplus = (self.stages["shares"] - 1).abs()
        return frozenset(self.stages.loc[surplus > 0.01, "row"])

    @cached_property
    def suites(self) -> list[str]:
        return list(dict.fromkeys(run.suite for run in self.runs))

    @cached_property
    def ranked_rows(self) -> list[str]:
        """Its rows, the lowest mean AP after the last domain first.

        Rows that have not ended come last, in the suite's order.
        """
        last = max((len(run.domains) for run in self.runs), default=0) - 1
        last_ends = self.ends[self.ends["stage"] == last]
        final = last_ends.groupby("row")["ap"].mean()
        rows = dict.fromkeys(run.row for run in self.runs)
        return sorted(rows, key=lambda row: final.get(row, np.inf))

    def list_runs(self, suite: str) -> list[RunRecords]:
        return [run for run in self.runs if run.suite == suite]

    @property
    def suite(self) -> str:
        """The name of the suite, if the study has a single one."""
        return self.runs[0].suite

    @property
    def last_stage(self) -> int:
        """The last stage of the suite, if the study has a single one."""
        return len(self.runs[0].domains) - 1

    @cached_property
    def parts(self) -> list[Study]:
        """A study of each suite, whose rows compare in one table."""
        if len(self.suites) == 1:
            return [self]
        return [self.select_suites([suite]) for suite in self.suites]

    def select_suites(self, suites: Sequence[str]) -> Study:
        """The runs of these suites, in this order."""
        runs = [run for suite in suites for run in self.list_runs(suite)]
        return replace(self, runs=runs, whole=self.whole or self)

    def select_rows(self, rows: Collection[str]) -> Study:
        """The runs of these rows."""
        return replace(self, runs=[run for run in self.runs if run.row in rows])

    @property
    def tasks(self) -> dict[str, str]:
        """The titles of the domains that have a downstream task, by name."""
        names = {task["domain"] for run in self.runs for task in run.line.tasks}
        domains = [domain for run in self.runs for domain in run.domains]
        return {domain.name: domain.title for domain in domains if domain.name in names}

    @property
    def whole_task(self) -> str:
        """The title of the task that belongs to no domain, "" if there is none.

        Its domain in `scores` is "".
        """
        tasks = [task for run in self.runs for task in run.line.tasks]
        titles = [task["title"] or task["name"] for task in tasks if not task["domain"]]
        return titles[0] if titles else ""

    @cached_property
    def apart(self) -> frozenset[str]:
        """Rows whose text, tokens or masks differ from those of most rows.

        Their perplexities compare with no other row's.
        """
        if not self.on_most_texts:
            return frozenset()
        measure = self.on_most_texts[0]
        runs = [run for run in self.runs if run.line.unigram]
        return frozenset(run.row for run in runs if find_other_texts(run, measure))

    @property
    def never_best(self) -> frozenset[str]:
        """Rows whose perplexities are marked in no table: references, and those on other texts."""
        return self.references | self.apart

    def compute_text_variance(self, row: str, other: str, stage: int) -> float:
        """The variance of the log ratio of two rows' AP due to the choice of validation documents.

        The ratio is after a stage, as a mean over the seeds that both rows have. 0 if no losses by
        document are recorded. The study is of a single suite.
        """
        ends = self._find_ends(row, stage)
        other_ends = self._find_ends(other, stage)
        seeds = ends.keys() & other_ends.keys()
        parts_of_texts = defaultdict[str, list[Floats]](list)
        tokens: dict[str, Floats] = {}
        sources_of_texts: dict[str, Sequence[int]] = {}
        for seed in seeds:
            run, end = ends[seed]
            _, other_end = other_ends[seed]
            data = find_header(run.stages[stage]).data
            domains = run.domains[: stage + 1]
            for domain in domains:
                documents = np.array(end.documents[domain.name], float)
                other_documents = np.array(other_end.documents[domain.name], float)
                change = documents[:, 1] - other_documents[:, 1]
                # the log ratio is a mean over seeds and, as log AP is, over texts
                part = change / len(seeds) / len(domains)
                parts_of_texts[domain.name].append(part)
                tokens[domain.name] = documents[:, 0]
                # of each document, if documents share sources
                sources = data.get(domain.name, {}).get("valid_sources")
                sources_of_texts[domain.name] = sources or ()
        variances = []
        for text, parts in parts_of_texts.items():
            change = np.sum(parts, axis=0)
            sources = sources_of_texts[text][: len(change)]
            is_known = len(sources) == len(change)
            variance = estimate_document_variance(
                change, tokens[text], sources if is_known else None
            )
            variances.append(variance)
        return sum(variances)

    def _find_ends(self, row: str, stage: int) -> dict[int, tuple[RunRecords, EvaluationLine]]:
        """By seed of a row, its run and the end of a stage, if the losses of documents are there.

        The line of the end has these losses.
        """
        ends = {}
        for run in self.runs:
            if make_slug(run.row) == make_slug(row) and run.finished > stage:
                end = find_last(run.stages[stage], EvaluationLine)
                if end and end.documents:
                    ends[run.seed] = (run, end)
        return ends

    @cached_property
    def stage_titles(self) -> list[str]:
        """The name of each stage: its domain's title, or its place if orders of domains differ."""
        return _name_stages([[domain.title for domain in run.domains] for run in self.runs])

    @property
    def column_titles(self) -> list[str]:
        """The names of stages in columns that several suites share.

        They are the stages' places if domains differ.
        """
        return _name_stages([part.stage_titles for part in self.parts])

    @property
    def starts(self) -> dict[str, list[RunRecords]]:
        """The name of each start model in tables, and a run of each seed that begins with it."""
        starts: dict[str, dict[int, RunRecords]] = {}
        for run in self.runs:
            if run.start:
                name = Path(run.line.config["model"].get("start") or "").name
                starts.setdefault(f"Start model {name}", {}).setdefault(run.seed, run)
        return {title: list(runs.values()) for title, runs in starts.items()}

    @cached_property
    def on_most_texts(self) -> list[RunRecords]:
        """The runs on the texts that most rows have, the first such texts among ties.

        Empty before a run has started.
        """
        groups: list[list[RunRecords]] = []
        for run in self.runs:
            if not run.line.unigram:
                continue
            for group in groups:
                if not find_other_texts(run, group[0]):
                    group.append(run)
                    break
            else:
                groups.append([run])
        return max(groups, key=lambda group: len({run.row for run in group}), default=[])


def _name_stages(orders: Sequence[list[str]]) -> list[str]:
    """The titles of domains if all orders begin alike, else their places."""
    longest = max(orders, key=len)
    if all(order == longest[: len(order)] for order in orders):
        return longest
    return [f"Domain {number}" for number in range(1, len(longest) + 1)]


def find_other_texts(run: RunRecords, other: RunRecords) -> list[str]:
    """The titles of the run's domains and probes whose validation text is not that of `other`.

    Text differs in its tokens or its masks. A domain that `other` lacks counts only if `other` too
    has a domain that the run lacks. Otherwise one stream continues the other, and the runs compare
    on the domains of both. A probe that `other` lacks does not count.
    """
    line = run.line
    domains = {domain.name for domain in line.domains}
    other_domains = {domain.name for domain in other.line.domains}
    has_other_domains = bool(other_domains - domains)
    names = domains - other_domains if has_other_domains else set()
    for name, text in line.texts.items():
        if other.line.texts.get(name, text) != text:
            names.add(name)
    titles = {domain.name: domain.title for domain in (*line.domains, *line.probes)}
    return [title for name, title in titles.items() if name in names]


def count_copies(study: Study) -> int:
    """The number of validation documents with near copies in training text, if these are kept.

    It is the number of the stage that has most.
    """
    counts = [0]
    for run in study.runs:
        for stage in filter(None, run.stages):
            infos = find_header(stage).data.values()
            counts.append(sum(info.get("near_copies", 0) for info in infos))
    return max(counts)


def count_leaks(study: Study) -> int:
    """The number of test examples of all tasks that are in training text, if these are kept."""
    counts: dict[str, int] = {}
    for run in study.runs:
        for line in (line for stage in run.scores for line in stage):
            leaks = max(line.leaks, line.in_stream)
            counts[line.task] = max(counts.get(line.task, 0), leaks)
    return sum(counts.values())


_SCORE = ["domain", "task", "task_key", "protocol", "prompt", "metric"]
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
    "parameters",
    "layers",
    "hidden_size",
    "recover",
    "adapt",
    "cores",
    "done",
]


def _describe_run(run: RunRecords) -> Values:
    """The values of the columns RUN."""
    return {
        "suite": run.suite,
        "row": run.row,
        "row_index": run.line.row_index,
        "method": run.line.method,
        "run": run.id,
        "seed": run.seed,
    }


def _describe_evaluations(run: RunRecords, units: Sequence[str]) -> Iterator[Values]:
    """The lines of a run in `Study.evaluations`, with what was charged in each of the units."""
    names = [domain.name for domain in run.domains]
    unigrams = [run.line.unigram.get(name, np.nan) for name in names]
    spent = dict.fromkeys(("charged", *units), 0.0)
    finished = np.full(len(names), np.nan)
    for index, stage in enumerate(run.stages):
        evaluations = select_kind(stage, EvaluationLine)
        done = find_last(stage, StageDone)
        unit = find_header(stage).budget.unit if stage else ""
        values = [[select_measure(line, name) for name in names] for line in evaluations]
        perplexity = np.array(values, float).reshape(-1, len(names))
        ap = average_perplexity(perplexity, index)
        unigram = float(average_perplexity(unigrams, index))
        ap_plus = metrics.average_increase(perplexity, finished, index)
        log_ap_plus = metrics.average_increase(np.log(perplexity), np.log(finished), index)
        for order, line in enumerate(evaluations):
            yield {
                **_describe_run(run),
                **_sum_charges(spent, line.charged, unit),
                "stage": index,
                "order": order,
                "phase": line.phase,
                "fraction": line.fraction,
                "is_end": done is not None and line is evaluations[-1],
                "begun": spent,
                "ap": ap[order],
                "ap_plus": ap_plus[order],
                "log_ap_plus": log_ap_plus[order],
                "unigram": unigram,
                "perplexity": perplexity[order],
            }
        if done is None:
            break
        if evaluations:  # a stage may train nothing, and then evaluates nothing
            finished[index] = perplexity[-1, index]
        spent = _sum_charges(spent, done.charged, unit)


def _describe_stage(run: RunRecords, index: int, stage: Sequence[LineOfStage]) -> Values:
    """The line of a stage in `Study.stages`."""
    head = find_header(stage)
    done = find_last(stage, StageDone)
    unit = head.budget.unit
    provenance = head.provenance
    core_share = done.cores.share if done else None
    steps = {phase["name"]: phase["steps"] for phase in done.phases} if done else {}
    return {
        **_describe_run(run),
        "stage": index,
        "domain": head.domain,
        "unit": unit,
        "amount": head.budget.amount,
        "shares": sum(phase["share"] for phase in head.phases),
        "charged": done.charged[unit] if done else np.nan,
        "seconds": done.charged["seconds"] if done else np.nan,
        "hardware": describe_hardware(provenance),
        "code": provenance.code,
        "packages": ", ".join(f"{name} {value}" for name, value in provenance.packages.items()),
        "parameters": head.parameters,
        "layers": head.layers,
        "hidden_size": head.hidden_size,
        "recover": steps.get("recover", np.nan),
        "adapt": steps.get("adapt", np.nan),
        "cores": np.nan if core_share is None else core_share,
        "done": done is not None,
    }


def _average_scores(scores: Iterable[ScoreLine], is_fine_tuned: bool) -> Iterator[Values]:
    """The scores of one model in `Study.scores`, without the columns of their run and stage.

    `is_fine_tuned`: the suite fine-tunes, so linear probes go to `Study.probes`.
    """
    tests = defaultdict[tuple[str, ...], dict[int, float]](dict)
    headline = "none"
    for score in scores:
        key = tuple(getattr(score, name) for name in _SCORE)
        tests[key][score.seed] = score.test
        if score.prompt == "right":
            headline = "right"
    for key, test_by_seed in tests.items():
        *_, protocol, prompt, _ = key
        mean = fmean(test_by_seed.values())
        yield {
            **dict(zip(_SCORE, key, strict=True)),
            "test": mean,
            "finetuning_seeds": len(test_by_seed),
            "headline": prompt == headline,
            "beside": protocol != "finetune" and is_fine_tuned,
        }


def average_by_domain(scores: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The mean score on the tasks of each domain, with a column per domain.

    NaN if the score on one of the tasks is NaN.
    """
    tests = scores.groupby([*keys, "domain"])["test"]
    return tests.mean().where(tests.count() == tests.size()).unstack("domain")


def find_header(stage: Sequence[LineOfStage]) -> StageLine:
    """The line that a stage begins with."""
    return next(line for line in stage if isinstance(line, StageLine))


def describe_hardware(provenance: Provenance) -> str:
    """The hardware that decides how fast a step is, in words."""
    machine = provenance.hardware
    if machine.device.lower() == "cpu":
        noun = "thread" if machine.threads == 1 else "threads"
        device = f"{machine.cpu}, {machine.threads} {noun}"
    else:
        device = f"{machine.count} × {machine.device}"
    processes = f", {machine.count} processes" if machine.count > 1 else ""
    return f"{device}{processes}, {provenance.precision}"


def select_measure(
    measured: Measures, name: str, what: Literal["perplexity", "bits_per_byte"] = "perplexity"
) -> float:
    """The measure of a domain or probe, NaN if records lack it.

    It is infinite if it overflowed, for which records have null.
    """
    value = getattr(measured, what).get(name, np.nan) if measured else np.nan
    if value is None:
        return np.inf
    return value


def _sum_charges(spent: Spent, charged: Spent, unit: str) -> Spent:
    """The costs since the start of the run, by unit.

    NaN if unknown. "charged" is the cost in the budget's unit.
    """
    additions = {**charged, "charged": charged[unit]}
    return {name: amount + additions.get(name, np.nan) for name, amount in spent.items()}
