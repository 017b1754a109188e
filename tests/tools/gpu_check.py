"""What only a machine with a GPU can show, in one command of at most eight minutes.

python -m tests.tools.gpu_check [--name NAME] [--stand-in]

Each part is a process of its own with its own time limit, plus the time that earlier parts left. If
a part fails or takes too long, the others lose nothing. docs/gpu_results/NAME.json holds the
results, and tests/TRIALS.md a table of all files there. `--stand-in` does all parts with tiny
models, on the device of tests/support/other_device.py, or on the CPU if that device cannot serve.
It keeps no results.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import methods
from benchmark.data.tokenizer import Vocabulary
from benchmark.data.tokens import Corpus
from benchmark.devices import (
    CPU,
    choose_device,
    choose_precision,
    find_accelerators,
    name_device,
)
from benchmark.errors import UserError
from benchmark.instruments import speed
from benchmark.instruments.comparisons import Weights, load_weights
from benchmark.instruments.conformance import TinyRuns, make_tiny_config
from benchmark.instruments.kills import train_through_kills
from benchmark.instruments.memory import GIB, estimate_memory
from benchmark.interpreters import set_up_to_compute
from benchmark.ledger import records
from benchmark.ledger.records import EvaluationLine
from benchmark.ledger.runs import load_runs
from benchmark.models import LanguageModel
from benchmark.settings.optimizers import find_optimizer
from benchmark.settings.suite import RunConfig
from benchmark.training.optimizer import PhaseOptimizer
from benchmark.training.processes import World, find_code_version
from benchmark.training.run import Run
from tests.support import other_device, processes
from tests.tools.trainer_speed import measure_trainer_speed

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "docs" / "gpu_results", ROOT / "tests" / "TRIALS.md"
KILLS = (3, 8, 14)  # steps of two stages of ten
DOUBLE, SINGLE = (
    1e-6,
    1e-3,
)  # by how much weights of the same run may differ, in float64 and in float32
PERPLEXITY = 1e-2  # relative
COSTS = ("naive", "agem", "elle", "pnn", "ewc", "logit_kd")

Figures = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """The sizes of the models and texts that are timed."""

    layers: int = 12
    width: int = 768
    length: int = 512
    rows: int = 64
    vocabulary: int = 30_000
    seconds: float = 8.0  # of each side of a pair
    steps: int = 30  # of a stage of runs side by side
    packages: tuple[str, ...] = ("stdlib", "sklearn", "torch")
    head: int = 64
    valid_bytes: int = 30_720  # of a domain: some rows of text


TINY = Scale(1, 32, 18, 8, 400, 0.3, 4, ("json", "email", "logging"), 16, 1080)


@dataclass(frozen=True)
class Place:
    """Where a part works: below a folder, on a device, until its time is over."""

    folder: Path
    device: torch.device
    stand_in: bool
    ends: float  # seconds of `time.monotonic`

    @property
    def scale(self) -> Scale:
        return TINY if self.stand_in else Scale()

    @property
    def world(self) -> World:
        return World(0, 1, self.device)

    def tiny(self, method: str) -> TinyRuns:
        """Tiny runs of a method, which share their text with those of others."""
        return TinyRuns(method, methods.build, self.folder / "tiny")

    def config(self, method: str, architecture: str = "bert") -> RunConfig:
        """A run of two stages at the scale of the place. If the method grows, the second stage has
        a larger model.
        """
        scale, small = self.scale, make_tiny_config(method, architecture)
        content = small.model_dump(mode="json")
        content["domains"] = [
            {"name": f"domain{n}", "packages": list(scale.packages)} for n in range(2)
        ]
        content["tokenizer"] |= {"vocabulary": scale.vocabulary, "sample_bytes": 10_000_000}
        content["data"] |= {"sequence_length": scale.length, "memory_tokens": 100 * scale.length}
        content["data"]["max_valid_bytes"] = scale.valid_bytes
        content["model"] |= {"head_size": scale.head, "dropout": 0.1}
        half = {"layers": max(1, scale.layers // 2), "hidden_size": scale.width}
        content["model"]["ladder"] = [half, {"layers": scale.layers, "hidden_size": scale.width}]
        content["training"] |= {"batch_size": scale.rows, "precision": "auto", "evaluations": 1}
        return RunConfig.model_validate(content)


# The parts


def describe_machine(place: Place) -> Figures:
    """The GPUs, and the versions of torch and of the code. Raises UserError without a GPU."""
    device, count = place.device, find_accelerators()[1]
    figures: Figures = {
        "device": name_device(device),
        "kind": device.type,
        "count": count,
        "torch": torch.__version__,
    }
    if not count:
        raise UserError("torch finds no GPU here; --stand-in tries all of it without one")
    figures |= {"precision": choose_precision("auto", device), "code": find_code_version()}
    figures["date"] = date.today().isoformat()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        figures |= {
            "memory": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
        }
        figures["cuda"] = torch.version.cuda or torch.version.hip
    words = (
        f"{count} {figures['device']}, {figures['date']}"
        + ", a stand-in that is no GPU" * place.stand_in
    )
    return figures | {"said": words, "ok": True}


def prepare_text(place: Place) -> Figures:
    """Prepare the text of later parts, so that these parts spend their time on training."""
    corpora = [
        train(place, place.config("naive", kind), "text", None).corpus for kind in ("bert", "gpt")
    ]
    count = sum(len(domain.train) for corpus in corpora for domain in corpus.domains)
    return {"tokens": count, "said": f"{count / 1e6:.1f} million tokens", "ok": True}


def compare_methods_with_the_cpu(place: Place) -> Figures:
    """Train two stages of each method here and on the CPU, and compare the weights, in float64."""
    torch.set_default_dtype(torch.float64)
    worst: dict[str, float | str] = {}
    names = COSTS if place.stand_in else methods.list_names()
    for name in names:
        if time.monotonic() > place.ends - 10:
            return judge_weights(worst, DOUBLE, sorted({*names} - worst.keys()))
        try:
            worlds = (World(0, 1, CPU), place.world)
            both = [
                train_two_stages(place.tiny(name), world, f"{name}-{world.device.type}")
                for world in worlds
            ]
            worst[name] = find_difference(*both)
        except Exception as error:  # of one method
            worst[name] = f"{type(error).__name__}: {error}"[:300]
    return judge_weights(worst, DOUBLE)


def judge_weights(
    worst: Mapping[str, float | str], tolerance: float, left_out: Sequence[str] = ()
) -> Figures:
    """The figures of a comparison: for each method, `worst` has the largest difference of weights,
    or the text of an error.

    The figures are `ok` if no number is above `tolerance`, no method failed and none was left out.
    """
    equal = {
        name: value
        for name, value in worst.items()
        if isinstance(value, float) and value <= tolerance
    }
    bad = [name for name in worst if name not in equal]
    words = (
        f"{len(equal)} methods, weights differ by {max(equal.values(), default=0.0):.0e} at most"
    )
    words += f"; not {', '.join(bad)}" * bool(bad) + f"; not tried {', '.join(left_out)}" * bool(
        left_out
    )
    return {
        "differs": dict(worst),
        "left_out": list(left_out),
        "said": words,
        "ok": not (bad or left_out),
    }


def go_on_after_kills(place: Place, precision: str) -> Figures:
    """Kill ELLE in three steps, and compare its weights with those of an undisturbed run.

    Two undisturbed runs are compared too. fp16, with GradScaler, is also compared with fp32, by
    perplexities. A checkpoint cannot hold tensors of the tests' device, so the CPU stands in.
    """
    tiny, world = place.tiny("elle"), World(0, 1, CPU) if place.stand_in else place.world
    first, again = (
        train_two_stages(tiny, world, f"{precision}-{run}", precision=precision)
        for run in ("first", "again")
    )
    store = f"{precision}-killed"
    start = partial(
        make_run_of_two_stages, tiny, world, store, precision=precision, checkpoint_seconds=1e-9
    )
    after, alone = (
        find_difference(first, train_through_kills(start, KILLS)),
        find_difference(first, again),
    )
    words = f"weights differ by {after:.0e}, trained again by {alone:.0e}"
    figures = {
        "killed": after,
        "again": alone,
        "said": words,
        "ok": after <= max(SINGLE, 2 * alone),
    }
    if precision == "fp32":
        return figures
    runs = [
        make_run_of_two_stages(tiny, world, f"{each}-first", precision=each)
        for each in (precision, "fp32")
    ]
    for run in runs:
        run.train()
    return compare_perplexities([tuple(map(read_last_evaluation, runs))], words, figures)


def compare_compiled_with_eager(place: Place) -> Figures:
    """Train ELLE with torch.compile and without, and compare the weights."""
    world, backend = (World(0, 1, CPU), "aot_eager") if place.stand_in else (place.world, True)
    eager = train_two_stages(place.tiny("elle"), world, "eager")
    differs = find_difference(
        eager, train_two_stages(place.tiny("elle"), world, "compiled", compile=backend)
    )
    return {
        "backend": backend,
        "differs": differs,
        "said": f"weights differ by {differs:.0e}",
        "ok": differs <= SINGLE,
    }


def time_beside_the_trainer(place: Place, architecture: str) -> Figures:
    """Tokens per second of Naive's first stage and of transformers' Trainer, measured in turns with
    the same model, batch and text.
    """
    ours, theirs = list[float](), list[float]()
    memory: Figures = {}
    for turn in range(2):
        config = configure_one_stage(place, architecture)
        forget_memory(place)
        run = train(place, config, f"pair-{architecture}-{turn}")
        ours.append(read_last_evaluation(run, 0).tokens_per_second)
        memory["ours"] = read_peak_memory(place)
        model, tokens = run.store.stage_folder(run.keys[0]) / "model", run.corpus.domains[0].train
        forget_memory(place)
        device = CPU if place.stand_in else place.device
        theirs.append(measure_trainer_speed(model, tokens, config, device, place.scale.seconds))
        memory["theirs"] = read_peak_memory(place)
    figures: Figures = {
        "ours": ours,
        "theirs": theirs,
        "ratio": sum(ours) / sum(theirs),
        "peak_bytes": memory,
    }
    figures["precision"] = choose_precision("auto", place.device)
    words = (
        f"{sum(ours) / 2:,.0f} and {sum(theirs) / 2:,.0f} tokens/s, {figures['ratio']:.1f} times"
    )
    if memory["ours"]:
        words += f"; {memory['ours'] / 1e9:.1f} and {memory['theirs'] / 1e9:.1f} GB"
    return figures | {"said": f"{words}; {figures['precision']}", "ok": True}


def give_corpus(corpus: Corpus, config: RunConfig) -> Corpus:
    """The corpus of the only run that is measured."""
    return corpus


def time_steps_of_methods(place: Place) -> Figures:
    """The cost of a step of each method, measured by `speed`, and the peak memory of this step and
    a step of Naive. The matrix product that `speed` times is made for a GPU, so the stand-in is the
    CPU, with two methods.
    """
    place, names = (replace(place, device=CPU), COSTS[:2]) if place.stand_in else (place, COSTS)
    costs: list[Figures] = []
    for name in names:
        if time.monotonic() > place.ends - 20:
            break
        config = place.config(name)
        run = train(place, config, "steps", last_stage=None)
        forget_memory(place)
        find_corpus = partial(give_corpus, run.corpus)
        measured, _ = speed.measure([config], methods.build, find_corpus, run.world, pairs=3)
        more = {"peak_bytes": read_peak_memory(place)}
        costs += [
            asdict(cost) | {"tokens_per_second": cost.tokens / cost.seconds} | more
            for cost in measured
        ]
    words = [
        f"{cost['row']} {cost['phase']} {cost['over_naive']:.2f} of Naive's, {cost['of_peak']:.0%} "
        "of the product" + (f", {cost['peak_bytes'] / 1e9:.1f} GB" if cost["peak_bytes"] else "")
        for cost in costs
        if cost["stage"] == 1
    ]
    return {"costs": costs, "said": "; ".join(words), "ok": bool(costs)}


def run_side_by_side(place: Place) -> Figures:
    """Train two runs one after the other, then at the same time on one device, and compare seconds
    and perplexities.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[
        0
    ]  # for `run`
    seconds = []
    for store, count in (("alone", "1"), ("side by side", "2")):
        began = time.monotonic()
        run_suite(place, store, ['{ method = "naive" }', '{ method = "er" }'], "--parallel", count)
        seconds.append(time.monotonic() - began)
    alone, together = (
        read_last_evaluations(place, store).values() for store in ("alone", "side by side")
    )
    words = f"{seconds[0]:.0f} s one after the other, {seconds[1]:.0f} s at a time"
    return compare_perplexities([*zip(alone, together, strict=True)], words, {"took": seconds})


def measure_memory(place: Place) -> Figures:
    """Take two training steps at the sizes of OLMo 2 1B with random weights, eight rows of 1,024
    tokens, and compare the peak of memory with what `estimate_memory` computes, in GiB.
    """
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    vocabulary, rows, columns = 300, 2, 16
    if not place.stand_in:
        sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        vocabulary, rows, columns = 100_352, 8, 1024
    config = AutoConfig.for_model(
        "olmo2",
        vocab_size=vocabulary,
        num_attention_heads=16,
        pad_token_id=None,
        max_position_embeddings=4096,
        **sizes,
    )
    forget_memory(place)
    network = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model = LanguageModel(network, Vocabulary(vocabulary)).to(place.device).train()
    named = list(model.named_parameters())
    training = make_tiny_config("naive").training
    optimizer = PhaseOptimizer(find_optimizer("adamw"), named, [1.0] * len(named), training)
    tokens = torch.randint(vocabulary, (rows, columns), device=place.device)
    positions = torch.arange(columns, device=place.device).expand(rows, -1)
    for _ in range(2):
        with torch.autocast(place.device.type, torch.bfloat16, enabled=not place.stand_in):
            loss = model.compute_mean_loss(tokens, tokens[:, 0] * 0, positions, tokens)
        loss.backward()
        optimizer.step(1e-5)
        model.zero_grad()
    precision = torch.float32 if place.stand_in else torch.bfloat16
    computed = estimate_memory(config, rows, columns, precision=precision).total
    peak = read_peak_memory(place)
    words = f"computed {computed / GIB:.3g} GiB"
    if peak is not None:
        words = f"{peak / GIB:.1f} GiB at the peak, {words}"
    return {
        "computed": computed,
        "peak": peak,
        "said": words,
        "ok": peak is None or computed <= peak <= 1.2 * computed,
    }


def run_processes_together(place: Place) -> Figures:
    """Train a run on all GPUs of the machine, and one with its model sharded over them, and compare
    both with a run on one GPU. Shards do not work with fp16. Instead of the tests' device, two
    processes on the CPU stand in.
    """
    count = 2 if place.stand_in else find_accelerators()[1]
    if count < 2:
        return {
            "said": "left out: nccl takes no two processes on one GPU, and there is one",
            "ok": True,
        }
    precision = choose_precision("auto", place.device).replace("fp16", "fp32")
    shards = f'set = {{ "training.shard" = true, "training.precision" = "{precision}" }}'
    rows = ['{ method = "naive" }', f'{{ name = "Shards", method = "naive", {shards} }}']
    run_suite(place, "together", rows, "--processes", str(count))
    alone, together = (
        read_last_evaluations(place, "alone")["Naive"],
        read_last_evaluations(place, "together"),
    )
    rates = {name: line.tokens_per_second for name, line in (("alone", alone), *together.items())}
    times = [f"{rates[name] / rates['alone']:.2f}" for name in ("Naive", "Shards")]
    words = f"{count} are {times[0]} times as fast as one, as shards {times[1]} times"
    pairs = [(alone, line) for line in together.values()]
    return compare_perplexities(pairs, words, {"processes": count, "tokens_per_second": rates})


PARTS: dict[str, tuple[Callable[[Place], Figures], float]] = {  # with their limits in seconds
    "machine": (describe_machine, 20),
    "methods": (compare_methods_with_the_cpu, 45),
    "kills": (partial(go_on_after_kills, precision="fp32"), 20),
    "fp16 with GradScaler": (partial(go_on_after_kills, precision="fp16"), 20),
    "compile": (compare_compiled_with_eager, 40),
    "memory": (measure_memory, 30),
    "text": (prepare_text, 45),
    "bert beside Trainer": (partial(time_beside_the_trainer, architecture="bert"), 75),
    "side by side": (run_side_by_side, 45),
    "processes": (run_processes_together, 45),
    "steps": (time_steps_of_methods, 50),
    "gpt beside Trainer": (partial(time_beside_the_trainer, architecture="gpt"), 45),
}

# What parts share


def make_run_of_two_stages(tiny: TinyRuns, world: World, store: str, **training: Any) -> Run:
    config = tiny.make_config(evaluations=1, **training)
    return tiny.make_run(config.model_copy(update={"domains": config.domains[:2]}), store, world)


def train_two_stages(tiny: TinyRuns, world: World, store: str, **training: Any) -> list[Weights]:
    """The weights after each of two stages of a tiny run, trained on a device."""
    run = make_run_of_two_stages(tiny, world, store, **training)
    run.train()
    return load_weights(run)


def find_difference(ours: Sequence[Weights], theirs: Sequence[Weights]) -> float:
    """The largest difference of any weight."""
    pairs = [
        (mine[name], other[name]) for mine, other in zip(ours, theirs, strict=True) for name in mine
    ]
    return max(float((mine - other).abs().max()) for mine, other in pairs)


def configure_one_stage(place: Place, architecture: str) -> RunConfig:
    """Naive at full size from the first stage on, for some seconds."""
    config = place.config("naive", architecture)
    budget = config.budget.model_copy(update={"unit": "seconds", "amount": place.scale.seconds})
    model = config.model.model_copy(update={"ladder": config.model.ladder[1:] * 2})
    return config.model_copy(update={"model": model, "budget": budget})


def train(place: Place, config: RunConfig, store: str, last_stage: int | None = 0) -> Run:
    """A run on the place's device; with `last_stage` None only its text is prepared."""
    tiny = TinyRuns(config.method, methods.build, place.folder)
    run = tiny.make_run(config, store, world=place.world)
    if last_stage is not None:
        run.train(last_stage)
    return run


def read_last_evaluation(run: Run, stage: int = -1) -> EvaluationLine:
    line = records.find_last(run.store.read_stage(run.keys[stage]), EvaluationLine)
    assert line
    return line


def forget_memory(place: Place) -> None:
    if not place.stand_in:
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()


def read_peak_memory(place: Place) -> int | None:
    """The peak of memory in bytes, None for the stand-in."""
    return None if place.stand_in else int(torch.accelerator.max_memory_allocated())


SUITE = """
title = "GPU check"
methods = []
rows = [{rows}]
tables = ["main_pretraining"]
domains = [
  {{ name = "domain0", packages = {packages} }},
  {{ name = "domain1", packages = {packages} }},
]
[tokenizer]
vocabulary = {vocabulary}
sample_bytes = 10000000
[data]
sequence_length = {length}
memory_tokens = 51200
valid_share = 0.2
max_valid_bytes = {valid_bytes}
[model]
architecture = "bert"
head_size = {head}
dropout = 0.0
ladder = [
  {{ layers = {layers}, hidden_size = {width} }},
  {{ layers = {layers}, hidden_size = {width} }},
]
[training]
batch_size = {batch}
learning_rate = 1e-4
evaluations = 1
[budget]
unit = "steps"
amount = {steps}
"""


def run_suite(place: Place, store: str, rows: Sequence[str], *words: str) -> None:
    """Run `run_all.py run` on a suite of these rows, in its own folders except for the text."""
    suite, runs = place.folder / "gpu_check.toml", place.folder / store
    values = asdict(place.scale) | {
        "packages": json.dumps(place.scale.packages),
        "batch": place.scale.rows,
    }
    suite.write_text(SUITE.format(**values | {"rows": ", ".join(rows)}))
    runs.mkdir()
    (place.folder / "data").mkdir(exist_ok=True)
    (runs / "data").symlink_to(place.folder / "data")
    command = [
        sys.executable,
        "run_all.py",
        "run",
        str(suite),
        "--runs",
        str(runs),
        "--out",
        str(runs / "report"),
    ]
    ended = subprocess.run(
        [*command, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"{words}: exit status {ended.returncode}: {ended.stderr[-1000:]}")


def read_last_evaluations(place: Place, store: str) -> dict[str, EvaluationLine]:
    """The last evaluation of the last stage of each row's run."""
    runs = load_runs(place.folder / store, "gpu_check")
    return {
        run.row: line for run in runs if (line := records.find_last(run.stages[-1], EvaluationLine))
    }


def compare_perplexities(
    pairs: Sequence[tuple[EvaluationLine, ...]], words: str, figures: Figures
) -> Figures:
    """Add to `figures` the largest difference of perplexities in pairs of runs, as a share, and
    describe it after `words`.
    """
    values = [
        (mine.perplexity[name], value)
        for mine, other in pairs
        for name, value in other.perplexity.items()
    ]
    most = max(abs((mine or math.inf) / (other or math.inf) - 1) for mine, other in values)
    ok = figures.get("ok", True) and most <= PERPLEXITY
    return figures | {
        "differs": most,
        "said": f"{words}; perplexities differ by {most:.1%} at most",
        "ok": ok,
    }


# From outside


def do_part(name: str, folder: Path, stand_in: bool, seconds: float) -> None:
    """Do a part in this process, and write its figures, or its error, to `folder/figures.json`."""
    began = time.monotonic()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    try:
        device = other_device.register() if stand_in else choose_device()
        figures = PARTS[name][0](Place(folder, device, stand_in, began + seconds))
    except Exception as error:
        figures = {
            "ok": False,
            "error": f"{type(error).__name__}: {error}"[:2000],
            "traceback": traceback.format_exc(),
        }
    figures |= {"seconds": round(time.monotonic() - began, 1)}
    (folder / "figures.json").write_text(json.dumps(figures))
    os._exit(
        0
    )  # with 16 cores a fork did not end by itself: it waited for the processes that had read text


def do_in_a_process(name: str, folder: Path, stand_in: bool, seconds: float) -> Figures:
    """Do a part in a process of its own. When its time is over, the process and all that it has
    started are killed.

    The process is a fork, because importing torch takes long. So this process must not use the
    driver of a GPU, which cannot serve both.
    """
    out = folder / "figures.json"
    out.unlink(missing_ok=True)
    part = multiprocessing.get_context("fork").Process(
        target=do_part, args=(name, folder, stand_in, seconds)
    )
    part.start()
    part.join(seconds)
    if part.is_alive():
        processes.kill([*processes.descendants(part.ident or 0), part.ident or 0])
        part.join()
        return {"ok": False, "error": f"took more than {seconds:.0f} s", "seconds": seconds}
    if not out.exists():
        return {
            "ok": False,
            "error": f"exit status {part.exitcode}: {(folder / 'log').read_text()[-1000:]}",
        }
    figures: Figures = json.loads(out.read_text())
    return figures


def check(name: str, stand_in: bool, results: Path) -> dict[str, Figures]:
    """Do all parts, and write the results so far after each part."""
    ends, parts = time.monotonic(), dict[str, Figures]()
    with tempfile.TemporaryDirectory() as folder:
        for part, (_, most) in PARTS.items():
            ends += most
            parts[part] = do_in_a_process(part, Path(folder), stand_in, ends - time.monotonic())
            print(
                f"{part:20} {'ok   ' if parts[part]['ok'] else 'WRONG'}  "
                f"{describe_outcome(parts[part])}",
                flush=True,
            )
            if not parts["machine"]["ok"]:
                break
            name = (
                name
                or re.sub(r"\W+", "-", str(parts["machine"].get("device", "unknown")))
                .strip("-")
                .lower()
            )
            results.mkdir(exist_ok=True)
            (results / f"{name}.json").write_text(json.dumps(parts, indent=1) + "\n")
    return parts


# The table


def describe_outcome(figures: Mapping[str, Any]) -> str:
    """The outcome of a part in a few words."""
    words = str(figures.get("said") or figures.get("error", ""))
    return words.splitlines()[0][:600].replace("|", "/") if words else ""


def render_table(results: Path) -> str:
    """All files of results side by side, in Markdown."""
    files = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    rows = [["", *files], [":--"] * (len(files) + 1)]
    for part in PARTS:
        rows.append([part, *(describe_outcome(of.get(part, {})) for of in files.values())])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


BEGIN, END = "<!-- rendered by `make gpu-check` -->\n", "<!-- until here -->\n"


def write_table(page: Path, results: Path) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{render_table(results)}{END}{after}", encoding="utf-8")


def main() -> int:
    set_up_to_compute()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="", help="of the file of results (default: the device's)")
    parser.add_argument("--stand-in", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) if options.stand_in else RESULTS
        parts = check(options.name, options.stand_in, results)
        if parts["machine"]["ok"] and not options.stand_in:
            write_table(PAGE, RESULTS)
            print(f"wrote {RESULTS}, and the table in {PAGE}: they are worth a commit")
    return int(not all(figures["ok"] for figures in parts.values()))


if __name__ == "__main__":
    sys.exit(main())
