"""Variables of the environment that others read as numbers: what they hold is said before, in one line."""

from __future__ import annotations

import os

from benchmark.errors import UserError

GROUP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")  # which torchrun sets
NUMBERS = (*GROUP, "SOURCE_DATE_EPOCH", "SLURM_RESTART_COUNT", "SLURM_CPUS_ON_NODE")


def check_environment() -> None:
    """Raise UserError for a variable that torch, numpy or we could not read; figures are drawn into files."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        error.filename = "the current folder"
        raise
    for name in NUMBERS:
        text = os.environ.get(name, "0")
        if not (text.isascii() and text.isdecimal() and len(text) < 17):
            raise UserError(f"{name}={text[:40]!r} in the environment is no whole number: give one, or `unset {name}`")
    size, rank = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", 1), ("RANK", 0)))
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if size != 1 and (not size or lacking or rank >= size):
        wrong = f"no {lacking[0]}" if lacking else f"RANK={rank}"
        raise UserError(
            f"WORLD_SIZE={size} and {wrong} in the environment: begin with torchrun, which sets them, or "
            "`unset WORLD_SIZE RANK`"
        )
    os.environ["MPLBACKEND"] = "agg"
