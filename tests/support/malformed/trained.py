"""Cases of what training leaves: models and records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.malformed import Case, Make
from tests.support.malformed.making import FILLED, SUITE, both, lines, pipe, stage_folder, write


def model(here: Path) -> None:
    """A model without checksums, as other people's are: with them, any change is found before it is read."""
    shutil.copytree(stage_folder() / "model", here / "runs/model", ignore=shutil.ignore_patterns("files.json"))


NO_TOKENS = b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'


def of_100_bytes(here: Path) -> None:
    """Take 156 of the 256 bytes from a byte-level tokenizer, and its merges."""
    path = here / "runs/model/tokenizer.json"
    content = json.loads(path.read_text())
    model = content["model"]
    for letter in sorted(token for token in model["vocab"] if len(token) == 1)[100:]:
        del model["vocab"][letter]
    model["merges"] = []
    path.write_text(json.dumps(content))


def _damaged(make: Make) -> Make:
    return both(model, make)


def _edit(name: str, **changes: object) -> Make:
    def make(here: Path) -> None:
        path = here / "runs/model" / name
        content = json.loads(path.read_text())
        for key, value in changes.items():
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
        path.write_text(json.dumps(content))

    return make


def layers_twice(here: Path) -> None:
    """A second number of layers in config.json, another one, which hides the first from most readers."""
    path = here / "runs/model/config.json"
    path.write_text(path.read_text().rstrip().removesuffix("}") + ', "n_layer": 7}')


def _tensors(how: str) -> Make:
    def make(here: Path) -> None:
        from safetensors.torch import load_file, save_file

        path = here / "runs/model/model.safetensors"
        weights = load_file(path)
        name = sorted(weights)[-1]
        if how == "lacks":
            del weights[name]
        elif how == "more":
            weights["another"] = weights[name].clone()
        elif how == "a layer":
            weights["transformer.h.9.ln_1.bias"] = weights[name].clone()
        elif how == "shape":
            weights[name] = weights[name][:1].clone()
        else:
            weights[name].view(-1)[0] = float(how)
        save_file(weights, path, metadata={"format": "pt"})

    return make


def models() -> Iterator[Case]:
    """Checkpoints that are damaged, given to each command that reads one."""
    damages: dict[str, tuple[Make, str]] = {
        "no config": (lambda here: (here / "runs/model/config.json").unlink(), "runs/model"),
        "no weights": (lambda here: (here / "runs/model/model.safetensors").unlink(), "runs/model"),
        "empty config": (write("runs/model/config.json", b""), "config.json"),
        "a config that is a list": (write("runs/model/config.json", b"[]"), "config.json"),
        "a config of nothing": (write("runs/model/config.json", b"{}"), "runs/model"),
        "a config that is no text": (write("runs/model/config.json", b"\xff\xff"), "config.json"),
        "a deep config": (write("runs/model/config.json", b"[" * 100_000), "config.json"),
        "empty weights": (write("runs/model/model.safetensors", b""), "runs/model"),
        "weights of zeros": (write("runs/model/model.safetensors", bytes(1000)), "runs/model"),
        "weights that are text": (write("runs/model/model.safetensors", b"x" * 1000), "runs/model"),
        "cut weights": (_cut_weights, "runs/model"),
        "a tensor less": (_tensors("lacks"), "runs/model"),
        "a tensor more": (_tensors("more"), "runs/model"),
        "a tensor of another shape": (_tensors("shape"), "runs/model"),
        "a number that is none": (_tensors("nan"), "runs/model"),
        "a number without bounds": (_tensors("-inf"), "runs/model"),
        "another type": (_edit("config.json", model_type="no_such"), "no_such"),
        "no type": (_edit("config.json", model_type=None), "runs/model"),
        "no layers": (_edit("config.json", n_layer=0), "runs/model"),
        "layers twice": (layers_twice, "n_layer' stands twice"),
        "more layers": (_edit("config.json", n_layer=3), "runs/model"),
        "a wider model": (_edit("config.json", n_embd=64), "runs/model"),
        "layers in words": (_edit("config.json", n_layer="two"), "runs/model"),
        "three heads": (_edit("config.json", n_head=3), "runs/model"),
        "an initial range without bounds": (_edit("config.json", initializer_range=float("inf")), "Infinity"),
        **{
            f"an epsilon of {one}": (_edit("config.json", layer_norm_epsilon=one), said)
            for one, said in ((float("nan"), "NaN"), (1e300, "1e+300"), (0, "is 0"), (-1, "is -1"), ("x", "'x'"))
        },
    }
    ours: dict[str, tuple[Make, str]] = {
        "a domain more": (_edit("config.json", domains=["a", "b", "c"]), "runs/model"),
        "domains in a word": (_edit("config.json", domains="ab"), "runs/model"),
        "no domains": (_edit("config.json", domains=None), "runs/model"),
        "a domain twice": (_edit("config.json", domains=["a", "a"]), "'a', 'a'"),
        "domains in numbers": (_edit("config.json", domains=[7, 8]), "7, 8"),
        **{f"prompts {one}": (_edit("config.json", prompts=one), "prompts") for one in ("x", 7, None)},
        "a text vocabulary in words": (_edit("config.json", text_vocabulary="x"), "runs/model"),
        "a smaller text vocabulary": (_edit("config.json", text_vocabulary=7), "runs/model"),
        "no tokenizer": (lambda here: (here / "runs/model/tokenizer.json").unlink(), "tokenizer.json"),
        "an empty tokenizer": (write("runs/model/tokenizer.json", b""), "tokenizer.json"),
        "a tokenizer of nothing": (write("runs/model/tokenizer.json", b"{}"), "tokenizer.json"),
        "a tokenizer of no tokens": (write("runs/model/tokenizer.json", NO_TOKENS), "tokenizer.json"),
        "a tokenizer of 100 bytes": (of_100_bytes, "tokenizer.json is missing or damaged (it lacks 156 of"),
    }
    given = ("evaluate", "{here}/runs/model", "--text", "{place}/a.jsonl")
    yield Case("evaluate: numbers that overflow", given, ("a.jsonl is nan",), _damaged(_tensors("3e38")))
    for name, (make, named) in {**damages, **ours}.items():
        yield Case(f"evaluate: {name}", given, (named,), _damaged(make))
        if name in damages:
            grown = ("grow", "{here}/runs/model", "--layers", "3", "--width", "64", "--out", "{here}/out")
            yield Case(f"grow: {name}", grown, (named,), _damaged(make))
        if name not in damages or "epsilon" in name:
            exported = ("export", "{here}/runs/model", "{here}/out")
            yield Case(f"export: {name}", exported, (named,), _damaged(make))


def other_models() -> Iterator[Case]:
    """Models of several columns, sizes to grow to, and domains."""
    for name, content in {"columns": b"x", "empty columns": b"{}", "no columns": b'{"columns": 0}'}.items():
        given = ("evaluate", "{here}/runs/model", "--text", "{place}/a.jsonl")
        yield Case(name, given, ("runs/model",), _damaged(write("runs/model/progressive.json", content)))
    for layers, width, named in (
        *((1, 8, "16"), (2, 33, "16"), (0, 32, "--layers"), (-1, 32, "--layers"), (10**9, 32, "--layers")),
        *((2, 0, "--width"), (2, -32, "--width"), (2, 10**9, "--width")),
    ):
        size = (f"--layers={layers}", f"--width={width}")
        yield Case(
            f"grow to {layers} {width}", ("grow", "{here}/runs/model", *size, "--out", "{here}/out"), (named,), model
        )
    for option, named in (
        (("--seed=-1",), "--seed"),
        (("--seed=" + "9" * 30,), "--seed"),
        (("--text", "{here}/none.jsonl"), "none.jsonl"),
        (("--mode", "x"), "--mode"),
    ):
        to_width = ("grow", "{here}/runs/model", "--layers=2", "--width=32", "--out", "{here}/out", *option)
        yield Case(f"grow {option[0][:10]}", to_width, (named,), model)
    for domain in ("c", "", "../a", "none"):
        evaluated = ("evaluate", "{here}/runs/model", "--text", "{place}/a.jsonl", f"--domain={domain}")
        yield Case(f"evaluate --domain {domain!r}", evaluated, ("--domain",), model)
    picked = ("evaluate", "{here}/runs/model", "--text", "{place}/a.jsonl", "--domain=auto")
    yield Case("auto without discriminator", picked, ("discriminator",), model)
    for content in (b"", b"[]", b"{}", b'{"domains": [0], "weights": [[1]], "bias": ["x"]}'):
        make = _damaged(write("runs/model/domain_discriminator.json", content))
        yield Case(f"discriminator {content!r}", picked, ("domain_discriminator.json",), make)


def _cut_weights(here: Path) -> None:
    path = here / "runs/model/model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _runs(here: Path) -> None:
    shutil.copytree(
        FILLED[-1] / "runs", here / "runs", ignore=shutil.ignore_patterns("model", "data", "*.lock", "lock")
    )


READERS = {
    "status": ("status", SUITE, "--runs", "{here}/runs"),
    "dry run": ("run", SUITE, "--dry-run", "--runs", "{here}/runs", "--out", "{here}/report"),
    "report": ("report", SUITE, "--runs", "{here}/runs", "--out", "{here}/report"),
    "compare": ("compare", "{here}/runs", "{place}/runs"),
    "track": ("track", SUITE, "--to", "tensorboard", "--runs", "{here}/runs", "--out", "{here}/out"),
}
# fields of a stage's lines, and what none of them can be
OF_STAGE: dict[str, dict[str, tuple[object, ...]]] = {
    "stage": {
        **dict.fromkeys(("key", "domain", "provenance", "budget", "data"), ("gone", 7)),
        **dict.fromkeys(("index", "parameters", "trainable"), ("gone", "x", -1)),
        **dict.fromkeys(("layers", "hidden_size"), ("gone", "x", -1, 1_000_001, 10**400)),
        "provenance": ("gone", 7, {}),
        "budget": ("gone", 7, {}, {"unit": 7, "amount": 1.0}, *({"unit": "steps", "amount": x} for x in (-1.0, 0))),
        "phases": ("gone", "x", [1], [{}]),
        "time": ("gone", "x", -1),
    },
    "evaluation": {
        "phase": ("gone", 7, "no_such"),
        "step": ("gone", "x", -1),
        "fraction": ("gone", "x", 1.5, -0.1),
        "charged": ("gone", 7, {}, {"seconds": "x"}, {"seconds": 1.0}, {"seconds": -1.0, "steps": 1, "tokens": 1}),
        "perplexity": (
            *("gone", 7, {}, {"a": "x", "b": 1.0}, {"a": 1.0, "b": 0.5}, {"b": 1.0}, {"a": [], "b": 1.0}),
            {"a": 1.0, "b": 1.0, "not yet met": "x"},
        ),
        "bits_per_byte": (7, {}, {"a": "x"}, {"a": -1.0, "b": 1.0}),
        "tokens_per_second": ("x", -1.0),
        "loss": ("x",),
        "time": ("gone", "x"),
    },
    "done": {
        "charged": ("gone", 7, "x", {}, *({"seconds": x, "steps": 1, "tokens": 1} for x in (1e9, -1.0))),
        "phases": ("gone", "x", [1], [{}], [{"name": "adapt", "seconds": -1.0, "steps": 1, "tokens": 1}]),
        "growth": ("gone", 7, {}),
        "cores": (7, {}),
        "time": ("gone", "x"),
    },
}
OF_RUN: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("id", "suite", "row", "row_index", "title", "method", "options", "seed"), ("gone", [7])),
    "unigram": ("gone", [7], {"a": 0.5, "b": 2.0}),
    "domains": ("gone", [7], [{"name": "a", "title": "A text"}, {"name": "b", "title": "a-text"}]),
    "config": ("gone", [7], {}),
    "stages": ("gone", 7, ["../../x"], []),
    **dict.fromkeys(("texts", "probes", "tasks", "start"), (7,)),
    "start": (7, "../../x", "a/b", "."),
    "time": ("gone", "x"),
}


SCORE: dict[str, object] = {
    **{"kind": "score", "time": 1.0, "key": "k", "task": "t", "task_key": "x", "domain": "a", "prompt": "right"},
    **{"seed": 0, "metric": "accuracy", "dev": 0.5, "test": 0.5, "test_without_leaks": None, "seconds": 1.0},
}
OF_SCORE: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("dev", "test"), (2.0, -0.1, "x", None)),
    **dict.fromkeys(("test_without_leaks", "picked_right"), (1.5,)),
    **{"prompt": ("zzz", 7), "seed": ([1],), "task": (["t"],), "metric": (7,), "seconds": ("x", -1.0), "time": ("x",)},
}


def records() -> Iterator[Case]:
    """Files of records, read by each command that reads them."""

    def of_stage(change: Any) -> Make:
        return both(_runs, lambda here: _change(here / "runs/stages" / stage_folder().name / "records.jsonl", change))

    def of_run(change: Any) -> Make:
        return both(_runs, lambda here: _change(next((here / "runs/suites/tiny").glob("er-*.jsonl")), change))

    for command, given in READERS.items():
        for kind, fields in OF_STAGE.items():
            for field, values in fields.items():
                for value in values:
                    name = f"{command}: {kind} line: {field} {value}"
                    yield Case(name, given, ("records.jsonl",), of_stage(_field(kind, field, value)))
        yield Case(
            f"{command}: the last evaluation gone", given, ("records.jsonl",), of_stage(_without_last_evaluation)
        )
        cut = ("records.jsonl:",)
        yield Case(f"{command}: the last evaluation cut short", given, cut, of_stage(_cut_last_evaluation))
        for field, values in OF_RUN.items():
            for value in values:
                change = _field("run", field, value)
                yield Case(f"{command}: run line: {field} {value}", given, ("er-",), of_run(change))
    report = READERS["report"]
    for name, content in {
        "not JSON": b"x\n{}\n",
        "a number": b"7\n{}\n",
        "of no kind": b'{"kind": "x"}\n{"kind": "done"}\n',
        "binary": bytes(range(256)) + b"\n{}\n",
        "5,000 digits": b'{"kind": "done", "x": ' + b"9" * 5000 + b'}\n{"kind": "done"}\n',
        "deep": b'{"kind": "done", "x": ' + b"[" * 100_000 + b"\n{}\n",
    }.items():
        yield Case(f"records {name}", report, ("records.jsonl",), of_stage(lambda lines, c=content: c))
        yield Case(f"run {name}", report, ("er-",), of_run(lambda lines, c=content: c))
    first = both(_runs, _swap_stages)
    yield Case("records of another stage", report, ("records.jsonl",), first)
    out = both(_runs, write("x/records.jsonl", b"x\n\nx\n"))
    led = both(out, lambda here: _change(next((here / "runs/suites/tiny").glob("er-*.jsonl")), _led_out))
    yield Case("stages that lead out", report, ("er-", "stages whose keys"), led)
    yield Case("the file of another run", report, ("er-",), both(_runs, _swap_runs))
    of_one = f"runs/stages/{stage_folder().name}/records.jsonl"
    folder = both(_runs, lambda here: _replace_by_folder(here / of_one))
    yield Case("records that are a folder", report, ("records.jsonl",), folder)
    for command, given in READERS.items():
        yield Case(f"{command}: a pipe for records", given, ("records.jsonl", "a pipe"), both(_runs, pipe(of_one)))
    scores = f"runs/scores/{stage_folder().name}.jsonl"
    for name, content in {"of no fields": lines({"kind": "score", "time": 1.0}), "not JSON": b"x\n\nx\n"}.items():
        yield Case(f"scores {name}", report, ("scores",), both(_runs, write(scores, content)))
    score = {**SCORE, "stage_key": stage_folder().name}
    for field, values in OF_SCORE.items():
        for value in values:
            make = both(_runs, write(scores, lines({**score, field: value})))
            for command in ("report", "compare", "track"):
                yield Case(f"{command}: score: {field} {value}", READERS[command], (".jsonl:1:", field), make)
    yield Case("baselines", report, ("baselines",), both(_runs, write("runs/scores/baselines.jsonl", b"{}\n{}\n")))


JOB: dict[str, object] = {
    **{"kind": "job", "time": 1.0, "id": "12_3", "key": "k", "name": "n", "run": None, "after": [], "needs": []},
    **{"log": "l", "exclusive": False},
}
OF_JOB: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("id", "time", "key", "after", "needs", "log", "user", "bundled"), ([7],)),
    "id": ([7], "12;x", "", "12_", "x", "-1", "9" * 5000, "1_2_3"),
}


def jobs() -> Iterator[Case]:
    """Files of Slurm's jobs."""
    for field, values in OF_JOB.items():
        for value in values:
            make = both(_runs, write("runs/suites/tiny/jobs/c/12_3.jsonl", lines({**JOB, field: value})))
            for command in ("status", "dry run"):
                yield Case(f"{command}: job: {field} {value!s:.9}", READERS[command], ("12_3.jsonl:1:", field), make)


def scored() -> Iterator[Case]:
    """Models of finished stages, of which `status` asks how they are scored."""
    files = ", ".join(f'{split}="{{place}}/t.jsonl"' for split in ("train", "dev", "test"))
    tasks = ("--set", f'tasks=[{{{{name="t", domain="a", {files}}}}}]')
    for content in (b"", b"x", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"prompts": 7}', b'{"prompts": "false"}'):
        config = f"runs/stages/{stage_folder().name}/model/config.json"
        make = both(_runs, write(config, content))
        for command in ("status", "dry run"):
            name = f"{command}: a config of a finished model {content[:9]!r}"
            yield Case(name, (*READERS[command], *tasks), ("config.json",), make)

    other = both(_runs, write(f"runs/scores/{stage_folder().name}.jsonl", lines({**SCORE, "stage_key": "0" * 16})))
    for command in ("status", "dry run"):
        yield Case(f"{command}: scores of another stage", (*READERS[command], *tasks), ("about stage 000",), other)


def _led_out(content: bytes) -> bytes:
    changed: bytes = _field("run", "stages", ["../../x"] * 2)(content)
    return changed


def _change(path: Path, change: Any) -> None:
    path.write_bytes(change(path.read_bytes()))


def _field(kind: str, field: str, value: object) -> Any:
    def change(content: bytes) -> bytes:
        records = [json.loads(line) for line in content.splitlines()]
        for line in records:
            if line["kind"] == kind:
                if value == "gone":
                    line.pop(field, None)
                else:
                    line[field] = value
        return lines(*records)

    return change


def _evaluation(content: bytes) -> tuple[list[bytes], int]:
    """The lines of a stage, and which is its last evaluation."""
    found = content.splitlines(keepends=True)
    return found, max(i for i, line in enumerate(found) if json.loads(line)["kind"] == "evaluation")


def _without_last_evaluation(content: bytes) -> bytes:
    found, last = _evaluation(content)
    return b"".join([*found[:last], *found[last + 1 :]])


def _cut_last_evaluation(content: bytes) -> bytes:
    found, last = _evaluation(content)
    return b"".join([*found[:last], found[last][:-20] + b"\n", *found[last + 1 :]])


def _swap_stages(here: Path) -> None:
    stages = sorted((here / "runs/stages").iterdir())
    other = next(one for one in stages if one.name != stage_folder().name)
    shutil.copy(other / "records.jsonl", here / "runs/stages" / stage_folder().name / "records.jsonl")


def _swap_runs(here: Path) -> None:
    er, naive = (next((here / "runs/suites/tiny").glob(f"{name}-*.jsonl")) for name in ("er", "naive"))
    shutil.copy(naive, er)


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
