"""Malformed input of every kind, and how a command that gets it must end.

Each case is a command line and its input. Oracle (`unclear`): the command must end with exit code 2
and one line that names the place, without a traceback and without a file that a later command would
read.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shlex
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import run_all
from benchmark.files import CHECKSUMS
from benchmark.settings import load
from tests.support import tiny_suite

LONGEST = 700  # characters of a line that somebody still reads
Make = Callable[[Path], object]
SUITE = "{place}/tiny.toml"
DRY_RUN = f"run {SUITE} --dry-run --runs {{here}}/runs --out {{here}}/report"
DEEP = b"[" * 100_000


@dataclass(frozen=True)
class Case:
    """A command line. {here} stands for the folder that `make` fills, and {place} for the folder
    that all cases share (`fill`).

    {here}/site.toml is the site file.
    """

    command: str
    names: str  # what the line must name
    make: Make = lambda here: None
    more: tuple[str, ...] = ()  # arguments that are taken as they are


def unclear(case: Case, place: Path, here: Path) -> str:
    """Why the end of a case is not clear, or an empty text if it is clear."""
    here.mkdir(parents=True)
    case.make(here)
    before = _files(place) | _files(here)
    out, err = io.StringIO(), io.StringIO()
    arguments = [
        part.replace("{here}", str(here)).replace("{place}", str(place))
        for part in shlex.split(case.command)
    ]
    site = patch.object(load, "SITE", here / "site.toml")
    with site, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = run_all.main([*arguments, *case.more])
        except SystemExit as ended:  # argparse's
            code = ended.code
        except BaseException as error:
            return f"traceback: {type(error).__name__}: {str(error)[:200]}"
    said = err.getvalue().strip()
    if code != 2:
        return f"accepted: exit code {code}: {(said or out.getvalue())[-200:]}"
    _, mark, message = said.partition("error: ")
    if not mark or "\n" in message:
        return f"not one line: {said[-400:]}"
    if len(message) > LONGEST:
        return f"a line of {len(message)} characters: {message[:200]}"
    named = case.names.replace("{here}", str(here)).replace("{place}", str(place))
    if named not in message:
        return f"does not name {named!r}: {message}"
    written = (_files(place) | _files(here)) - before
    return f"wrote {min(written)[0]}" if written else ""


def _files(folder: Path) -> set[tuple[str, int, int]]:
    """Files by path, size and time, without locks and prepared text (known by its content)."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "lock" not in path.name]
    return {
        (str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in paths if "data" not in p.parts
    }


def fill(place: Path) -> None:
    """Train a suite of two runs below `place`, from which cases copy, and write texts and tasks."""
    suite = str(tiny_suite.write(place))
    given = ["run", suite, "--parallel", "1", "--runs", f"{place}/runs", "--out", f"{place}/report"]
    assert run_all.main([*given, "--set", "tables=[]"]) == 0
    [run] = (place / "runs/suites/tiny").glob("er-*.jsonl")
    stage = json.loads(run.read_text().splitlines()[0])["stages"][-1]
    shutil.copytree(place / "runs/stages" / stage, place / "stage")
    assert run_all.main(["export", str(place / "stage"), str(place / "plain")]) == 0


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write(name: str, content: bytes | str) -> Make:
    def make(here: Path) -> None:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


# Suites and options.


def set_to(*overrides: str, names: str) -> Case:
    return Case(DRY_RUN, names, more=tuple(part for each in overrides for part in ("--set", each)))


def rules() -> Iterator[Case]:
    """Wrong values, some of them wrong only together with others, and names that would leave a
    folder or break a line.
    """
    source = "train=['a.jsonl']"
    task = "name='t', domain='a', train='x', dev='x', test='x'"
    titled = f"{{name='a', title='X Y', {source}}}, {{name='b', title='X-Y', {source}}}"
    mixed = f"{{name='a', packages=['stdlib'], {source}}}, {{name='b', {source}}}"
    for override, names in {
        "seeds=[0, 0]": "seeds",
        "training.max_grad_norm=nan": "max_grad_norm",
        "training.deterministic='yes'": "deterministic",
        "data=7": "data",
        "options.er.replay_ratio='no such'": "replay_ratio",
        "options.ewc.strength=1": "ewc",
        "model.ladder=[{layers=2, hidden_size=32}, {layers=1, hidden_size=32}]": "ladder",
        "budget.unit='reference'": "reference",
        'tokenizer.folder="~no_such_user/x"': "~no_such_user/x",
        f"domains=[{titled}]": "title",
        f"domains=[{mixed}]": "packages",
        "tasks=[{name='t', domain='x', train='x', dev='x', test='x'}]": "domain",
        "rows=[{method='naive', name='x'}, {method='er', name='X'}]": "X",
        "rows=[{method='naive', name='x', set={seeds=[7]}}]": "seeds",
    }.items():
        yield set_to(override, names=names)
    for name in ("../../up", "a\nb", "", "\\input{x}", "-rf", "a" * 300):
        quoted = json.dumps(name)
        yield set_to(f"name={quoted}", names="name")
        yield set_to(f"domains=[{{name={quoted}, {source}}}]", names="name")
        yield set_to(f"tasks=[{{{task}}}]".replace("'t'", quoted), names="name")


def files() -> Iterator[Case]:
    """Files that are no valid suites or site files."""
    good = tiny_suite.SUITE.format(text="x")
    for text, names in {
        "title = ": "TOML",
        good.replace("batch_size = 10", f"batch_size = {'9' * 5000}"): "digits",
        good.replace('title = "Tiny"', f"title = {'[' * 5000}{']' * 5000}"): "not TOML",
        'extends = "suite.toml"\ntitle = "x"': "extends",
        'extends = "no_such"': "no_such",
        tiny_suite.SUITE.format(text="${NO_SUCH_VARIABLE_HERE}"): "NO_SUCH_VARIABLE_HERE",
        "extends = 5": "extends = 5",
        'extends = ["demo"]': "extends",
        good.partition("[budget]")[0]: "budget",
    }.items():
        yield Case(DRY_RUN.replace(SUITE, "{here}/suite.toml"), names, write("suite.toml", text))
    for name in ("''", "x" * 300 + ".toml", "{place}", "{place}/a.jsonl"):
        yield Case(DRY_RUN.replace(SUITE, name), name.strip("'")[:20])
    for site in ("[slurm]\nno_such = 1", "[slurm", "[training]\nbatch_size = 2", b"slurm = '\xff'"):
        yield Case(DRY_RUN, "{here}/site.toml", write("site.toml", site))


# Command lines.


def command_lines() -> Iterator[Case]:
    for given, names in {
        "--seeds x": "--seeds",
        "--seeds 2-1": "--seeds",
        "--methods ,": "--methods",
        "--set x": "--set",
        "--set training.max_grad_norm.x=1": "max_grad_norm",
    }.items():
        yield Case(f"{DRY_RUN} {given}", names)
    places = "--runs {here}/runs --out {here}/report"
    for command, names in {
        "frobnicate": "frobnicate",
        f"tune {SUITE} --configurations 0 {places}": "--configurations",
        f"report {SUITE} --runs {{place}}/a.jsonl": "{place}/a.jsonl",
        "check nave": "nave",
        f"collect {SUITE} --study {{here}}/none --runs {{here}}/none": "{here}/none",
        "evaluate {here}/none --text {place}/a.jsonl": "{here}/none",
        "grow {place}/plain --layers 1 --width 8 --out {here}/out": "16",
        "compare {here}/none {place}/runs": "none",
    }.items():
        yield Case(command, names)


def tables() -> Iterator[Case]:
    """Tables of step times."""
    reference = (
        "--set budget.unit=reference --set budget.amount=1 --set budget.reference={here}/times.json"
    )
    for content in (b"", b"[]", b'{"rows": 7}', b'{"rows": [{}]}', DEEP, b"\xff"):
        yield Case(
            f"{DRY_RUN} --methods naive {reference}", "times.json", write("times.json", content)
        )


# Texts of domains.


def texts() -> Iterator[Case]:
    good = lines(*({"text": f"word {i} of a text that is long enough"} for i in range(200)))
    packed = gzip.compress(good)
    for name, content, names in (
        ("a.jsonl", b'{"text": ' + DEEP, "a.jsonl:1"),
        ("a.jsonl", good + b'{"text": "x"', "a.jsonl:201"),
        ("a.tsv", b"x", "a.tsv"),
        ("a.jsonl.gz", packed[: len(packed) // 2], "a.jsonl.gz"),
        ("a.jsonl.zst", good, "a.jsonl.zst"),
    ):
        ladder = "'model.ladder=[{layers=1, hidden_size=16}]'"
        suite = f"prepare {SUITE} --runs {{here}}/runs --set {ladder}"
        domains = f'--set \'domains=[{{name="a", train=["{{here}}/{name}"]}}]\''
        yield Case(f"{suite} {domains}", names, write(name, content))
        yield Case(
            f"evaluate {{place}}/stage/model --text {{here}}/{name}", names, write(name, content)
        )
    for place in ("nothing.jsonl", "*.jsonl"):
        domains = f'--set \'domains=[{{name="a", train=["{{here}}/{place}"]}}]\''
        yield Case(f"{suite} {domains}", place)
    yield Case(f'{suite} --set \'domains=[{{name="a", packages=["no_such_package"]}}]\'', "package")


# What training leaves, and what people hand each other.


def copied(place: Path, source: str, then: Make = lambda here: None) -> Make:
    """A function that copies a model without its checksums, like models of other people. With
    checksums, any change would be found before the model is read.
    """

    def make(here: Path) -> None:
        shutil.copytree(place / source, here / "model", ignore=shutil.ignore_patterns(CHECKSUMS))
        then(here)

    return make


def edited(name: str, **changes: object) -> Make:
    def make(here: Path) -> None:
        path = here / "model" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return make


def tensors(change: Callable[[dict[str, Any], str], object]) -> Make:
    """Change the weights by a function of all weights and of the name of one of them."""

    def make(here: Path) -> None:
        from safetensors.torch import load_file, save_file

        weights = load_file(here / "model/model.safetensors")
        change(weights, max(weights))
        save_file(weights, here / "model/model.safetensors", metadata={"format": "pt"})

    return make


def models(place: Path) -> Iterator[Case]:
    """Checkpoints that are damaged, given to each command that reads one."""
    config, weights, tokenizer = (
        f"model/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json")
    )
    evaluate = "evaluate {here}/model --text {place}/a.jsonl"
    grow = "grow {here}/model --layers 3 --width 64 --out {here}/out"
    start = f"prepare {SUITE} --runs {{here}}/runs --set model.ladder=[]"
    for damage in (
        lambda here: (here / weights).unlink(),
        write(config, b"[]"),
        lambda here: os.truncate(here / weights, 5000),
        tensors(lambda all_, name: all_.pop(name)),
        tensors(lambda all_, name: all_.update({name: all_[name][:1].clone()})),
        edited("config.json", model_type="no_such"),
        edited("config.json", n_head="x"),
    ):
        yield Case(evaluate, "model", copied(place, "stage/model", damage))
        yield Case(grow, "model", copied(place, "stage/model", damage))
        yield Case(
            f"{start} --set model.start={{here}}/model", "model", copied(place, "plain", damage)
        )
    for damage in (
        tensors(lambda all_, name: all_[name].view(-1)[:1].fill_(float("nan"))),
        edited("config.json", domains=["a", "b", "c"]),
        edited("config.json", text_vocabulary="x"),
        lambda here: (here / tokenizer).unlink(),
        write(
            tokenizer, b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'
        ),
        write("model/progressive.json", b"{}"),
    ):
        yield Case(f"{evaluate} --domain auto", "model", copied(place, "stage/model", damage))
    yield Case(f"{evaluate} --domain c", "--domain", copied(place, "stage/model"))


def records(place: Path) -> Iterator[Case]:
    """Files of records, each read by another of the commands that read them."""
    [run] = (place / "runs/suites/tiny").glob("er-*.jsonl")
    last = json.loads(run.read_text().splitlines()[0])["stages"][-1]
    of_stage, of_run = f"runs/stages/{last}/records.jsonl", f"runs/suites/tiny/{run.name}"

    def changed(file: str, change: Callable[[bytes], bytes]) -> Make:
        def make(here: Path) -> None:
            shutil.copytree(
                place / "runs", here / "runs", ignore=shutil.ignore_patterns("model", "*lock")
            )
            (here / file).write_bytes(change((here / file).read_bytes()))

        return make

    def field(kind: str, name: str, value: object) -> Callable[[bytes], bytes]:
        def change(content: bytes) -> bytes:
            rows = [json.loads(line) for line in content.splitlines()]
            return lines(*(row | {name: value} if row["kind"] == kind else row for row in rows))

        return change

    bad: list[tuple[str, Callable[[bytes], bytes]]] = [
        (of_stage, field("stage", "layers", -1)),
        (of_stage, field("evaluation", "perplexity", {"a": 1.0, "b": 0.5})),
        (of_stage, lambda content: b'{"kind": "x"}\n{"kind": "done"}\n'),
        (of_stage, lambda content: b'{"kind": ' + DEEP + b"\n{}\n"),
        (of_run, field("run", "stages", ["../../x"] * 2)),
    ]
    commands = (
        f"status {SUITE} --runs {{here}}/runs",
        DRY_RUN,
        f"report {SUITE} --runs {{here}}/runs --out {{here}}/report",
        "compare {here}/runs {place}/runs",
        f"track {SUITE} --runs {{here}}/runs --out {{here}}/out",
    )
    for (file, change), command in zip(bad, commands, strict=True):  # they have one reader
        yield Case(command, Path(file).name, changed(file, change))


def studies(place: Path) -> Iterator[Case]:
    """Archives of records."""

    def archive(*members: tuple[str, bytes]) -> bytes:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as tar:
            for name, content in members:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return made.getvalue()

    def study(content: bytes) -> Make:
        def make(here: Path) -> None:
            (here / "study/records").mkdir(parents=True)
            shutil.copy(place / "tiny.toml", here / "study")
            (here / "study/records/tiny-s0.tar.gz").write_bytes(content)

        return make

    whole = archive(("suites/x", os.urandom(500)))
    for content in (
        b"",
        archive(("../../up", b"x")),
        whole[: len(whole) // 2],
    ):
        yield Case("verify {here}/study", "tiny-s0.tar.gz", study(content))
        yield Case("compare {here}/study {place}/runs", "tiny-s0.tar.gz", study(content))


# The tests.

GROUPS = (rules, files, command_lines, tables, texts)
OF_WHAT_IS_TRAINED = (models, records, studies)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("malformed")
    fill(folder)
    return folder


@pytest.mark.parametrize("group", (*GROUPS, *OF_WHAT_IS_TRAINED), ids=lambda group: group.__name__)
def test_each_case_ends_in_one_clear_line(
    group: Callable[..., Iterable[Case]], place, tmp_path
) -> None:
    cases = group(place) if group in OF_WHAT_IS_TRAINED else group()
    ends = [
        (case, unclear(case, place, tmp_path / str(number))) for number, case in enumerate(cases)
    ]
    assert not [f"{case.command} {' '.join(case.more)[:100]}: {why}" for case, why in ends if why]
