"""Asking Slurm and telling it: thin functions over squeue, sacct, scontrol and scancel. No torch here."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmark.errors import UserError
from benchmark.locks import me

PIECE = 500  # ids in one command, and ranges of tasks in a word
LETTERS = 50_000  # of all ids in one command: Linux takes 128 KB a word
NO_ACCOUNTS = "accounting storage is disabled"  # in what sacct says of a cluster that keeps none
FULL = b"sleeping and retrying"  # in what sbatch says of a cluster that holds as many jobs as it may
GLANCE, GLANCES = 0.1, 1200  # seconds between two looks at what a command has said, and how many: two minutes
USUAL_ARRAY = 1001  # Slurm's own default of MaxArraySize, the number of its tasks
FILTERS = ("SQUEUE_", "SACCT_", "SCONTROL_", "SCANCEL_")  # a user's own, that would hide jobs or ask before each
# a job's own variables: what those of Slurm and MPI begin with; torchrun's, and its share of a node's GPUs and disk
OUTER = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SUBMITIT_", "PMI_", "PMI2_", "PMIX_", "OMPI_", "TORCHELASTIC_")
OUTER_NAMES = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}
WHERE = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"}  # how Slurm is reached, which is no job's own
LEFT_HELD = ("REQUEUE_HOLD", "SPECIAL_EXIT")  # states of jobs in the queue, which else say it in their reason
WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", *LEFT_HELD)
T = TypeVar("T")


class SlurmError(UserError):
    """Slurm is not there, does not answer, or refuses."""


@dataclass(frozen=True)
class Queued:
    """A job that Slurm has not ended: what squeue says of it."""

    state: str  # PENDING, RUNNING, COMPLETING, ...
    reason: str  # why it waits
    node: str
    script: str = ""  # the batch script that it was submitted with

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def is_held(self) -> bool:
        """Whether it waits until somebody lets it go: submitted, held or queued again so."""
        return self.waits and (self.state in LEFT_HELD or "held" in self.reason.lower())

    @property
    def stands_still(self) -> bool:
        """Whether it has its nodes, and may not compute: `scontrol suspend`, gang scheduling, a stop by a signal."""
        return self.state in ("SUSPENDED", "STOPPED")


def queue(*others: int) -> dict[str, Queued]:
    """The jobs of this user and of `others` by id; tasks of arrays are apart, `123_4`.

    Raises SlurmError where there is no answer.
    """
    users = ",".join(map(str, (os.getuid(), *others)))
    command = ["squeue", "--noheader", "--array", f"--user={users}", "--format=%i|%T|%r|%N|%o"]
    rows: list[list[str]] = []
    for line in _ask(command).removesuffix("\n").split("\n"):
        if re.match(r"\d+[^|]*(\|[^|]*){3}\|", line):
            rows.append(line.split("|", 4))
        elif rows:  # a command's arguments may break lines
            rows[-1][-1] += f"\n{line}"
    return {
        job: Queued(state, reason if reason != "None" else "", node, script)
        for job, state, reason, node, script in rows
    }


def endings(jobs: Iterable[str]) -> dict[str, str] | None:
    """How jobs ended, e.g. OUT_OF_MEMORY, as far as sacct knows; None where there is none, or no accounts are kept.

    Raises SlurmError where accounts are kept and there is no answer.
    """
    found = _accounts(set(jobs), "State")
    return None if found is None else {job: state.split()[0] for job, state in found.items()}


def began(jobs: Iterable[str]) -> dict[str, float]:
    """When jobs were started the last time, in seconds since 1970, as far as sacct knows."""
    try:
        found = _accounts(set(jobs), "Start") or {}
    except SlurmError:
        return {}
    return {job: float(start) for job, start in found.items() if start.isdigit()}


def _accounts(wanted: set[str], field: str) -> dict[str, str] | None:
    if wanted and not shutil.which("sacct"):
        return None
    found: dict[str, str] = {}
    for arrays in pieces(sorted({job.partition("_")[0] for job in wanted})):
        command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(arrays)}"]
        try:
            rows = [line.split("|") for line in _ask([*command, f"--format=JobID,{field}"]).splitlines()]
        except SlurmError as error:
            if NO_ACCOUNTS in str(error):
                return None
            raise
        found |= {job: value for ids, value in rows for job in each_task(ids) if job in wanted}
    return found


def each_task(ids: str) -> list[str]:
    """The tasks of an array that never began, as sacct writes them: 12_0, 12_2 of 12_[0-2:2%4]; else the id itself."""
    found = re.fullmatch(r"(\d+)_\[([\d,:-]+)(?:%\d+)?\]", ids)
    if not found:
        return [ids]
    bounds = [[int(bound) for bound in re.split("[-:]", part)] for part in found[2].split(",")]
    return [
        f"{found[1]}_{task}"
        for first, *more in bounds
        for task in range(first, (more or [first])[0] + 1, (more[1:] or [1])[0])
    ]


def submit(script: Path) -> str:
    """Submit a batch script. Returns the id of the job or array. Raises SlurmError where Slurm refuses it."""
    return _ask(["sbatch", "--parsable", str(script)]).strip().partition(";")[0]


def version() -> str:
    """Slurm's name and version, as it says them."""
    return _ask(["sbatch", "--version"]).strip()


def configuration() -> dict[str, str]:
    """The controller's settings as text, such as MaxArraySize."""
    return dict(re.findall(r"^(\w+(?:\[0\])?)\s*=\s*(.*?)\s*$", _ask(["scontrol", "show", "config"]), re.MULTILINE))


def associations(account: str | None, cluster: str) -> list[dict[str, str]]:
    """What accounts say of this user, each or the one that is named, what those above them allow a user included.

    Raises SlurmError where there is no answer: many sites keep no accounts.
    """
    words = [f"user={me().user}", *([f"account={account}"] if account else [])]
    words += [f"cluster={cluster}"] if cluster else []
    return _kept(["associations", *words], "Account", "MaxSubmitJobs", "MaxWall", "DefaultQOS")


def accounts(cluster: str) -> list[dict[str, str]]:
    """How many jobs all users of an account may have, those of accounts below it too. Raises as `associations`."""
    words = ["user=", *([f"cluster={cluster}"] if cluster else [])]  # of no user: those of accounts themselves
    return _kept(["associations", *words], "Account", "ParentName", "GrpSubmitJobs")


def qualities(names: Sequence[str]) -> list[dict[str, str]]:
    """How many jobs these qualities of service allow, for how long, and their flags. Raises as `associations`."""
    fields = ("Name", "MaxSubmitJobsPU", "MaxSubmitJobsPA", "GrpSubmitJobs", "MaxWall", "Flags")
    return _kept(["qos", ",".join(names)], *fields) if names else []


def _kept(what: list[str], *fields: str) -> list[dict[str, str]]:
    """Fields of what the cluster's accounts hold."""
    command = ["sacctmgr", "--noheader", "--parsable2", "show", *what, f"format={','.join(fields)}"]
    rows = [line.split("|") for line in _ask(command).splitlines()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def partitions() -> dict[str, dict[str, str]]:
    """What the controller says of each partition, such as MaxTime, by their names."""
    told = _ask(["scontrol", "--oneliner", "show", "partition"]).splitlines()
    found = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in told]
    return {one["PartitionName"]: one for one in found if "PartitionName" in one}


def refusal(script: str) -> str:
    """Why Slurm would not take a batch script's options, in its words, or nothing where it would; none is submitted."""
    lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    options = [option for line in lines for option in shlex.split(line)]
    status, _, errors = _run(["sbatch", "--test-only", *options, "--wrap=true"])
    said = [re.sub(r"^(sbatch: error|allocation failure): ", "", line) for line in _text(errors).strip().splitlines()]
    return ("; ".join(said) or f"exit status {status}") if status else ""


def largest_array(settings: Mapping[str, str]) -> int:
    """How many tasks an array may have by the controller's settings, 1 on a site without arrays."""
    return max(1, int(settings.get("MaxArraySize", USUAL_ARRAY)))


def cluster(settings: Mapping[str, str]) -> str:
    """The cluster's name by the controller's settings, as a name of a folder; empty where it has none."""
    return re.sub(r"[^\w-]", "_", settings.get("ClusterName", ""))


def controller(settings: Mapping[str, str]) -> str:
    """The machine and port of the first controller, which tell clusters of one name apart."""
    host = settings.get("SlurmctldHost[0]", "").partition("(")[0]
    return f"{host}:{settings.get('SlurmctldPort', '')}"


def restarts(job: str) -> int:
    """How often a job was queued again."""
    found = re.search(r"\bRestarts=(\d+)", _ask(["scontrol", "show", "job", job]))
    return int(found[1]) if found else 0


def requeue(job: str) -> None:
    """Queue a running job again, which ends it here."""
    _ask(["scontrol", "requeue", job])


def is_preempted(job: str) -> bool:
    """Whether Slurm is taking a running job's nodes for another."""
    return bool(re.search(r"\bPreemptTime=\d", _ask(["scontrol", "show", "job", job])))


def wire(jobs: Sequence[str], after: Sequence[str], needs: Sequence[str]) -> None:
    """Let waiting jobs or tasks of arrays start when `after` have ended and `needs` succeeded."""
    wanted = [f"{kind}:{':'.join(ids)}" for kind, ids in (("afterany", after), ("afterok", needs)) if ids]
    if wanted:
        for piece in in_pieces(jobs):
            _ask(["scontrol", "update", f"JobId={','.join(piece)}", f"Dependency={','.join(wanted)}"])


def release(jobs: Sequence[str]) -> None:
    """Let held jobs or tasks of arrays go."""
    for piece in in_pieces(jobs):
        _ask(["scontrol", "release", ",".join(piece)])


def shortened(jobs: Sequence[str]) -> list[str]:
    """Ids as Slurm's commands take them, the tasks of an array together: 12_0, 12_[1-2] and 13 are 12_[0-2], 13.

    An array of very many ranges has several words.
    """
    tasks: dict[str, list[int]] = {}
    for job in (one for ids in jobs for one in each_task(ids)):
        array, _, task = job.partition("_")
        tasks.setdefault(array, []).extend([int(task)] if task else [])
    words = {array: pieces(_ranges(sorted(set(found)))) for array, found in tasks.items()}
    return [
        word for array, parts in words.items() for word in [f"{array}_[{','.join(one)}]" for one in parts] or [array]
    ]


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in rising order as Slurm writes them, 0-2,7."""
    return ",".join(_ranges(numbers))


def _ranges(numbers: Sequence[int]) -> list[str]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ["-".join(map(str, run)) for run in runs]


def cancel(jobs: Sequence[str]) -> None:
    """End jobs, tasks of arrays or whole arrays."""
    for piece in in_pieces(jobs):
        _ask(["scancel", *piece])


def pieces(items: Sequence[T], size: int = PIECE) -> Iterator[Sequence[T]]:
    """Ids, or what else, in bounded numbers: the words of a command are limited, and so is a message to Slurm."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def in_pieces(jobs: Sequence[str]) -> Iterator[list[str]]:
    """Ids as `shortened` gives them, in bounded numbers and of bounded length, also where all of them are one word."""
    piece: list[str] = []
    for word in shortened(jobs):
        if len(piece) == PIECE or sum(map(len, piece)) + len(word) > LETTERS:
            yield piece
            piece = []
        piece.append(word)
    if piece:
        yield piece


def _ask(command: list[str]) -> str:
    try:
        status, output, errors = _run(command)
    except FileNotFoundError:
        raise SlurmError(
            f"no {command[0]} here: run this on a machine of the cluster, or use --executor local"
        ) from None
    except OSError as error:
        raise SlurmError(f"{command[0]} cannot be started ({error.strerror}): mend that, then try again") from None
    said = _text(errors).strip()
    if status and FULL in errors:
        raise SlurmError(
            f"`{' '.join(command)}` failed: {said}: Slurm holds as many jobs as MaxJobCount lets it, those that ended "
            "within MinJobAge too; try again later"
        )
    if status:
        raise SlurmError(f"`{' '.join(command)}` failed: {said}; repair what Slurm names, and try again")
    return _text(output)


def _run(command: list[str]) -> tuple[int, bytes, bytes]:
    """The exit status of a command, and what it said.

    One that waits to try again is ended: sbatch does so for two minutes, and would submit what we then do in parts.
    """
    pipe, env = subprocess.PIPE, _environment()
    env |= {"SLURM_TIME_FORMAT": "%s"} if command[0] == "sacct" else {}  # jobs inherit what sbatch has
    # a session, so that what it has started ends with it: many sites wrap sbatch
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env, start_new_session=True
    ) as process:
        try:
            for _ in range(GLANCES):
                try:
                    output, errors = process.communicate(timeout=GLANCE)
                except subprocess.TimeoutExpired as waits:
                    if FULL in (waits.stderr or b""):
                        os.killpg(process.pid, signal.SIGKILL)
                else:
                    return process.returncode, output, errors
            raise SlurmError(f"Slurm does not answer within two minutes: {' '.join(command)}; try again later")
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


def _text(output: bytes) -> str:
    """What a command said; names that other users chose may be in any encoding."""
    return output.decode("utf-8", errors="replace")


def _environment() -> dict[str, str]:
    """This process's environment, without what belongs to a job that it may itself run in: sbatch would pass it on.

    Nor does it hold what changes Slurm's answers.
    """
    own = {key for key in os.environ if key in OUTER_NAMES or key.startswith((*OUTER, *FILTERS))} - WHERE
    own |= {"TMPDIR"} if "SLURM_JOB_ID" in os.environ else set()  # a folder that ends with its job
    kept = {key: value for key, value in os.environ.items() if key not in own}
    return {**kept, "SLURM_BITSTR_LEN": "0"}  # or sacct writes the first tasks of an array alone
