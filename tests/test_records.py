"""The records: what is written is read back, whatever a killed writer left, and a resume counts once."""

import dataclasses
import json
import multiprocessing
import os
import re
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from analysis.study import end
from benchmark import models, records
from benchmark.instruments.track import points
from benchmark.jobs import study
from benchmark.jobs.study import _ended
from benchmark.record_checks import MOST, SHAPES
from benchmark.records import RecordsError
from benchmark.run_description import (
    BudgetRecord,
    ConfigRecord,
    ModelRecord,
    SizeRecord,
    TaskRecord,
    TrainingRecord,
    TunedRecord,
)
from benchmark.settings.base import Settings
from benchmark.settings.suite import Budget, Model, RunConfig, Size, Training, Tuned
from benchmark.settings.tasks import Task
from benchmark.store import Store
from tests.support.stage_lines import DONE, OPTIMIZER, STAGE, evaluation


def write_all(path: Path, lines: list[dict]) -> None:
    for line in lines:
        records.append(path, line)


def test_a_record_comes_back_as_written(tmp_path):
    """Oracle: identity."""
    path = tmp_path / "deep" / "records.jsonl"
    records.append(path, STAGE)
    (line,) = records.read(path)
    assert {name: line[name] for name in STAGE} == STAGE
    assert line["time"] > 1.7e9


@pytest.mark.parametrize("kinds", [("done", "evaluation"), ("evaluation",), ("stage", "done"), ("failed",)])
@pytest.mark.parametrize("cut", [0, 20])
def test_the_last_line_of_a_kind(tmp_path, kinds: tuple[str, ...], cut: int):
    """Oracle: all lines, by `read`; also where the last one was cut short."""
    path = tmp_path / "records.jsonl"
    assert records.last(path, *kinds) is None
    write_all(path, [STAGE, evaluation("adapt", 1, 7.0), evaluation("adapt", 2, 6.0), DONE])
    os.truncate(path, path.stat().st_size - cut)
    lines = records.read(path)
    found = [[line for line in lines if line["kind"] == kind] for kind in kinds]
    assert records.last(path, *kinds) == next((same[-1] for same in found if same), None)


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_last_line_is_skipped_reported_and_survived(tmp_path, caplog, cut):
    """Oracle: the whole lines before and after the tear are exactly what is read."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, evaluation("adapt", 1, 7.0)])
    os.truncate(path, path.stat().st_size - cut)
    whole = [STAGE["kind"]] if cut > 1 else [STAGE["kind"], "evaluation"]  # without its newline it is still whole
    assert [line["kind"] for line in records.read(path)] == whole
    assert ("killed" in caplog.text) == (cut > 1)
    records.append(path, evaluation("adapt", 2, 6.0))
    assert [line["kind"] for line in records.read(path)] == [*whole, "evaluation"]


def test_a_broken_middle_line_is_an_error_with_its_number(tmp_path):
    """Oracle: the line number as a text editor counts it."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, evaluation("adapt", 1, 7.0), evaluation("adapt", 2, 6.0)])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:20], lines[2], ""]))
    with pytest.raises(RecordsError, match=r"records\.jsonl:2: "):
        records.read(path)


@pytest.mark.parametrize("cut", [1, 20, 60])
@pytest.mark.parametrize("damaged", range(4))
def test_what_is_last_is_not_what_stands_before_a_damaged_line(tmp_path, damaged: int, cut: int) -> None:
    """Oracle: all lines, by `read`, which tells of the same line."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, evaluation("adapt", 1, 7.0), evaluation("adapt", 2, 6.0), OPTIMIZER])
    records.append(path, DONE)
    lines = path.read_bytes().split(b"\n")
    lines[damaged] = lines[damaged][:-cut]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RecordsError, match=rf"records\.jsonl:{damaged + 1}: ") as told:
        records.read(path)
    with pytest.raises(RecordsError, match=re.escape(str(told.value))):
        records.last_of_each(path, "stage", "done", "evaluation", "resumed")
    lines[damaged + 1 : damaged + 1] = [b""]  # as the writer leaves it that finds half a line
    path.write_bytes(b"\n".join(lines))
    found = records.last_of_each(path, "stage", "done", "evaluation", "resumed")
    assert found == {line["kind"]: line for line in records.read(path) if line["kind"] != "optimizer"}


def test_the_last_lines_of_a_stage_are_decoded_once(tmp_path, monkeypatch) -> None:
    """Oracle: all lines, by `read`; `decode` is not called, which is for those that are not plainly right."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, evaluation("adapt", 1, 7.0), evaluation("adapt", 2, 6.0), OPTIMIZER, DONE])
    expected = {line["kind"]: line for line in records.read(path) if line["kind"] != "optimizer"}
    monkeypatch.setattr(records, "decode", None)
    assert records.last_of_each(path, "stage", "done", "evaluation") == expected


@pytest.mark.parametrize("damage", [b"\xff", b'"', b"\x00", b"\\q"])
def test_a_byte_that_is_wrong_is_seen_in_a_line_that_is_passed_over(tmp_path, damage: bytes) -> None:
    """Oracle: the line's number; each of the bytes makes a line no JSON."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, OPTIMIZER, evaluation("adapt", 2, 6.0)])
    path.write_bytes(path.read_bytes().replace(b"weight", b"wei" + damage + b"ht"))
    with pytest.raises(RecordsError, match=r"records\.jsonl:2: "):
        records.last_of_each(path, "stage", "evaluation")


def test_runs_that_cannot_be_read_are_not_none(tmp_path, monkeypatch) -> None:
    """Oracle: the system's refusal, which a glob takes for an empty folder."""
    folder = tmp_path / "suites" / "s"
    folder.mkdir(parents=True)
    listed = os.listdir

    def listing(path):
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", listing)
    monkeypatch.setattr(os, "scandir", listing)
    with pytest.raises(PermissionError):
        records.load_runs(tmp_path, "s")


def test_an_unknown_kind_and_a_missing_field_are_refused(tmp_path):
    """Oracle: the message names the kind, the field and the choices; nothing is written."""
    path = tmp_path / "records.jsonl"
    with pytest.raises(RecordsError, match=r"'evalution'.*evaluation"):
        records.append(path, {"kind": "evalution"})
    with pytest.raises(RecordsError, match="lacks charged, perplexity"):
        records.append(path, {"kind": "evaluation", "phase": "adapt", "step": 1, "fraction": 0.1})
    assert not path.exists()


def test_what_is_not_finite_becomes_null(tmp_path):
    """Oracle: the JSON standard, which knows no NaN and no Infinity."""
    path = tmp_path / "records.jsonl"
    records.append(path, evaluation("adapt", 1, float("inf")))
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["perplexity"] == {"news": None}


def test_a_resume_takes_back_what_lies_beyond_its_checkpoint(tmp_path):
    """Oracle: the lines of a run that was never killed."""
    path = tmp_path / "records.jsonl"
    before = [STAGE, evaluation("start", 0, 9.5), evaluation("recover", 3, 9.0), evaluation("adapt", 2, 8.0)]
    lost = [evaluation("adapt", 5, 7.0), {"kind": "metrics", "phase": "adapt", "step": 5, "values": {}}]
    again = [evaluation("adapt", 6, 6.5), DONE]
    write_all(path, [*before, *lost, {"kind": "resumed", "phase": "adapt", "step": 2}, *again])
    kinds = [(line["kind"], line.get("step")) for line in records.read_stage(path)]
    expected = [
        ("stage", None),
        ("evaluation", 0),
        ("evaluation", 3),
        ("evaluation", 2),
        ("resumed", 2),
        ("evaluation", 6),
    ]
    assert kinds == [*expected, ("done", None)]


def test_a_second_header_starts_the_stage_anew_and_the_last_of_two_equal_lines_counts(tmp_path):
    """Oracle: the rules in the module's docstring."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, evaluation("adapt", 1, 8.0), STAGE])
    write_all(path, [evaluation("adapt", 2, 7.0), evaluation("adapt", 2, 6.0)])
    assert [line.get("perplexity") for line in records.read_stage(path)] == [None, {"news": 6.0}]


def test_a_phase_that_the_stage_does_not_have_is_an_error(tmp_path):
    """Oracle: the message names the phase and the choices."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, evaluation("adpt", 1, 8.0)])
    with pytest.raises(RecordsError, match=r"'adpt'.*recover.*adapt"):
        records.read_stage(path)


def _write_many(path: Path, writer: int, start: Barrier) -> None:
    start.wait()
    for step in range(300):
        records.append(path, evaluation("w" * 300 * (writer + 1), step, float(writer + 1)))


def test_lines_of_concurrent_writers_never_mix(tmp_path):
    """Oracle: every line of every writer is there, whole, once."""
    path = tmp_path / "records.jsonl"
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    writers = [context.Process(target=_write_many, args=(path, writer, start)) for writer in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    seen = sorted((len(line["phase"]) // 300 - 1, line["step"]) for line in records.read(path))
    assert seen == [(writer, step) for writer in range(2) for step in range(300)]


@pytest.mark.parametrize(("titles", "alike"), [(("", ""), ""), (("T", "t "), "'T' and 't '"), (("", "a"), "'a'")])
def test_texts_and_tasks_of_one_column_are_refused(tmp_path, titles: tuple[str, str], alike: str) -> None:
    """Oracle: what suites are refused for: the title counts, and the name where there is none."""
    task = {"domain": "news", "metric": "accuracy", "learning_rate": 1.0, "batch_size": 1, "weight_decay": 0.0}
    task |= {"max_epochs": 1, "schedule": "linear", "warmup": 0.0}
    tasks = [{"name": name, "title": title, **task} for name, title in zip("ab", titles, strict=True)]
    records.append(tmp_path / "suites" / "s" / "1.jsonl", run_line("1", 0, 0, ["a", "b"]) | {"tasks": tasks})
    if alike:
        with pytest.raises(RecordsError, match=f"{alike} would be one column"):
            records.load_runs(tmp_path, "s")
    else:
        assert [run.id for run in records.load_runs(tmp_path, "s")] == ["1"]


def run_line(name: str, row_index: int, seed: int, stages: list[str]) -> dict:
    texts = {"id": name, "suite": "s", "row": "ER", "title": "ER", "method": "er"}
    rest = {
        "options": {},
        "config": {
            "model": {"architecture": "gpt2", "head_size": 1, "ladder": []},
            "training": {"learning_rate": 1e-3, "warmup": 0.0},
            "budget": {"unit": "steps", "amount": 4},
        },
        "domains": [{"name": "news", "title": "Ns"}, {"name": "cs", "title": "CS"}][: len(stages)],
        "unigram": {"news": 99.0},
    }
    return {"kind": "run", **texts, "row_index": row_index, "seed": seed, "stages": stages, **rest}


def test_runs_are_loaded_in_the_suites_order_with_their_stages_scores_and_failure(tmp_path):
    """Oracle: the layout of the run folder, by hand."""
    write_all(tmp_path / "stages" / "a" / "records.jsonl", [STAGE | {"key": "a"}, evaluation("adapt", 1, 8.0)])
    named = {"kind": "score", "stage_key": "a"} | dict.fromkeys(("key", "task", "task_key", "domain", "metric"), "x")
    score = dict.fromkeys(records.FIELDS["score"], 0) | named | {"prompt": "none"}
    write_all(tmp_path / "scores" / "a.jsonl", [score | {"test": 0.1}, score | {"test": 0.7}])
    baseline = dict.fromkeys(records.FIELDS["baseline"], "x") | {"kind": "baseline", "test": 0.3}
    older = baseline | {"kind": "reference", "test": 0.2}
    write_all(tmp_path / "scores" / "references.jsonl", [older, older | {"name": "y"}])
    write_all(tmp_path / "scores" / "baselines.jsonl", [baseline])
    folder = tmp_path / "suites" / "s"
    failed = {"kind": "failed", "stage": 1, "error": "loss is not finite"}
    write_all(folder / "1.jsonl", [run_line("1", 1, 0, ["a", "b"]), failed])
    write_all(folder / "2.jsonl", [run_line("2", 0, 1, ["a", "b"]), failed, run_line("2", 0, 1, ["a", "b"])])
    write_all(folder / "3.jsonl", [run_line("3", 0, 0, ["a", "b"]), failed, {"kind": "done"}])
    runs = records.load_runs(tmp_path, "s")
    assert [run.id for run in runs] == ["3", "2", "1"]
    assert [run.failure is not None for run in runs] == [False, False, True]
    assert [[line["kind"] for line in stage] for stage in runs[0].stages] == [["stage", "evaluation"], []]
    assert [[line["test"] for line in scores] for scores in runs[0].scores] == [[0.7], []]
    assert [line["test"] for line in runs[2].baselines] == [0.3, 0.2]
    assert runs[0].stages[0] is runs[1].stages[0], "a shared stage is read once"
    assert records.load_runs(tmp_path, "absent") == []


@pytest.mark.parametrize(
    ("recorded", "settings"),
    [
        (ConfigRecord, RunConfig),
        (ModelRecord, Model),
        (SizeRecord, Size),
        (TrainingRecord, Training),
        (BudgetRecord, Budget),
        (TunedRecord, Tuned),
        (TaskRecord, Task),
    ],
)
def test_what_records_say_of_settings_is_theirs(recorded: type, settings: type[Settings]) -> None:
    """Oracle: the settings' own fields, which are written out in full."""
    assert set(recorded.__annotations__) <= set(settings.model_fields)


def test_sizes_in_records_are_those_that_a_suite_may_have() -> None:
    """Oracle: the suite's own ranges."""
    assert {name: option["maximum"] for name, option in Size.model_json_schema()["properties"].items()} == MOST


@pytest.mark.parametrize("kind", SHAPES)
def test_types_of_lines_have_what_no_line_lacks(kind: str) -> None:
    """Oracle: the fields without which no line is written."""
    assert set(records.FIELDS[kind]) <= set(SHAPES[kind].__annotations__) | {"kind"}


def test_every_kind_has_a_type() -> None:
    """Oracle: all kinds that are written; those that are left say nothing but that."""
    assert records.FIELDS.keys() - SHAPES.keys() == {"released", "begun"}


def test_of_two_ends_of_a_stage_the_last_counts_for_all_readers(tmp_path):
    """A writer that hung may add its own after that of who took over. Oracle: by hand, for what trains on, compares and
    shows; the steps of one of them are counted."""
    path = tmp_path / "stages" / "a" / "records.jsonl"
    last = evaluation("adapt", 1, 8.0)
    spent = last["charged"]
    ends = [DONE | {"charged": spent, "weights": weights} for weights in ("first", "last")]
    write_all(path, [STAGE | {"key": "a"}, last, *ends])
    write_all(tmp_path / "suites" / "s" / "1.jsonl", [run_line("1", 1, 0, ["a"])])
    [run] = records.load_runs(tmp_path, "s")
    assert [line["weights"] for line in run.stages[0] if line["kind"] == "done"] == ["last"]
    found = [
        end(run.stages[0]),
        _ended(run)[0].done,
        records.last(path, "done"),
        Store(tmp_path).last_of_stage("a", "done")["done"],
        models._done(path.parent),
    ]
    assert [line and line.get("weights") for line in found] == ["last"] * 5
    assert study._weights(path.read_bytes()) == study._hash_of(Store(tmp_path), "a") == "last"
    after = dataclasses.replace(run, stages=[*run.stages, run.stages[0]])
    assert [step for _, step, _, _ in points(after)] == [spent["steps"], 2 * spent["steps"]]
