"""Two users on one folder of runs, and two clusters: nothing is done twice, and nobody's code is run by another."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import run_all
from benchmark.data.tokens import corpus_of
from benchmark.errors import UserError
from benchmark.files import whole_folder
from benchmark.jobs.payloads import TrainRun
from benchmark.jobs.slurm import private
from benchmark.jobs.slurm.private import exposed, private_place
from benchmark.jobs.slurm.staging import staged
from benchmark.locks import Lease
from benchmark.models.transformer import naming_damage
from benchmark.settings.base import ConfigError
from benchmark.store import Store
from tests.support.fake_slurm import FakeSlurm
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


def test_code_and_pickles_never_lie_where_others_write(lab: Lab, tmp_path: Path, monkeypatch) -> None:
    """Oracle: the modes of all that jobs load, and of the folders on the way there, as `ls -l` says them; records
    are for the group to go on with."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(private, "_is_own_group", lambda group: False)
    lab.runs.chmod(0o2775)
    FakeSlurm(tmp_path / "bin", monkeypatch)
    with with_umask(0o002):
        assert lab.submit() == 0
    [job, *_] = lab.jobs()
    pickled = Path(job.submitted["log"]).with_name(f"{job.id}_submitted.pkl")
    [script, *_] = pickled.parent.glob("submission-*.sh")
    program = Path(next(word for word in script.read_text().split() if word.endswith("process.py")))
    for path in (pickled, script, program):
        assert path.is_relative_to(tmp_path / "home")
        on_the_way = [path, *(one for one in path.parents if one.is_relative_to(tmp_path / "home"))]
        assert not any(one.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) for one in on_the_way)
    assert job.file.stat().st_mode & stat.S_IWGRP and job.file.is_relative_to(lab.runs)


def test_where_others_can_put_something_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: what a user may do to names: who writes a folder, or owns it, replaces what is in it, unless it is sticky
    and not his own."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    place = tmp_path / "a" / "b" / "code"
    assert exposed(place) is None and private_place(place) == place
    (tmp_path / "a").chmod(0o777)
    assert exposed(place) == tmp_path / "a"
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    assert exposed(tmp_path / "link") == tmp_path / "a"
    monkeypatch.setenv("HOME", str(tmp_path / "a" / "b"))
    with pytest.raises(UserError, match=rf"{tmp_path}/a is no such folder, and {tmp_path}/a neither"):
        private_place(place)
    (tmp_path / "a").chmod(0o1777)
    assert exposed(place) is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: OTHER)
        if (tmp_path / "a").stat().st_uid:
            assert exposed(place) == tmp_path / "a" / "b"
    os.chown(tmp_path / "a", OTHER, -1) if os.getuid() == 0 else None
    assert exposed(place) == (tmp_path / "a" if os.getuid() == 0 else None)


def test_what_another_user_submitted_is_not_submitted_again(lab: Lab, tmp_path: Path, monkeypatch, capsys) -> None:
    """Oracle: the queue: his jobs wait in it; one that he left held is his to let go. Where Slurm shows nobody's but
    one's own, what has not ended is unknown, and stays."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit() == 0
    for job in lab.jobs():  # as if he had, and died before he let it go
        lines = job.file.read_text().replace(f'"user":{os.getuid()}', f'"user":{OTHER}').splitlines()
        job.file.write_text("".join(line + "\n" for line in lines if '"released"' not in line))
    slurm.released.clear()
    before = [job.id for job in lab.jobs()]
    assert lab.submit() == 0
    assert slurm.users == f"{os.getuid()},{OTHER}" and not slurm.released
    assert [job.id for job in lab.jobs()] == before
    with monkeypatch.context() as patch:  # an operator of the cluster may end them
        patch.setattr(os, "getuid", lambda: OTHER + 1)
        capsys.readouterr()
        assert lab.call("cancel") == 0
        assert f"{len(before)} jobs of another cluster or user go on" in capsys.readouterr().out
    slurm.arrays.clear()
    slurm.settings["PrivateData"] = "jobs,users"
    capsys.readouterr()
    assert lab.call("status") == 3
    told = capsys.readouterr().out
    assert "2 runs, 2 unknown" in told and f"user {OTHER} has submitted it" in told
    slurm.settings.clear()
    assert lab.call("status") == 0 and "2 runs, 2 interrupted" in capsys.readouterr().out


def test_another_cluster_has_numbers_of_its_own(lab: Lab, tmp_path: Path, monkeypatch, capsys) -> None:
    """Oracle: both give the number 100 first. What was submitted there is unknown here, and not submitted again; what
    is new here has files of its own, and ends here alone."""
    FakeSlurm(tmp_path / "bin", monkeypatch, ClusterName="red")
    lab.submit("--methods", "naive")
    FakeSlurm(tmp_path / "bin2", monkeypatch, ClusterName="blue")
    capsys.readouterr()
    assert lab.call("status") == 3 and "on cluster red (:); `status` there tells" in capsys.readouterr().out
    assert lab.submit() == 0
    files = {(job.submitted["cluster"], job.id): job.run for job in lab.jobs() if job.run}
    assert files == {("red", "101"): lab.config("Naive").id, ("blue", "100"): lab.config("ER").id}
    capsys.readouterr()
    assert lab.call("cancel", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "jobs of another cluster or user go on" in told and "tiny:naive-s0" not in told and "tiny:er-s0" in told


def test_clusters_of_one_name_are_told_apart_by_their_controllers(
    lab: Lab, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Oracle: both give the number 100 first, and say other ports of theirs; as for clusters of two names."""
    head = {"SlurmctldHost[0]": "head(10.0.0.1)"}
    both = [tmp_path / name for name in ("bin", "bin2")]
    FakeSlurm(both[0], monkeypatch, ClusterName="red", SlurmctldPort="6817").settings.update(head)
    lab.submit("--methods", "naive")
    assert lab.call("status") == 0
    FakeSlurm(both[1], monkeypatch, ClusterName="red", SlurmctldPort="6818").settings.update(head)
    capsys.readouterr()
    assert lab.call("status") == 3 and "on cluster red (head:6817); `status` there tells" in capsys.readouterr().out
    assert lab.submit() == 0
    files = {(job.submitted["cluster"], job.id): job.run for job in lab.jobs() if job.run}
    [(other, _)] = {*files} - {("red", "101")}
    assert files == {("red", "101"): lab.config("Naive").id, (other, "100"): lab.config("ER").id} and other != "red"
    capsys.readouterr()
    assert lab.call("cancel", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "jobs of another cluster or user go on" in told and "tiny:naive-s0" not in told and "tiny:er-s0" in told


def test_nobody_waits_for_a_copy_of_tokens(lab: Lab, tmp_path: Path) -> None:
    """Oracle: while another copies a text, the shared folder has it; and where one process of a run copies, the others,
    which meet it before they go on, find the copies."""
    lab.call("prepare")
    config, shared, disk = lab.config("Naive"), Store(lab.runs), str(tmp_path / "disk")
    copies = staged(config, shared, disk)
    [copy, *_] = [text.folder for text in corpus_of(config, copies).domains if text.folder]
    kept = copy.rename(tmp_path / "copy")
    with Lease(copy.with_name(f"{copy.name}.lock")):
        assert staged(config, shared, disk) == shared
        assert staged(config, shared, disk, partial(os.replace, kept, copy)) == copies
    shutil.rmtree(copy)
    assert staged(config, shared, disk) == copies and copy.exists()


def test_a_disk_that_is_too_small_ends_no_run(lab: Lab, tmp_path: Path, monkeypatch, capsys) -> None:
    """Oracle: the shared folder, which has all that a full disk, or one that is none, did not take; the log says it."""
    lab.call("prepare")
    config, shared = lab.config("Naive"), Store(lab.runs)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    (tmp_path / "file").write_text("")
    met: list[str] = []
    assert staged(config, shared, str(tmp_path / "file"), lambda: met.append("others")) == shared
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", full)
        assert staged(config, shared, str(tmp_path / "disk"), lambda: met.append("others")) == shared
    lines = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith(f"tokens are read from {shared.data}")
    ]
    assert len(lines) == len(met) == 2 and "No space left" in lines[1]
    assert staged(config, shared, str(tmp_path / "disk")) != shared


def test_tokens_are_copied_to_a_disk_of_the_node(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the ids of the shared folder; they are read below the variable's folder, and copied once."""
    lab.call("prepare")
    monkeypatch.setenv("NODE_DISK", str(tmp_path / "disk"))
    config, shared = lab.config("Naive"), Store(lab.runs)
    copies = staged(config, shared, "$NODE_DISK/x")
    assert copies.data.is_relative_to(tmp_path / "disk" / "x") and copies.root == shared.root
    there, here = corpus_of(config, shared), corpus_of(config, copies, pytest.fail)
    assert here.texts == there.texts and here.vocabulary == there.vocabulary
    for copied, text in zip(here.domains, there.domains, strict=True):
        assert np.array_equal(copied.train, text.train) and np.array_equal(copied.valid, text.valid)
        assert copied.folder and copied.folder.is_relative_to(copies.data)
    before = [path.stat().st_ino for path in sorted(copies.data.rglob("*.bin"))]
    assert staged(config, shared, "$NODE_DISK/x") == copies
    assert before == [path.stat().st_ino for path in sorted(copies.data.rglob("*.bin"))] and len(before) == 4
    for nowhere in ("$NO_SUCH_DISK", "~no_such_user/x", "$EMPTY"):
        monkeypatch.setenv("EMPTY", "")
        with pytest.raises(ConfigError, match="jobs have no such variable or home"):
            staged(config, shared, nowhere)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert staged(config, shared, "~/x").data.is_relative_to(tmp_path / "home" / "x")
    (copies.data.parent).chmod(0o777)
    with pytest.raises(UserError, match="may be written by others"):
        staged(config, shared, "$NODE_DISK/x")
    lab.write('{ method = "naive" }', slurm='scratch = "$NODE_DISK"')
    assert {job.payload.scratch for job in lab.plan().jobs() if isinstance(job.payload, TrainRun)} == {"$NODE_DISK"}
