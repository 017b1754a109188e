"""What each process of a Slurm job starts with: it holds back a signal that may come too early, and runs submitit.

The command is `python SNAPSHOT/benchmark/jobs/slurm/process.py -u -m submitit... FOLDER`; submitit appends the options,
which are those of Python itself, and this does their work.
"""

import gc
import os
import runpy
import signal
import sys
from pathlib import Path

# The signal to save and queue again would end a process that has no handler yet: it waits until the job asks for it.
PREEMPTION = getattr(signal, "SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2"))

if __name__ == "__main__":
    gc.disable()  # looking for garbage takes a seventh of the time of imports, which leave none; the job enables it
    signal.pthread_sigmask(signal.SIG_BLOCK, [PREEMPTION])
    for number in (PREEMPTION, signal.SIGTERM):  # ignored where a container's runtime is to live through them
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    # The snapshot this file lies in comes first, before an installed package, and the current folder is not searched.
    sys.path[0] = str(Path(__file__).parents[3])
    from benchmark.jobs.slurm.private import check_private

    _, unbuffered, dash_m, module, *sys.argv[1:] = sys.argv
    assert (unbuffered, dash_m) == ("-u", "-m"), (unbuffered, dash_m)
    check_private(folder := Path(sys.argv[-1]))  # submitit unpickles what lies there
    runpy.run_module(module, run_name="__main__", alter_sys=True)
