"""The `[slurm]` section of a suite: what its jobs ask of a cluster. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field, model_validator

from benchmark.settings.base import Settings
from benchmark.settings.units import UNITS

MOST = 1_000_000  # of anything that a cluster counts
KINDS = ("prepare", "train", "score", "measure", "report")  # of jobs, each with a section of its own
# what no row has of its own: it is of jobs for all rows, or of all jobs
OF_ALL_ROWS = ("prepare", "report", "array_parallelism", "max_num_timeout", "python")
NOT_OF_SBATCH = {"exclusive", "gpus_per_node", "max_num_timeout", "python", "runs_per_job"}
Gpus = Annotated[int, Field(ge=0, le=MOST)] | Annotated[str, Field(pattern=r"^([\w.-]+:)?[1-9]\d*$")]


class JobKind(Settings):
    """What one kind of job asks for instead of what `[slurm]` says; a key that is not given is as there.

    `mem` takes the place of `mem_per_cpu`, too.
    """

    partition: str | None = Field(None, description="the partition that jobs are queued in")
    qos: str | None = Field(None, description="their quality of service")
    constraint: str | None = Field(None, description="features of the nodes")
    time: int | None = Field(None, gt=0, le=MOST, description="limit in minutes")
    cpus_per_task: int | None = Field(None, gt=0, le=MOST, description="cores of each process")
    mem: str | None = Field(None, description='memory of a node, e.g. "64GB"')
    gpus_per_node: Gpus | None = Field(None, description='GPUs on a node, or with their type, e.g. "a100:1"')
    exclude: str | None = Field(None, description="not these nodes")


class Slurm(Settings):
    """Resources of each training job. Keys and meanings are those of submitit's Slurm executor, and so of `sbatch`.

    Nothing here changes a result, so nothing here is part of a run's identity.
    """

    partition: str | None = Field(None, description="the partition that jobs are queued in")
    account: str | None = Field(None, description="the account that they are charged to")
    qos: str | None = Field(None, description="their quality of service")
    constraint: str | None = Field(None, description="features of the nodes; pins the GPU model of a comparison")
    nodes: int = Field(1, gt=0, le=MOST, description="of a training job")
    gpus_per_node: Gpus | None = Field(
        None, description='GPUs of a training job on each node, or with their type, e.g. "a100:4"'
    )
    ntasks_per_node: int | None = Field(
        None, gt=0, le=MOST, description="processes on a node; default: one a GPU, else one"
    )
    cpus_per_task: int | None = Field(None, gt=0, le=MOST, description="cores of each process")
    mem: str | None = Field(None, description='memory of a node, e.g. "64GB"')
    mem_per_cpu: str | None = Field(None, description="memory of a core, instead of mem")
    time: int = Field(
        1440, gt=0, le=MOST, description="limit in minutes; a job that reaches it is queued again and goes on"
    )
    exclusive: bool | str | None = Field(None, description="whole nodes; default: if the budget is a wall time")
    exclude: str | None = Field(None, description="not these nodes")
    array_parallelism: int = Field(256, gt=0, le=MOST, description="at most so many jobs of an array run at a time")
    runs_per_job: int = Field(
        1, gt=0, le=MOST, description="runs that a training job trains, each process by itself the next that nobody has"
    )
    setup: tuple[str, ...] = Field((), description="shell commands before the job, e.g. 'module load cuda'")
    teardown: tuple[str, ...] = Field((), description="shell commands after the job")
    signal_delay_s: int = Field(
        120, gt=0, le=MOST, description="a job is told to save itself so long before its time limit"
    )
    max_num_timeout: int = Field(1000, ge=0, le=MOST, description="a job is queued again at most so often")
    srun_args: tuple[str, ...] = Field((), description="options of the srun that starts the processes")
    additional_parameters: dict[str, Any] = Field(
        {}, description='other options of sbatch, {"mail_type" = "FAIL"}; true: without a value, false: not at all'
    )
    python: str | None = Field(
        None, description="command that starts Python in a job, e.g. 'apptainer exec --nv IMAGE_FOLDER python3'"
    )
    prepare: JobKind = Field(JobKind(), description="of the jobs that tokenise text")
    train: JobKind = Field(JobKind(), description="of those that train")
    score: JobKind = Field(JobKind(), description="of those that score a model on tasks")
    measure: JobKind = Field(JobKind(), description="of those that measure what figures need")
    report: JobKind = Field(JobKind(), description="of those that render tables and figures")

    @model_validator(mode="after")
    def _time_to_train(self) -> Slurm:
        for kind in KINDS:
            if self.signal_delay_s >= 60 * (limit := self.of(kind).time):
                raise ValueError(
                    f"signal_delay_s {self.signal_delay_s} leaves nothing of a time limit of {limit} minutes"
                    ": change one of them"
                )
        return self

    @model_validator(mode="after")
    def _runs_within_nodes(self) -> Slurm:
        if self.runs_per_job > 1 and self.nodes > 1:
            raise ValueError(
                f"runs_per_job {self.runs_per_job} and nodes {self.nodes}: runs that share a job are on one node; "
                "leave one of them out"
            )
        return self

    @property
    def gpus_on_node(self) -> int:
        return int(str(self.gpus_per_node or 0).rpartition(":")[2])

    @property
    def processes_per_node(self) -> int:
        return self.ntasks_per_node or self.gpus_on_node or 1

    @property
    def processes(self) -> int:
        """How many processes a training job has."""
        return self.nodes * self.processes_per_node

    @property
    def gpus_of_a_run(self) -> float:
        """How many GPUs a run has: a share of its job's where that trains several at a time."""
        gpus = self.nodes * self.gpus_on_node
        return gpus / self.processes if self.runs_per_job > 1 else gpus

    def takes_whole_nodes(self, *units: str) -> bool | str:
        """Whether jobs under budgets in these units run alone on their nodes."""
        return any(UNITS[unit].is_wall_time for unit in units) if self.exclusive is None else self.exclusive

    def __hash__(self) -> int:  # of some keys: not all values have one
        return hash((self.partition, self.nodes, self.gpus_per_node, self.mem, self.time))

    def of(self, kind: str) -> Slurm:
        """These settings for one kind of job, as its section says, and where models are used as that of training does.

        `score` and `measure` have one GPU, of the kind that training has, if their section does not name others.
        """
        own = getattr(self, "train" if kind == "stages" else kind).model_dump(exclude_none=True)
        if kind in ("score", "measure"):
            train = self.of("train")
            gpu = {"gpus_per_node": train._one_gpu} if train.gpus_on_node else {}
            own = {**self.train.model_dump(exclude_none=True), **gpu, **own}
        elif kind in ("prepare", "report"):
            own = {"gpus_per_node": None, **own}
        if "mem" in own:
            own["mem_per_cpu"] = None  # Slurm refuses both
        return self.model_copy(update=own)

    def parameters(self, kind: str, units: Iterable[str]) -> dict[str, Any]:
        """Parameters of submitit's Slurm executor for a kind of job, of runs under budgets in these units."""
        own, exclusive = self.of(kind), self.takes_whole_nodes(*units)
        if kind not in ("train", "stages"):
            return own.model_copy(update={"nodes": 1, "ntasks_per_node": 1})._list_given_keys()
        if own.runs_per_job > 1:
            own = own._as_one_process(exclusive is True)
        return {**own._list_given_keys(), **({"exclusive": exclusive} if exclusive else {})}

    def _as_one_process(self, whole_nodes: bool) -> Slurm:
        """These settings with the cores of all processes in one, which starts the others itself."""
        count = self.processes_per_node
        cores = self.cpus_per_task or (None if whole_nodes or count == 1 else 1)
        return self.model_copy(update={"ntasks_per_node": 1, "cpus_per_task": cores and cores * count})

    @property
    def _one_gpu(self) -> str:
        """A single GPU of the type that is asked for, if one is named."""
        kind = str(self.gpus_per_node).rpartition(":")[0]
        return f"{kind}:1" if kind else "1"

    def _list_given_keys(self) -> dict[str, Any]:
        given = self.model_dump(exclude_none=True, exclude={*NOT_OF_SBATCH, *KINDS})
        given["ntasks_per_node"] = self.processes_per_node
        if self.gpus_on_node:
            given["gres"] = f"gpu:{self.gpus_per_node}"  # all versions know it, gpus_per_node only those with cons_tres
        given["wckey"] = None  # submitit has one of its own, which sites that track them refuse
        # a job whose setup fails would train with whatever there is
        given["setup"] = ["set -e", *self.setup, "set +e"] if self.setup else []
        # a batch script ends as its last command does: Slurm would take a killed job for one that succeeded
        given["teardown"] = ["ended=$?", *self.teardown, "exit $ended"] if self.teardown else []
        # One process that fails ends the job: the others would wait for it for ever.
        given["srun_args"] = ["--kill-on-bad-exit=1", *self.srun_args]
        if self.cpus_per_task:  # since Slurm 22.05 srun does not take it over from sbatch
            given["srun_args"].append(f"--cpus-per-task={self.cpus_per_task}")
        # Sites can switch off that Slurm itself queues a job of a lost node again; this switches it on.
        more = {"requeue": True, **self.additional_parameters}
        given["additional_parameters"] = {key: value for key, value in more.items() if value is not False}
        return given
