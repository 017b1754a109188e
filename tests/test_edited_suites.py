"""A suite that was edited while its jobs are under way: which of them are for nothing any more, and what ends these."""

from __future__ import annotations

import re
import shlex

import pytest

from benchmark.jobs.slurm import commands
from tests.support.fake_slurm import FakeSlurm, _each
from tests.support.slurm_lab import Lab, write_task, write_texts

STALE = re.compile(r"^! (\d+) jobs are for what the suite no longer asks for: `(.*?)` ends them", re.MULTILINE)
SCORES = {"tiny:score-naive-s0-sea", "tiny:score-er-s0-sea"}
TRAINS = {"tiny:naive-s0", "tiny:er-s0", "tiny:wood-of-2-s0"}


@pytest.fixture
def lab(tmp_path) -> Lab:
    write_texts(tmp_path)
    lab = Lab(tmp_path / "lab", tmp_path)
    return lab.write('{ method = "naive" }', '{ method = "er" }', tasks=write_task(lab.folder))


def edit(lab: Lab, before: str, after: str) -> None:
    text = lab.file.read_text()
    assert text.count(before) == 1
    lab.file.write_text(text.replace(before, after))
    lab._configs = []


def status(lab: Lab, capsys, *words: str) -> tuple[list[str], str]:
    """The command that ends stale jobs, empty without any, and all that `status` says."""
    capsys.readouterr()
    assert lab.call("status", *words) == 0
    told = capsys.readouterr().out
    assert ("asks for" in told) == bool(STALE.search(told))
    found = STALE.search(told)
    ends = shlex.split(found[2])[1:] if found else []
    assert not found or int(found[1]) == len(_each(",".join(ends)))
    return ends, told


def ids_of(lab: Lab, names: set[str]) -> list[str]:
    jobs = lab.jobs()
    assert names <= {job.name for job in jobs}
    return list(commands.shortened([job.id for job in jobs if job.name in names]))


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [
        ("max_epochs = 1", "max_epochs = 2", {*SCORES, "tiny:report"}),
        ("vocabulary = 300", "vocabulary = 301", {"tiny:prepare", *TRAINS, *SCORES, "tiny:report"}),
        ('"main_pretraining"', '"trend_main"', {"tiny:report"}),
        ('title = "Tiny"', 'title = "Small"', {"tiny:report"}),
        (', { method = "er" }', "", {"tiny:er-s0", "tiny:score-er-s0-sea", "tiny:report"}),
        ("batch_size = 8", "batch_size = 16", {*TRAINS, *SCORES, "tiny:report"}),
        ("[slurm]", "[slurm]\ntime = 99", set()),
    ],
)
def test_what_an_edit_leaves_over_is_ended_by_the_command_and_no_other(
    lab: Lab, tmp_path, monkeypatch, capsys, before: str, after: str, gone: set[str]
) -> None:
    """Oracle: what each edit makes anew, by hand; and the jobs that Slurm has after the command of `status`.

    `run` submits what took their place, once, and a report that does not wait for them; nothing where only resources
    differ.
    """
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit() == 0 and status(lab, capsys)[0] == []
    edit(lab, before, after)
    expected, old = ids_of(lab, gone), {*slurm.jobs}
    assert status(lab, capsys)[0] == expected
    assert lab.submit() == 0
    new = {*slurm.jobs} - old
    last = max(lab.jobs(), key=lambda job: int(job.array))
    assert bool(new) == bool(gone) and (not new or last.name == "tiny:report")
    ended = {job.id for job in lab.jobs() if job.name in gone} & old
    assert not gone or not ended & {*last.submitted["after"]}
    found, told = status(lab, capsys)
    assert found == expected
    left = [job for job in lab.jobs() if job.id not in ended and not job.run]
    assert f"{len(left)} other jobs wait" in told
    assert lab.submit() == 0 and {*slurm.jobs} == old | new
    assert slurm_ids(slurm, found) == ended and {*slurm.jobs} == (old | new) - ended
    assert status(lab, capsys)[0] == []
    assert lab.submit() == 0 and {*slurm.jobs} == (old | new) - ended


@pytest.mark.parametrize("named", [False, True])
def test_a_seed_that_was_dropped_is_not_one_that_was_named(
    lab: Lab, tmp_path, monkeypatch, capsys, named: bool
) -> None:
    """Oracle: which seeds the suite names, and which the command line that submitted did, by hand."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    edit(lab, "methods = []", "seeds = [0, 1, 2]\nmethods = []")
    assert lab.submit(*(["--seeds", "0,1,2"] if named else [])) == 0
    edit(lab, "seeds = [0, 1, 2]", "seeds = [0]")
    gone = {job.name for job in lab.jobs() if re.search("-s[12]", job.name)} | {"tiny:report"}
    assert status(lab, capsys)[0] == ([] if named else ids_of(lab, gone))
    before = {*slurm.jobs}
    assert lab.submit() == 0
    assert len({*slurm.jobs} - before) == (0 if named else 1), "a report of what is left"
    if not named:  # this call asks for them
        assert status(lab, capsys, "--seeds", "0,1,2")[0] == ids_of(lab, set()) + [
            job.id for job in lab.jobs() if job.name == "tiny:report" and job.id in before
        ]
    edit(lab, "head_size = 8", "head_size = 4")  # now nobody does
    assert {"tiny:er-s1", "tiny:er-s2"} <= {
        job.name for job in lab.jobs() if job.id in slurm_ids(slurm, status(lab, capsys)[0])
    }


def slurm_ids(slurm: FakeSlurm, words: list[str]) -> set[str]:
    """The jobs that scancel would end."""
    slurm.answer(["scancel", *words]) if words else None
    return slurm.cancelled


def test_reports_of_some_rows_are_not_stale(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: what the command lines asked for, by hand: a report each, of one row or both; nothing was edited."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit("--methods", "er") == 0
    assert lab.submit() == 0
    before = {*slurm.jobs}
    for words in ([], ["--methods", "er"], ["--seeds", "0"]):
        assert status(lab, capsys, *words)[0] == []
        assert lab.submit(*words) == 0 and {*slurm.jobs} == before


def test_what_other_jobs_wait_for_is_not_stale(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: who waits for whom, by hand: the same text is that of a call with another rate, which goes on."""
    FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit() == 0
    first = {job.id: job.name for job in lab.jobs()}
    assert lab.submit("--methods", "er", "--set", "training.learning_rate=7e-3") == 0
    edit(lab, "vocabulary = 300", "vocabulary = 301")
    found, told = status(lab, capsys)
    assert found == commands.shortened([id for id, name in first.items() if name != "tiny:prepare"])
    assert f"{len(lab.jobs()) - len(first)} jobs are for runs with other settings" in told


def test_a_measure_that_no_table_shows_is_stale(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: the tables, by hand: one reads models, the other does not."""
    FakeSlurm(tmp_path / "bin", monkeypatch)
    edit(lab, '"main_pretraining"', '"main_pretraining", "representational_similarity"')
    assert lab.submit() == 0 and status(lab, capsys)[0] == []
    edit(lab, ', "representational_similarity"', "")
    gone = {job.name for job in lab.jobs() if ":similarity-" in job.name}
    assert len(gone) == 2 and status(lab, capsys)[0] == ids_of(lab, gone | {"tiny:report"})


def test_what_waits_in_a_reports_place_ends_with_it(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: three ids at most in one dependency, of six runs: those between belong to the old report alone."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch, largest=1)
    monkeypatch.setattr(commands, "PIECE", 3)
    edit(lab, "methods = []", "seeds = [0, 1, 2]\nmethods = []")
    assert lab.submit() == 0
    edit(lab, '"main_pretraining"', '"trend_main"')
    gone = [job.id for job in lab.jobs() if job.name in ("tiny:wait", "tiny:report")]
    assert len(gone) > 1 and lab.submit() == 0
    assert slurm_ids(slurm, status(lab, capsys)[0]) == {*gone}
