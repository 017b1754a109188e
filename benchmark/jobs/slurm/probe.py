"""What `run_all.py doctor` lets a compute node try; it imports nothing of the project, which the node may not see.

`python probe.py FOLDER OTHER ...` writes `answer.json` into the first, also which others it does not see, then asks
Slurm for the signal that jobs get before their end, and to queue its own job again, which ends it; where Slurm refuses,
`refusal.txt` says why.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PREEMPTION = getattr(signal, "SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2"))


def holds_apart(path: Path) -> bool:
    """Whether a lock that another machine holds on a file keeps this one out. Raises OSError without flock."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def of_torch() -> dict[str, object]:
    """Which torch there is, and how many devices it finds; or what goes wrong."""
    try:
        import torch

        found, count = torch.accelerator.current_accelerator(check_available=True), torch.accelerator.device_count()
        return {"torch": torch.__version__, "device": found.type if found else "cpu", "devices": count}
    except Exception as error:  # of a driver, a library that is missing, another processor: the node's answer
        return {"error": f"{type(error).__name__}: {error}"}


def signalled(job: str) -> None:
    """Let all processes of the job get the signal that asks to save: those too that a container needs, like the one
    that mounts its image."""
    try:
        asked = subprocess.run(["scancel", f"--signal={PREEMPTION.name[3:]}", job], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return  # an image may lack it, as no job needs it
    if asked.returncode == 0 and signal.sigtimedwait([PREEMPTION], 30):
        time.sleep(1)  # for the others to end, if they do


def main(folder: Path, *others: str) -> None:
    """Write down what this node finds."""
    try:
        locks: object = holds_apart(folder / "lock")
    except OSError as error:
        locks = str(error)
    answer = {
        "node": socket.gethostname(),
        "time": time.time(),
        "locks": locks,
        "unseen": [other for other in others if not Path(other).exists()],
        "cores": len(os.sched_getaffinity(0)),
        "temporary": shutil.disk_usage(os.environ.get("TMPDIR", "/tmp")).free,
        **of_torch(),
    }
    (folder / "unfinished").write_text(json.dumps(answer))
    (folder / "unfinished").rename(folder / "answer.json")
    signalled(job := os.environ["SLURM_JOB_ID"])
    command = ["scontrol", "requeue", job]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        refusal = "" if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        refusal = str(error)
    if refusal:
        (folder / "refusal.txt").write_text(refusal)


if __name__ == "__main__" and not int(os.environ.get("SLURM_RESTART_COUNT", 0)):
    signal.pthread_sigmask(signal.SIG_BLOCK, [PREEMPTION])  # before there are threads, which take over what is blocked
    main(Path(sys.argv[1]), *sys.argv[2:])
