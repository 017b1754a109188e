"""Damaged files are found when they are read. Oracle: the damage itself: each test flips a bit,
cuts the end or removes the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import methods
from benchmark.data.prepared import find_prepared_corpus, prepare_corpus
from benchmark.downstream.classifier import SavedModel
from benchmark.files import CHECKSUMS, DamagedFile, check_checksums, write_checksums
from benchmark.instruments.conformance import TinyRuns
from benchmark.models import load
from benchmark.training import checkpoint

CONTENT: dict[str, Any] = {
    "model": {"a.weight": torch.arange(6.0)},
    "optimizer": None,
    "charged": {"steps": 3.5},
    "state": ["x", 2],
}


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file, counted from its start."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def test_what_is_missing_cut_or_changed_is_named_with_the_cure(tmp_path: Path) -> None:
    """Oracle: the damage that the test does. Folders without checksums (of old versions) pass."""
    (tmp_path / "inside").mkdir()
    file = tmp_path / "inside" / "a.bin"
    file.write_bytes(bytes(100))
    check_checksums(tmp_path, "cure")
    write_checksums(tmp_path)
    flip(file, 403)
    with pytest.raises(DamagedFile, match=r"inside/a\.bin is damaged .*: cure"):
        check_checksums(tmp_path, "cure")
    check_checksums(tmp_path, "cure", sizes_alone=("inside/a.bin",))
    cut(file)
    with pytest.raises(DamagedFile, match=r"a\.bin .*\b99\b.*\b100\b.*: cure"):
        check_checksums(tmp_path, "cure", sizes_alone=("inside/a.bin",))
    file.unlink()
    with pytest.raises(DamagedFile, match=r"a\.bin is missing: cure"):
        check_checksums(tmp_path, "cure")
    for content in ("{}", "{", "\x00"):
        (tmp_path / CHECKSUMS).write_text(content)
        with pytest.raises(DamagedFile, match=r"checksums\.json is damaged .*: cure"):
            check_checksums(tmp_path, "cure")


def test_a_checkpoint_with_a_flipped_bit_is_never_another(tmp_path: Path) -> None:
    """Oracle: the saved content. In every 13th byte one bit is flipped. The file is then refused,
    or reads as the same content if the byte has no meaning.
    """
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, CONTENT)
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), 13):
        path.write_bytes(whole)
        flip(path, 8 * place + place % 8)
        try:
            read = checkpoint.load(path, cure="remove it")
        except DamagedFile as error:
            assert str(path) in str(error) and str(error).endswith("remove it")
            refused += 1
        else:
            assert torch.equal(read["model"].pop("a.weight"), CONTENT["model"]["a.weight"]), place
            assert read == {**CONTENT, "model": {}}, place
    assert refused > len(whole) / 13 / 4
    for share in (0.0, 0.3, 0.999):  # torch alone would name no file
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DamagedFile, match=f"{path} .*: remove it"):
            checkpoint.load(path, cure="remove it")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRuns:
    """A tiny run has trained its first stage."""
    tiny = TinyRuns("naive", methods.build, tmp_path_factory.mktemp("tiny"))
    tiny.make_run(tiny.make_config(), "run").train(last_stage=0)
    return tiny


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": lambda path: flip(path, 8 * (path.stat().st_size // 2)),
    "cut": cut,
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("place", "name"),
    [
        *(("model", name) for name in ("model.safetensors", "config.json", "tokenizer.json")),
        *(("domain", name) for name in ("train.bin", "valid.bin", "info.json")),
        ("tokenizer", "tokenizer.json"),
    ],
)
def test_a_damaged_file_is_not_used(place: str, name: str, damage: str, tiny: TinyRuns) -> None:
    """The rule of docs/concepts.md: every reader compares checksums. The error names the file
    and a cure. `status` reads no token ids: it finds no flipped bit of them.
    """
    config = tiny.make_config()
    run = tiny.make_run(config, "run")
    model = run.store.stage_folder(run.keys[0]) / "model"
    domain = prepare_corpus(config, run.store).domains[1].folder
    [tokenizer] = run.store.root.glob("data/tokenizers/*/tokenizer.json")
    assert domain
    folder = {"model": model, "domain": domain, "tokenizer": tokenizer.parent}[place]
    whole = (folder / name).read_bytes()
    DAMAGES[damage](folder / name)
    readers: list[Callable[[], object]] = [lambda: tiny.make_run(config, "run")]
    if place == "model":
        readers = [lambda: load(model), lambda: SavedModel(model), run.train]
    elif place == "domain":
        if damage == "flipped" and name.endswith(".bin"):
            find_prepared_corpus(config, run.store)
        else:
            readers.append(lambda: find_prepared_corpus(config, run.store))
    cure = "copy" if place == "model" else f"remove {folder},"
    try:
        for read in readers:
            with pytest.raises(DamagedFile, match=f"{folder / name} .*{cure}"):
                read()
    finally:
        (folder / name).write_bytes(whole)
    load(model)
    tiny.make_run(config, "run")
