"""Copies of token files on a node's own disk: rows are read at random, which a shared file system answers slowly."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from benchmark.atomic import whole_folder
from benchmark.data.run_corpus import corpus_of
from benchmark.jobs.slurm.private import make_private
from benchmark.lease import Lease
from benchmark.settings.config import ConfigError, RunConfig, digest
from benchmark.store import Store


def staged(config: RunConfig, store: Store, scratch: str) -> Store:
    """The store, with copies of the run's tokens below `scratch`, where variables of the job's environment count.

    They are made once a node, and kept for the next job. Raises ConfigError for a variable that the job does not have,
    UserError for a folder there that is another user's, OSError where the disk is too small.
    """
    place = os.path.expandvars(scratch)
    if "$" in place:
        raise ConfigError(
            f"slurm.scratch {scratch!r}: jobs have no such variable; give a folder of the node's own disk"
        )
    own = Path(place) / f"lifelong-pretraining-{os.getuid()}"
    make_private(own)
    copies = replace(store, tokens=own / digest(str(store.root.absolute())))
    corpus = corpus_of(config, store, check=False)  # the copies are checked
    folders = [text.folder for text in (*corpus.domains, *corpus.probes) if text.folder]
    for folder in (*folders, *(store.data / "tokenizers").glob("*/")):
        copy = copies.data / folder.relative_to(store.data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with Lease(copy.with_name(f"{copy.name}.lock")):
            if not copy.exists():
                with whole_folder(copy) as unfinished:
                    shutil.copytree(folder, unfinished, dirs_exist_ok=True)
    return copies
