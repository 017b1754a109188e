"""What each kind of a suite's jobs would ask of Slurm, and whether it would take and start them. No torch here."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.jobs.findings import Finding
from benchmark.jobs.slurm import commands
from benchmark.jobs.slurm.resources import WCKEY, parameters_of
from benchmark.settings.config import RunConfig, Suite
from benchmark.settings.slurm_settings import KINDS, Slurm

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
            parameters = parameters_of(kind, asked, units)
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
    return text if "wckey" in parameters else text.replace(WCKEY, "")


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
    """How many jobs Slurm takes at once: what the partition's QOS says of it, else the job's, else the user's account.

    Nothing where limits are not enforced, or Slurm does not tell them: then `run` is told by what is refused.
    """
    if not {"limits", "safe", "all"} & {*configuration.get("AccountingStorageEnforce", "limits").lower().split(",")}:
        return
    try:
        accounts = commands.associations(account, configuration.get("ClusterName", ""))
        orders = [order for request in requests for order in _limiting(request, accounts, partitions)]
        names = {name for qualities, _ in orders for name in qualities}
        known = {one["Name"]: one for one in commands.qualities(sorted(names))}
    except commands.SlurmError:
        return
    told = {line: None for qualities, last in orders for line in _limits([known.get(one) for one in qualities], last)}
    yield from (Finding(line, MORE, serious=False) for line in told)


Limits = Mapping[str, str]


def _limiting(
    request: Request, accounts: Sequence[Limits], partitions: Mapping[str, Limits]
) -> Iterator[tuple[list[str], Limits]]:
    """The names of the QOS that limit jobs, the partition's before their own, and the account that does after these."""
    of_partitions = [one.get("QoS", "N/A") for one in request.partitions(partitions)] or ["N/A"]
    for account in accounts:
        own = str(request.parameters.get("qos") or account["DefaultQOS"] or NORMAL)
        yield from (([own] if name == "N/A" else [name, own], account) for name in of_partitions)


def _limits(qualities: Sequence[Limits | None], account: Limits) -> Iterator[str]:
    """The limits that hold: of several the first that is said, however large."""
    there = [one for one in qualities if one]
    if len(there) == 2 and "OverPartQOS" in there[1]["Flags"]:
        there.reverse()
    for whose, fields in COUNTED.items():
        for one in (*there, account):
            if field := next((field for field in fields if one.get(field)), ""):
                name = f"QOS {one['Name']}" if "Name" in one else f"account {one['Account']}"
                yield f"{name}: at most {one[field]} jobs {whose} in the queue ({field})"
                break


def minutes(text: str) -> float:
    """A time limit as `scontrol` writes it, days-hours:minutes:seconds; infinite where there is none."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if len(parts) != 3 or not all(part.isdigit() for part in (*parts, days or "0")):
        return math.inf
    hours, mins, seconds = map(int, parts)
    return (int(days or 0) * 24 + hours) * 60 + mins + seconds / 60
