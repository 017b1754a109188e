"""The blocks of README.md, CONTRIBUTING.md and docs/ run as they stand, in a copy of the project.

The blocks of a page run in their order in one copy: commands line by line in a shell, programs with
Python. A block that shows a file is written where `PLACES` or the paragraph before it says. A suite
or a method is then planned or trained.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from tests.support import forked_python
from tests.support.pages import BLOCK, PAGES, Block, copy_project, list_blocks, run_in_shell
from tests.support.published_families import published

NAMED = re.compile(r"`([\w/]+\.(?:toml|yaml|py))`")
TRAINING = "python run_all.py run bert_base --set 'methods=[\"{name}\"]' --seeds 7 --out {name}"

# Parts of commands, and what replaces them.
REPLACED = {
    # only tests/test_slurm*.py have a cluster, so here `run` trains on this machine
    " --executor slurm": "",
    # two seeds test the command as well as five
    " --seeds 0,1,2,3,4": " --seeds 0,1",
    # one pair tests it as well as seven, each of which multiplies large matrices
    "run_all.py speed demo": "run_all.py speed demo --pairs 1",
    "data.sequence_length=1024": "data.sequence_length=66",
    "budget.amount=500": "budget.amount=1",
    "budget.amount=10 ": "budget.amount=0.05 ",
    "--set options.self_replay": "--set options.self_replay.sequences=8 --set options.self_replay",
}
# The same for programs: the number of files of a package that a page reads.
REPLACED_IN_PROGRAMS = {"[:300]": "[:50]"}
# The start model of models.md. Here it is a small model of its family, in the Hub's cache.
START_MODEL = "allenai/OLMo-2-0425-1B"

# Commands that are not run, by their beginning, and why.
NOT_RUN = {
    "source .venv/bin/activate": "each line here has a shell of its own, which has .venv's python",
    "python3 -m venv": "the test has its own .venv",
    ".venv/bin/python -m pip install": "it would install packages",
    "python run_all.py check er": "adding_a_method.md checks a method of its own",
    "make test": "it would run itself",
    "make check": "it checks this code, and not what it does; .ci/run calls it",
    ".venv/bin/python -m pytest": "it would run tests in a test",
    ".ci/run": "it installs Slurm, and runs these tests",
    "make slurm-demo": "Slurm: it starts a cluster; tests/test_slurm.py has one",
    "make gpu-check": "a GPU; tests/test_gpu_check.py runs it with a stand-in",
    "python run_all.py verify results/demo": "the copy's suite is small, and no match",
    "python run_all.py report results/small": "no copy has the study",
    "PYTHONPATH=. python results/small": "tests/test_study_page.py runs it; no copy has the study",
    "python run_all.py run code.toml --methods er elle --set training": "a GPU for each process",
    "python run_all.py run bert_base --processes all": "a GPU for each process",
}

# Pages whose blocks another test runs.
ELSEWHERE = {"python.md": "tests/test_python_page.py", "reproduce.md": "tests/test_slurm_page.py"}
BLOCKS = {page.name: blocks for page in PAGES if (blocks := list_blocks(page))}

SMALL = "# small\n"

DEMO = ("python", "scipy", "sklearn", "pandas", "torch")
DOMAIN = '{{ name = "{0}", train = ["../../texts/{0}.jsonl"] }}'

# A suite that `new-suite` wrote.
WRITTEN = {
    r"max_valid_bytes = [\d_]+": "max_valid_bytes = 6_000",
    r"\bamount = [\d.]+": "amount = 0.1",
}

# Replacements that make files small before commands use them, by pattern of the text.
SMALLER = {
    "benchmark/suites/demo.toml": {
        r"\nmethods = \[.*?\]": '\nmethods = ["naive", "er"]',
        r"\ndomains = \[.*?\n\]": f"\ndomains = [{', '.join(map(DOMAIN.format, DEMO))}]",
        r"\ntasks = \[.*?\n\]": "",
        r"\ntables = \[.*?\n\]": '\ntables = ["main_pretraining"]',
        r"\nevaluations = \d+": "\nevaluations = 1",
        r"\namount = \[.*?\]": "\namount = 0.02",
        r"\n\[data\]\n": '\n[data]\nnear_copies = "keep"\n',  # else much of this text is left out
    },
    "base.toml": {
        "stdlib": "joblib",
        "max_valid_bytes = 60_000": "max_valid_bytes = 6_000",
        r"amount = [\d.]+": "amount = 0.1",
    },
    "code.toml": {
        "stdlib": "joblib",
        r"max_valid_bytes = [\d_]+": "max_valid_bytes = 6_000",
        r"\bamount = \[.*?\]": "amount = 0.1",
        "learning_rate = 2e-3 }": "learning_rate = 2e-3, evaluations = 1 }",
        "memory_tokens = 50_000": "memory_tokens = 1_000",
    },
    "mine.toml": WRITTEN,
    "news.toml": WRITTEN,
}


@dataclass(frozen=True)
class Place:
    """Where a block is written, the text around it, and the command that then uses the file."""

    file: str
    around: str = "{block}"
    then: str = "python run_all.py run {file} --dry-run"


RUNG = "{ layers = 1, hidden_size = 16 }"
EXTENDED = 'extends = "bert_base"\n{block}'
SIDE = """
from torch import nn

from benchmark.models.kinds.extended import ExtendedModel


{block}
"""
RADAM_METHOD = """
from dataclasses import dataclass

from benchmark.training.method import LifelongMethod


{block}


@dataclass
class Radam(LifelongMethod):
    title = "RAdam"
    optimizer = RADAM
"""
SIDE_METHOD = """
from dataclasses import dataclass

from benchmark.training.method import LifelongMethod


@dataclass
class Side(LifelongMethod):
    title = "Side"

    def start_stage(self, model, stage):
        from methods._side import WithSide

        return WithSide(model, 4)
"""

# The places of blocks for which the paragraph before names no file, by page and a part of the
# block.
PLACES = {
    ("adding_a_method.md", "[options.l2_sp]"): Place("weak.toml"),
    ("adding_a_method.md", "def radam"): Place(
        "methods/radam.py", RADAM_METHOD, TRAINING.format(name="radam")
    ),
    ("adding_a_method.md", "class WithSide"): Place(
        "methods/_side.py", SIDE, TRAINING.format(name="side")
    ),
    ("tasks.md", "[[tasks]]"): Place("task.toml", EXTENDED),
    ("tasks.md", "[tasks.dataset]"): Place(
        "dataset.toml", 'extends = "bert_base"\n[[tasks]]\nname = "mnli"\ndomain = "wb"\n{block}'
    ),
    ("tasks.md", "[finetuning]"): Place("finetuning.toml", EXTENDED),
    ("tasks.md", "[evaluate]"): Place("asking.toml", then=""),
    ("tasks.md", "task: colours"): Place("tasks/colours.yaml", then=""),
    ("slurm_and_gpus.md", "[[rows]]"): Place("rows.toml", EXTENDED),
    ("slurm_and_gpus.md", "[slurm]"): Place("many.toml", EXTENDED),
    ("your_own_text.md", 'title = "manuals, changes, books"'): Place("mine.toml"),
    ("your_own_text.md", "ORGANISATION/DATASET"): Place(
        "domains.toml",
        f'extends = "bert_base"\nmodel.ladder = [{", ".join([RUNG] * 3)}]\n{{block}}',
    ),
    ("your_own_text.md", "document_mask"): Place(
        "masked.toml", then="python run_all.py run {file} --methods naive"
    ),
    ("your_own_text.md", "on_error"): Place("mine_skip.toml"),
    ("your_own_text.md", "weight = "): Place("mixed.toml"),
    ("your_own_text.md", "replay = "): Place("replaying.toml"),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    hub = tmp_path_factory.mktemp("hub")
    cache_model(hub, START_MODEL, "OLMo 2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(hub))
        patch.setenv("HF_HUB_OFFLINE", "1")
        # on one core no command starts parallel processes, which would each import torch
        cores = sorted(os.sched_getaffinity(0))
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        with forked_python.serve(str(cores[number % len(cores)])) as address:
            yield address


@pytest.fixture
def copy(python: str, tmp_path: Path) -> Path:
    """A copy of the project with the files that the pages use. Its `python` is forked."""
    project = copy_project(tmp_path / "project")
    forked_python.install(python, project / ".venv/bin/python")
    (project / ".venv/installed").touch()
    for name in DEMO:
        write_lines(
            project / f"texts/{name}.jsonl", [{"text": f"{name} {text}"} for text in list_texts("")]
        )
    return project


def cache_model(hub: Path, name: str, family: str) -> None:
    """Write a small model of the family into a cache, as `huggingface_hub` keeps a download."""
    commit = "0" * 40
    repository = hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(commit)
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    published(folder, family, max_position_embeddings=66)


def find_place(block: Block) -> Place | None:
    """Where a block is written, as PLACES or the paragraph before it says.

    None for commands and programs.
    """
    for (page, part), place in PLACES.items():
        if page == block.page and part in block.text:
            return place
    endings = {"toml": ".toml", "yaml": ".yaml", "python": ".py"}
    named = [
        name
        for name in NAMED.findall(block.before)
        if name.endswith(endings.get(block.language, " "))
    ]
    if not named:
        return None
    return Place(named[-1]) if block.language == "toml" else Place(named[-1], then="")


def list_commands(block: Block) -> list[str]:
    """The lines of a block that are run."""
    lines = block.text.splitlines()
    return [line for line in lines if not any(line.startswith(command) for command in NOT_RUN)]


def is_run(block: Block) -> bool:
    return block.language != "bash" or bool(list_commands(block))


def write_lines(file: Path, rows: list[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def list_texts(name: str) -> list[str]:
    """Documents that no other name has, because near copies are left out of validation."""
    draw = random.Random(name)
    words = [f"word{number}" for number in range(200)]
    return [" ".join(draw.choices(words, k=30)) for _ in range(200)]


def write_what_a_page_speaks_of(page: str, project: Path) -> None:
    """Write the files that a reader of the page has."""
    texts = list_texts("")
    if page == "README.md":
        for name in ("letters", "news"):
            rows_of_text: list[dict[str, object]] = [{"text": text} for text in list_texts(name)]
            write_lines(project / f"texts/{name}/all.jsonl", rows_of_text)
    elif page == "your_own_text.md":
        write_lines(project / "texts/manuals/all.jsonl", [{"page": text} for text in texts])
        changes: list[dict[str, object]] = [{"text": text} for text in list_texts("changes")]
        write_lines(project / "texts/changes/2024.jsonl.gz", changes)
        for folder in ("books", "wiki"):
            (project / "texts" / folder).mkdir()
        for number, text in enumerate(list_texts("books")):
            (project / f"texts/books/{number}.txt").write_text(f"{text}\n")
        pd.DataFrame({"text": list_texts("wiki")}).to_parquet(project / "texts/wiki/1.parquet")
        write_lines(project / "notes/1.jsonl", [{"text": text} for text in texts])
        write_lines(project / "more/1.jsonl.gz", [{"text": text} for text in texts])
        write_lines(project / "held_out.jsonl", [{"text": text} for text in texts])
    elif page == "adding_a_method.md":
        (project / "methods/side.py").write_text(SIDE_METHOD)
    elif page == "tasks.md":
        for split in ("train", "dev", "test"):
            rows: list[dict[str, object]] = [
                {"text": text, "label": ("upregulator", "substrate")[number % 2]}
                for number, text in enumerate(list_texts(split))
            ]
            write_lines(project / f"tasks/chemprot/{split}.jsonl.gz", rows)
        write_lines(
            project / "tasks/questions.jsonl",
            [{"question": "red", "choices": ["green", "one"], "answer": 0}],
        )


def make_small(project: Path) -> None:
    """Put small suites in place of large ones."""
    for name, patterns in SMALLER.items():
        file = project / name
        if not file.exists() or file.read_text().endswith(SMALL):
            continue
        text = large = file.read_text()
        for pattern, replacement in patterns.items():
            text = re.sub(pattern, replacement, text, flags=re.S)
        assert text != large, f"nothing of {name} is made small"
        file.write_text(text + SMALL)


def run(command: str, project: Path) -> str:
    """Run a command as `run_in_shell` does, after files and the command are made small."""
    make_small(project)
    for words, replacement in REPLACED.items():
        command = command.replace(words, replacement)
    return run_in_shell(command, project)


@pytest.mark.timeout(1800)  # a page may check a method, and train several
@pytest.mark.parametrize("page", [page for page in BLOCKS if page not in ELSEWHERE])
def test_the_page_runs(page: str, copy: Path) -> None:
    """Oracle: exit status 0 of each command and program, and of the plan or training with each file
    that a page shows.
    """
    write_what_a_page_speaks_of(page, copy)
    for block in BLOCKS[page]:
        place = find_place(block)
        if not is_run(block):
            continue
        if block.language == "bash":
            for line in list_commands(block):
                run(line, copy)
        elif place:
            file = copy / place.file
            file.parent.mkdir(exist_ok=True)
            file.write_text(place.around.replace("{block}", block.text))
            if place.then:
                run(place.then.replace("{file}", place.file), copy)
        else:
            assert block.language == "python", (
                f"{page}: which file is this of? Say so, or in PLACES:\n{block.text}"
            )
            program = block.text
            for words, replacement in REPLACED_IN_PROGRAMS.items():
                program = program.replace(words, replacement)
            (copy / "block.py").write_text(program)
            run("python block.py", copy)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_say_what_they_are(page: Path) -> None:
    """Oracle: the rule of CONTRIBUTING.md: each block has a fence with a language, and no block is
    indented instead.
    """
    text = page.read_text(encoding="utf-8")
    assert {match[1] for match in BLOCK.finditer(text)} <= {
        "bash",
        "python",
        "toml",
        "yaml",
        "text",
    }
    assert not re.search(r"\n\n {4}(?![-*] )", BLOCK.sub("", text))
