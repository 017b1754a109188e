"""A suite whose texts are all hostile to every format: none is taken for markup or code."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from submitit.slurm.slurm import _make_sbatch_string

import methods
from analysis import report
from benchmark.errors import UserError
from benchmark.jobs.executors.slurm.settings import JobKind, Slurm
from benchmark.settings.load import load_suite
from tests.support import synthetic

HOSTILE = "=1+1|../../up<script>x</script>\\input{x}`x`$(x)'\"*x*;x"
SUITE: dict[str, Any] = {
    "title": HOSTILE,
    "tables": ["main_pretraining", "main_downstream"],
    "methods": [],
    "rows": [{"method": "er", "name": HOSTILE}],
    "domains": [
        {"name": name, "title": f"{HOSTILE}{name}", "train": [HOSTILE]}
        for name, _ in synthetic.DOMAINS
    ],
    "probes": [{"name": "p", "title": HOSTILE, "train": [HOSTILE]}],
    "tasks": [
        {
            "name": "mnli",
            "title": HOSTILE,
            "domain": "wb",
            "train": HOSTILE,
            "dev": HOSTILE,
            "test": HOSTILE,
        }
    ],
    "tokenizer": {"folder": HOSTILE},
    "model": {"ladder": [{"layers": 1, "hidden_size": 64}] * 5},
    "budget": {"unit": "steps", "amount": 9},
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "tiny.toml").write_text("")
    return str(tmp_path / "tiny.toml")


@pytest.mark.parametrize("end", ["\n", "\r", "\x00"])
def test_no_text_of_a_suite_breaks_a_line(end: str, file: str) -> None:
    """Oracle: by hand: a title or shell command with a line break or NUL is refused in one line."""
    for more in ({"title": f"x{end}y"}, {"slurm": {"setup": [f"true{end}#SBATCH --wrap=x"]}}):
        with pytest.raises(UserError) as refused:
            load_suite(file, SUITE | more)
        assert len(str(refused.value).splitlines()) == 1


def test_no_text_is_markup_in_a_report(file: str, tmp_path: Path) -> None:
    """Oracle: by hand: LaTeX's command and HTML's element are nowhere unescaped, all rows of a
    Markdown table have equally many cells, and nothing is written outside the report's folder.
    """
    suite, folder = load_suite(file, SUITE), tmp_path / "all"
    [config] = methods.list_runs(suite)
    synthetic.write_as(folder / "runs", config, [f"stage{index}" for index in range(5)], finished=3)
    report.write_report([(suite, [config])], folder / "runs", folder / "out")
    check_report(folder / "out")
    assert {path.name for path in folder.iterdir()} == {"runs", "out"}


def check_report(out: Path) -> None:
    for path in out.rglob("*.*"):
        text = (
            path.read_text(encoding="utf-8")
            if path.suffix in (".tex", ".md", ".html", ".csv")
            else ""
        )
        assert not (path.suffix in (".html", ".md") and re.search(r"(?<!\\)<script>x", text)), path
        assert not (path.suffix == ".tex" and "\\input" in text), path
        if path.suffix == ".md":
            tables = itertools.groupby(text.splitlines(), lambda line: line.startswith("|"))
            for rows in (list(rows) for is_table, rows in tables if is_table):
                assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, path


def test_no_text_is_code_in_a_batch_script(tmp_path: Path) -> None:
    """Oracle: the shell's own rules: the text is one word of a line, or a part of one. The script
    has as many lines as with harmless texts.
    """
    names = [
        name for name, field in JobKind.model_fields.items() if field.annotation == (str | None)
    ]
    hostile: dict[str, Any] = dict.fromkeys(
        set(names) - {"mem_per_cpu", "mail_type", "python"}, HOSTILE
    )
    assert len(hostile) > 6
    for kind in ("train", "score", "report"):
        scripts = []
        for settings in (
            dict.fromkeys(hostile, "x") | {"srun_args": ["x"]},
            hostile | {"srun_args": [HOSTILE]},
        ):
            parameters = Slurm(**settings).list_parameters(kind, ["steps"])
            scripts.append(
                _make_sbatch_string(command="true", folder=tmp_path, **parameters).splitlines()
            )
        assert len(scripts[0]) == len(scripts[1])
        lines = [line for line in scripts[1] if HOSTILE[:4] in line]
        assert len(lines) >= len(hostile)
        for line in lines:
            assert any(HOSTILE in word for word in shlex.split(line.removeprefix("#SBATCH "))), line
