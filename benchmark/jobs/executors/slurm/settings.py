"""The `[slurm]` section of a suite: what its jobs ask of a cluster. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from benchmark.jobs.work import TRAINS
from benchmark.settings.base import Settings, validate
from benchmark.settings.units import UNITS

# kinds of jobs, each with a section of its own
KINDS = ("prepare", "train", "score", "report")
OF_ALL_ROWS = ("prepare", "report", "array_parallelism", "python")  # keys that no row can set
NOT_OF_SBATCH = {"exclusive", "gpus_per_node", "python", "runs_per_job"}
Gpus = NonNegativeInt | Annotated[str, Field(pattern=r"^([\w.-]+:)?[1-9]\d*$")]


def find_section(kind: str) -> str:
    return {"stages": "train", "measure": "score"}.get(kind, kind)


class JobKind(Settings):
    """Resources of one kind of job, which override those of `[slurm]`.

    A key that is not given has the value of `[slurm]`, and in `[slurm.score]` that of training
    jobs. `mem` and `mem_per_cpu` replace each other. Jobs that do not train have one process on one
    node.
    """

    partition: str | None = Field(None, description="the partition that jobs are queued in")
    account: str | None = Field(None, description="the account that they are charged to")
    qos: str | None = Field(None, description="the quality of service of jobs")
    constraint: str | None = Field(
        None,
        description="features of the nodes, such as the GPU model. It keeps a comparison on one"
        " model",
    )
    exclude: str | None = Field(None, description="never run on these nodes")
    gpus_per_node: Gpus | None = Field(
        None, description='GPUs of a training job per node, also with their type: "a100:4"'
    )
    cpus_per_task: PositiveInt | None = Field(None, description="cores per process")
    mem: str | None = Field(None, description='memory per node, such as "64GB"')
    mem_per_cpu: str | None = Field(None, description="memory per core, instead of mem")
    time: PositiveInt = Field(
        1440, description="limit in minutes. Longer work continues in another job"
    )
    exclusive: bool | str | None = Field(
        None,
        description="take whole nodes and pay for them. The default is true for a budget in "
        "seconds",
    )
    mail_type: str | None = Field(
        None,
        description='when Slurm sends a mail, such as "END" or "FAIL". In [slurm.report]: at '
        "the end of all",
    )
    mail_user: str | None = Field(None, description="who gets the mail (default: who submits)")
    array_parallelism: PositiveInt = Field(
        256, description="how many jobs of an array run at a time, at most"
    )
    setup: tuple[str, ...] = Field(
        (), description="shell commands before the job, e.g. 'module load cuda'"
    )
    teardown: tuple[str, ...] = Field((), description="shell commands after the job")
    signal_delay_s: PositiveInt = Field(
        120, description="seconds before its limit at which a job is told to save"
    )
    srun_args: tuple[str, ...] = Field(
        (), description="options of the srun that starts the processes"
    )
    additional_parameters: dict[str, Any] = Field(
        {},
        description='other options of sbatch, such as {"reservation" = "course"}. true stands '
        "for an option without a value, false leaves it out",
    )
    python: str | None = Field(
        None,
        description="command that starts Python in a job, e.g. "
        "'apptainer exec --nv IMAGE_FOLDER python3'",
    )


class TrainKind(JobKind):
    """Resources of training jobs, which override those of `[slurm]`.

    Only training jobs may have several processes.
    """

    nodes: PositiveInt = Field(1, description="nodes per training job")
    ntasks_per_node: PositiveInt | None = Field(
        None, description="processes per node (default: one per GPU, or one)"
    )
    runs_per_job: PositiveInt = Field(
        1,
        description="runs that one job trains or scores. Each process takes the next run that "
        "no other has",
    )


class Slurm(TrainKind):
    """Resources of each training job.

    Keys and meanings are those of submitit's Slurm executor, and so of `sbatch`. Nothing here is
    part of a run's identity. `cpus_per_task` decides the threads, and so how sums are rounded.
    """

    prepare: JobKind = Field(JobKind(), description="jobs that download and tokenize text")
    train: TrainKind = Field(TrainKind(), description="jobs that train")
    score: JobKind = Field(
        JobKind(), description="jobs that score models and measure what figures need"
    )
    report: JobKind = Field(JobKind(), description="jobs that render tables and figures")

    @model_validator(mode="after")
    def _check_consistency(self) -> Slurm:
        train = self.resolve("train")
        if train.runs_per_job > 1 and train.nodes > 1:
            raise ValueError(
                f"runs_per_job {train.runs_per_job} and nodes {train.nodes}: runs that share a job "
                "are on one node; leave one of them out"
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
        """The number of processes of a training job."""
        return self.nodes * self.processes_per_node

    @property
    def gpus_of_a_run(self) -> float:
        """The number of GPUs of a run: a share of the job's if several runs train at a time."""
        gpus = self.nodes * self.gpus_on_node
        return gpus / self.processes if self.runs_per_job > 1 else gpus

    @classmethod
    def read(cls, sections: Mapping[str, Any]) -> Slurm:
        """The `slurm` section among all executors' sections of a suite or a run.

        Raises ConfigError.
        """
        return validate(cls, sections.get("slurm", {}), "[slurm]")

    def __hash__(self) -> int:  # of one key only: not all values have a hash, and requests are few
        return hash(self.time)

    def resolve(self, kind: str) -> Slurm:
        """The settings of one kind of job: those of its section, and else those of `[slurm]`.

        `score` jobs, which need models, start from the settings of training jobs. They have one
        GPU, of the type that training has, unless their section says otherwise.
        """
        base = self
        section = getattr(self, find_section(kind)).model_dump(exclude_unset=True)
        if kind not in TRAINS:
            one_process: dict[str, Any] = {
                "nodes": 1,
                "ntasks_per_node": 1,
                "exclusive": None,
                "gpus_per_node": None,
            }
            if kind == "score":
                base = self.resolve("train")
                if base.gpus_on_node:
                    one_process["gpus_per_node"] = re.sub(r"\d+$", "1", f"{base.gpus_per_node}")
            else:
                one_process["runs_per_job"] = 1
            base = base.model_copy(update=one_process)
        if {"mem", "mem_per_cpu"} & section.keys():
            section = {"mem": None, "mem_per_cpu": None, **section}  # Slurm refuses a job with both
        return base.model_copy(update=section)

    def list_parameters(self, kind: str, units: Iterable[str]) -> dict[str, Any]:
        """Parameters of submitit's Slurm executor for a kind of job.

        `units` are the units of its runs' budgets.
        """
        settings = self.resolve(kind)
        exclusive = settings.exclusive
        if kind in TRAINS and exclusive is None:
            exclusive = any(UNITS[unit].is_wall_time for unit in units)
        processes = settings.processes_per_node
        cores = settings.cpus_per_task
        if settings.runs_per_job > 1 and processes > 1:
            # the one process starts the others itself, so it has the cores of all, or of a whole
            # node
            if cores or exclusive is not True:
                cores = (cores or 1) * processes
            processes = 1
        parameters = {}
        for key, value in settings:
            if value is not None and key not in (*NOT_OF_SBATCH, *KINDS):
                parameters[key] = value
        parameters["ntasks_per_node"] = processes
        # submitit sets a key of its own, which sites that track such keys refuse
        parameters["wckey"] = None
        # else a job whose setup fails would train with whatever there is
        parameters["setup"] = ["set -e", *settings.setup, "set +e"]
        # a batch script has the exit status of its last command: without this, Slurm would take a
        # killed job for one that succeeded
        parameters["teardown"] = ["ended=$?", *settings.teardown, "exit $ended"]
        # One process that fails ends the job: the others would wait for it for ever.
        parameters["srun_args"] = ["--kill-on-bad-exit=1", *settings.srun_args]
        if cores:  # since Slurm 22.05 srun does not take it over from sbatch
            parameters["cpus_per_task"] = cores
            parameters["srun_args"].append(f"--cpus-per-task={cores}")
        if settings.gpus_on_node:
            # all versions know gres, but only those with cons_tres know gpus_per_node
            parameters["gres"] = f"gpu:{settings.gpus_per_node}"
        if exclusive:
            parameters["exclusive"] = exclusive
        # Slurm queues the jobs of a lost node again, unless the site switches that off. `requeue`
        # switches it on.
        options = {"requeue": True, **settings.additional_parameters}
        parameters["additional_parameters"] = {
            key: value for key, value in options.items() if value is not False
        }
        return parameters
