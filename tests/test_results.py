"""A study's folder: what `collect` puts into it, and what `verify` and others refuse."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

import methods
from analysis.report import load_study, write_report
from benchmark.data.prepared import prepare_corpus
from benchmark.downstream.tasks import load_examples, make_score_key
from benchmark.errors import UserError
from benchmark.jobs import study as studies
from benchmark.ledger import archive
from benchmark.ledger.archive import ResultsError
from benchmark.ledger.records import LaterLine, StageDone, find_last, select_kind
from benchmark.ledger.runs import RunRecords, load_runs
from benchmark.ledger.store import Store
from benchmark.models import hash_weights, load
from benchmark.settings.load import load_suite
from benchmark.settings.suite import RunConfig, Suites
from benchmark.settings.tasks import SPLITS
from methods.er import ER
from run_all import main, open_study
from tests.support.record_lines import append_line, write_lines
from tests.support.tiny_suite import write

ARCHIVE = "records/tiny-s0.tar.gz"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a trained suite, in `runs`, and a study of it, in `study`."""
    folder = tmp_path_factory.mktemp("results")
    suite = write(folder)
    suite.write_text('tables = ["main_pretraining"]\n' + suite.read_text())
    places = ["--runs", str(folder / "runs")]
    assert main(["run", str(suite), "--out", str(folder / "out"), "--parallel", "1", *places]) == 0
    (folder / "study").mkdir()
    shutil.copy(suite, folder / "study")
    assert main(["collect", str(suite), "--study", str(folder / "study"), *places]) == 0
    return folder


@pytest.fixture
def study(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(trained / "study", tmp_path / "study"))


def suites_of(study: Path) -> Suites:
    suite = load_suite(str(study / "tiny.toml"))
    return [(suite, methods.list_runs(suite))]


def check(study: Path) -> list[str]:
    return list(
        studies.verify(
            study, suites_of(study), partial(write_report, only_tables=True), methods.build
        )
    )


def collect_again(trained: Path, study: Path) -> list[str]:
    return studies.collect(*suites_of(study)[0], trained / "runs", study, methods.build)


def find_er(trained: Path, study: Path) -> tuple[RunConfig, list[str]]:
    """ER's run, and the keys of its two stages."""
    [er] = [config for config in suites_of(study)[0][1] if config.method == "er"]
    return er, Store(trained / "runs").read_stage_keys(er)


def spoil(study: Path, change: Callable[[dict], None], kind: str = "stages/") -> None:
    """Change each line of the archive's files whose names begin with `kind`."""
    members = archive.read_archive(study / ARCHIVE)
    for name, content in members.items():
        if name.startswith(kind):
            lines = [json.loads(line) for line in content.splitlines()]
            for line in lines:
                change(line)
            members[name] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    archive.write_archive(study / ARCHIVE, members)


def test_a_study_holds_what_its_runs_recorded(trained: Path, study: Path) -> None:
    """Oracle: a table that `run` rendered from the runs, byte for byte. By hand: two runs, four
    tables. Collecting again changes no byte.
    """
    table = "main_pretraining.csv"
    assert (study / "report/tiny" / table).read_bytes() == (
        trained / "out/tiny" / table
    ).read_bytes()
    runs, report = check(study)
    assert runs.startswith("tiny: 2 of 2 runs")
    assert report.startswith("report: 4 tables ")
    before = (study / ARCHIVE).read_bytes()
    collect_again(trained, study)
    assert (study / ARCHIVE).read_bytes() == before


def test_a_study_holds_whatever_is_refactored_later(study: Path, monkeypatch) -> None:
    """Oracle: by hand: the same four tables, though its methods' code has another hash."""
    monkeypatch.setattr("benchmark.training.declaration.hash_code", lambda module: "another")
    assert check(study)[1].startswith("report: 4 tables ")


def test_a_run_of_an_earlier_version_stays_in_a_study_and_is_named(
    study: Path, monkeypatch
) -> None:
    """Oracle: the numbers of the table before. By hand: a raised version gives ER's run other keys.
    With ER's old code it is refused, and with other code it is a run of an earlier version.
    """
    monkeypatch.setattr(ER, "version", 2)
    with pytest.raises(archive.ResultsError, match="er-s0-.*version: 2, was none"):
        check(study)
    monkeypatch.setattr("benchmark.training.declaration.hash_code", lambda module: "another")
    table = study / "report/tiny/main_pretraining.md"
    numbers = table.read_text().splitlines()
    suites = suites_of(study)
    list(studies.render(study, suites, write_report))
    assert check(study)[0].endswith(", 1 of an earlier version of their method")
    assert set(numbers) < set(table.read_text().splitlines())
    assert "compute something else since: ER. " in table.read_text()


def test_a_stage_trained_again_comes_to_the_same_weights(
    trained: Path, study: Path, capsys
) -> None:
    """Oracle: a steps budget on a CPU is deterministic, so the second stage's hash is the recorded
    one. What another suite has of it, from another machine, does not count.
    """
    er, [_, key] = find_er(trained, study)
    of_suite = (study / ARCHIVE).read_bytes()
    spoil(study, other_machine)
    (study / ARCHIVE).rename(study / "records/zoo-s0.tar.gz")
    (study / ARCHIVE).write_bytes(of_suite)
    arguments = ["verify", str(study), "--stage", key, "--runs"]
    assert main([*arguments, str(study / "again")]) == 0
    verified = rf"stage {key} of {er.id}: the same weights; [1-9]\d* perplexities"
    assert re.search(verified, capsys.readouterr().out)
    assert main([*arguments, str(study / "again")]) == 2
    assert re.search(f"again .*stage {key} .*--runs", capsys.readouterr().err)
    assert main(["verify", str(study), "--stage", "nonsense", "--runs", str(study / "again")]) == 2
    assert "stage 'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize("factor", [1 + 5e-5, 1 - 5e-5, 1 + 2e-4])
def test_other_weights_are_put_down_to_rounding_where_perplexities_agree(
    trained: Path, study: Path, capsys, factor: float
) -> None:
    """Oracle: by hand: perplexities that agree to 1e-4 mean rounding. The message names both
    machines and their threads, the recorded one as its record has it. `collect` changes no record.
    """
    er, [_, key] = find_er(trained, study)
    spoil(study, other_machine)
    spoil(study, partial(scale_perplexities, factor))
    held = (study / ARCHIVE).read_bytes()
    instructions = torch.backends.cpu.get_cpu_capability()
    here = f"{instructions}), threads: {torch.get_num_threads()}"
    places = [here, "CPU (abacus), threads: 7"]
    verified = main(["verify", str(study), "--stage", key, "--runs", str(study / "again")])
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert all(place in said for place in places)
    if factor > 1 + 1e-4:
        assert verified == 2 and re.search(
            r"recorded are 0{64} on .*; perplexity \S+ is recorded on", said
        )
        with pytest.raises(
            ResultsError, match=r"weights .*recorded are 0{64} .*abacus.*perplexity"
        ):
            collect_again(trained, study)
    else:
        assert verified == 0 and f"stage {key} of {er.id}: weights differ in rounding" in said
        [collected] = collect_again(trained, study)
        assert re.search("weights differ in rounding.*: 3$", collected) and all(
            place in collected for place in places
        )
    assert (study / ARCHIVE).read_bytes() == held


def test_a_stage_that_ended_elsewhere_is_another(trained: Path, study: Path) -> None:
    """Oracle: by hand: a stage that ended at another step, as under a budget in seconds, is
    refused, and both steps are named. Its beginning is equal.
    """

    def end_later(line: dict) -> None:
        if line["kind"] == "evaluation" and line["step"]:
            line["step"] += 1

    spoil(study, other_machine)
    spoil(study, end_later)
    with pytest.raises(
        ResultsError, match="the last perplexity is .* step 6 .*recorded is .* step 7 "
    ):
        collect_again(trained, study)


def test_other_weights_without_perplexities_to_compare_are_others(
    trained: Path, study: Path
) -> None:
    """Oracle: by hand: nothing shows that they differ in rounding alone. Equal weights pass."""

    def measure_otherwise(line: dict) -> None:
        for name in line.get("texts", {}):
            line["texts"][name] = "0" * 12

    spoil(study, measure_otherwise)
    collect_again(trained, study)
    spoil(study, other_machine)
    with pytest.raises(ResultsError, match="validation text"):
        collect_again(trained, study)


def test_a_stage_measured_again_comes_to_the_same_perplexities(
    trained: Path, study: Path, capsys
) -> None:
    """Oracle: by hand: recorded perplexities are multiplied by 1 + 1e-5, and bits per byte agree
    with them, so that only measuring again can find the change. It must be refused.
    """
    _, keys = find_er(trained, study)
    arguments = ["verify", str(study), "--stage", keys[1], "--runs"]
    for stage in (0, 1):
        shutil.copy(trained / "study" / ARCHIVE, study / ARCHIVE)
        spoil(study, partial(scale_perplexities, 1 + 1e-5), f"stages/{keys[stage]}")
        assert main([*arguments, str(study / f"more{stage}")]) == 2
        told = capsys.readouterr().err
        assert re.search(
            rf"error: stage {keys[stage]} .*; perplexity \S+ .* [ab] after step \d of \w+, ", told
        )


def test_a_stage_that_was_there_is_what_its_model_is(trained: Path, study: Path, capsys) -> None:
    """Oracle: by hand: one weight of the first stage's model is changed. The message has its new
    hash. The stage's records are unchanged, so their perplexities agree.
    """
    er, [first, second] = find_er(trained, study)
    arguments = ["verify", str(study), "--runs", str(study / "again"), "--stage"]
    assert main([*arguments, first]) == 0
    folder = study / "again" / "stages" / first / "model"
    model = load(folder)
    next(model.parameters()).data[0] += 1
    shutil.rmtree(folder)
    model.save(folder, prepare_corpus(er, Store(study / "again")).tokenizer)
    assert main([*arguments, second]) == 2
    assert f"{folder}: its weights are {hash_weights(model)[:12]}, " in capsys.readouterr().err


def test_what_came_later_is_collected_and_another_run_is_refused(
    trained: Path, study: Path, tmp_path: Path
) -> None:
    """Oracle: by hand: each added line once, in the order in which they were collected. If a run
    has other stages than in the study, the message names both files.
    """
    runs, [suite] = Path(shutil.copytree(trained / "runs", tmp_path / "runs")), suites_of(study)
    key = Store(runs).read_stage_keys(suite[1][0])[1]
    scores, name = runs / "scores" / f"{key}.jsonl", f"scores/{key}.jsonl"

    def collected() -> list[str]:
        studies.collect(*suite, runs, study, methods.build)
        return archive.read_archive(study / ARCHIVE)[name].decode().splitlines()

    def make_line(error: str) -> str:
        values = {"key": "a", "task": "toy", "prompt": "none", "seed": 0}
        return json.dumps({"kind": "unscored", **values, "error": error})

    first = make_line("first")
    later = make_line("later")
    other = make_line("of another machine")
    scores.parent.mkdir(exist_ok=True)
    scores.write_text(f"{first}\n")
    assert collected() == [first]
    scores.write_text(f"{first}\n{later}\n")
    assert collected() == [first, later]
    scores.write_text(f"{other}\n{later}\n")
    assert collected() == [first, later, other]
    members = archive.read_archive(study / ARCHIVE)
    [line] = [name for name in members if name.startswith("suites/tiny/naive")]
    members[line] = members[line].replace(key.encode(), b"000000000000")
    archive.write_archive(study / ARCHIVE, members)
    with pytest.raises(
        ResultsError, match=f"stages .*{key}, the study .*stages .*, 000000000000: "
    ):
        collected()
    assert archive.read_archive(study / ARCHIVE) == members


def test_a_study_has_the_scores_of_each_suites_own_task(
    trained: Path, study: Path, tmp_path: Path
) -> None:
    """Oracle: by hand: two suites share models, and have tasks of one name with different examples,
    so each has its own scores. The suite whose archive is unpacked first was scored last.
    """
    runs, suites = Path(shutil.copytree(trained / "runs", tmp_path / "runs")), []
    text = (study / "tiny.toml").read_text()
    for name, number in (("tiny", 0.25), ("other", 0.75)):
        (study / f"{name}.toml").write_text(text)
        assert (
            main(["run", str(study / f"{name}.toml"), "--runs", str(runs), "--out", str(tmp_path)])
            == 0
        )
        for split in SPLITS:
            lines = [
                {"text": f"{name} {split} {word}", "label": word} for word in ("left", "right")
            ]
            write_lines(tmp_path / f"{name}.{split}", lines)
        files = "\n".join(f'{split} = "{tmp_path / name}.{split}"' for split in SPLITS)
        task = f'[[tasks]]\nname = "toy"\ndomain = "a"\n{files}\n[finetuning]\nseeds = 1\n'
        (study / f"{name}.toml").write_text(text + task)
        suite = load_suite(str(study / f"{name}.toml"))
        configs, store, [toy] = methods.list_runs(suite), Store(runs), suite.tasks
        suites.append((suite, configs))
        examples = load_examples(toy, suite.domains, store.data).key
        for model in {store.read_stage_keys(config)[-1] for config in configs}:
            key = make_score_key(model, toy, examples, suite.finetuning, "none", 0)
            names = {
                "key": key,
                "task": "toy",
                "task_key": examples,
                "domain": "a",
                "prompt": "none",
            }
            numbers = {"seed": 0, "metric": "macro_f1", "dev": 0.0, "test": number, "seconds": 1.0}
            append_line(store.scores_file(model), {"kind": "score", **names, **numbers})
        studies.collect(suite, configs, runs, study, methods.build)
    scores = load_study(suites, archive.unpack(study, tmp_path / "unpacked").root).scores
    assert (
        dict(zip(scores["suite"], scores["test"], strict=True)) == {"tiny": 0.25, "other": 0.75}
        and len(scores) == 4
    )


def test_a_study_has_what_any_of_its_suites_measured_of_a_shared_stage(
    trained: Path, study: Path, tmp_path: Path
) -> None:
    """Oracle: by hand: the line that one of two suites added, whichever archive comes first."""
    runs, configs = (
        Path(shutil.copytree(trained / "runs", tmp_path / "runs")),
        suites_of(study)[0][1],
    )
    stage = Store(runs).stage_file(Store(runs).read_stage_keys(configs[0])[1])
    line = {
        "kind": "later",
        "domain": "probe",
        "text": "0123",
        "perplexity": 7.0,
        "bits_per_byte": 1.0,
    }
    append_line(stage, line)
    for name in ("first", "zeroth"):
        (study / f"{name}.toml").write_text((study / "tiny.toml").read_text())
        suite = load_suite(str(study / f"{name}.toml"))
        shutil.copytree(runs / "suites" / "tiny", runs / "suites" / name)
        members = archive.read_archive(study / ARCHIVE)
        studies.collect(suite, methods.list_runs(suite), runs, study, methods.build)
        store = archive.unpack(study, tmp_path / name)
        [later] = select_kind(store.read_stage(stage.parent.name), LaterLine)
        assert later.perplexity == 7.0 and archive.read_archive(study / ARCHIVE) == members
        (study / "records" / f"{name}-s0.tar.gz").unlink()


def test_a_stage_that_suites_trained_to_other_weights_is_in_each_as_it_was(study: Path) -> None:
    """Oracle: by hand: the weights in each archive, whichever comes first."""
    plain = archive.read_archive(study / ARCHIVE)
    for name in ("first", "zeroth"):
        members = {
            path.replace("suites/tiny/", f"suites/{name}/"): content
            for path, content in plain.items()
        }
        archive.write_archive(study / "records" / f"{name}-s0.tar.gz", members)
    spoil(study, other_machine)
    with archive.open_suites(study) as folders:
        assert [*folders] == ["first", "tiny", "zeroth"]
        for name, folder in folders.items():
            store = Store(folder)
            weights = {
                find_last(store.read_stage(path.name), StageDone).weights
                for path in store.root.glob("stages/*")
            }
            assert ("0" * 64 in weights) == (name == "tiny")
            assert len(weights) == (1 if name == "tiny" else 3)
            assert [path.name for path in (store.root / "suites").iterdir()] == [name]


def other_machine(line: dict) -> None:
    if line["kind"] == "done":
        line["weights"] = "0" * 64
    if line["kind"] == "stage":
        line["provenance"]["hardware"].update(cpu="abacus", threads=7)
        del line["provenance"]["hardware"]["instructions"]  # as in records of earlier versions


def scale_perplexities(factor: float, line: dict) -> None:
    for name in line.get("perplexity", {}):
        bits = line["bits_per_byte"][name] / math.log(line["perplexity"][name])
        line["perplexity"][name] *= factor
        line["bits_per_byte"][name] = bits * math.log(line["perplexity"][name])


def more_steps(line: dict) -> None:
    if line["kind"] in ("done", "evaluation") and line["charged"]["steps"] == 6:
        line["charged"]["steps"] += 6.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (more_steps, "stage 0: 12 steps .*of 6"),
        (
            lambda line: (
                line.update(kind="metrics", phase="adapt", step=1, values={})
                if line["kind"] == "done"
                else None
            ),
            "stage 0 did not end",
        ),
        (lambda line: line.get("perplexity", {}).update(a=1.0), "the records give another table"),
    ],
)
def test_records_that_do_not_hold_are_refused(
    change: Callable[[dict], None], message: str, study: Path
) -> None:
    """Oracle: what was changed in the records."""
    spoil(study, change)
    with pytest.raises(ResultsError, match=message):
        check(study)


def test_a_reference_may_take_the_budget_of_all_stages_so_far(trained: Path, study: Path) -> None:
    """Oracle: by hand: with 6 steps per stage, a reference may spend 12 in the second stage. 24
    there, or 27 in both stages of another method, are more than a step too many.
    """
    config = suites_of(study)[0][1][0]
    [run] = [run for run in load_runs(trained / "runs", "tiny") if run.id == config.id]

    def charge(steps: float) -> RunRecords:
        first, second = run.stages
        lines = [
            replace(line, charged={**line.charged, "steps": steps})
            if isinstance(line, StageDone)
            else line
            for line in second
        ]
        return dataclasses.replace(run, stages=[first, lines])

    with pytest.raises(ResultsError, match="stage 1: 27 steps .*of 12"):
        studies.check_budgets(config, charge(21.0), is_reference=False)
    studies.check_budgets(config, charge(12.0), is_reference=True)
    with pytest.raises(ResultsError, match="stage 1: 24 steps .*of 12"):
        studies.check_budgets(config, charge(24.0), is_reference=True)


def test_a_report_that_was_edited_is_refused(study: Path) -> None:
    """Oracle: by hand: a table with a digit more, a missing table, and one that no record gives."""
    table = study / "report/tiny/main_pretraining.csv"
    text = table.read_text()
    table.write_text(text + "1")
    with pytest.raises(ResultsError, match=rf"{table.name}: .*records"):
        check(study)
    table.unlink()
    with pytest.raises(ResultsError, match=rf"{table.name}: .*records"):
        check(study)
    table.write_text(text)
    (study / "report/tiny/better.csv").write_text(text)
    with pytest.raises(ResultsError, match=r"better\.csv: .*records"):
        check(study)


def test_a_suite_without_records_has_no_report(study: Path) -> None:
    """Oracle: by hand: the report has a folder only for the suite that has an archive."""
    shutil.copy(study / "tiny.toml", study / "planned.toml")
    planned = load_suite(str(study / "planned.toml"))
    said = list(
        studies.render(
            study, [*suites_of(study), (planned, methods.list_runs(planned))], write_report
        )
    )
    assert [path.name for path in (study / "report").iterdir()] == [
        "tiny"
    ] and "planned: 0 of" in said[1]


def test_a_name_that_no_disk_holds_is_refused_in_a_line(study: Path) -> None:
    """Oracle: by hand: no file can have a name with NUL. Here tar's long form of a name has one."""
    archive.write_archive(study / ARCHIVE, {"suites/a\0" + "b" * 100: b"x"})
    with pytest.raises(ResultsError, match=r"tar\.gz: embedded null byte"):
        check(study)


def test_a_study_is_reported_as_a_folder_of_runs_is(study: Path, tmp_path: Path, capsys) -> None:
    """Oracle: the table that `collect` rendered, and the finished runs in the archive."""
    assert main(["status", str(study / "tiny.toml"), "--runs", str(study)]) == 0
    said = capsys.readouterr().out
    assert re.search(r": (\d+) runs, \1 done; 100% trained", said) and "run_all.py report" in said
    assert (
        main(
            [
                "report",
                str(study / "tiny.toml"),
                "--runs",
                str(study),
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    table = Path("tiny", "main_pretraining.csv")
    assert (tmp_path / "out" / table).read_text() == (study / "report" / table).read_text()
    opened = open_study(str(study / "tiny.toml"), str(study)).ends
    assert sorted(opened["run"].unique()) == sorted(config.id for config in suites_of(study)[0][1])
    capsys.readouterr()
    assert (
        main(
            [
                "track",
                str(study / "tiny.toml"),
                "--runs",
                str(study),
                "--out",
                str(tmp_path / "tracked"),
            ]
        )
        == 0
    )
    written = {path.name for path in (tmp_path / "tracked" / "tiny").iterdir()}
    assert written == set(opened["run"]) and "tensorboard --logdir" in capsys.readouterr().out


def test_a_study_is_not_written_to_but_by_collect(study: Path, tmp_path: Path, capsys) -> None:
    """Oracle: the files that are there before and after, and the folder or suite that messages
    name.
    """
    before = sorted(path for path in study.rglob("*"))
    for command in ("run", "prepare", "speed", "cancel", "tune"):
        assert main([command, str(study / "tiny.toml"), "--runs", str(study)]) == 2
        assert str(study) in capsys.readouterr().err
    assert main(["collect", "demo", "--runs", str(tmp_path), "--study", str(study)]) == 2
    assert "'demo'" in capsys.readouterr().err and sorted(study.rglob("*")) == before
    shutil.copy(study / ARCHIVE, study / "records" / "stranger-s0.tar.gz")
    with pytest.raises(ResultsError, match="'stranger'"):
        check(study)


def test_records_that_are_not_there_are_said(study: Path, tmp_path: Path) -> None:
    """Oracle: the message names the suite."""
    with pytest.raises(UserError, match="no records of tiny"):
        open_study(str(study / "tiny.toml"), str(tmp_path))


def test_runs_that_a_study_lacks_are_to_be_done(study: Path, capsys) -> None:
    """Oracle: by hand: a seed that the archive lacks is "todo", even if its text is not here."""
    text = (study / "tiny.toml").read_text()
    (study / "tiny.toml").write_text(text.replace("/a.jsonl", "/gone.jsonl"))
    assert main(["status", str(study / "tiny.toml"), "--runs", str(study), "--seeds", "7"]) == 0
    assert "todo" in capsys.readouterr().out


def test_collect_leaves_out_rows_that_the_study_does_not_name(
    trained: Path, study: Path, capsys
) -> None:
    """Oracle: the study's file, which names only Naive: the archive has only this run, and
    verifies. The output names ER.
    """
    (study / ARCHIVE).unlink()
    suite = study / "tiny.toml"
    suite.write_text(suite.read_text().replace('["naive", "er"]', '["naive"]'))
    places = ["--runs", str(trained / "runs"), "--study", str(study)]
    assert main(["collect", str(trained / "tiny.toml"), *places]) == 0
    assert "left out: ER;" in capsys.readouterr().out
    runs = [
        name for name in archive.read_archive(study / ARCHIVE) if name.startswith("suites/tiny/")
    ]
    assert len(runs) == 1 and "/naive-s0-" in runs[0]
    assert check(study)[0].startswith("tiny: 1 of 1 runs")


def test_what_an_archive_lacks_is_trained_elsewhere(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the exit status of the command that the note on missing cells names."""
    suite = str(study / "tiny.toml")
    words = [suite, "--runs", str(study), "--set", "tables=[]"]
    suites = [(load_suite(suite, words=words), methods.list_runs(load_suite(suite)))]
    unpacked = archive.unpack(study, tmp_path / "unpacked").root
    [command] = load_study(suites, unpacked).command_arguments.values()
    monkeypatch.chdir(tmp_path)
    assert main(["run", *shlex.split(command), "--dry-run"]) == 0
    assert command.endswith("--set 'tables=[]'")
    elsewhere = load_study(suites, study.parent).command_arguments
    assert [*elsewhere.values()] == [shlex.join(words)]
