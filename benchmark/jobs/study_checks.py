"""What `verify` asks of a suite's records before it looks at their report, and what they were made on.

Each run ended, within its budget, with hashes of its weights; all stages of a suite ran on hardware that compares; and
reference seconds are those of the table that the suite names.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmark.errors import UserError
from benchmark.files import read_bytes
from benchmark.record_lines import DoneLine, Hardware, Provenance, StageLine
from benchmark.records import RunRecords, crowded
from benchmark.settings.suite import RunConfig, Suite, per_stage
from benchmark.settings.units import UNITS
from benchmark.training.method import Build
from benchmark.training.step_times import machine_of, stage_times, table_of


class ResultsError(UserError):
    """A study's folder that does not hold what it says."""


@dataclass(frozen=True)
class EndedStage:
    """A stage that ran to its end: how it began, and how it ended."""

    name: str  # of its run, and its place there
    start: StageLine
    done: DoneLine

    @property
    def provenance(self) -> Provenance:
        return self.start["provenance"]

    @property
    def is_timed(self) -> bool:
        """Whether its budget was wall time that a clock measured."""
        return UNITS[self.start["budget"]["unit"]].is_wall_time


# what a comparison needs to be the same for all stages of a suite
_OF_ALL: dict[str, Callable[[Provenance], object]] = {
    "threads": lambda provenance: provenance["threads"],
    "processes": lambda provenance: provenance["world_size"],
    "precision": lambda provenance: provenance["precision"],
}


def check(suite: Suite, configs: Sequence[RunConfig], runs: Sequence[RunRecords], build: Build) -> Iterator[str]:
    """Check the records of a suite, and say what holds. Raises ResultsError or ConfigError for what does not."""
    ended = {run.id: list(_ended(run)) for run in runs}
    for run in runs:
        method = build(run.line["method"], run.line["options"])
        _check_budgets(run, ended[run.id], anew=method.group == "references")
    wanted = {config.id: config for config in configs}
    foreign = [run.id for run in runs if run.id not in wanted]
    if foreign:
        raise ResultsError(
            f"{suite.name}: {foreign[0]} is no run of the suite as it is written there: restore the suite's file, or "
            "remove the run from the archives"
        )
    stages = [stage for run in runs for stage in ended[run.id]]
    _check_hardware(suite.name, stages)
    _check_cores(suite.name, stages)
    machines = ", ".join(sorted({machine(stage.start) for stage in stages})) or "no machine yet"
    yield f"{suite.name}: {len(runs)} of {len(wanted)} runs, each within its budget; on {machines}"
    tables = {table for config in configs if config.id in ended and (table := table_of(config))}
    for run in runs:
        for index, stage in enumerate(ended[run.id]):
            _check_step_times(wanted[run.id], index, stage)
    for table in sorted(tables):
        digest = hashlib.sha256(read_bytes(table)).hexdigest()
        measured = f"{table.name} (sha256 {digest[:12]}), measured on {_named(machine_of(table))}"
        yield f"{suite.name}: its reference seconds are those of {measured}"


def hardware(runs: Sequence[RunRecords]) -> str:
    """What a suite's stages were trained on, as a table in Markdown; one that several runs share counts once."""
    lines = (line for run in runs for stage in run.stages for line in stage if line["kind"] == "stage")
    starts = {line["key"]: line for line in lines}  # of a stage that began anew the last
    rows = Counter(
        (
            machine(start),
            *(str(of(start["provenance"])) for of in _OF_ALL.values()),
            start["provenance"]["packages"].get("torch", ""),
        )
        for start in starts.values()
    )
    heads = ("Machine", *map(str.capitalize, _OF_ALL), "torch", "Stages")
    table = [heads, (":--",) * 5 + ("--:",), *((*row, str(count)) for row, count in sorted(rows.items()))]
    return "**What the stages were trained on.**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in table)


def machine(stage: StageLine) -> str:
    """The machine of a stage, in words."""
    return _named(stage["provenance"]["hardware"])


def _named(hardware: Hardware) -> str:
    return f"{hardware['device']} ({', '.join(filter(None, (hardware['cpu'], hardware.get('instructions'))))})"


def _ended(run: RunRecords) -> Iterator[EndedStage]:
    for index, lines in enumerate(run.stages):
        done = [line for line in lines if line["kind"] == "done"]
        start = [line for line in lines if line["kind"] == "stage"]
        if not done or not start:
            raise ResultsError(f"{run.id}: its stage {index} did not end: collect finished runs alone")
        yield EndedStage(f"{run.id}, stage {index}", start[-1], done[-1])


def _check_budgets(run: RunRecords, stages: Sequence[EndedStage], anew: bool) -> None:
    """`anew`: whether each stage may take the budget of all stages so far, as that of a reference does."""
    amount = run.line["config"]["budget"]["amount"]
    amounts = tuple(amount) if isinstance(amount, list) else amount
    given = took = over = 0.0  # a method may spend in a later stage what it left in earlier ones
    for index, stage in enumerate(stages):
        _check_budget(stage, per_stage(amounts, index))
        given += per_stage(amounts, index)
        took = took * (not anew) + per_stage(amounts, index) * sum(phase["share"] for phase in stage.start["phases"])
        over = max(took - given, over if anew else 0.0)
    if over > 1e-9 * given:
        raise ResultsError(f"{run.id}: its phases take {over:g} more than the budget of its stages")


def _check_budget(stage: EndedStage, amount: float) -> None:
    start, unit, spent = stage.start, stage.start["budget"]["unit"], stage.done["charged"]
    if start["budget"]["amount"] != amount:
        raise ResultsError(
            f"{stage.name}: trained with {start['budget']['amount']:g} {unit}, the suite says {amount:g}"
            ": correct the suite, or train again"
        )
    step, may = spent[unit] / max(spent["steps"], 1.0), amount * sum(phase["share"] for phase in start["phases"])
    if spent[unit] > may + 4 * step:  # one step of its dearest phase
        raise ResultsError(
            f"{stage.name}: {spent[unit]:g} {UNITS[unit].name} charged of {may:g}, more than a step over: train again"
        )
    if "weights" not in stage.done:
        raise ResultsError(
            f"{stage.name}: no hash of its weights, so nobody could repeat it: collect a run of today's code"
        )


def _check_hardware(suite: str, stages: Sequence[EndedStage]) -> None:
    """One precision, number of threads and processes, and kind of device; of wall times one model of CPU, too."""
    _check_same(suite, "device", stages, lambda of: of["hardware"]["device"])
    for what, value in _OF_ALL.items():
        _check_same(suite, what, stages, value)
    timed = [stage for stage in stages if stage.is_timed]
    _check_same(suite, "CPU under wall time", timed, lambda of: of["hardware"]["cpu"])


def _check_same(suite: str, what: str, stages: Sequence[EndedStage], value: Callable[[Provenance], object]) -> None:
    first: dict[object, str] = {}
    for stage in stages:
        first.setdefault(value(stage.provenance), stage.name)
    if len(first) > 1:
        places = "; ".join(f"{found} in {name}" for found, name in first.items())
        raise ResultsError(
            f"{suite}: stages differ in {what}: {places}: train again what differs, or move it to another suite"
        )


def _check_cores(suite: str, stages: Sequence[EndedStage]) -> None:
    slowed = {stage.start["key"]: f"{stage.name} ({share})" for stage in stages if (share := _lacked(stage))}
    if slowed:
        raise ResultsError(
            f"{suite}: other programs took cores under a budget of wall time: {'; '.join(slowed.values())}: "
            "train these stages again with nothing beside them"
        )


def _lacked(stage: EndedStage) -> str:
    return crowded([stage.done]) if stage.is_timed else ""


def _check_step_times(config: RunConfig, index: int, stage: EndedStage) -> None:
    """Whether reference seconds are steps times those of the suite's table. Raises ConfigError for what it lacks."""
    if (times := stage_times(config, index)) is None:
        return
    unit, phases = stage.start["budget"]["unit"], stage.done["phases"]
    unknown = {phase["name"] for phase in phases} - times.phases.keys()
    cost = times.set_up + sum(phase["steps"] * times.phases.get(phase["name"], 0.0) for phase in phases)
    charged = stage.done["charged"][unit]
    if unknown or abs(charged - cost) > 1e-6 * cost:
        raise ResultsError(
            f"{stage.name}: {charged:g} s charged for steps that take {cost:g} s by {table_of(config)}: restore "
            "the table that it was trained with"
        )
