"""Cases of what people hand each other: studies and their archives, start models, files that were moved."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import run_all
from tests.support.malformed import Case, Make
from tests.support.malformed.making import FILLED, PLACES, RUNS, SUITE, both, pipe, stage_folder, write
from tests.support.malformed.trained import (
    NO_TOKENS,
    READERS,
    _edit,
    _runs,
    _swap_runs,
    _swap_stages,
    _tensors,
    layers_twice,
    model,
    of_100_bytes,
)

DEEP = b"[" * 100_000


def _archive(*members: tuple[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in members:
            one = tarfile.TarInfo(name)
            one.size = len(content)
            tar.addfile(one, io.BytesIO(content))
    return made.getvalue()


def _of_holes() -> bytes:
    """An archive of less than a kilobyte that says that it holds a file of a terabyte."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        one = tarfile.TarInfo("stages/x")
        one.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(2**40), "GNU.sparse.numblocks": "1"}
        one.size = 1
        tar.addfile(one, io.BytesIO(b"x"))
    return made.getvalue()


def _study(content: bytes) -> Make:
    def make(here: Path) -> None:
        (here / "study/records").mkdir(parents=True)
        shutil.copy(FILLED[-1] / "tiny.toml", here / "study")
        (here / "study/records/tiny-s0.tar.gz").write_bytes(content)

    return make


def studies() -> Iterator[Case]:
    """Archives of records, and folders of records that are compared."""
    whole = _archive(("suites/x", os.urandom(500)))
    for name, content in {
        "nothing": b"",
        "text": b"x" * 100,
        "no archive": gzip.compress(b"hello"),
        "a name that leaves": _archive(("../../up", b"x")),
        "zeros": gzip.compress(bytes(2**25)),
        "holes": _of_holes(),
        "half": whole[: len(whole) // 2],
        "a wrong checksum": whole[:-8] + bytes(4) + whole[-4:],
        "a file that is a folder": _archive(("a", b"x"), ("a/b", b"x")),
    }.items():
        yield Case(f"verify: {name}", ("verify", "{here}/study"), ("tiny-s0.tar.gz",), _study(content))
        given = ("compare", "{here}/study", "{place}/runs")
        yield Case(f"compare: {name}", given, ("tiny-s0.tar.gz",), _study(content))
    for place, named in {
        "{here}/none": "none",
        "{place}/a.jsonl": "a.jsonl",
        "{place}/runs@no_such": "no_such",
        "{place}/runs@--output=x": "--output=x",  # git would take it for an option, and write
        "": "variable that is not set",
    }.items():
        yield Case(f"compare {place}", ("compare", place, "{place}/runs"), (named,))
    for name, content in {
        "empty": b"",
        "list": b"[]",
        "deep": DEEP,
        "a number": b'{"x": 7}',
        "binary": b"\xff",
    }.items():
        tracked = ("track", SUITE, "--to", "tensorboard", *RUNS, "--out", "{here}/out")
        yield Case(f"tracker: {name}", tracked, ("tiny.json",), write("runs/trackers/tensorboard/tiny.json", content))


def moved() -> Iterator[Case]:
    """One stage's records in the place of another's, and one run's, for each command that reads them."""
    stage, run = both(_runs, _swap_stages), both(_runs, _swap_runs)
    for command in (
        ("status", SUITE, *RUNS),
        ("run", SUITE, "--parallel", "1", *PLACES),
        ("report", SUITE, *PLACES),
        ("track", SUITE, "--to", "tensorboard", *RUNS, "--out", "{here}/out"),
        ("compare", "{here}/runs", "{place}/runs"),
    ):
        yield Case(f"{command[0]}: another stage's records", command, ("records.jsonl",), stage)
        yield Case(f"{command[0]}: another run's records", command, ("er-",), run)
    yield from _in_the_place_of_folders()
    collected = both(stage, _study(_archive()))
    yield Case("collect", ("collect", SUITE, "--study", "{here}/study", *RUNS), ("records.jsonl",), collected)
    ways: dict[str, dict[str, object]] = {
        "a way out": {"stages": ["../../.."]},
        "nothing": {"stages": []},
        "little": {},
    }
    for name, line in ways.items():
        content = json.dumps({"kind": "run", "id": "x", **line}).encode() + b"\n"
        given = ("export", "{here}/runs/suites/tiny/x.jsonl", "{here}/out")
        yield Case(f"export: a run of {name}", given, ("x.jsonl",), write("runs/suites/tiny/x.jsonl", content))


def _in_the_place_of_folders() -> Iterator[Case]:
    """Files and links to nothing where records lie, which would be taken for runs that nobody has begun."""
    stage = f"stages/{stage_folder().name}"
    for place in ("stages", stage, f"{stage}/records.jsonl", "suites/tiny"):

        def make(here: Path, link: bool, place: str = place) -> None:
            path = here / "runs" / place
            path.rename(here / "moved")
            path.symlink_to(here / "none") if link else path.write_bytes(b"x")

        for command, given in READERS.items():
            if not place.endswith(".jsonl") and (command, place) != ("compare", "suites/tiny"):
                name, said = f"{command}: a file for {place}", ("{here}/runs/" + place, "Not a directory")
                yield Case(name, given, said, both(_runs, lambda here, make=make: make(here, False)))
            named = ("{here}/runs/" + place + ": a link to nothing",)
            if (command, place) != ("compare", "suites/tiny"):
                name = f"{command}: a link for {place}"
                yield Case(name, given, named, both(_runs, lambda here, make=make: make(here, True)))
    for command in ("status", "run", "cancel"):
        given = (command, SUITE, *RUNS)
        for link, words in ((False, "jobs: Not a directory"), (True, "jobs: a link to nothing")):

            def no_folder(here: Path, link: bool = link) -> None:
                path = here / "runs/suites/tiny/jobs"
                path.symlink_to(here / "none") if link else path.write_bytes(b"x")

            name = f"{command}: a {'link' if link else 'file'} for jobs"
            yield Case(name, given, ("{here}/runs/suites/tiny/" + words,), both(_runs, no_folder))
    gone = both(_runs, lambda here: shutil.rmtree(here / "runs" / stage), _study(_archive()))
    collected = ("collect", SUITE, "--study", "{here}/study", *RUNS)
    yield Case("collect: a stage less", collected, ("er-s0", "its stage 1 did not end"), gone)


def _plain(make: Make) -> Make:
    """A published model, changed."""

    def made(here: Path) -> None:
        published = FILLED[-1] / "plain"
        if not published.exists():
            assert run_all.main(["export", str(stage_folder()), str(published)]) == 0
        shutil.copytree(published, here / "runs/model", ignore=shutil.ignore_patterns("files.json"))

    return both(made, make)


def _leading_out(here: Path) -> None:
    """Weights outside of the model's folder, which its index names."""
    from safetensors.torch import load_file

    weights = (here / "runs/model/model.safetensors").rename(here / "x.safetensors")
    named = dict.fromkeys(load_file(weights), "../../x.safetensors")
    content = {"metadata": {}, "weight_map": named}
    (here / "runs/model/model.safetensors.index.json").write_text(json.dumps(content))
    shutil.copy(weights, here / "runs/model/other.safetensors")


def _deleting(here: Path) -> None:
    """A tokenizer that deletes what it is given."""
    path = here / "runs/model/tokenizer.json"
    everything = {"type": "Replace", "pattern": {"Regex": r"[^\n]"}, "content": ""}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": everything}))


def _bos_twice(here: Path) -> None:
    path = here / "runs/model/tokenizer_config.json"
    path.write_text(path.read_text().rstrip().removesuffix("}") + ', "bos_token": "a"}')


def overflowing() -> Iterator[Case]:
    """Weights that are numbers, and with which nothing can be computed."""
    grown = ("grow", "{here}/runs/model", "--layers", "3", "--width", "64", "--out", "{here}/out")
    for command in (grown, ("export", "{here}/runs/model", "{here}/out")):
        named = ("{here}/runs/model: what the model computes overflows",)
        yield Case(f"{command[0]}: numbers that overflow", command, named, both(model, _tensors("3e38")))


def pipes_in_models() -> Iterator[Case]:
    """Pipes in the place of a model's files, which libraries would open, for each command that reads one."""
    wide = ("--layers", "3", "--width", "64", "--out", "{here}/out")
    begun = ("--methods", "naive", "--set", "model.ladder=[]", "--set", "model.start={here}/runs/model")
    for name in (
        *("config.json", "tokenizer.json", "tokenizer_config.json", "files.json", "generation_config.json"),
        *("model.safetensors", "model.safetensors.index.json", "domain_discriminator.json", "lora.json"),
    ):
        for command in (
            ("evaluate", "{here}/runs/model", "--text", "{place}/a.jsonl"),
            ("grow", "{here}/runs/model", *wide),
            ("export", "{here}/runs/model", "{here}/out"),
            ("run", SUITE, "--dry-run", *PLACES, *begun),
        ):
            named = ("{here}/runs/model/" + name + ": no file but a pipe",)
            yield Case(f"{command[0]}: a pipe for {name}", command, named, both(model, pipe(f"runs/model/{name}")))
    sent = ("track", SUITE, "--to", "tensorboard", *RUNS, "--out", "{here}/out")
    yield Case(
        "a pipe for what was sent", sent, ("tiny.json: no file but",), pipe("runs/trackers/tensorboard/tiny.json")
    )
    text = (
        "prepare",
        SUITE,
        *RUNS,
        "--set",
        'domains=[{{name="a", train=["{here}/text"]}}, {{name="b", train=["{place}/b.jsonl"]}}]',
    )
    yield Case("a pipe in a folder of text", text, ("text/a.jsonl: no file but a pipe",), pipe("text/a.jsonl"))


STARTED = ("--methods", "naive", "--set", "model.ladder=[]", "--set", "model.start={here}/runs/model")
EVALUATED = ("evaluate", "{here}/runs/model", "--text", "{place}/a.jsonl")


def starts() -> Iterator[Case]:
    """Models to start from, and their tokenizers."""
    config, tokenizer, weights = (
        f"runs/model/{name}" for name in ("config.json", "tokenizer.json", "model.safetensors")
    )
    given = STARTED
    for name, make in {
        "no config": lambda here: (here / config).unlink(),
        "a config that is a list": write(config, b"[]"),
        "a deep config": write(config, DEEP),
        **{f"an epsilon of {one}": _edit("config.json", layer_norm_epsilon=one) for one in (float("nan"), 1e300, 0)},
        "no heads": _edit("config.json", n_head=0),
        "fewer layers than none": _edit("config.json", n_layer=-1),
        "a trillion columns": _edit("config.json", n_embd=10**12),
        "heads in words": _edit("config.json", n_head="x"),
        "no positions": _edit("config.json", n_positions=0),
        "no tokenizer": lambda here: (here / tokenizer).unlink(),
        "a tokenizer of no tokens": write(tokenizer, NO_TOKENS),
        "a tokenizer of 100 bytes": of_100_bytes,
        "a tokenizer that is a list": write(tokenizer, b"[]"),
        "a deep tokenizer": write(tokenizer, DEEP),
        "a vocabulary below nothing": _edit("config.json", vocab_size=-5),
        "a vocabulary of five": _edit("config.json", vocab_size=5),
        "no vocabulary": _edit("config.json", vocab_size=None),
    }.items():
        yield Case(f"start: {name}", ("prepare", SUITE, *RUNS, *given), ("runs/model",), _plain(make))
    for name, make in {
        "no weights": lambda here: (here / weights).unlink(),
        "weights that are cut short": lambda here: os.truncate(here / weights, 5000),
        "weights without a header": write(weights, b"x" * 100),
        "an index that is text": write(f"{weights}.index.json", b"x"),
        "an index of files that are not there": write(
            f"{weights}.index.json", b'{"weight_map": {"a": "b.safetensors"}}'
        ),
        "an index of no files": write(f"{weights}.index.json", b"[]"),
    }.items():
        yield Case(f"start: {name}", ("run", SUITE, "--dry-run", *RUNS, *given), ("runs/model",), _plain(make))
    yield Case("start: a tensor less", ("run", SUITE, *PLACES, *given), ("runs/model",), _plain(_tensors("lacks")))
    for command in (("prepare", SUITE, *RUNS), ("run", SUITE, *PLACES)):
        spoilt = _plain(_tensors("nan"))
        yield Case(f"start: {command[0]} with a number that is none", (*command, *given), ("tensor",), spoilt)
    for words, told in ((("prepare", SUITE, *RUNS, *given), "domain 'a'"), (EVALUATED, "{place}/a.jsonl")):
        yield Case(f"{words[0]}: a tokenizer that deletes", words, (f"{told}: of", "leaves 0"), _plain(_deleting))
        yield Case(f"{words[0]}: a token twice", words, ("'bos_token' stands twice",), _plain(_bos_twice))
    missing = ("prepare", SUITE, *RUNS, *given[:-1], "model.start={place}/a.jsonl")
    yield Case("start: a file", missing, ("a.jsonl",))
    probe = ("--set", "probes=[{{name='z',train=['~no_such_user/x']}}]")
    for more in ((*given[:-1], "model.start=~no_such_user/x"), (*given, *probe)):
        name = f"start: {more[-1][:11]} in nobody's home"
        yield Case(name, ("prepare", SUITE, *RUNS, *more), ("~no_such_user/x",), _plain(lambda here: None))


def published() -> Iterator[Case]:
    """Models of others that are evaluated, grown, or begun with."""
    for one in (float("nan"), 1e300):
        spoilt = _plain(_edit("config.json", layer_norm_epsilon=one))
        yield Case(f"a published model: an epsilon of {one}", EVALUATED, ("runs/model",), spoilt)
    yield Case("a published model: a tensor less", EVALUATED, ("runs/model",), _plain(_tensors("lacks")))
    grown = ("grow", "{here}/runs/model", "--layers", "3", "--width", "64", "--out", "{here}/out")
    for reader in (EVALUATED, grown, ("run", SUITE, "--dry-run", *RUNS, *STARTED)):
        for name, (told, changed) in {
            "a layer that nothing describes": ("e.g. transformer.h.9.ln_1.bias, and", _tensors("a layer")),
            "layers twice": ("'n_layer' stands twice", layers_twice),
            "an index that leads out": ("index.json names '../../x.safetensors', which is no", _leading_out),
        }.items():
            yield Case(f"{reader[0]}: a published model: {name}", reader, ("runs/model", told), _plain(changed))
