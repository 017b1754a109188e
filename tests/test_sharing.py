"""Two users on one folder of runs, and two clusters: nothing is done twice, and nobody's code is run by another."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import methods
import run_all
from benchmark.data.tokens import corpus_of
from benchmark.files import whole_folder
from benchmark.jobs.work import Train, Worker, staged
from benchmark.locks import Lease
from benchmark.models.transformer import naming_damage
from benchmark.settings.base import ConfigError
from benchmark.store import Store
from benchmark.training.processes import World
from tests.support.slurm_lab import Lab, write_texts

OTHER = 4711  # a user's number


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    write_texts(tmp_path)
    return Lab(tmp_path / "lab", tmp_path).write('{ method = "naive" }', '{ method = "er" }')


@contextmanager
def with_umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_who_looks_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    """Oracle: no file: one that a umask of 022 had made would keep others from preparing."""
    for words in ("status", "cancel", "run --dry-run"):
        assert lab.call(*words.split()) == 0 and not list(lab.runs.iterdir())
    assert run_all.main(["report", str(lab.file), "--runs", str(lab.runs), "--out", str(tmp_path / "report")]) == 0
    assert not list(lab.runs.iterdir())


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_models_are_for_those_whom_the_umask_lets(umask: int, tmp_path: Path) -> None:
    """Oracle: what the umask means for all other files; safetensors 0.8 gives its own to the user alone."""
    with with_umask(umask):
        with whole_folder(tmp_path / "model") as folder:
            save_file({"a": torch.zeros(2)}, folder / "model.safetensors")
            (folder / "config.json").write_text("{}")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert modes == dict.fromkeys(("model.safetensors", "config.json"), 0o666 & ~umask)


def test_a_model_of_another_user_is_not_called_damaged(tmp_path: Path) -> None:
    """Oracle: the system's own word, with the file; a copy of the model, or training it again, would be no cure."""
    with pytest.raises(PermissionError, match="model.safetensors"), naming_damage(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "model.safetensors"))


def staged_for(lab: Lab, scratch: str, meet: Callable[[], None] = lambda: None) -> Store:
    """The store of a run of the lab that reads copies in `scratch`; `meet` is what its processes do together."""

    class Meets(World):
        def barrier(self) -> None:
            meet()

    config = lab.config("Naive")
    unit = Train(lab.runs, config, (config.id,), config.id, methods.build, scratch=scratch)
    return staged(unit, Worker(Meets(0, 1, torch.device("cpu"))))


def test_nobody_waits_for_a_copy_of_tokens(lab: Lab, tmp_path: Path) -> None:
    """Oracle: while another copies a text, the shared folder has it; and where one process of a run copies, the others,
    which meet it before they go on, find the copies."""
    lab.call("prepare")
    config, shared, disk = lab.config("Naive"), Store(lab.runs), str(tmp_path / "disk")
    copies = staged_for(lab, disk)
    [copy, *_] = [text.folder for text in corpus_of(config, copies).domains if text.folder]
    kept = copy.rename(tmp_path / "copy")
    with Lease(copy.with_name(f"{copy.name}.lock")):
        assert staged_for(lab, disk) == shared
        assert staged_for(lab, disk, lambda: os.replace(kept, copy)) == copies
    shutil.rmtree(copy)
    assert staged_for(lab, disk) == copies and copy.exists()


def test_a_disk_that_is_too_small_ends_no_run(lab: Lab, tmp_path: Path, monkeypatch, capsys) -> None:
    """Oracle: the shared folder, which has all that a full disk, or one that is none, did not take; the log says it."""
    lab.call("prepare")
    shared = Store(lab.runs)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    (tmp_path / "file").write_text("")
    met: list[str] = []
    assert staged_for(lab, str(tmp_path / "file"), lambda: met.append("others")) == shared
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", full)
        assert staged_for(lab, str(tmp_path / "disk"), lambda: met.append("others")) == shared
    lines = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith(f"tokens are read from {shared.data}")
    ]
    assert len(lines) == len(met) == 2 and "No space left" in lines[1]
    assert staged_for(lab, str(tmp_path / "disk")) != shared


def test_tokens_are_copied_to_a_disk_of_the_node(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the ids of the shared folder; they are read below the variable's folder, and copied once."""
    lab.call("prepare")
    monkeypatch.setenv("NODE_DISK", str(tmp_path / "disk"))
    config, shared = lab.config("Naive"), Store(lab.runs)
    copies = staged_for(lab, "$NODE_DISK/x")
    assert copies.data.is_relative_to(tmp_path / "disk" / "x") and copies.root == shared.root
    there, here = corpus_of(config, shared), corpus_of(config, copies, pytest.fail)
    assert here.texts == there.texts and here.vocabulary == there.vocabulary
    for copied, text in zip(here.domains, there.domains, strict=True):
        assert np.array_equal(copied.train, text.train) and np.array_equal(copied.valid, text.valid)
        assert copied.folder and copied.folder.is_relative_to(copies.data)
    before = [path.stat().st_ino for path in sorted(copies.data.rglob("*.bin"))]
    assert staged_for(lab, "$NODE_DISK/x") == copies
    assert before == [path.stat().st_ino for path in sorted(copies.data.rglob("*.bin"))] and len(before) == 4
    for nowhere in ("$NO_SUCH_DISK", "~no_such_user/x", "$EMPTY"):
        monkeypatch.setenv("EMPTY", "")
        with pytest.raises(ConfigError, match="jobs have no such variable or home"):
            staged_for(lab, nowhere)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert staged_for(lab, "~/x").data.is_relative_to(tmp_path / "home" / "x")
    lab.write('{ method = "naive" }', slurm='scratch = "$NODE_DISK"')
    units = [unit for wave in lab.plan().waves for unit in wave.units if isinstance(unit, Train)]
    assert {unit.scratch for unit in units} == {"$NODE_DISK"}
