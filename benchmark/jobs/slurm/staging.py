"""Copies of token files on a node's own disk: rows are read at random, which a shared file system answers slowly."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmark.data.tokens import Poll, corpus_of
from benchmark.files import whole_folder
from benchmark.jobs.slurm.private import make_private
from benchmark.locks import Lease
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.suite import RunConfig
from benchmark.store import Store


def staged(
    config: RunConfig,
    store: Store,
    scratch: str,
    meet: Callable[[], None] = lambda: None,
    poll: Poll = lambda waits: None,
) -> Store:
    """The store, with copies of the run's tokens below `scratch`, where `~` and variables are those of the job.

    They are made once a node, and kept for the next job. A run that finds another at it does not wait: it reads the
    shared folder, as where the disk is too small. `meet` waits for the run's other processes, which have to wait for
    each other anyway. `poll`: see `benchmark.data.tokens.prepare`.

    Raises ConfigError for a variable or a home that the job does not have, UserError for a folder there that is
    another user's.
    """
    place = os.path.expanduser(os.path.expandvars(scratch))
    if "$" in place or not os.path.isabs(place):
        raise ConfigError(
            f"slurm.scratch {scratch!r}: jobs have no such variable or home; give a folder of the node's own disk"
        )
    own = Path(place) / f"lifelong-pretraining-{os.getuid()}"
    copies = replace(store, tokens=own / digest(str(store.root.absolute())))
    corpus = corpus_of(config, store, check=False, poll=poll)  # the copies are checked
    texts = [text.folder for text in (*corpus.domains, *corpus.probes) if text.folder]
    folders = [*texts, *(store.data / "tokenizers").glob("*/")]
    pairs = [(folder, copies.data / folder.relative_to(store.data)) for folder in folders]
    try:
        make_private(own)
        for folder, copy in pairs:
            _copy(folder, copy)
    except OSError as error:
        print(f"tokens are read from {store.data}: slurm.scratch {scratch!r}: {error}", file=sys.stderr)
    meet()
    return copies if all(copy.exists() for _, copy in pairs) else store


def _copy(folder: Path, copy: Path) -> None:
    """Copy a folder, unless somebody has or does."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    lease = Lease(copy.with_name(f"{copy.name}.lock"))
    if copy.exists() or not lease.try_acquire():
        return
    try:
        if not copy.exists():
            with whole_folder(copy) as unfinished:
                shutil.copytree(folder, unfinished, dirs_exist_ok=True)
    finally:
        lease.release()
