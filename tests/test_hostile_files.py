"""Files that people hand each other: none runs code, and no name leaves its place. Oracle: a file that code would make,
which the same code makes where it is let."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from analysis.tables import Block, Cell, Column, Table, TableRow, to_csv
from benchmark.data.tokenizer import load_tokenizer
from benchmark.data.tokens import prepare
from benchmark.downstream.classifier import SavedModel
from benchmark.errors import UserError
from benchmark.files import CHECKSUMS, only_files, unseal
from benchmark.instruments.checkpoints import open_folder
from benchmark.jobs.slurm import process, snapshot
from benchmark.jobs.slurm.private import check_private, make_private
from benchmark.models import load
from benchmark.models.transformer import load_network
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.store import read_heartbeat
from benchmark.training import checkpoint, step_times
from benchmark.training.processes import ROOT
from tests.support import tiny_suite
from tests.support.disk_scenarios import Models
from tests.support.texts import DATA, SMALL, two_domains


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


def as_pickle(path: Path, marker: Path) -> None:
    path.write_bytes(pickle.dumps(Evil(marker)))


def as_torch(path: Path, marker: Path) -> None:
    torch.save({"transformer.wte.weight": Evil(marker)}, path)


@pytest.mark.parametrize("plant", [as_pickle, as_torch])
def test_the_files_are_malicious(plant: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """Loaded as code, they do make the file."""
    plant(tmp_path / "evil", tmp_path / "made")
    with suppress(RuntimeError, TypeError):
        # on purpose, and safe: the file is this test's own, and makes an empty folder beside itself
        torch.load(tmp_path / "evil", weights_only=False)
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize("plant", [as_pickle, as_torch])
def test_a_checkpoint_runs_nothing(plant: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """`checkpoint.pt` and `method.pt` are read by this function alone."""
    plant(tmp_path / "checkpoint.pt", tmp_path / "made")
    with pytest.raises(UserError, match=r"checkpoint\.pt cannot be read") as told:
        checkpoint.load(tmp_path / "checkpoint.pt")
    assert "weights_only" not in str(told.value)  # torch advises to set it to False
    assert not (tmp_path / "made").exists()


READERS: list[Callable[[Any], object]] = [
    *(load, load_network, open_folder, load_tokenizer, SavedModel),
    lambda folder: SavedModel(folder).classifier(("a", "b"), "a"),
]


@pytest.mark.parametrize("plant", [as_pickle, as_torch])
@pytest.mark.parametrize("beside", [True, False], ids=["beside the weights", "in their place"])
def test_weights_that_are_pickled_are_not_opened(
    plant: Callable[[Path, Path], None], beside: bool, models: Models, tmp_path: Path
) -> None:
    """In every file that torch's format has ever been kept in, for every reader of models."""
    models.first(tmp_path)
    folder = tmp_path / "model"
    (folder / CHECKSUMS).unlink()
    for name in (
        "pytorch_model.bin",
        "model.pt",
        "optimizer.pt",
        "training_args.bin",
        "model.pkl",
        "adapter_model.bin",
    ):
        plant(folder / name, tmp_path / "made")
    if not beside:
        (folder / "model.safetensors").unlink()
        for read in READERS[:3]:
            with pytest.raises(ConfigError, match=r"no weights in \*\.safetensors"):
                read(folder)
    for read in READERS:
        with suppress(UserError, OSError):
            read(folder)
    assert not (tmp_path / "made").exists()


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_socket(path: Path) -> None:
    """The name may be longer than a socket's can be, so it is made beside and moved."""
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as one:
        one.bind(f"{short}/s")
        shutil.move(f"{short}/s", path)


@pytest.mark.parametrize("make", [as_pipe, as_socket])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", CHECKSUMS, "other"])
def test_a_model_of_what_is_no_file_is_not_opened(
    make: Callable[[Path], None], name: str, models: Models, tmp_path: Path
) -> None:
    """Oracle: the name in the error; whoever opened a pipe would wait until somebody wrote into it."""
    models.first(tmp_path)
    folder = tmp_path / "model"
    (folder / CHECKSUMS).unlink()
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    for read in READERS:
        with pytest.raises(UserError, match=rf"^{folder / name}: no file but a pipe, a socket or a device; "):
            read(folder)


@pytest.mark.parametrize(
    "read",
    [
        *(checkpoint.load, lambda path: unseal(path, "cure"), step_times.machine_of),
        only_files,
    ],
)
def test_what_a_run_keeps_is_a_file(read: Callable[[Path], object], tmp_path: Path) -> None:
    """Oracle: the name in the error, for checkpoints, sealed files, tables of step times, locks and leases."""
    os.mkfifo(tmp_path / "kept.7")
    with pytest.raises((UserError, OSError), match=r"kept.7: no file but a pipe|no file but a pipe.*kept.7"):
        read(tmp_path / "kept.7")


def test_a_pipe_is_no_sign_of_life(tmp_path: Path) -> None:
    """Oracle: a pipe has nothing to read until somebody writes into it; a heartbeat that says nothing is none."""
    os.mkfifo(tmp_path / "run.json")
    assert read_heartbeat(tmp_path / "run.json") is None


@pytest.mark.parametrize("name", ["info.json", "train.bin", "valid.bin", "tokenizer.json", "batches", CHECKSUMS])
@pytest.mark.parametrize("state", ["", ".unfinished"])
def test_prepared_text_is_files(name: str, state: str, tmp_path: Path) -> None:
    """Oracle: the name in the error, of text that is prepared, and of what a process that was killed has left."""

    given = two_domains(tmp_path), SMALL, DATA, tmp_path / "data"
    prepare(*given)
    kind = "tokenizers" if name == "tokenizer.json" else "domains"
    folder = min((tmp_path / "data" / kind).glob("*/"))
    place = folder.with_name(folder.name + state)
    folder.rename(place)
    (place / name).unlink(missing_ok=True)
    os.mkfifo(place / name)
    with pytest.raises(UserError, match=rf"^{place / name}: no file but a pipe"):
        prepare(*given)


def test_code_in_a_checkpoint_is_not_run(models: Models, tmp_path: Path) -> None:
    """transformers would import it, if it were let: `auto_map` is how a folder asks for that."""
    models.first(tmp_path)
    folder = tmp_path / "model"
    (folder / CHECKSUMS).unlink()
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'made')!r})\nclass Evil: pass\n")
    names = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification")
    for name, auto in (
        ("config", dict.fromkeys(names, "evil.Evil")),
        ("tokenizer_config", {"AutoTokenizer": ["evil.Evil"] * 2}),
    ):
        path = folder / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": auto}))
    for read in READERS:
        with suppress(UserError, OSError, ValueError):
            read(folder)
    assert not (tmp_path / "made").exists()


def test_a_job_unpickles_nothing_that_others_could_write(tmp_path: Path) -> None:
    """The folder of a job's pickle is looked at before submitit, whose place a module takes that would make a file."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs").chmod(0o777)
    done = run_process(tmp_path)
    assert "may be written by others" in done.stderr and done.returncode and not (tmp_path / "made").exists()
    (tmp_path / "logs").chmod(0o755)
    assert run_process(tmp_path).returncode == 0 and (tmp_path / "made").exists()


def run_process(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "in_its_place.py").write_text(f"import os\nos.mkdir({str(folder / 'made')!r})\n")
    command = [sys.executable, str(process.__file__), "-u", "-m", "in_its_place", str(folder / "logs")]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_folders_of_code_are_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: owner and mode of the folder, as `ls -l` says them; and code that another has put there is refused."""
    make_private(tmp_path / "a" / "b")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    with pytest.raises(UserError, match="is no folder of its own but a link"):
        check_private(tmp_path / "link")
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(UserError, match=r"belongs to user \d+, and this process to 12345"):
            make_private(tmp_path / "a" / "b")
    planted = tmp_path / "code" / snapshot.digest(ROOT)
    planted.mkdir(parents=True)
    (planted / "run_all.py").write_text("evil")
    with pytest.raises(UserError, match="is not what it was"):
        snapshot.take(tmp_path / "code")
    (tmp_path / "code").chmod(0o775)
    with pytest.raises(UserError, match="may be written by others"):
        snapshot.take(tmp_path / "code")


@pytest.mark.parametrize("start", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_text_in_a_csv_is_a_formula(start: str) -> None:
    """Oracle: the characters with which spreadsheets begin a formula (OWASP, CSV injection); numbers stay numbers."""
    cell = Cell(text=start, values=(-2.5,))
    columns = (Column(start, start), Column(start))
    table = Table(
        "t", start, start, (start,), columns, (Block(start, (TableRow((start,), (cell, Cell(text="-1.5"))),)),)
    )
    lines = list(csv.reader(io.StringIO(to_csv(table))))
    fields = [field for line in lines for field in line]
    assert {field for field in fields if field[:1] in ("=", "+", "-", "@", "\t", "\r")} == {"-2.5", "-1.5"}
    assert "'" + start.replace("\r", " ") in fields


SECRETS = {
    *(
        "HF_TOKEN",
        "HFTOKEN",
        "MY_SECRET",
        "CLIENTSECRET",
        "AWS_ACCESS_KEY_ID",
        "SSHKEY",
        "PASSWORD",
        "API_KEY",
        "apikey",
    ),
    *(
        "GITHUB_PAT",
        "PGPASSWORD",
        "PGPASS",
        "DB_PWD",
        "DBPWD",
        "SLACK_WEBHOOK",
        "SENTRY_DSN",
        "MYSQL_PASSWD",
        "DB_PASS_2",
        "PASSPHRASE",
        "CREDS",
    ),
    *(
        "GOOGLE_CREDENTIALS",
        "BASIC_AUTH",
        "AUTHORIZATION",
        "PRIVATE",
        "SESSIONCOOKIE",
        "SSH_AUTH_SOCK",
        "SLACK_WEBHOOK",
        "SENTRY_DSN",
    ),
}


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_suite_asks_for_no_secret(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in a suite stands in records, so one that somebody hands over could carry it out."""
    file = tiny_suite.write(tmp_path)
    text = file.read_text()
    monkeypatch.setenv(name, "hunter2")
    for harmless in ("TOKENIZER_FOLDER", "PWD", "AUTHOR", "PATH_TO_TEXT", "KEYBOARD"):
        monkeypatch.setenv(harmless, "somewhere")
        file.write_text(text.replace('title = "Tiny"', f'title = "${{{harmless}}}"'))
        assert load_suite(str(file)).title == "somewhere"
    file.write_text(text.replace('title = "Tiny"', f'title = "${{{name}}}"'))
    with pytest.raises(ConfigError, match=f"{name}.*sounds like a secret"):
        load_suite(str(file))


def test_a_suite_asks_for_no_address_with_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the part of an address before the @ (RFC 3986, 3.2.1); one without it is a place like others."""
    file = tiny_suite.write(tmp_path)
    file.write_text(file.read_text().replace('title = "Tiny"', 'title = "${DATABASE_URL}"'))
    monkeypatch.setenv("DATABASE_URL", "https://host:8080/a:b@c")
    assert load_suite(str(file)).title == "https://host:8080/a:b@c"
    for address in ("postgres://me:hunter2@host/db", "redis://:hunter2@host"):
        monkeypatch.setenv("DATABASE_URL", address)
        with pytest.raises(ConfigError, match=r"DATABASE_URL.*holds a password") as raised:
            load_suite(str(file))
        assert "hunter2" not in str(raised.value)
