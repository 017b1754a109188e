"""What each kind of a suite's jobs would ask of Slurm, and whether it would take and start them. No torch here."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.jobs.findings import Finding
from benchmark.jobs.slurm import commands
from benchmark.settings.slurm import KINDS, Slurm
from benchmark.settings.suite import RunConfig, Suite

SHOWN = (  # parameters in a line
    *("partition", "account", "qos", "nodes", "time", "mem", "mem_per_cpu", "mem_per_gpu"),
    *("cpus_per_task", "gpus_per_node", "gpus_per_task", "gres", "exclusive"),
)
NORMAL = "normal"  # the QOS of jobs where nothing else says one
COUNTED = {  # whose jobs an association or a QOS counts, queued and running ones, and what it calls their most
    "of yours": ("MaxSubmitJobsPU", "MaxSubmitJobs"),
    "of an account": ("MaxSubmitJobsPA",),
    "of all its users": ("GrpSubmitJobs",),
}
MORE = "`run` submits no more, says what is left and ends with exit status 3; call it again, or set runs_per_job"


@dataclass(frozen=True)
class Request:
    """What jobs ask for that have the same options: kinds, where rows ask for something of their own with their names.

    `parameters` are those of submitit's executor, `script` is what `sbatch` would be given but for names and commands.
    """

    jobs: tuple[str, ...]
    parameters: Mapping[str, Any]
    script: str

    def __str__(self) -> str:
        asked = ", ".join(f"{key} {self.parameters[key]}" for key in SHOWN if self.parameters.get(key))
        return f"jobs to {', '.join(self.jobs)} ({asked})"

    @property
    def place(self) -> str:
        """Where its options stand."""
        sections = dict.fromkeys(f"[slurm.{job.partition(' ')[0]}]" for job in self.jobs)
        return ", ".join([*sections, "[slurm]"] + ["the row's set"] * any(" " in job for job in self.jobs))

    def partitions(self, every: Mapping[str, Mapping[str, str]]) -> list[Mapping[str, str]]:
        """What Slurm says of those that it may be queued in."""
        named = self.parameters.get("partition")
        if not named:
            return [one for one in every.values() if one.get("Default") == "YES"]
        return [every[name] for name in str(named).split(",") if name in every]


def requests_of(suite: Suite, runs: Sequence[RunConfig], measures: bool) -> list[Request]:
    """What the jobs would ask for that a suite may submit, each set of options once; `runs` has one of each row.

    `measures`: whether its tables measure models.
    """
    units = {run.budget.unit for run in runs}
    found: dict[str, tuple[list[str], Mapping[str, Any]]] = {}
    for kind in KINDS:
        if (kind == "score" and not suite.tasks) or (kind == "measure" and not measures):
            continue
        for asked in [suite.slurm] if kind in ("prepare", "report") else _asked(suite, runs):
            rows = [run.row for run in runs if run.slurm == asked] if asked != suite.slurm else []
            parameters = asked.parameters(kind, units)
            jobs, _ = found.setdefault(_script(parameters), ([], parameters))
            jobs.append(f"{kind} {' and '.join(rows)}".rstrip())
    return [Request(tuple(jobs), parameters, script) for script, (jobs, parameters) in found.items()]


def _asked(suite: Suite, runs: Sequence[RunConfig]) -> list[Slurm]:
    """What is asked for by rows, and where they differ by what they share."""
    said = dict.fromkeys(run.slurm or suite.slurm for run in runs)
    return [*(dict.fromkeys([suite.slurm]) | said if len(said) != 1 else said)]


def _script(parameters: Mapping[str, Any]) -> str:
    from submitit.slurm.slurm import _make_sbatch_string

    text: str = _make_sbatch_string("true", Path(tempfile.gettempdir()), job_name="doctor", **parameters)
    return text


def of_requests(requests: Sequence[Request], partitions: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Whether Slurm would take each, by its own word; and start it, as many sites queue what no partition allows."""
    for request in requests:
        most = max((minutes(one.get("MaxTime", "")) for one in request.partitions(partitions)), default=math.inf)
        if refusal := commands.refusal(request.script):
            yield Finding(f"{request}: Slurm refuses them, {refusal}", f"correct it in {request.place}")
        elif request.parameters["time"] > most:
            cure = f"they would wait for ever: set time in {request.place}"
            yield Finding(f"{request}: their partition allows {most:g} minutes", cure)
        else:
            yield Finding(f"{request}: Slurm would take them")


def of_limits(
    configuration: Mapping[str, str],
    account: str | None,
    requests: Sequence[Request],
    partitions: Mapping[str, Mapping[str, str]],
) -> Iterator[Finding]:
    """How many jobs Slurm takes at once, and which it would take and never start, as they ask for too much time.

    What the partition's QOS says of it holds, else what the job's does, else the user's account and those above it.
    Nothing where limits are not enforced, or Slurm does not tell them: then `run` is told by what is refused.
    """
    told: dict[str, None] = {}
    for request, orders in _orders(configuration, account, requests, partitions):
        told |= dict.fromkeys(line for order in orders for _, line in _limits(order))
        longest = [_longest(order) for order in orders]
        if longest and request.parameters["time"] > max(longest)[0]:
            cure = f"they would wait for ever: set time in {request.place}"
            yield Finding(f"{request}: {max(longest)[1]} allows {max(longest)[0]:g} minutes (MaxWall)", cure)
    yield from (Finding(line, MORE, serious=False) for line in told)


def exceeded(
    count: int, there: int, configuration: Mapping[str, str], account: str | None, requests: Sequence[Request]
) -> list[str]:
    """The limits that submitting so many jobs would exceed, whichever account and partition Slurm takes, in words.

    `there` are this user's in the queue, which count where all users' do; of what others have nothing is known.
    """
    most, found = configuration.get("MaxJobCount", ""), list[str]()
    if most.isdigit() and there + count > int(most):
        found.append(f"MaxJobCount: at most {most} jobs of all users in the queue")
    with contextlib.suppress(commands.SlurmError):
        orders = [each for _, each in _orders(configuration, account, requests, commands.partitions())]
        limits = [dict.fromkeys(_limits(order)) for each in orders for order in each]
        held = [one for one in limits[0] if all(one in each for each in limits)] if limits else []
        found += [line for number, line in held if count > number]
    return [f"{line}: {MORE}" for line in found]


Limits = Mapping[str, str]


def _orders(
    configuration: Mapping[str, str],
    account: str | None,
    requests: Sequence[Request],
    partitions: Mapping[str, Mapping[str, str]],
) -> list[tuple[Request, list[list[Limits]]]]:
    """What limits each request, the first that says a limit before others; for each partition and account a list."""
    if not {"limits", "safe", "all"} & {*configuration.get("AccountingStorageEnforce", "limits").lower().split(",")}:
        return []
    cluster = configuration.get("ClusterName", "")
    try:
        own, above = commands.associations(account, cluster), commands.accounts(cluster)
        names = [(request, [*_limiting(request, own, partitions)]) for request in requests]
        asked = sorted({name for _, each in names for qualities, _ in each for name in qualities})
        known = {one["Name"]: one for one in commands.qualities(asked)}
    except commands.SlurmError:
        return []
    return [
        (
            request,
            [
                [*_in_order([known.get(name) for name in qualities], last), _tightest(last, above)]
                for qualities, last in each
            ],
        )
        for request, each in names
    ]


def _limiting(
    request: Request, accounts: Sequence[Limits], partitions: Mapping[str, Limits]
) -> Iterator[tuple[list[str], Limits]]:
    """The names of the QOS that limit jobs, the partition's before their own, and the account that does after these."""
    of_partitions = [one.get("QoS", "N/A") for one in request.partitions(partitions)] or ["N/A"]
    for account in accounts:
        own = str(request.parameters.get("qos") or account["DefaultQOS"] or NORMAL)
        yield from (([own] if name == "N/A" else [name, own], account) for name in of_partitions)


def _in_order(qualities: Sequence[Limits | None], account: Limits) -> list[Limits]:
    """What limits jobs: of several limits of a kind the first that is said holds, however large."""
    there = [one for one in qualities if one]
    if len(there) == 2 and "OverPartQOS" in there[1]["Flags"]:
        there.reverse()
    return [*there, account]


def _tightest(account: Limits, every: Sequence[Limits]) -> Limits:
    """The account that allows fewest jobs of all its users: this one or one above it, whose limits hold too."""
    known, name, found = {one["Account"]: one for one in every}, account["Account"], list[Limits]()
    while name in known:
        one = known.pop(name)  # once each
        found += [one] * one["GrpSubmitJobs"].isdigit()
        name = one["ParentName"]
    return min(found, key=lambda one: int(one["GrpSubmitJobs"]), default={})


def _limits(order: Sequence[Limits]) -> Iterator[tuple[int, str]]:
    """How many jobs are allowed by each limit that holds, and that in words."""
    for whose, fields in COUNTED.items():
        for one in order:
            if field := next((field for field in fields if one.get(field, "").isdigit()), ""):
                yield int(one[field]), f"{_named(one)}: at most {one[field]} jobs {whose} in the queue ({field})"
                break


def _longest(order: Sequence[Limits]) -> tuple[float, str]:
    """How many minutes a job may ask for, and who says so."""
    return next(((minutes(one["MaxWall"]), _named(one)) for one in order if one.get("MaxWall")), (math.inf, ""))


def _named(one: Limits) -> str:
    return f"QOS {one['Name']}" if "Name" in one else f"account {one['Account']}"


def minutes(text: str) -> float:
    """A time limit as `scontrol` writes it, days-hours:minutes:seconds; infinite where there is none."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if len(parts) != 3 or not all(part.isdigit() for part in (*parts, days or "0")):
        return math.inf
    hours, mins, seconds = map(int, parts)
    return (int(days or 0) * 24 + hours) * 60 + mins + seconds / 60
