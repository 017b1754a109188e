"""`run --processes N`: as many processes of this machine train each run together, as under torchrun."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Sequence
from typing import Literal

from benchmark.jobs.pool import physical_cores
from benchmark.settings.base import ConfigError

Count = int | Literal["all"]


def count_of(asked: Count) -> int:
    """How many processes that is. Raises ConfigError for all GPUs of a machine that has none."""
    from benchmark.models.devices import accelerators

    if asked != "all":
        return asked
    if gpus := accelerators()[1]:
        return gpus
    raise ConfigError("--processes all: a process for each GPU, and torch finds none here: give a number")


def launch(count: int, program: Sequence[str]) -> int:
    """Run a command line of Python in so many processes, each of which knows its rank.

    Returns 0, or the exit status of the first that failed, upon which torch ends the others. Raises KeyboardInterrupt
    when asked to stop.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the processes speak for themselves
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(physical_cores()) // count)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)(*program)
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        return status if status > 0 else 128 - status
    except SignalException:
        raise KeyboardInterrupt from None
    return 0
