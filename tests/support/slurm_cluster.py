"""A real Slurm cluster on this machine, for tests.

It has slurmctld, a slurmd per node, munge, and slurmdbd on MariaDB.

    with SlurmCluster(folder, nodes=2) as cluster:   # sets SLURM_CONF
        subprocess.run(["sbatch", ...])
        cluster.kill_node("127.0.0.2")

CPUs, memory and GPUs of the nodes are made up. Nothing is pinned or limited. Root is not needed.
The daemons are children of a supervisor process, which gets its orders over a pipe. If the pipe
closes, also because the test's process was killed, the supervisor ends everything. It is a child
subreaper: it adopts what Slurm forks off, so nothing outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support import processes

PACKAGES = {  # program -> its Debian package
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
}
SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
MARIADB_TABLES = Path("/usr/share/mysql/mysql_system_tables.sql")
PATIENCE = 90.0  # seconds for a cluster to come up, or for processes to die

SLURM_CONF = """\
ClusterName=tiny
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}

# cred_expire is also how long a requeued job waits to start again; Slurm takes no less than 5 s.
AuthInfo=socket={run}/munge.sock,cred_expire=5

StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
MailProg={run}/mail

# Believe what the node lines claim, bind and limit nothing.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides

SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
# What no partition allows is refused at once, rather than queued for ever.
EnforcePartLimits=ALL

SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1

# Five seconds from SIGTERM to SIGKILL; a silent node is down after at most twice SlurmdTimeout.
KillWait=5
SlurmdTimeout=15
ReturnToService=2
FirstJobId={first_job}
MinJobAge=86400

# A job in `preemptible` gives way to one in another partition, after the signal that it asked for.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal

AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting_port}
AccountingStoragePass=socket={run}/munge.sock
{gpu_types}
{more}
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=2 PreemptMode=OFF MaxTime=7-0
PartitionName=preemptible Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=10 MaxTime=7-0
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={run}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={accounting_port}
SlurmUser={user}
PidFile={run}/slurmdbd.pid
LogFile={logs}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm
"""


class ClusterError(RuntimeError):
    """The cluster does not come up or does not obey."""


def missing_programs() -> list[str]:
    """The Debian packages that must be installed before a cluster can start."""
    return sorted(
        {
            package
            for program, package in PACKAGES.items()
            if not shutil.which(program, path=SEARCHED)
        }
    )


class SlurmCluster:
    """The cluster, as its users see it.

    Configuration, mails and logs are in `folder`, and stay. `more` are lines for slurm.conf.
    """

    def __init__(
        self, folder: Path, nodes: int = 2, cpus: int = 4, gpus: int = 0, more: str = ""
    ) -> None:
        self.folder, self._options = folder, [more, str(gpus), str(nodes), str(cpus)]
        self.nodes = [f"127.0.0.{number + 1}" for number in range(nodes)]

    def __enter__(self) -> SlurmCluster:
        logs = self.folder / "logs"
        logs.mkdir(parents=True)
        # without Slurm's variables: this may itself run in a job of another cluster
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLURM", "SBATCH"))
        }
        with (logs / "supervisor.log").open("w") as log:
            self._supervisor = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.slurm_cluster",
                    str(self.folder.absolute()),
                    *self._options,
                ],
                cwd=Path(__file__).parents[2],  # where `tests` is found
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=environment,
            )
        try:
            self._listen()
        except ClusterError:
            self._stop()
            raise
        self._outer = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = str(self.folder / "slurm.conf")
        return self

    def __exit__(self, *error: object) -> None:
        if self._outer is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = self._outer
        self._stop()

    def kill_node(self, node: str) -> None:
        """Kill a node's slurmd and all that runs on the node, as if its power failed.

        Slurm finds out later.
        """
        self._tell("kill", node)

    def start_node(self, node: str) -> None:
        """Start a killed node again."""
        self._tell("start", node)

    def _tell(self, *words: str) -> None:
        assert self._supervisor.stdin
        self._supervisor.stdin.write(json.dumps(words) + "\n")
        self._supervisor.stdin.flush()
        self._listen()

    def _listen(self) -> None:
        assert self._supervisor.stdout
        answer = self._supervisor.stdout.readline()
        if answer != '"ok"\n':
            raise ClusterError(
                json.loads(answer or '"the supervisor died: see logs/supervisor.log"')
            )

    def _stop(self) -> None:
        """Close the pipe, which ends the supervisor and all that is below it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.communicate(timeout=PATIENCE)
        self._supervisor.kill()
        self._supervisor.wait()


class Supervisor:
    """Parent of the daemons and, as a subreaper, ancestor of all jobs."""

    def __init__(self, folder: Path, more: str, gpus: int, nodes: int, cpus: int) -> None:
        self.folder, self.logs, self.more, self.gpus, self.cpus = (
            folder,
            folder / "logs",
            more,
            gpus,
            cpus,
        )
        # short: a Unix socket's path has at most 107 characters
        self.run = Path(tempfile.mkdtemp(prefix="slurm-"))
        memory = Path("/dev/shm")  # the database writes a lot before it is up
        roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 50e6
        self.data = Path(tempfile.mkdtemp(prefix="slurm-", dir=memory if roomy else None))
        self.nodes = [f"127.0.0.{number + 1}" for number in range(nodes)]
        self.daemons: dict[int, str] = {}  # pid -> name
        self.environment = {"PATH": SEARCHED, "SLURM_CONF": str(folder / "slurm.conf")}
        self.deadline = time.monotonic() + PATIENCE

    def serve(self) -> None:
        """Boot, then obey the lines of standard input to its end."""
        try:
            self._answer(self._boot)
            for line in sys.stdin:
                what, node = json.loads(line)
                self._answer(partial(self._kill_node if what == "kill" else self._slurmd, node))
        finally:
            processes.kill_until_none(
                lambda: (self._collect(), processes.descendants(os.getpid()))[1]
            )
            for folder in (self.run, self.data):
                shutil.rmtree(folder, ignore_errors=True)

    def _answer(self, work: Callable[[], None]) -> None:
        answer = "ok"
        try:
            work()
        except ClusterError as error:
            answer = str(error)
        print(json.dumps(answer), flush=True)

    def _boot(self) -> None:
        processes.prctl(processes.SET_CHILD_SUBREAPER, 1)
        self.run.chmod(0o755)
        (self.run / "mail").write_text(f'#!/bin/sh\necho "$@" >> {self.folder}/mails\n')
        (self.run / "mail").chmod(0o755)
        controller_port, accounting_port, *node_ports = free_ports(2 + len(self.nodes))
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        values = {
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "run": self.run,
            "more": self.more,
            "logs": self.logs,
            "controller_port": controller_port,
            "accounting_port": accounting_port,
            # other ids than the last cluster's: files are named after them
            "first_job": random.randrange(1, 10**4) * 1000,
            "gpu_types": "GresTypes=gpu\nAccountingStorageTRES=gres/gpu" if self.gpus else "",
            # names that resolve, because submitit takes one for torch's MASTER_ADDR
            "nodes": "\n".join(
                f"NodeName={name} NodeAddr=127.0.0.1 NodeHostname=localhost Port={port} "
                f"CPUs={self.cpus} "
                f"RealMemory=16000{gres}"
                for name, port in zip(self.nodes, node_ports, strict=True)
            ),
        }
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(**values))
        self._make_gpus()
        self._munged()
        self._database(str(values["user"]))
        accounting = self.folder / "slurmdbd.conf"
        accounting.touch(mode=0o600)
        accounting.write_text(SLURMDBD_CONF.format(**values))
        self._spawn("slurmdbd", "slurmdbd", "-D")
        self._wait_for(lambda: is_listening(accounting_port), "slurmdbd")
        self._ask("sacctmgr", "-i", "add", "cluster", "tiny")
        (self.run / "spool").mkdir()
        self._spawn("slurmctld", "slurmctld", "-D")
        self._wait_for(lambda: is_listening(controller_port), "slurmctld")
        for node in self.nodes:
            self._slurmd(node)
        idle = f"idle {len(self.nodes)}"
        self._wait_for(
            lambda: self._ask("sinfo", "-h", "-p", "main", "-o", "%T %D") == idle, "the nodes"
        )

    def _make_gpus(self) -> None:
        """Make device files (any will do), or Slurm would not say which GPUs a job has."""
        for number in range(self.gpus):
            (self.run / f"gpu{number}").symlink_to("/dev/null")
        if self.gpus:
            (self.folder / "gres.conf").write_text(
                f"Name=gpu File={self.run}/gpu[0-{self.gpus - 1}]\n"
            )

    def _munged(self) -> None:
        key = self.run / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = [f"--{what}-file={self.run}/munge.{what}" for what in ("key", "pid", "seed")]
        self._spawn("munged", "munged", "--foreground", f"--socket={self.run}/munge.sock", *files)
        self._wait_for((self.run / "munge.sock").exists, "munged")

    def _database(self, user: str) -> None:
        server = self.run / "mariadb.sock"
        mariadbd = (
            *("mariadbd", "--no-defaults", f"--user={user}", f"--datadir={self.data}"),
            *(
                "--innodb-buffer-pool-size=32M",
                "--innodb-log-file-size=4M",
                "--innodb-lock-wait-timeout=900",
            ),
            *("--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite"),
        )
        script = f"create database mysql;\nuse mysql;\n{MARIADB_TABLES.read_text()}"
        with (self.logs / "mariadbd.out").open("w") as log:
            made = subprocess.run(
                [*mariadbd, "--bootstrap"],
                input=script.encode(),
                stdout=log,
                stderr=log,
                env=self.environment,
                check=False,
            )
        if made.returncode:
            raise ClusterError(f"MariaDB could not make its tables:\n{self._tail('mariadbd')}")
        self.environment["MYSQL_UNIX_PORT"] = str(server)
        # no passwords, no network: who may open the socket may use it
        quiet = (
            "--skip-grant-tables",
            "--skip-networking",
            f"--socket={server}",
            f"--pid-file={self.data}/pid",
        )
        self._spawn("mariadbd", *mariadbd, *quiet)
        self._wait_for(server.exists, "mariadbd")

    def _slurmd(self, node: str) -> None:
        self._spawn(f"slurmd-{node}", "slurmd", "-D", "-N", node)

    def _kill_node(self, node: str) -> None:
        def of_node() -> set[int]:
            """Pids of the node's slurmd, of slurmstepds that write to its log, and of processes
            with its name in their environment.
            """
            self._collect()
            log = f"{self.logs}/slurmd-{node}.log"
            below = processes.descendants(os.getpid())
            steps = {pid for pid in below if processes.has_open(pid, log)}
            daemons = {pid for pid, name in self.daemons.items() if name == f"slurmd-{node}"}
            return (
                daemons
                | steps
                | {pid for pid in below if processes.has_variable(pid, f"SLURMD_NODENAME={node}")}
            )

        processes.kill_until_none(of_node)

    def _spawn(self, name: str, *command: str) -> None:
        with (self.logs / f"{name}.out").open("a") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.run,
                start_new_session=True,
                preexec_fn=lambda: processes.prctl(
                    processes.SET_PARENT_DEATH_SIGNAL, signal.SIGKILL
                ),
            )
        self.daemons[process.pid] = name
        process.returncode = 0  # collected here, not by subprocess

    def _ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, stdout=subprocess.PIPE, text=True, check=False
        )
        return done.stdout.strip()

    def _collect(self) -> list[str]:
        """Reap ended children, adopted ones too. Returns the names of the daemons among them."""
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if pid in self.daemons:
                    ended.append(self.daemons.pop(pid))
        return ended

    def _wait_for(self, is_up: Callable[[], bool], what: str) -> None:
        while not is_up():
            for name in self._collect():
                raise ClusterError(f"{name} ended early:\n{self._tail(name)}")
            if time.monotonic() > self.deadline:
                logs = "".join(map(self._tail, self.daemons.values()))
                raise ClusterError(f"{what} did not come up in {PATIENCE:.0f} s:\n{logs}")
            time.sleep(0.02)

    def _tail(self, name: str) -> str:
        logs = [
            path for path in (self.logs / f"{name}.out", self.logs / f"{name}.log") if path.exists()
        ]
        return "".join(
            f"--- {path}\n" + "".join(path.open(errors="replace").readlines()[-15:])
            for path in logs
        )


def free_ports(number: int) -> list[int]:
    """Ports on which nothing listens, below those that the system and submitit choose from."""
    ports: list[int] = []
    for port in random.sample(range(10000, 20000), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            ports.append(port)
        if len(ports) == number:
            return ports
    raise ClusterError("no free ports")


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    Supervisor(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])).serve()
