"""Makes a folder of runs with made-up records, for tests of the code that reads records.

Every number is a plain function of (suite, row, seed, stage, fraction), so two calls of `write`
write the same bytes. Each method learns and forgets at its own rate. ELLE grows and is best. Naive,
EWC, MAS and A-GEM forget most.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from analysis import catalogue
from analysis.page import render
from analysis.study import Study
from benchmark.ledger.records import SCHEMA
from benchmark.ledger.runs import RunRecords, load_runs, make_run_line
from benchmark.settings.suite import RunConfig
from tests.support.record_lines import PROVENANCE, STAGE

DOMAINS = [("wb", "WB"), ("ns", "Ns"), ("rev", "Rev"), ("bio", "Bio"), ("cs", "CS")]
TASKS = dict(
    zip(["wb", "ns", "rev", "bio", "cs"], ["mnli", "hyper", "help", "chem", "acl"], strict=True)
)
# title -> (method, how fast it learns, how much it forgets)
METHODS = {
    "Naive": ("naive", 1.0, 0.60),
    "EWC": ("ewc", 1.0, 0.58),
    "MAS": ("mas", 1.0, 0.59),
    "A-GEM": ("agem", 0.97, 0.62),
    "ER": ("er", 1.0, 0.15),
    "Logit-KD": ("logit_kd", 0.95, 0.10),
    "PNN": ("pnn", 1.05, 0.0),
    "ELLE": ("elle", 1.15, 0.04),
}
UNIGRAM = 300.0
AMOUNT = {"seconds": 60.0, "reference": 60.0, "steps": 100, "tokens": 10_000}
TASK_SETTINGS = [
    {
        "name": task,
        "title": task.upper(),
        "domain": domain,
        "learning_rate": 2e-5,
        "batch_size": 256,
    }
    | {
        "weight_decay": 0.1,
        "max_epochs": 10,
        "schedule": "linear",
        "warmup": 0.06,
        "metric": "macro_f1",
    }
    for domain, task in TASKS.items()
]
CORES = {"wall": 60.0, "cpu": 60.0, "others": None, "share": 1.0}
BASELINES = {"majority": 0.3, "bag of words": 0.55}
LADDER = [(6, 384, 30.3e6), (8, 512, 51.5e6), (10, 640, 82.2e6), (11, 704, 102e6), (12, 768, 125e6)]


def write(
    runs: Path,
    suite: str,
    *,
    rows: list[tuple[str, str, dict[str, Any]]] | None = None,
    seeds: int = 2,
    stages: int = 5,
    evaluations: int = 4,
    unit: str = "seconds",
    architecture: str = "bert",
    finished: int | None = None,
    scores: bool = True,
    similarities: bool = True,
    hardware: str = "CPU",
    domains: Sequence[tuple[str, str]] = DOMAINS,
) -> None:
    """Write a suite's records, one file per run and one per stage.

    `rows` are (label, method, options), `domains` are (name, title). With `finished`, the last row
    stops after this many stages, in the middle of the next.
    """
    shared = _Suite(suite, stages, unit, architecture, hardware, domains)
    rows = rows or [(title, method, {}) for title, (method, _, _) in METHODS.items()]
    for index, (label, method, options) in enumerate(rows):
        for seed in range(seeds):
            done = finished if finished is not None and index == len(rows) - 1 else stages
            run = _Run(shared, label, index, method, options, seed)
            run.write(runs, evaluations, done, scores, similarities)
    if scores:
        _write(
            runs / "scores" / "baselines.jsonl", [_baseline(d, n) for d in TASKS for n in BASELINES]
        )


def write_as(
    runs: Path, config: RunConfig, keys: Sequence[str], finished: int, evaluations: int = 10
) -> None:
    """Write records of a real suite's run, with the keys of its stages.

    `finished` stages are whole, the next one is half done.
    """
    domains = [(domain.name, domain.label) for domain in config.domains]
    suite = _Suite(
        config.suite,
        len(domains),
        config.budget.unit,
        config.model.architecture,
        "CPU",
        domains=domains,
    )
    run = _Run(suite, config.row, config.row_index, config.method, config.options, config.seed)
    run.keys, described = [*keys], msgspec.to_builtins(make_run_line(config))
    run.describe = lambda: described  # type: ignore[method-assign]
    run.write(runs, evaluations, finished, scores=True, similarities=True)


def load(name: str) -> Any:
    """A table or figure by its name. It is Any, because the test knows its kind."""
    return catalogue.load(name)


def study(runs: Path, **options: Any) -> Study:
    """Write the suite `demo` with the options of `write`, and read it as tables do."""
    write(runs, "demo", **options)
    return Study("demo", load_runs(runs, "demo"))


def report(suite: str, runs: Sequence[RunRecords], tables: Sequence[str], out: Path) -> list[Path]:
    """Render these tables and figures, the scorecard and the page, as `run_all.py report` does."""
    study = Study(suite, runs, paper=True)
    return render(study, [catalogue.load(name) for name in tables], catalogue.load, out)


def list_lines(run: RunRecords, *kinds: type) -> list[Any]:
    """The lines of these kinds in a run's records, in the order of training."""
    return [line for stage in run.stages for line in stage if isinstance(line, kinds)]


@dataclass(frozen=True)
class _Suite:
    """What all runs of a suite have in common."""

    name: str
    stages: int
    unit: str
    architecture: str
    hardware: str
    domains: Sequence[tuple[str, str]] = tuple(DOMAINS)


class _Run:
    def __init__(
        self, suite: _Suite, label: str, index: int, method: str, options: dict[str, Any], seed: int
    ) -> None:
        self.suite, self.label, self.index, self.method, self.options = (
            suite,
            label,
            index,
            method,
            options,
        )
        self.seed = seed
        self.domains = suite.domains[: suite.stages]
        _, speed, forget = next((m for m in METHODS.values() if m[0] == method), ("", 1.0, 0.3))
        self.speed = speed * (1 + 0.03 * self.noise("speed"))
        self.forget = forget * (1 + 0.1 * self.noise("forget"))
        self.keys = [self.key(stage) for stage in range(suite.stages)]

    def noise(self, *what: Any) -> float:
        """A number in [-1, 1) that only depends on its name."""
        name = json.dumps([self.suite.name, self.label, self.seed, *what])
        return zlib.crc32(name.encode()) / 2**31 - 1

    def key(self, stage: int) -> str:
        shared = stage == 0 and self.method not in (
            "pnn",
            "elle",
        )  # as real runs share their first stage
        name = json.dumps(
            [self.suite.name, self.seed, stage, None if shared else [self.label, self.index]]
        )
        return f"{zlib.crc32(name.encode()):08x}{stage}"

    def perplexity(self, stage: int, fraction: float) -> dict[str, float]:
        values = {}
        for i, (name, _) in enumerate(self.domains):
            speed = 1.0 if i == 0 else self.speed
            learned = math.log(6.0 + i) / speed
            if i == stage:
                logarithm = learned + (math.log(UNIGRAM) - learned) * (
                    math.exp(-5 * fraction) - math.exp(-5)
                )
            elif i < stage:
                logarithm = learned + self.forget * min(
                    4, stage - i - 1 + min(1, 3 * fraction)
                )  # bounded for long streams
            else:
                logarithm = math.log(UNIGRAM * 0.8)
            values[name] = math.exp(logarithm)
        return values

    def describe(self) -> dict[str, Any]:
        """The line in the run's file, without the stages' keys."""
        sizes = [LADDER[min(stage, len(LADDER) - 1)] for stage in range(self.suite.stages)]
        ladder = [{"layers": layers, "hidden_size": hidden} for layers, hidden, _ in sizes]
        config = {
            "model": {"architecture": self.suite.architecture, "ladder": ladder, "head_size": 64},
            "budget": {"unit": self.suite.unit, "amount": AMOUNT[self.suite.unit]},
            "training": {"learning_rate": 5e-4, "warmup": 0.08},
        }
        return {
            "schema": SCHEMA,
            "id": f"{self.index}-{self.seed}",
            "suite": self.suite.name,
            "row": self.label,
            "row_index": self.index,
            "title": self.label,
            "method": self.method,
            "options": self.options,
            "seed": self.seed,
            "config": config,
            "tasks": TASK_SETTINGS,
            "domains": [{"name": name, "title": title} for name, title in self.domains],
        }

    def write(
        self, runs: Path, evaluations: int, done: int, scores: bool, similarities: bool
    ) -> None:
        unigram = {name: UNIGRAM for name, _ in self.domains}
        line = {**self.describe(), "kind": "run", "stages": self.keys, "unigram": unigram}
        lines: list[dict[str, Any]] = (
            [line, {"kind": "done"}] if done == self.suite.stages else [line]
        )
        _write(runs / "suites" / self.suite.name / f"{line['id']}.jsonl", lines)
        for stage in range(min(done + 1, self.suite.stages)):
            records = self.stage(stage, evaluations)
            if stage == done:
                records = records[: 1 + evaluations // 2]
            _write(runs / "stages" / self.keys[stage] / "records.jsonl", records)
        for stage in range(done if scores else 0):
            _write(runs / "scores" / f"{self.keys[stage]}.jsonl", self.scores(stage))
        for stage in range(1, done if similarities else 0):
            _write(runs / "similarity" / f"{self.keys[stage]}.jsonl", self.similarities(stage))

    def stage(self, stage: int, evaluations: int) -> list[dict[str, Any]]:
        phases: list[dict[str, Any]] = [
            {"name": "adapt", "share": 1.0, "memory": 0.1, "trains": True}
        ]
        if self.method == "elle" and stage:
            phases = [{**phases[0], "share": 0.8}]
            phases = [{"name": "recover", "share": 0.2, "memory": 1.0, "trains": True}, *phases]
        lines = [self._header(stage, phases)]
        for k in range(1, evaluations + 1):
            fraction = k / evaluations
            start, share = 0.0, phases[0]["share"]
            phase = phases[0]["name"]
            if len(phases) > 1 and fraction > share:
                start, share, phase = share, phases[1]["share"], phases[1]["name"]
            line = {"kind": "evaluation", "phase": phase, "step": round((fraction - start) * 1000)}
            line |= {"fraction": fraction, "charged": self.charged(fraction)}
            line |= {"perplexity": self.perplexity(stage, fraction)}
            line |= {"bits_per_byte": dict.fromkeys(dict(self.domains), 1.0)}
            lines.append(line | {"loss": 2.0, "tokens_per_second": 1e4, "learning_rate": 5e-4})
        if self.method == "agem" and stage:
            values = {"conflicts": 0.0005 * (1 + 0.3 * self.noise("conflicts"))}
            lines.append({"kind": "metrics", "phase": "adapt", "step": 1000, "values": values})
        spent = self.charged(1.0)
        timed = [
            {"name": p["name"], "steps": p["share"] * 100, "seconds": p["share"] * spent["seconds"]}
            | {"tokens": p["share"] * spent["tokens"]}
            for p in phases
        ]
        return [
            *lines,
            {"kind": "done", "charged": spent, "phases": timed, "growth": None, "cores": CORES},
        ]

    def _header(self, stage: int, phases: list[dict[str, Any]]) -> dict[str, Any]:
        layers, hidden, parameters = LADDER[
            min(stage, len(LADDER) - 1) if self.method == "elle" else 0
        ]
        name, _ = self.domains[stage]
        provenance = {
            **PROVENANCE,
            "packages": {"torch": "2.13.0", "transformers": "5.23.0"},
            "hardware": {
                "device": self.suite.hardware,
                "count": 1,
                "cpu": "Example CPU",
                "threads": 2,
                "node": "node1",
            },
        }
        return {
            **{
                **STAGE,
                "key": self.keys[stage],
                "index": stage,
                "domain": name,
                "provenance": provenance,
            },
            **{
                "parameters": int(parameters),
                "trainable": int(parameters),
                "layers": layers,
                "hidden_size": hidden,
            },
            "phases": phases,
            "budget": {"unit": self.suite.unit, "amount": AMOUNT[self.suite.unit]},
            "data": {name: {"documents": 1000, "tokens": 1_000_000, "versions": {}}},
        }

    def charged(self, fraction: float) -> dict[str, float]:
        jitter = 1 + 0.002 * self.noise("charged")
        return {
            "seconds": 60.0 * fraction * jitter,
            "steps": int(100 * fraction),
            "tokens": int(10_000 * fraction),
        }

    def scores(self, stage: int) -> list[dict[str, Any]]:
        lines = []
        prompts = (
            {"right": 0.0, "wrong": -0.01, "none": -0.02, "picked": -0.002}
            if self.method == "elle"
            else {"none": 0}
        )
        for i, (domain, _) in enumerate(self.domains):
            for prompt, change in prompts.items():
                for seed in range(2):
                    test = (
                        0.6
                        + 0.03 * i
                        + 0.1 * (self.speed - 1)
                        + (0.02 if i <= stage else 0)
                        + change
                    )
                    test += 0.01 * self.noise("score", stage, domain, seed)
                    key = f"{self.keys[stage]}-{domain}-{prompt}-{seed}"
                    line: dict[str, Any] = {"kind": "score", "key": key}
                    line |= {"task": TASKS.get(domain, domain), "task_key": "t"}
                    line |= {"domain": domain, "prompt": prompt, "seed": seed, "metric": "macro_f1"}
                    lines.append(
                        line
                        | {
                            "dev": test + 0.01,
                            "test": test,
                            "seconds": 5.0,
                        }
                    )
        return lines

    def similarities(self, stage: int) -> list[dict[str, Any]]:
        """Logit-KD's models are most alike, ELLE's come second. PNN's heads cannot be compared."""
        apart = {"logit_kd": 0.1, "elle": 0.2}.get(self.method, 0.4) * (1 + 0.2 * stage)
        apart *= 1 + 0.05 * self.noise("similarity", stage)
        place = {"key": self.keys[stage], "reason": None}
        ars = {"kind": "similarity", "ars": -apart}
        heads = {
            "kind": "attention",
            "own": [0.9] * stage,
            "others": [0.6] * stage,
            "heads": [[0, 0], [1, 2]],
        }
        maps = [
            [[100 * (1 + (query + column) % 5) for column in range(6)] for query in range(6)]
        ] * 2
        attention = {**heads, "maps": maps}
        if self.method == "pnn":
            attention |= {
                "own": [],
                "others": [],
                "heads": [],
                "maps": [],
                "reason": "the first domain is unchanged",
            }
        return [place | ars, place | attention]


def _baseline(domain: str, name: str) -> dict[str, Any]:
    place = {"kind": "baseline", "task": TASKS[domain], "task_key": "t", "domain": domain}
    return place | {"name": name, "metric": "macro_f1", "test": BASELINES[name]}


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({"time": 1.7e9, **line}) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
