"""Records: what is written is read back after any kill of a writer, and a resume counts once."""

import dataclasses
import json
import math
import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path

import msgspec
import pytest

from benchmark.instruments.track import list_points
from benchmark.ledger import archive, records
from benchmark.ledger.records import STAGE as LINES
from benchmark.ledger.records import EvaluationLine, MetricsLine, RecordsError, StageLine
from benchmark.ledger.runs import load_runs
from benchmark.training.processes import start_fork_server
from tests.support.record_lines import DONE, METRICS, STAGE, append_line, evaluation, read_lines


def write_all(path: Path, lines: list[dict]) -> None:
    for line in lines:
        append_line(path, line)


def measured(step: int, perplexity: float) -> EvaluationLine:
    return msgspec.convert(evaluation("adapt", step, perplexity), EvaluationLine)


def kinds_in(path: Path) -> list[str]:
    return [type(line).__name__ for line in records.read(path, LINES)]


def test_a_record_comes_back_as_written(tmp_path):
    """Oracle: identity, and the reader of JSON."""
    path = tmp_path / "deep" / "records.jsonl"
    line = msgspec.convert(STAGE, StageLine)
    records.append(path, line)
    [again], [written] = records.read(path, LINES), read_lines(path)
    assert again == msgspec.structs.replace(line, time=again.time) and again.time > 1.7e9
    assert {name: written[name] for name in STAGE} == STAGE


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_last_line_is_skipped_reported_and_survived(tmp_path, caplog, cut):
    """Oracle: the whole lines before and after the tear are exactly what is read."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, evaluation("adapt", 1, 7.0)])
    os.truncate(path, path.stat().st_size - cut)
    # a line that lacks only its newline is whole
    whole = ["StageLine"] if cut > 1 else ["StageLine", "EvaluationLine"]
    assert kinds_in(path) == whole
    assert ("killed" in caplog.text) == (cut > 1)
    records.append(path, measured(2, 6.0))
    assert kinds_in(path) == [*whole, "EvaluationLine"]


@pytest.mark.parametrize("damage", [b"\xff", b'"', b"\x00", b"\\q", b"\n"])
@pytest.mark.parametrize("damaged", range(3))
def test_a_damaged_line_is_an_error_with_its_number(tmp_path, damaged: int, damage: bytes):
    """Oracle: the line's number as an editor counts it. Each damage makes the line invalid JSON."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, METRICS, evaluation("adapt", 2, 6.0)])
    lines = path.read_bytes().split(b"\n")
    lines[damaged] = lines[damaged][:20] + damage + lines[damaged][20:]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RecordsError, match=rf"records\.jsonl:{damaged + 1}: "):
        records.read(path, LINES)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ({**STAGE, "kind": "stagge"}, "stagge"),
        ({**STAGE, "layers": -1}, "layers"),
        ({**STAGE, "key": "../x"}, "key"),
        ({name: value for name, value in DONE.items() if name != "charged"}, "charged"),
    ],
)
def test_what_a_line_cannot_hold_is_refused_with_its_place(tmp_path, line: dict, place: str):
    """Oracle: the bounds of the schema."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, line])
    with pytest.raises(RecordsError, match=rf"records\.jsonl:2: .*{place}"):
        records.read(path, LINES)


def test_what_is_not_finite_becomes_null(tmp_path):
    """Oracle: the JSON standard, which knows no NaN and no Infinity."""
    path = tmp_path / "records.jsonl"
    records.append(path, MetricsLine(phase="adapt", step=1, values={"a": math.inf, "b": math.nan}))
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["values"] == {
        "a": None,
        "b": None,
    }


def test_a_resume_takes_back_what_lies_beyond_its_checkpoint(tmp_path):
    """Oracle: the lines of a run that was never killed, and the line of the resume."""
    path = tmp_path / "records.jsonl"
    before = [
        STAGE,
        evaluation("start", 0, 9.5),
        evaluation("recover", 3, 9.0),
        evaluation("adapt", 2, 8.0),
    ]
    lost = [
        evaluation("adapt", 5, 7.0),
        {"kind": "metrics", "phase": "adapt", "step": 5, "values": {}},
    ]
    again = [evaluation("adapt", 6, 6.5), DONE]
    write_all(
        path,
        [*before, *lost, {"kind": "resumed", "phase": "adapt", "step": 2, "charged": {}}, *again],
    )
    steps = [
        (type(line).__name__, getattr(line, "step", None)) for line in records.read_stage(path)
    ]
    expected = [
        ("StageLine", None),
        *(("EvaluationLine", step) for step in (0, 3, 2)),
        ("ResumedLine", 2),
    ]
    assert steps == [*expected, ("EvaluationLine", 6), ("StageDone", None)]


def test_a_second_header_starts_the_stage_anew_and_the_last_of_two_equal_lines_counts(tmp_path):
    """Oracle: the rules in the module's docstring."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, evaluation("adapt", 1, 8.0), STAGE])
    write_all(path, [evaluation("adapt", 2, 7.0), evaluation("adapt", 2, 6.0)])
    [_, line] = records.read_stage(path)
    assert isinstance(line, EvaluationLine) and line.perplexity == {"news": 6.0}


def test_a_phase_that_the_stage_does_not_have_is_an_error(tmp_path):
    """Oracle: the message names the phase and the choices."""
    path = tmp_path / "records.jsonl"
    write_all(path, [STAGE, evaluation("adpt", 1, 8.0)])
    with pytest.raises(RecordsError, match=r"'adpt'.*recover.*adapt"):
        records.read_stage(path)


def _write_many(path: Path, writer: int, start: Barrier) -> None:
    start.wait()
    for step in range(300):
        records.append(path, MetricsLine(phase="w" * 300 * (writer + 1), step=step, values={}))


def test_lines_of_concurrent_writers_never_mix(tmp_path):
    """Oracle: by hand: all 300 lines of each writer, whole. A line has more than 300 characters."""
    path = tmp_path / "records.jsonl"
    start_fork_server()
    context = multiprocessing.get_context("forkserver")
    start = context.Barrier(2)
    writers = [
        context.Process(target=_write_many, args=(path, writer, start)) for writer in range(2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    seen = sorted((len(line["phase"]) // 300 - 1, line["step"]) for line in read_lines(path))
    assert seen == [(writer, step) for writer in range(2) for step in range(300)]


def run_line(name: str, row_index: int, seed: int, stages: list[str]) -> dict:
    texts = {"id": name, "suite": "s", "row": "ER", "title": "ER", "method": "er"}
    rest = {
        "options": {},
        "config": {},
        "domains": [{"name": "news", "title": "Ns"}, {"name": "cs", "title": "CS"}][: len(stages)],
        "unigram": {"news": 99.0},
        "texts": STAGE["texts"],
    }
    place = {"row_index": row_index, "seed": seed, "stages": stages}
    return {"kind": "run", "schema": records.SCHEMA, **texts, **place, **rest}


def test_runs_are_loaded_in_the_suites_order_with_their_stages_scores_and_failure(tmp_path):
    """Oracle: the layout of the run folder, by hand."""
    write_all(
        tmp_path / "stages" / "a" / "records.jsonl",
        [STAGE | {"key": "a"}, evaluation("adapt", 1, 8.0)],
    )
    named = dict.fromkeys(("key", "task", "task_key", "domain", "metric"), "x")
    score = {"kind": "score", **named, "prompt": "none", "seed": 0, "dev": 0.1, "seconds": 1.0}
    write_all(tmp_path / "scores" / "a.jsonl", [score | {"test": 0.1}, score | {"test": 0.7}])
    baseline = {"kind": "baseline", **named, "name": "x", "test": 0.3}
    write_all(tmp_path / "scores" / "baselines.jsonl", [baseline | {"test": 0.2}, baseline])
    folder = tmp_path / "suites" / "s"
    failed = {"kind": "failed", "stage": 1, "error": "loss is not finite"}
    write_all(folder / "1.jsonl", [run_line("1", 1, 0, ["a", "b"]), failed])
    write_all(
        folder / "2.jsonl",
        [run_line("2", 0, 1, ["a", "b"]), failed, run_line("2", 0, 1, ["a", "b"])],
    )
    write_all(folder / "3.jsonl", [run_line("3", 0, 0, ["a", "b"]), failed, {"kind": "done"}])
    runs = load_runs(tmp_path, "s")
    assert [run.id for run in runs] == ["3", "2", "1"]
    assert [run.failure is not None for run in runs] == [False, False, True]
    assert [[type(line).__name__ for line in stage] for stage in runs[0].stages] == [
        ["StageLine", "EvaluationLine"],
        [],
    ]
    assert [[line.test for line in scores] for scores in runs[0].scores] == [[0.7], []]
    assert [line.test for line in runs[2].baselines] == [0.3]
    assert runs[0].stages[0] is runs[1].stages[0], "a shared stage is read once"
    assert load_runs(tmp_path, "absent") == []


def test_of_two_ends_of_a_stage_the_last_counts_for_all_readers(tmp_path):
    """A writer that hung may add its end after the end of the process that took over.

    Oracle: by hand: readers and archives see the last one's weights. Only one end's steps count.
    """
    path = tmp_path / "stages" / "a" / "records.jsonl"
    last = evaluation("adapt", 1, 8.0)
    spent = last["charged"]
    ends = [DONE | {"charged": spent, "weights": weights} for weights in ("first", "last")]
    write_all(path, [STAGE | {"key": "a"}, last, *ends])
    write_all(tmp_path / "suites" / "s" / "1.jsonl", [run_line("1", 1, 0, ["a"])])
    [run] = load_runs(tmp_path, "s")
    done = records.find_last(run.stages[0], records.StageDone)
    assert done and done.weights == "last"
    assert archive._describe_result(path, path.read_bytes()) == "weights last"
    after = dataclasses.replace(run, stages=[*run.stages, run.stages[0]])
    assert [step for step, _, _ in list_points(after)] == [spent["steps"], 2 * spent["steps"]]
