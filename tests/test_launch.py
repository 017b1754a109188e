"""Cluster jobs, tested without a cluster: what settings ask for, and the states of runs."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import submitit
from submitit.slurm.slurm import _make_sbatch_string

from benchmark.jobs import executors
from benchmark.jobs.executors.slurm.settings import KINDS, Slurm, TrainKind
from benchmark.ledger.runs import make_run_line
from benchmark.ledger.store import Store
from benchmark.settings import load
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.suite import RunConfig
from tests.support.suite_folder import ROWS, SuiteFolder, write_suite_of_two

# arguments of the executor's constructor, and sections. Other keys are parameters of a job
OURS = {"python", "runs_per_job", *KINDS}
NAIVE, ER = ROWS


@pytest.fixture
def tiny(tmp_path) -> SuiteFolder:
    return write_suite_of_two(tmp_path)


# Settings


def read_section(tiny: SuiteFolder, text: str) -> Slurm:
    return Slurm.read(load_suite(str(tiny.write(NAIVE, slurm=text).file)).sections)


def test_keys_are_those_of_submitit() -> None:
    """Oracle: the parameters that submitit's Slurm executor takes."""
    assert set(Slurm.model_fields) - OURS <= submitit.SlurmExecutor._valid_parameters()


def test_a_section_takes_every_key(tiny: SuiteFolder) -> None:
    """Oracle: the keys of `[slurm]` except its sections, and the words of the batch scripts by
    hand. A section's keys are in the scripts of that kind of job only, and replace those of
    `[slurm]`.
    """
    assert set(TrainKind.model_fields) == set(Slurm.model_fields) - {*KINDS}
    sections = """account = "gpu-hours"
mem = "64GB"
[slurm.prepare]
account = "cpu-hours"
additional_parameters = { reservation = "course" }
mem_per_cpu = "4GB"
setup = ["module load x"]
signal_delay_s = 30
exclusive = true
[slurm.report]
mail_type = "END"
mail_user = "me@example.org"
"""
    slurm = read_section(tiny, sections)
    scripts = {
        kind: _make_sbatch_string("true", "logs", **slurm.list_parameters(kind, ["steps"]))
        for kind in KINDS
    }
    prepare = (
        "account=cpu-hours",
        "reservation=course",
        "mem-per-cpu=4GB",
        "exclusive",
    )
    assert all(f"#SBATCH --{word}\n" in scripts["prepare"] for word in (*prepare, "signal=USR2@30"))
    assert "module load x" in scripts["prepare"] and "--mem=" not in scripts["prepare"]
    for kind in ("train", "score", "report"):
        assert (
            "#SBATCH --account=gpu-hours\n" in scripts[kind]
            and "#SBATCH --mem=64GB\n" in scripts[kind]
        )
        assert not [word for word in (*prepare[1:], "module load x") if word in scripts[kind]]
        assert (
            "#SBATCH --mail-type=END\n#SBATCH --mail-user=me@example.org\n" in scripts[kind]
        ) == (kind == "report")


def test_a_section_takes_the_place_of_other_ways_to_say_it(tiny: SuiteFolder) -> None:
    """Oracle: by hand: a job asks for memory by only one key, because sbatch refuses both. The
    section's key goes before that of `[slurm]`.
    """
    sections = """mem_per_cpu = "4GB"
[slurm.prepare]
mem = "64GB"
"""
    slurm = read_section(tiny, sections)
    told = {kind: slurm.list_parameters(kind, ["steps"]) for kind in ("train", "prepare")}
    assert {kind: (asks.get("mem"), asks.get("mem_per_cpu")) for kind, asks in told.items()} == {
        "train": (None, "4GB"),
        "prepare": ("64GB", None),
    }


def test_models_are_scored_where_they_were_trained(tiny: SuiteFolder) -> None:
    """Oracle: by hand: a job of scores asks for what training asks for, except for only one GPU and
    for the keys of its own section. No other job asks for a GPU.
    """
    sections = """partition = "cpu"
qos = "low"
[slurm.train]
partition = "gpu"
gpus_per_node = "a100:4"
constraint = "nvlink"
[slurm.score]
constraint = "any"
"""
    slurm = read_section(tiny, sections)
    told = {kind: slurm.list_parameters(kind, ["steps"]) for kind in KINDS if kind != "train"}
    keys = ("partition", "qos", "constraint", "gres", "nodes", "ntasks_per_node")
    assert {kind: tuple(asks.get(key) for key in keys) for kind, asks in told.items()} == {
        "prepare": ("cpu", "low", None, None, 1, 1),
        "score": ("gpu", "low", "any", "gpu:a100:1", 1, 1),
        "report": ("cpu", "low", None, None, 1, 1),
    }


@pytest.mark.parametrize(
    ("settings", "gpus", "gres"),
    [
        ({"gpus_per_node": 4, "nodes": 2}, 8, "gpu:1"),
        ({"gpus_per_node": "a100:4", "nodes": 2}, 8, "gpu:a100:1"),
        ({"gpus_per_node": "3090:2"}, 2, "gpu:3090:1"),
        ({}, 0, None),
    ],
)
def test_types_of_gpus_are_counted(settings: dict[str, Any], gpus: int, gres: str | None) -> None:
    """Oracle: the syntax of sbatch's --gres and --gpus-per-node. A run has one process per GPU, and
    its GPU-hours count all of its GPUs.

    A job of scores has one GPU of the same type.
    """
    asked = Slurm(**settings)
    assert asked.gpus_of_a_run == gpus and asked.processes == max(1, gpus)
    assert asked.list_parameters("score", ["steps"]).get("gres") == gres


def row_with(tiny: SuiteFolder, what: str, slurm: str = "") -> RunConfig:
    return tiny.write(f'{{ name = "x", method = "er", set = {{ {what} }} }}', slurm=slurm).config(
        "x"
    )


def test_what_a_row_asks_of_a_cluster_is_no_part_of_it(tiny: SuiteFolder) -> None:
    """Oracle: the same row without cluster settings has the same id, record and stage keys."""
    plain, asks = row_with(tiny, ""), row_with(tiny, '"slurm.nodes" = 2', 'partition = "main"')
    assert plain.sections["slurm"] == {}
    assert asks.sections["slurm"] == {"nodes": 2, "partition": "main"}
    assert (asks.id, make_run_line(asks)) == (plain.id, make_run_line(plain))
    survey = tiny.survey()
    assert survey.plan_keys(asks) == survey.plan_keys(plain)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({"slurm.gpus_per_node": wrong}, "gpus_per_node")
            for wrong in (-1, "a100:", "a100:0", "four")
        ),
        ({"slurm.partitoin": "gpu"}, r"did you mean 'partition'\?\); there are account, "),
        ({"slurm.score.tiem": 5}, r"\[slurm\]: score.tiem: no such key"),
        ({"slurm.score.nodes": 2}, r"\bscore\.nodes: "),
    ],
)
def test_what_cannot_be_asked_for(
    settings: dict[str, Any], message: str, tiny: SuiteFolder
) -> None:
    """Oracle: the message names the key, and what may stand there."""
    with pytest.raises(ConfigError, match=message):
        executors.check_sections(load_suite(str(tiny.file), settings), [])


def test_whole_nodes_under_a_wall_time() -> None:
    """The rule of docs/slurm_and_gpus.md: a budget in seconds asks for whole nodes, unless
    `exclusive = false`.
    """
    assert Slurm().list_parameters("train", ["seconds"])["exclusive"] is True
    assert "exclusive" not in Slurm().list_parameters("train", ["steps"])
    assert "exclusive" not in Slurm().list_parameters("score", ["seconds"])
    assert "exclusive" not in Slurm(exclusive=False).list_parameters("train", ["seconds"])


def test_a_site_file_gives_defaults(tiny: SuiteFolder, tmp_path, monkeypatch) -> None:
    """The rules of docs/slurm_and_gpus.md: a suite's settings override the site's file, and `--set`
    overrides both. The file may contain only [slurm].
    """
    monkeypatch.setattr(load, "SITE", tmp_path / "site.toml")
    load.SITE.write_text('[slurm]\npartition = "gpu"\nnodes = 4\n')
    tiny.write(NAIVE, slurm="nodes = 2")
    assert load_suite(str(tiny.file)).sections["slurm"] == {"partition": "gpu", "nodes": 2}
    changed = load_suite(str(tiny.file), {"slurm.partition": "other"})
    assert changed.sections["slurm"]["partition"] == "other"
    load.SITE.write_text("[training]\nbatch_size = 2\n")
    with pytest.raises(ConfigError, match=r"slurm.* not training"):
        load_suite(str(tiny.file))


# States


def test_local_runs_go_on_and_are_told(tiny: SuiteFolder, capsys) -> None:
    """By hand, the states and lines of two runs. One fails, because decay multiplies its weights by
    -99 per step, and is tried again only with --retry-failed. The other loses its last line, as if
    killed right after its last stage. The next call adds the line and deletes the checkpoint. Then
    it loses all lines. The next call takes its stages over, and trains none again.
    """
    tiny.write(
        NAIVE,
        '{ method = "naive", name = "hot", set = { "training.learning_rate" = 100.0, '
        '"training.weight_decay" = 1.0 } }',
    )
    assert tiny.call("run", "--parallel", "1") == 1
    states = tiny.states()
    assert states["Naive"].state == "done"
    assert states["hot"].state == "failed" and "NonFiniteLoss" in states["hot"].detail
    assert f"on {socket.gethostname()}: " in states["hot"].detail
    before, done = tiny.run_lines("hot"), Store(tiny.runs).run_file(tiny.config("Naive"))
    done.write_text("".join(done.read_text().splitlines(keepends=True)[:-1]))
    killed = tiny.states()["Naive"]
    assert (killed.state, killed.finished) == ("interrupted", 2)
    checkpoint = Store(tiny.runs).stage_folder(killed.view.keys[1]) / "checkpoint.pt"
    checkpoint.touch()
    assert tiny.call("run", "--parallel", "1") == 1 and tiny.run_lines("hot") == before
    assert " 1 runs before. " in capsys.readouterr().err
    assert tiny.states()["Naive"].state == "done" and not checkpoint.exists()
    done.unlink()
    never_begun = tiny.states()["Naive"]
    assert (never_begun.state, never_begun.finished) == ("todo", 2) and never_begun.detail
    assert tiny.call("run", "--retry-failed", "--parallel", "1") == 1
    assert [line["kind"] for line in tiny.run_lines("hot")] == ["run", "failed"] * 2
    assert tiny.states()["Naive"].state == "done"
    assert [tiny.count("Naive", "stage", index) for index in (0, 1)] == [1, 1]


def test_without_slurm_the_error_says_so(tiny: SuiteFolder, monkeypatch, capsys) -> None:
    """By hand: no program of Slurm is in PATH, and the message names a cure, `--executor local`."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert tiny.call("run", "--executor", "slurm") == 2
    assert "--executor local" in capsys.readouterr().err
