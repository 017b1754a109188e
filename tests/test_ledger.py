"""What identifies a result (docs/concepts.md): after a change, old records must not count as
records of the new run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any
from unittest.mock import Mock

import pytest
import torch
from pydantic import BaseModel, create_model
from tokenizers import Tokenizer

import methods
from benchmark.downstream.passages import Example, Splits
from benchmark.downstream.tasks import (
    find_example_keys,
    load_examples,
    make_score_key,
    select_scores,
)
from benchmark.files import DamagedFile
from benchmark.ledger.records import ScoreLine, append
from benchmark.ledger.runs import make_run_line
from benchmark.ledger.store import Store
from benchmark.models import load
from benchmark.settings.base import ConfigError
from benchmark.settings.decides import WEIGHTS, Decides, find_settings
from benchmark.settings.load import load_suite
from benchmark.settings.suite import RunConfig, Suite, Training
from benchmark.settings.tasks import SPLITS
from benchmark.training.declaration import hash_code, make_stage_keys, open_ledger
from methods.naive import Naive
from run_all import main
from tests.support.hub import stand_in
from tests.support.record_lines import read_lines, write_lines
from tests.support.tiny_suite import write

SHARED = "RATE = 1\n"
METHOD = """
from dataclasses import dataclass
from benchmark.training.method import LifelongMethod
from pack._shared import RATE

@dataclass
class Mine(LifelongMethod):
    weight: float = 1.0
"""


@pytest.fixture
def hash_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Hash the code of `pack.mine`, a method in a package in `tmp_path`, as it is at each call."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "pack").mkdir()
    for name, content in {"__init__": "", "_shared": SHARED, "mine": METHOD}.items():
        (tmp_path / "pack" / f"{name}.py").write_text(content)

    def hash_now() -> str:
        hash_code.cache_clear()
        for name in [name for name in sys.modules if name.split(".")[0] == "pack"]:
            del sys.modules[name]
        return hash_code("pack.mine")

    return hash_now


@pytest.mark.parametrize(
    ("file", "new", "changes"),
    [
        ("mine.py", METHOD.replace("1.0", "2.0"), True),
        ("_shared.py", "RATE = 2\n", True),
        ("_other.py", "", False),
        ("mine.py", '"""What it is."""\n' + METHOD.replace("1.0", "1.0  # so large"), False),
        ("mine.py", METHOD.replace("    weight", '    """Mine."""\n\n    weight'), False),
    ],
)
def test_the_hash_of_a_methods_code(
    tmp_path: Path, hash_mine: Callable[[], str], file: str, new: str, changes: bool
) -> None:
    """Oracle: by hand: code that the method imports from its package counts. Comments, docstrings
    and other files do not.
    """
    before = hash_mine()
    (tmp_path / "pack" / file).write_text(new)
    assert (hash_mine() != before) == changes


@pytest.mark.parametrize(
    "form",
    [
        "from pack._shared import RATE",
        "from pack import _shared",
        "from ._shared import RATE",
        "from . import _shared",
        "import pack._shared",
        "import pack._shared as shared",
        "import importlib; importlib.import_module('pack._shared')",
        "from importlib import import_module; import_module('._shared', 'pack')",
    ],
)
def test_code_that_a_method_imports_counts_by_whatever_form(
    tmp_path: Path, hash_mine: Callable[[], str], form: str
) -> None:
    """Oracle: by hand: another number in the imported file makes another hash."""
    (tmp_path / "pack/mine.py").write_text(f"def use():\n    {form}\n")
    before = hash_mine()
    (tmp_path / "pack/_shared.py").write_text("RATE = 2\n")
    assert hash_mine() != before


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with a suite that has been run."""
    folder = tmp_path_factory.mktemp("finished")
    suite = write(folder)
    suite.write_text(
        'tables = ["main_pretraining"]\n'
        + suite.read_text().replace('["naive", "er"]', '["naive"]')
    )
    monkey = pytest.MonkeyPatch()
    monkey.chdir(folder)
    assert main(["run", "tiny.toml", "--parallel", "1"]) == 0
    monkey.undo()
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path, monkeypatch) -> Path:
    """A copy of `finished` that a test may change, as the current folder."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    suite = tmp_path / "tiny.toml"
    suite.write_text(suite.read_text().replace(str(finished), "."))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(place: Path) -> None:
    """Write other text of the same size into a file, and keep the file's time."""
    file = place / "b.jsonl"
    stat = file.stat()
    file.write_text(file.read_text().replace("three", "trees"))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def said(capsys, *arguments: str, status: int = 0) -> str:
    """What a command prints and, after a report, the table that it wrote, with notes."""
    capsys.readouterr()
    assert main([*arguments]) == status
    captured = capsys.readouterr()
    table = (
        Path("report/tiny/main_pretraining.md").read_text()
        if arguments[0] == "report" and not status
        else ""
    )
    return captured.out + captured.err + table


def shown(capsys, *runs: str) -> str:
    """Naive's row of the report's table."""
    return next(
        line
        for line in said(capsys, "report", "tiny.toml", *runs).splitlines()
        if line.startswith("| Naive")
    )


def test_a_text_that_was_edited_is_not_the_one_that_was_trained_on(place: Path, capsys) -> None:
    """Oracle: a run on the edited text in another folder. With the old text back, the old numbers
    come back.
    """
    old, text = shown(capsys), (place / "b.jsonl").read_bytes()
    assert "1 done" in said(capsys, "status", "tiny.toml")
    edit(place)
    assert "1 todo" in said(capsys, "status", "tiny.toml")
    told = said(capsys, "report", "tiny.toml")
    assert "Naive, seed 0: " in told and "| -- |" in told
    assert " 1 of 1 runs" in said(capsys, "run", "tiny.toml", "--parallel", "1")
    new = shown(capsys)
    assert " 1 of 1 runs" in said(capsys, "run", "tiny.toml", "--parallel", "1", "--runs", "others")
    assert new == shown(capsys, "--runs", "others") != old
    (place / "b.jsonl").write_bytes(text)
    assert "Naive, seed 0: " in said(capsys, "report", "tiny.toml")
    said(capsys, "run", "tiny.toml", "--parallel", "1")
    assert shown(capsys) == old


def test_records_of_another_text_are_neither_compared_nor_tracked(place: Path, capsys) -> None:
    """Oracle: the output before the edit. After it, the commands say why they leave the run out. If
    no text is here, all records are believed.
    """
    said(capsys, "run", "tiny.toml", "--parallel", "1", "--runs", "own")
    commands = ["compare", "own", "own"], ["track", "tiny.toml", "--runs", "own", "--out", "events"]
    compared, tracked = (said(capsys, *command) for command in commands)
    assert re.search("Naive +b +1 ", compared) and "events/tiny/naive-s0-" in tracked
    edit(place)
    compared, tracked = (said(capsys, *command) for command in commands)
    assert re.search("Naive +-- +--", compared) and "Naive, seed 0: " in compared
    assert "! naive-s0-" in tracked and "events/tiny/naive" not in tracked
    for name in "ab":
        (place / f"{name}.jsonl").unlink()
    assert re.search("Naive +b +1 ", said(capsys, *commands[0]))


def test_seeds_of_a_row_have_one_text(place: Path, capsys) -> None:
    """Oracle: a report of only the seed that read the new text. If the text is not here, the row's
    newest run decides which text counts.
    """
    edit(place)
    said(capsys, "run", "tiny.toml", "--parallel", "1", "--seeds", "1")
    new = next(
        line
        for line in said(capsys, "report", "tiny.toml", "--seeds", "1").splitlines()
        if "| Naive" in line
    )
    for _ in range(2):
        told = said(capsys, "report", "tiny.toml", "--seeds", "0,1")
        assert "Naive, seed 0: " in told and new in told
        (place / "b.jsonl").unlink(missing_ok=True)


@pytest.mark.parametrize("change", ["touched", "moved", "gone"])
def test_a_text_that_is_the_same_or_not_here_has_its_records(
    place: Path, capsys, change: str
) -> None:
    """Oracle: the row before the change. Nothing is trained."""
    old, file = shown(capsys), place / "b.jsonl"
    if change == "moved":
        (place / "text").mkdir()
        file = file.rename(place / "text" / "b.jsonl")
        suite = place / "tiny.toml"
        suite.write_text(suite.read_text().replace("./b.jsonl", "text/b.jsonl"))
    if change == "gone":
        file.unlink()
    else:
        file.write_text(file.read_text())
    assert "1 done" in said(capsys, "status", "tiny.toml") and shown(capsys) == old
    assert "nothing to train" in said(capsys, "run", "tiny.toml")


def test_records_of_a_part_are_reported_where_no_text_is(place: Path, capsys) -> None:
    """Oracle: the row before the text went. Seed 1 has no records. Only `run` needs the text."""
    old = shown(capsys)
    (place / "b.jsonl").unlink()
    seeds = ("--seeds", "0,1")
    assert "1 done, 1 todo" in said(capsys, "status", "tiny.toml", *seeds)
    assert old in said(capsys, "report", "tiny.toml", *seeds)
    assert main(["run", "tiny.toml", *seeds, "--dry-run"]) == 2
    assert "b.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("edited", [True, False])
def test_records_copied_without_prepared_text_are_of_what_prepare_finds(
    place: Path, capsys, edited: bool
) -> None:
    """Oracle: what was shown before, which is shown again after `prepare`, if and only if the text
    is the same.
    """
    old = shown(capsys)
    shutil.rmtree(place / "runs" / "data")
    if edited:
        edit(place)
    assert "1 todo" in said(capsys, "status", "tiny.toml")
    assert "| -- |" in shown(capsys) and "To train: 1" in said(
        capsys, "run", "tiny.toml", "--dry-run"
    )
    said(capsys, "prepare", "tiny.toml")
    assert (shown(capsys) == old) != edited


def test_a_text_that_was_edited_is_seen_where_another_is_not_here(place: Path, capsys) -> None:
    """Oracle: by hand: while one of two texts is missing, the records count, until the other text
    is edited, whether or not it is then prepared.
    """
    old, text = shown(capsys), (place / "a.jsonl").read_bytes()
    (place / "a.jsonl").unlink()
    assert "1 done" in said(capsys, "status", "tiny.toml") and shown(capsys) == old
    edit(place)
    for prepares in (False, True):
        if prepares:
            (place / "a.jsonl").write_bytes(text)
            said(capsys, "prepare", "tiny.toml")
            (place / "a.jsonl").unlink()
        assert "1 todo" in said(capsys, "status", "tiny.toml")
        assert "| -- |" in shown(capsys)


def test_a_text_that_is_here_without_its_tokenizer_is_not_believed(place: Path, capsys) -> None:
    """Oracle: by hand: without the tokenizer's folder, records count only if no text is here."""
    made, suite = (
        next((place / "runs/data/tokenizers").glob("*/tokenizer.json")),
        place / "tiny.toml",
    )
    model = json.loads(made.read_text())["model"]
    (place / "bpe").mkdir()
    (place / "bpe/vocab.json").write_text(json.dumps(model["vocab"]))
    (place / "bpe/merges.txt").write_text("\n".join(map(" ".join, model["merges"])))
    suite.write_text(suite.read_text().replace("vocabulary = 300", 'folder = "bpe"'))
    assert " 1 of 1 runs" in said(capsys, "run", "tiny.toml", "--parallel", "1")
    assert "1 done" in said(capsys, "status", "tiny.toml")
    (place / "bpe").rename(place / "elsewhere")
    assert "1 todo" in said(capsys, "status", "tiny.toml")
    for name in "ab":
        (place / f"{name}.jsonl").unlink()
    assert "1 done" in said(capsys, "status", "tiny.toml")


def test_a_text_that_is_mixed_with_one_of_the_hub_is_not_believed_when_it_is_edited(
    place: Path, capsys, monkeypatch
) -> None:
    """Oracle: by hand: the Hub cannot be reached, so its text is believed to be unchanged. An edit
    of the other source is seen, also after `prepare` has failed.
    """
    rows = [{"text": f"five six seven {number % 7} eight {number}"} for number in range(200)]
    monkeypatch.setitem(sys.modules, "datasets", stand_in(lambda *_, **__: rows))
    suite, runs = place / "tiny.toml", ("run", "tiny.toml", "--parallel", "1")
    mixed = 'sources = [{ train = ["./b.jsonl"] }, { datasets = [{ path = "toy/toy" }] }]'
    text = suite.read_text().replace('train = ["./b.jsonl"]', mixed)
    suite.write_text(text.replace("[tokenizer]", '[tokenizer]\ndomains = ["a"]'))
    assert " 1 of 1 runs" in said(capsys, *runs)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace())
    for file in (place / "runs/data/domains").glob("*/info.json"):
        made_of = json.loads(file.read_text())["source"]
        if made_of["datasets"] or made_of["sources"]:
            shutil.rmtree(file.parent)
    assert "1 done" in said(capsys, "status", "tiny.toml")
    edit(place)
    for _ in range(2):
        assert "1 todo" in said(capsys, "status", "tiny.toml")
        assert "error: dataset 'toy/toy'" in said(capsys, "prepare", "tiny.toml", status=2)


def test_a_version_that_was_raised_is_another_method_where_no_text_is_too(
    place: Path, capsys, monkeypatch
) -> None:
    """Oracle: without the change, the run is done. Naive adds nothing to keys, so the test gives it
    a signature.
    """
    for file in ("a.jsonl", "b.jsonl"):
        (place / file).unlink()
    assert "1 done" in said(capsys, "status", "tiny.toml")
    monkeypatch.setattr(Naive, "signature", lambda self, stage: {"now": "another"})
    assert "1 todo" in said(capsys, "status", "tiny.toml")
    assert "| -- |" in said(capsys, "report", "tiny.toml")


def test_code_that_was_changed_without_its_version_is_said(
    place: Path, capsys, monkeypatch
) -> None:
    """Oracle: the warning appears only after the change, and the numbers stay."""
    old = shown(capsys)
    assert "code was changed" not in said(capsys, "status", "tiny.toml")
    monkeypatch.setattr("benchmark.training.declaration.hash_code", lambda module: "another")
    told = said(capsys, "status", "tiny.toml")
    assert "1 done" in told and "naive (1 of 1 runs)" in told
    assert shown(capsys) == old


def test_two_suites_of_one_name_are_not_seeds_of_each_other(place: Path, capsys) -> None:
    """By hand: both suites are called tiny, which the error must say: their runs would pass for
    seeds of one row.
    """
    (place / "other").mkdir()
    shutil.copy("tiny.toml", "other")
    for other in ("tiny.toml", "other/tiny.toml"):
        told = said(capsys, "report", "tiny.toml", other, status=2)
        assert "error: " in told and " is called tiny," in told


def test_a_model_with_other_weights_than_its_stage_recorded_is_refused(place: Path) -> None:
    """Oracle: by hand: one weight is changed, while the files' own checksums agree."""
    [file] = (place / "runs/suites/tiny").glob("*.jsonl")
    [run, *_] = read_lines(file)
    folder = place / "runs/stages" / run["stages"][1] / "model"
    model = load(folder)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1.0
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model.save(folder, tokenizer)
    with pytest.raises(DamagedFile, match=f"{run['stages'][1]}/model: its weights are"):
        load(folder)


@pytest.mark.parametrize(("schema", "cure"), [(1, "upgrade"), (3, "the version")])
def test_records_of_another_version_are_refused(
    place: Path, capsys, schema: int, cure: str
) -> None:
    """Oracle: by hand: the error names the file, both versions and the cure."""
    [file] = (place / "runs/suites/tiny").glob("*.jsonl")
    lines = read_lines(file)
    write_lines(file, [lines[0] | {"schema": schema}, *lines[1:]])
    for command in ("status", "report", "run"):
        told = said(capsys, command, "tiny.toml", status=2)
        assert f"{file.name}: " in told and f"version {schema}, this code reads 2" in told
        assert cure in told


def test_what_differs_in_the_records_that_are_here_is_said(place: Path, capsys) -> None:
    """Oracle: by hand: the changed settings, with both values. `--why` names all of them."""
    changes = ["--set", "training.max_grad_norm=0.5", "--set", "data.sequence_length=20"]
    difference = "training.max_grad_norm: 0.5, was none"
    shorter = "data.sequence_length: 20, was 18"
    told = said(capsys, "status", "tiny.toml", *changes)
    assert shorter in told and "and 1 more" in told and difference not in told
    assert difference in said(capsys, "status", "tiny.toml", *changes, "--why")
    report = said(capsys, "report", "tiny.toml", *changes)
    assert shorter in report.replace("\\_", "_")
    said(capsys, "run", "tiny.toml", "--parallel", "1", *changes)
    assert shorter not in said(capsys, "status", "tiny.toml", *changes)


def test_what_differs_in_a_stage_is_said(place: Path, capsys, monkeypatch) -> None:
    """Oracle: by hand: the method's version, with both values."""
    monkeypatch.setattr(Naive, "acts_first", True)
    monkeypatch.setattr(Naive, "version", 7)
    assert "method.signature.version: 7, was none" in said(capsys, "status", "tiny.toml", "--why")


def test_a_new_setting_changes_no_key(tmp_path: Path) -> None:
    """Oracle: ids and keys without the setting, which is made up here. Both change if its value is
    not the default.
    """
    config = methods.list_runs(load_suite(str(write(tmp_path))))[1]
    method = methods.build("er")
    texts = ["x", "y"]
    before = config.id, make_stage_keys(config, method, texts)
    create: Any = create_model
    extended = create("New", __base__=Training, made_up=(Annotated[int, WEIGHTS], 5))
    content = config.training.model_dump()
    for value, is_same in ((5, True), (6, False)):
        training = extended(**content, made_up=value)
        changed = config.model_copy(update={"training": training})
        after = changed.id, make_stage_keys(changed, method, texts)
        assert (after[0] == before[0]) == (after[1] == before[1]) == is_same


def test_every_setting_says_what_it_decides() -> None:
    """Oracle: the fields of all sections: each has one mark that says what it decides, or holds
    settings that have marks. A section with a mark decides as a whole.
    """
    left: list[type[BaseModel]] = [Suite, RunConfig]
    seen: set[type[BaseModel]] = set()
    while left:
        kind = left.pop()
        for name, field in kind.model_fields.items():
            inner = find_settings(field.annotation)
            marks = [mark for mark in field.metadata if isinstance(mark, Decides)]
            assert marks or inner, f"{kind.__name__}.{name}"
            assert len(marks) <= 1
            if not marks:
                left += [part for part in inner if part not in seen]
                seen |= {*inner}


def test_scores_are_chosen_by_their_key() -> None:
    """Oracle: by hand: each score is known by its number. The cases are a learning rate that was
    changed and changed back, other examples, fewer seeds, and another model.
    """
    task = {
        "name": "toy",
        "domain": "python",
        "train": "a",
        "dev": "b",
        "test": "c",
        "learning_rate": 1e-3,
    }
    trials = {"finetuning.seeds": 2, "finetuning.protocols": ["finetune"]}
    suites = {
        rate: load_suite("demo", {"tasks": [task | {"learning_rate": rate}], **trials})
        for rate in (1e-3, 2e-3)
    }

    def score(number: float, rate: float, seed: int = 0, examples: str = "new") -> ScoreLine:
        suite = suites[rate]
        key = make_score_key("m1", suite.tasks[0], examples, suite.finetuning, "none", seed)
        names: Any = {
            "task": "toy",
            "task_key": examples,
            "domain": "python",
            "prompt": "none",
            "metric": "accuracy",
        }
        return ScoreLine(key=key, seed=seed, dev=0.0, test=number, seconds=1.0, **names)

    lines = [
        score(0.1, 1e-3, examples="old"),
        score(0.2, 1e-3),
        score(0.3, 1e-3, 1),
        score(0.4, 2e-3),
    ]

    def scores_in(suite: Suite, **examples: str) -> list[float]:
        return [line.test for line in select_scores(suite, "m1", lines, examples)]

    assert scores_in(suites[1e-3]) == scores_in(suites[1e-3], toy="new") == [0.2, 0.3]
    assert scores_in(suites[2e-3]) == [0.4]
    assert scores_in(suites[1e-3], toy="old") == [0.1] and not scores_in(suites[2e-3], toy="old")
    fewer = suites[1e-3].model_copy(
        update={"finetuning": suites[1e-3].finetuning.model_copy(update={"seeds": 1})}
    )
    assert scores_in(fewer) == [0.2]
    assert not select_scores(suites[1e-3], "m2", lines, {})


def load_kept(task: dict[str, Any]) -> tuple[Suite, list[RunConfig]]:
    """A suite with one task that keeps its near copies, and the suite's runs."""
    suite = load_suite("demo", {"tasks": [task], "data.near_copies": "keep"})
    return suite, methods.list_runs(suite)


def test_examples_with_other_settings_are_not_those_that_were_scored(
    tmp_path: Path, monkeypatch
) -> None:
    """Oracle: by hand: a task of the Hub has no key before it is read, then the key of its
    examples. The same task with another test split has an empty key.
    """
    rows = [Example(f"text {number}", None, number % 2, "") for number in range(8)]
    splits = dict.fromkeys(SPLITS, rows)
    monkeypatch.setattr("benchmark.downstream.tasks._read_hub", lambda *given: splits)
    task = {"name": "toy", "domain": "python", "dataset": {"path": "toy/toy"}}
    first, other = (load_kept(task | {"dataset": {"path": "toy/toy", "test": of}}) for of in "ab")
    store = Store(tmp_path)
    assert find_example_keys(*first, store) == {}
    data = load_examples(first[0].tasks[0], (), store.data)
    assert find_example_keys(*first, store) == {"toy": data.key}
    assert find_example_keys(*other, store) == {"toy": ""}


def test_a_task_of_the_hub_in_a_folder_here_is_its_files(tmp_path: Path, monkeypatch) -> None:
    """Oracle: by hand: a changed file has another key, and the old content the old key."""
    file = tmp_path / "set" / "rows.txt"
    file.parent.mkdir()

    def read(*given: object) -> Splits:
        rows = [Example(line, None, line[-1], "") for line in file.read_text().splitlines()]
        return dict.fromkeys(SPLITS, rows)

    monkeypatch.setattr("benchmark.downstream.tasks._read_hub", read)
    task = {"name": "toy", "domain": "python", "dataset": {"path": str(file.parent)}}
    suite, configs = load_kept(task)
    store = Store(tmp_path / "runs")
    keys: list[str] = []
    for text in ("first 0\nsecond 1", "first 0\nother 1", "first 0\nsecond 1"):
        file.write_text(text)
        assert not keys or find_example_keys(suite, configs, store)["toy"] not in keys[-1:]
        keys.append(load_examples(suite.tasks[0], (), store.data).key)
        assert find_example_keys(suite, configs, store) == {"toy": keys[-1]}
    assert keys[0] == keys[2] != keys[1]


def test_what_keeps_tables_from_knowing_is_raised(tmp_path: Path) -> None:
    """Oracle: the rule: recorded settings are believed, even if their method no longer exists. The
    settings of a suite are not.
    """
    config = methods.list_runs(load_suite(str(write(tmp_path))))[0]
    store = Store(tmp_path)
    append(store.run_file(config), make_run_line(config))
    without_methods = open_ledger(store, Mock(side_effect=ConfigError("gone")))
    [run] = without_methods.read_recorded(config.suite)
    assert run.lines and not run.why
    with pytest.raises(ConfigError, match="gone"):
        without_methods.read_suite(config.suite, [config])


@pytest.mark.parametrize(("method", "told"), [("naive", False), ("pnn", True)])
def test_who_is_told_domains_is_learned_from_the_method(
    method: str, told: bool, tmp_path: Path
) -> None:
    """Oracle: by hand: PNN tells its model a text's domain, Naive does not. No record holds this
    fact, so older records do not lack it.
    """
    config = methods.list_runs(load_suite(str(write(tmp_path))))[0].model_copy(
        update={"method": method}
    )
    ledger = open_ledger(Store(tmp_path), methods.build)
    assert ledger.view(config).reads_domain == told
