"""How many jobs Slurm takes, and for how long, by what sacctmgr says: `doctor` and `run --dry-run` tell it."""

from __future__ import annotations

import dataclasses

import pytest

from benchmark.jobs.slurm import commands
from benchmark.jobs.slurm.requests import exceeded, of_limits
from tests.support.fake_slurm import FakeSlurm
from tests.support.slurm_lab import Lab
from tests.support.slurm_requests import requests


def test_limits_of_accounts(monkeypatch) -> None:
    """Oracle: sacctmgr's own words, and Slurm's order: of limits of a kind that of the partition's QOS holds, else that
    of the job's, else that of the account. Where it is silent, or the controller enforces none, nothing is said."""
    asked: list[list[str]] = []
    tables = {"associations": "lab|4||\nbio|||day\n", "qos": "day|2|7|||\nfew|||90||\nnormal|||||\n", "user=": ""}

    def answer(command: list[str]) -> str:
        asked.append(command)
        return tables["user=" if "user=" in command else command[4]]

    monkeypatch.setattr(commands, "_ask", answer)
    partitions = {"short": {"QoS": "few", "Default": "YES"}}

    def told(account: str | None = None, **settings: str) -> list[str]:
        asked.clear()
        return [*map(str, of_limits({"ClusterName": "red", **settings}, account, requests(), partitions))]

    lab, few, day, of_account = told()
    assert lab.startswith("look   account lab: at most 4 jobs of yours in the queue (MaxSubmitJobs): `run` ")
    assert few.startswith("look   QOS few: at most 90 jobs of all its users in the queue (GrpSubmitJobs)")
    assert day.startswith("look   QOS day: at most 2 jobs of yours in the queue (MaxSubmitJobsPU)")
    assert of_account.startswith("look   QOS day: at most 7 jobs of an account in the queue (MaxSubmitJobsPA)")
    tables["qos"] = "day|2||||\nfew|3||||\nnormal|5||||\n"
    assert [line[:25] for line in told()] == ["look   QOS few: at most 3"]
    tables["qos"] = "day|2||||OverPartQOS\nfew|3||||\nnormal|5||||\n"
    assert [line[:25] for line in told()] == ["look   QOS few: at most 3", "look   QOS day: at most 2"]
    assert "cluster=red" in asked[1]
    assert "account=lab" not in asked[0] and "cluster=red" in asked[0] and asked[2][5] == "day,few,normal"
    assert told("lab", AccountingStorageEnforce="associations,limits") and "account=lab" in asked[0]
    assert not told(AccountingStorageEnforce="associations") and not asked

    def silent(command: list[str]) -> str:
        raise commands.SlurmError("Slurm accounting storage is disabled")

    monkeypatch.setattr(commands, "_ask", silent)
    assert not told()


def test_limits_above_an_account_and_of_time(monkeypatch) -> None:
    """Oracle: by hand, with words of a real sacctmgr (22.05), which gives a user MaxSubmitJobs and MaxWall of accounts
    above, and no GrpSubmitJobs: all of these hold, so the least does, unless a QOS has one. Of MaxWall that of the QOS
    holds, else that of the account; jobs that ask for more wait (QOSMaxWallDurationPerJobLimit)."""
    tables = {"associations": "lab|9|02:00:00|\n", "qos": "normal||||1-01:00:00|\n"}
    tables["user="] = "root|||\ntop|root|50\nmid|top|30\nlab|mid|\nother|root|1\n"
    monkeypatch.setattr(commands, "_ask", lambda command: tables["user=" if "user=" in command else command[4]])
    first, *_ = requests()

    def told(minutes: int) -> list[str]:
        asked = dataclasses.replace(first, parameters={**first.parameters, "time": minutes})
        return [*map(str, of_limits({"ClusterName": "red"}, "lab", [asked], {"main": {"Default": "YES"}}))]

    most, of_all = told(1500)
    assert "account lab: at most 9 jobs of yours" in most and "account mid: at most 30 jobs of all its users" in of_all
    assert "QOS normal allows 1500 minutes (MaxWall): they would wait for ever: set time in" in told(1501)[0]
    tables["qos"] = "normal|||7||\n"
    assert "QOS normal: at most 7 jobs of all its users" in told(120)[1]
    assert "account lab allows 120 minutes (MaxWall)" in told(121)[0]


@pytest.mark.parametrize(("most", "there", "told"), [(12, 0, False), (12, 1, True), (11, 0, True)])
def test_a_dry_run_foresees_limits_of_numbers(monkeypatch, most: int, there: int, told: bool) -> None:
    """Oracle: by hand, for twelve jobs: MaxJobCount holds for what is there too; of other limits those count that are
    too small whichever partition and account Slurm takes."""
    tables = {"associations": "bio|3||\nlab|12||\n", "qos": "normal||11|||\nday|||4||\n", "user=": ""}
    monkeypatch.setattr(commands, "_ask", lambda command: tables["user=" if "user=" in command else command[4]])
    monkeypatch.setattr(commands, "partitions", lambda: {"main": {"Default": "YES"}, "other": {"QoS": "day"}})
    settings = {"ClusterName": "red", "MaxJobCount": str(most)}
    found = exceeded(12, there, settings, None, requests())
    expected = [f"MaxJobCount: at most {most} jobs of all users in the queue: `run` submits no more, "] * told
    expected.append("QOS normal: at most 11 jobs of an account in the queue (MaxSubmitJobsPA): `run` submits no more, ")
    assert len(found) == len(expected) and all(line.startswith(one) for line, one in zip(found, expected, strict=True))
    assert not exceeded(11, there, settings, None, requests())
    tables["associations"] = "lab|11||\n"
    assert len(exceeded(12, 0, {"MaxJobCount": "none"}, None, requests())) == 2


def test_a_dry_run_says_what_slurm_does_not_take(texts, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: by hand: a shared stage, two runs and a report are four jobs, with what prepares five, as for `run`."""
    lab = Lab(tmp_path / "lab", texts).write('{ method = "naive" }', '{ method = "er" }')
    FakeSlurm(tmp_path / "bin", monkeypatch, most=4, MaxJobCount="4")
    assert lab.submit("--dry-run") == 0
    assert "  ! MaxJobCount: at most 4 jobs of all users in the queue: `run` submits no more" in capsys.readouterr().out
    assert lab.submit() == 3
