"""States of jobs and runs without a cluster: what Slurm says, what it does not say, and what ends jobs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from typing import Any

import msgspec
import pytest
from msgspec import structs

import methods
import run_all
from benchmark.jobs.executors.slurm import SlurmExecutor
from benchmark.jobs.plan import LaunchOptions, to_train
from benchmark.jobs.slurm import commands, job_files
from benchmark.jobs.status import watch
from benchmark.jobs.survey import Survey
from benchmark.locks import Lease, me
from benchmark.settings.load import load_suite, parse_set
from benchmark.store import Store
from tests.support.job_lines import STARTED, ask, write_job
from tests.support.record_lines import append_line
from tests.support.slurm_lab import Lab, write_task, write_texts

NAIVE, ER = '{ method = "naive" }', '{ method = "er" }'


@pytest.fixture
def lab(tmp_path) -> Lab:
    write_texts(tmp_path)
    return Lab(tmp_path / "lab", tmp_path).write(NAIVE, ER)


@pytest.mark.parametrize(
    ("lines", "queue", "sacct", "state", "detail"),
    [
        ([], {"7": commands.Queued("PENDING", "Priority", "")}, {}, "waiting", "Priority"),
        ([STARTED], {"7": commands.Queued("RUNNING", "", "n1")}, {}, "running", "starting"),
        ([STARTED], {"7": commands.Queued("SUSPENDED", "", "n1")}, {}, "running", "suspended; 0 of 2 stages done"),
        ([STARTED, STARTED], {"7": commands.Queued("PENDING", "BeginTime", "")}, {}, "waiting", "BeginTime; 0 of 2"),
        ([STARTED, {"kind": "ended", "state": "failed", "error": "a\nb"}], {}, {}, "failed", "b"),
        ([STARTED, {"kind": "ended", "state": "stopped", "error": "why"}], {}, {}, "interrupted", "why"),
        ([STARTED], {}, {"7": "OUT_OF_MEMORY"}, "failed", "word (OUT_OF_MEMORY): its processes took more memory"),
        ([STARTED], {}, {"7": "NODE_FAIL"}, "interrupted", "(NODE_FAIL)"),
        ([STARTED], {}, None, "interrupted", "sacct does not say how"),
        ([STARTED], {}, {}, "unknown", "gone from the queue, and sacct still says nothing; started on n1"),
        ([], {}, {}, "interrupted", "sacct does not say how"),
        ([], {"7": commands.Queued("REQUEUE_HOLD", "", "")}, {}, "held", "REQUEUE_HOLD: `scontrol release 7` lets"),
        *(
            ([], {"7": commands.Queued(state, "job requeued in held state", "")}, {}, "held", "job requeued in held")
            for state in ("PENDING", "SPECIAL_EXIT")
        ),
        ([], {"7": commands.Queued("PENDING", "JobHeldUser", "")}, {}, "held", "`scontrol release 7` lets it go"),
        *(
            ([STARTED], {}, {"7": said}, "unknown", f"gone from the queue, and sacct still says {said}; started on n1")
            for said in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")
        ),
        ([STARTED], None, {}, "unknown", "Slurm does not answer; started on n1 20"),
        ([], None, {}, "unknown", "Slurm does not answer; submitted 20"),
        ([STARTED, {"kind": "ended", "state": "failed", "error": "a\nb"}], None, {}, "failed", "b"),
        (
            [STARTED, {"kind": "ended", "state": "stopped", "error": "why"}],
            None,
            {},
            "unknown",
            "Slurm does not answer",
        ),
    ],
)
def test_states_of_jobs(lab: Lab, monkeypatch, lines, queue, sacct, state, detail) -> None:
    """Who failed by its own fault is failed; what the cluster or a user ended is interrupted, and `run` goes on."""
    ask(monkeypatch, queue)
    monkeypatch.setattr(commands, "endings", lambda ids: sacct and {key: sacct[key] for key in ids if key in sacct})
    write_job(lab, "Naive", *lines)
    found = lab.states()["Naive"]
    assert (found.state, found.job.id, found.restarts) == (state, "7", max(0, lines.count(STARTED) - 1))
    assert detail in found.detail
    retried = [one.config.row for one in to_train(lab.states().values(), retry_failed=True)]
    left = [one.config.row for one in to_train(lab.states().values(), retry_failed=False)]
    assert ("Naive" in retried) == (state in ("failed", "interrupted")) and ("Naive" in left) == (
        state == "interrupted"
    )


def test_status_without_slurm_is_from_the_records(lab: Lab, monkeypatch, caplog) -> None:
    """A machine outside the cluster still says what the records know."""
    ask(monkeypatch, None)
    write_job(lab, "Naive", STARTED, {"kind": "ended", "state": "failed", "error": "why"})
    assert lab.call("status") == 1
    assert "no answer" in caplog.text


def test_no_answer_is_no_end(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: the contract: who waits goes on waiting, exit status 3 tells, nothing is submitted or ended."""
    ask(monkeypatch, None)
    write_job(lab, "Naive", STARTED)
    assert lab.call("status") == 3
    assert "2 runs, 1 unknown, 1 todo" in capsys.readouterr().out
    paused: list[float] = []

    def sleep(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 8:
            ask(monkeypatch, {})  # it answers again: the job is gone

    survey = Survey(load_suite(str(lab.file)), lab.configs(), methods.build, Store(lab.runs))
    assert watch(survey, sleep) == 0 and len(paused) == 8
    assert paused[0] == 30 and paused[-1] == 300 and paused == sorted(paused), "it asks ever less often"
    ask(monkeypatch, None)
    ended: list[object] = []
    monkeypatch.setattr(commands, "cancel", ended.append)
    assert lab.call("cancel") == 2 and ended == []
    assert lab.call("run", "--executor", "slurm", "--dry-run") == lab.call("run", "--executor", "slurm") == 2
    assert len(lab.jobs()) == 1
    write_job(lab, "ER", STARTED, id="8")
    assert lab.call("run") == 3, "a run on this machine has nothing to do, and does not know whether all is done"


@pytest.mark.parametrize(("submitted", "pauses"), [(False, [5, 5, 5]), (True, [30, 45, 67.5])])
def test_a_queue_is_asked_seldom_by_who_watches_what_runs_here(lab: Lab, monkeypatch, submitted: bool, pauses) -> None:
    """Oracle: the pauses by hand: they are short only where no question goes to squeue, as one does where a folder of
    jobs is there, though no job is."""
    asked: list[object] = []
    monkeypatch.setattr(commands, "queue", lambda *others: asked.append(others) or {})
    if submitted:
        job_files.folder_of(lab.runs, "tiny").mkdir(parents=True)
    survey = Survey(load_suite(str(lab.file)), lab.configs(), methods.build, Store(lab.runs))
    paused: list[float] = []
    survey.under_way = lambda: len(paused) < 3  # type: ignore[method-assign]
    assert watch(survey, paused.append) == 0
    assert paused == pauses and len(asked) == (4 if submitted else 0)


def test_a_local_sweep_asks_the_queue_seldom(lab: Lab, monkeypatch) -> None:
    """Oracle: the questions, counted: one before training, whatever is shown while it goes on; another after a pause;
    and one for each that wants to know what is so now."""
    asked: list[object] = []
    monkeypatch.setattr(commands, "queue", lambda *others: asked.append(others) or {})
    job_files.folder_of(lab.runs, "tiny").mkdir(parents=True)
    monkeypatch.setattr("benchmark.jobs.survey.PAUSE", 1e9)
    lab.file.write_text(lab.file.read_text().replace("[40, 200]", "[1, 1]"))
    assert lab.call("run", "--parallel", "1") == 0 and len(asked) == 1
    survey = Survey(load_suite(str(lab.file)), lab.configs(), methods.build, Store(lab.runs))
    for lately, questions in ((True, 2), (True, 2), (False, 3)):
        assert len(survey.states(lately)) == 2 and len(asked) == questions
    monkeypatch.setattr("benchmark.jobs.survey.PAUSE", 0.0)
    assert len(survey.states(True)) == 2 and len(asked) == 4


def test_what_nobody_will_start_is_told_with_its_cure(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: the queue, written by hand: a noted job, an array that nobody noted, a job of an older suite."""
    held = commands.Queued("PENDING", "JobHeldUser", "")
    scripts = job_files.folder_of(lab.runs.absolute(), "tiny") / "logs" / "x.sh"
    unnoted = {f"8_{task}": commands.Queued("PENDING", "JobHeldUser", "", str(scripts)) for task in range(3)}
    other = {"9": commands.Queued("PENDING", "JobHeldUser", "", "/elsewhere/x.sh")}
    ask(monkeypatch, {"7": held, **unnoted, **other, "6": commands.Queued("RUNNING", "", "n1")})
    write_job(lab, "Naive", released=False)
    write_job(lab, "ER", STARTED, id="6", key="er-s0-older", run="er-s0-older")
    assert lab.call("status") == 0
    told = capsys.readouterr().out
    assert "2 runs, 1 held, 1 todo; 0% of the budget; other jobs: 1 held" in told
    assert re.search(r"naive-s0 +held +7 .*a submission that died: `run` lets it go", told)
    assert re.search(r"tiny:\?  held  8_\[0-2\]  .*before it noted it: `run` ends it", told) and "elsewhere" not in told
    assert "1 jobs are for what the suite no longer asks for: `scancel 6`" in told
    ended: list[list[str]] = []
    monkeypatch.setattr(commands, "_ask", lambda command: ended.append(command) or "")
    assert lab.call("cancel") == 0 and [sorted(words) for words in ended] == [["6", "7", "8_[0-2]", "scancel"]]


@pytest.mark.parametrize(("count", "ends"), [(30, "[0-29]"), (250, "[0-99]")])
def test_stale_jobs_end_by_one_command_of_bounded_length(lab: Lab, monkeypatch, capsys, count: int, ends: str) -> None:
    """Oracle: the words that a shell makes of it: scancel and the tasks of an array, of which 100 at most are named. A
    bundle that also trains a run of today is not among them."""
    running = commands.Queued("RUNNING", "", "n1")
    ask(monkeypatch, {**{f"12_{task}": running for task in range(count)}, "7": running})
    for task in range(count):
        write_job(lab, "ER", id=f"12_{task}", key=f"gone-s{task}-x", run=f"gone-s{task}-x")
    for run in ("er-s0-oldest", lab.config("Naive").id):
        write_job(lab, "Naive", id="7", key=run, run=run, bundled=True)
    assert lab.call("status") == 0
    told = capsys.readouterr().out
    [command] = re.findall(rf"! {count} jobs are for what the suite no longer asks for: `(.*?)`", told)
    assert shlex.split(command) == ["scancel", f"12_{ends}"] and "'" in command, "no pattern of file names"
    assert ("ends 100 of them, and `status` then names others" in told) == (count > 100)


def test_a_wait_for_another_suites_stage_is_told(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: the lease, written by hand: job 9_1 has the first stage of the run that job 7 is for.

    The keys of stages are those of the text, once it is there.
    """
    lab.call("prepare")
    ask(monkeypatch, {"7": commands.Queued("RUNNING", "", "n1")})
    write_job(lab, "Naive", STARTED)
    stage = Store(lab.runs).stage(lab.states()["Naive"].trained.keys[0])
    stage.mkdir(parents=True)
    owner = msgspec.to_builtins(structs.replace(me(), kernel="of n2", host="n2", pid=12, user="ann", job="9_1"))
    (stage / "lock.1").write_text(json.dumps(owner))
    capsys.readouterr()
    assert lab.call("status") == 0
    told = "waits for its next stage, which process 12 of ann on n2, job 9_1 trains; `scancel 9_1` ends that"
    assert told in capsys.readouterr().out
    (stage / "lock.1").write_text(json.dumps({**owner, "job": "7"}))
    assert lab.call("status") == 0 and "waits for" not in capsys.readouterr().out


def test_a_local_run_that_waits_for_somebody_else_says_so(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: who has the lease of the stage, here this process; the run has begun, gives no sign of life, and is no
    job."""
    lab.call("prepare")
    states = lab.states()["Naive"]
    append_line(
        Store(lab.runs).run_file(states.config),
        msgspec.to_builtins(states.config.description()) | {"stages": list(states.trained.keys)},
    )
    capsys.readouterr()
    stage = Store(lab.runs).stage(states.trained.keys[0])
    stage.mkdir(parents=True)
    with Lease(stage / "lock"):
        assert lab.call("status") == 0
    told = (
        f"its next stage is trained by process {os.getpid()} of {me().user} on {me().host}; `kill {os.getpid()}` there"
    )
    assert re.search(f"naive-s0 +running .*{re.escape(told)}", capsys.readouterr().out)


def test_the_runs_of_a_bundle_have_states_of_their_own(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: what its file says of each: one failed, one is trained; one that was not begun waits for its turn.

    Queued again, what had failed is not done again; killed, only what was begun has failed, or all where it has said no
    word since sacct saw it start. Cancelled is all or none.
    """
    lab.write(NAIVE, ER, '{ method = "mas" }')
    ask(monkeypatch, {"7": commands.Queued("RUNNING", "", "n1")})
    failing, trained = lab.config("Naive").id, lab.config("ER").id
    for row in ("Naive", "ER", "MAS"):
        write_job(lab, row, bundled=True)
    file = job_files.folder_of(lab.runs, "tiny") / "7.jsonl"

    def say(*lines: dict[str, Any]) -> dict[str, str]:
        for line in lines:
            append_line(file, line)
        return {row: found.state for row, found in lab.states().items()}

    begun = [{"kind": "begun", "key": key} for key in (failing, trained)]
    found = say(STARTED, *begun, {"kind": "ended", "state": "failed", "error": "why", "key": failing})
    assert found == {"Naive": "failed", "ER": "running", "MAS": "waiting"}
    assert "its job trains others first" in lab.states()["MAS"].detail
    ended: list[list[str]] = []
    monkeypatch.setattr(commands, "cancel", lambda ids: ended.append([*ids]) if ids else None)
    assert lab.call("cancel", "--methods", "er") == 0 and ended == []
    assert "7 goes on: it trains other runs too" in capsys.readouterr().out
    assert lab.call("cancel", "--methods", "er,mas") == 0 and set(ended.pop()) == {"7"}
    ask(monkeypatch, {})
    monkeypatch.setattr(commands, "endings", lambda ids: dict.fromkeys(ids, "OUT_OF_MEMORY"))
    start = lab.jobs()[0].starts[-1]["time"]
    monkeypatch.setattr(commands, "began", lambda ids: dict.fromkeys(ids, start - 7))
    assert say() == {"Naive": "failed", "ER": "failed", "MAS": "interrupted"}
    monkeypatch.setattr(commands, "began", lambda ids: dict.fromkeys(ids, start + 60))
    assert say() == dict.fromkeys(found, "failed"), "queued again, and dead before its first word"
    ask(monkeypatch, {"7": commands.Queued("PENDING", "BeginTime", "")})
    assert say() == {"Naive": "failed", "ER": "waiting", "MAS": "waiting"}
    ask(monkeypatch, {"7": commands.Queued("RUNNING", "", "n1")})
    found = say(STARTED, {"kind": "begun", "key": trained})
    assert found == {"Naive": "failed", "ER": "running", "MAS": "waiting"}
    assert [lab.states()[row].restarts for row in ("Naive", "ER", "MAS")] == [0, 1, 1]


def test_cancel_ends_what_it_is_told(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: the options: a row, a seed, or nothing at all; what serves other rows too goes on."""
    ask(monkeypatch, {id: commands.Queued("RUNNING", "", "n1") for id in "678"})
    naive, er = (lab.config(row).id for row in ("Naive", "ER"))
    write_job(lab, "Naive", STARTED, id="6")
    write_job(lab, "ER", STARTED, id="7")
    write_job(lab, "ER", STARTED, id="8", key="stage-x", run=None, serves=[naive, er])
    ended: list[list[str]] = []
    monkeypatch.setattr(commands, "cancel", lambda ids: ended.append([*ids]) if ids else None)
    assert lab.call("cancel", "--methods", "er", "--dry-run") == 0 and ended == []
    assert capsys.readouterr().out == "1 jobs would be ended; the same without --dry-run ends them\n7  ER  running\n"
    assert lab.call("cancel", "--methods", "er") == 0 and ended.pop() == ["7"]
    assert lab.call("cancel", "--methods", "er,naive") == 0 and ended.pop() == ["6", "7", "8"]
    assert lab.call("cancel", "--seeds", "5") == 0 and ended == []
    assert lab.call("cancel") == 0 and ended.pop() == ["6", "7", "8"]


def test_cancel_tells_runs_of_other_settings_apart(lab: Lab, monkeypatch) -> None:
    """Oracle: by hand: a row twice, as the suite says and with `--set`, which gives it another id and the same label.

    Without `--set` a row's jobs are all those of its label; what both need goes on.
    """
    ask(monkeypatch, {id: commands.Queued("RUNNING", "", "n1") for id in "678"})
    setting, naive = "training.learning_rate=7e-3", lab.config("Naive").id
    [other] = methods.runs(load_suite(str(lab.file), dict([parse_set(setting)])), ("naive",), ())
    write_job(lab, "Naive", STARTED, id="6")
    write_job(lab, "Naive", STARTED, id="7", key=other.id, run=other.id)
    write_job(lab, "Naive", STARTED, id="8", key="stage-x", run=None, serves=[naive, other.id])
    assert other.label == lab.config("Naive").label and other.id != naive
    ended: list[list[str]] = []
    monkeypatch.setattr(commands, "cancel", lambda ids: ended.append([*ids]) if ids else None)
    assert lab.call("cancel", "--set", setting) == 0 and ended.pop() == ["7"]
    assert lab.call("cancel", "--set", setting, "--methods", "er") == 0 and ended == []
    assert lab.call("cancel", "--set", "slurm.time=9") == 0 and ended.pop() == ["6"], "that changes no run"
    assert lab.call("cancel", "--methods", "naive") == 0 and ended.pop() == ["6", "7", "8"]


def test_what_a_command_does_not_use_is_refused(lab: Lab, capsys) -> None:
    """Oracle: what each command does: only some render, and none but `run` and `tune` start anything."""
    unused = ["status --out x", "cancel --out x", "prepare --out x", "status --wait"]
    unused += ["prepare --seeds 77", "tune --executor slurm"]
    wanted = "--methods er", "--seeds 1", "--set a.b=1"
    for words in map(str.split, [*unused, *(f"verify x {option}" for option in wanted)]):
        with pytest.raises(SystemExit, match="2"):
            run_all.main(words)
    assert run_all.main(["verify", str(lab.folder), "--runs", "elsewhere"]) == 2
    for unit, code in (("steps", 2), ("seconds", 0)):
        assert lab.call("run", "--dry-run", "--share-machine", "--set", f"budget.unit={unit}") == code
    assert "--share-machine: runs wait for each other under a budget of wall time" in capsys.readouterr().err
    assert lab.call("run", "--executor", "slurm", "--parallel", "2", "--dry-run") == 2
    assert "set slurm.array_parallelism" in capsys.readouterr().err
    for command in ("run", "tune"):
        assert lab.call(command, "--dry-run", "--wait") == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("error: --wait: with --dry-run nothing begins")


@pytest.mark.parametrize(
    ("ending", "again", "when_asked"), [("FAILED", [], ["score", "report"]), ("CANCELLED", ["score", "report"], None)]
)
def test_a_killed_score_is_seen_and_tried_again_when_asked(
    lab: Lab, monkeypatch, capsys, ending: str, again: list[str], when_asked: list[str] | None
) -> None:
    """Oracle: the rule for runs: its own fault waits until it is asked for, the cluster's or a user's does not.

    The dry run says the same as what would be submitted.
    """
    lab.write(NAIVE, tasks=write_task(lab.folder))
    lab.file.write_text(lab.file.read_text().replace("[40, 200]", "[1, 1]"))
    assert lab.call("run", "--set", "tasks=[]", "--set", "tables=[]", "--parallel", "1") == 0
    ask(monkeypatch, {})
    monkeypatch.setattr(commands, "endings", lambda ids: dict.fromkeys(ids, ending))
    [score, _] = lab.plan().jobs()
    write_job(lab, "Naive", STARTED, key=score.key, run=None)
    known = SlurmExecutor(lab.plan().suite, Store(lab.runs)).jobs()
    assert [job.kind for job in lab.plan().jobs(known)] == again
    asked = dataclasses.replace(lab.plan(), options=LaunchOptions(retry_failed=True))
    assert [job.kind for job in asked.jobs(known)] == (when_asked or again)
    assert lab.call("run", "--executor", "slurm", "--dry-run") == 0
    told = capsys.readouterr().out
    assert ("2 jobs to submit: 1 to score, 1 to report" in told) == bool(again)
    assert lab.call("status") == int(ending == "FAILED")
    told = capsys.readouterr().out
    assert f"other jobs: 1 {'failed' if ending == 'FAILED' else 'interrupted'}" in told
    assert ("--retry-failed` (with --executor as before) tries again what failed" in told) == (ending == "FAILED")
    assert ("(with --executor as before) scores what is missing" in told) == (ending == "CANCELLED")


def test_a_failed_preparation_that_others_have_made_good_is_over(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: exit status 1 while its text is not prepared, 0 when it is."""
    [data, *_] = lab.plan().jobs()
    ask(monkeypatch, {})
    write_job(lab, "Naive", STARTED, {"kind": "ended", "state": "failed", "error": "why"}, key=data.key, run=None)
    assert lab.call("status") == 1
    assert "other jobs: 1 failed" in capsys.readouterr().out
    assert lab.call("prepare") == 0
    capsys.readouterr()
    assert lab.call("status") == 0
    assert "other jobs" not in capsys.readouterr().out


def test_tasks_that_never_began_are_told_apart(monkeypatch) -> None:
    """Oracle: sacct's own way to write them: ranges with steps, lists, and with the most that may run at a time."""
    said = "8_[0-4:2,7]|CANCELLED by 0\n7_[1-2,5%3]|CANCELLED by 0\n7_0|COMPLETED\n9_[4]|PENDING\n12|FAILED\n"
    monkeypatch.setattr(commands, "_ask", lambda command: said)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    cancelled = dict.fromkeys(("7_1", "7_2", "7_5", "8_0", "8_2", "8_4", "8_7"), "CANCELLED")
    assert commands.endings([*cancelled, "7_0", "7_3", "9_4", "12"]) == {
        **cancelled,
        "7_0": "COMPLETED",
        "9_4": "PENDING",
        "12": "FAILED",
    }
