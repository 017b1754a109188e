"""What is known of a GPU only once one was there, in one command of at most eight minutes.

python -m tests.tools.gpu_check [--name NAME] [--stand-in]

Each part is a process of its own, with a limit of its own: one that fails, or takes too long, costs the others nothing.
docs/gpu_results/NAME.json holds what came out, and docs/gpu.md a table of all files there. `--stand-in` does all of it
on the device of tests/support/other_device.py, or on the CPU where processes of `run` train, with tiny models.
"""

from __future__ import annotations

import argparse
import json
import math
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

import methods
from benchmark import records
from benchmark.data.tokens import Corpus
from benchmark.instruments import speed
from benchmark.instruments.conformance import TinyRuns, Weights, tiny_config, train_through_kills, weights_of
from benchmark.models.devices import CPU, accelerators, device_name, own_device, precision_of
from benchmark.records import EvaluationLine
from benchmark.settings.suite import RunConfig
from benchmark.store import load_runs
from benchmark.training.processes import World, code_version
from benchmark.training.run import Run
from tests.support import other_device
from tests.tools.trainer_speed import trainer_tokens_per_second

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "docs" / "gpu_results", ROOT / "docs" / "gpu.md"
SECONDS = 470.0  # for all of it
KILLS = (3, 8, 14)  # steps of two stages of ten
DOUBLE, SINGLE = 1e-6, 1e-3  # by how much weights of the same run may differ, in float64 and in float32
PERPLEXITY = 1e-2  # relative
COSTS = ("naive", "agem", "elle", "pnn", "ewc", "logit_kd")

Figures = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How large what is timed is."""

    layers: int = 12
    width: int = 768
    length: int = 512
    rows: int = 64
    vocabulary: int = 30_000
    seconds: float = 12.0  # of each side of a pair
    steps: int = 40  # of a stage of runs side by side
    packages: tuple[str, ...] = ("stdlib", "sklearn", "torch")
    head: int = 64


TINY = Scale(1, 32, 18, 8, 400, 0.3, 4, ("json", "email", "logging"), 16)


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

    def config(self, method: str, architecture: str = "bert", **training: Any) -> RunConfig:
        """A run of two stages at the scale of the place, the second of a larger model where a method grows."""
        scale, small = self.scale, tiny_config(method, architecture)
        content = small.model_dump(mode="json")
        content["domains"] = [{"name": f"domain{n}", "packages": list(scale.packages)} for n in range(2)]
        content["tokenizer"] |= {"vocabulary": scale.vocabulary, "sample_bytes": 10_000_000}
        content["data"] |= {"sequence_length": scale.length, "memory_tokens": 100 * scale.length}
        content["model"] |= {"head_size": scale.head, "dropout": 0.1}
        half = {"layers": max(1, scale.layers // 2), "hidden_size": scale.width}
        content["model"]["ladder"] = [half, {"layers": scale.layers, "hidden_size": scale.width}]
        content["training"] |= {"batch_size": scale.rows, "precision": "auto", "evaluations": 1, **training}
        return RunConfig.model_validate(content)


# The parts


def methods_equal_the_cpus(place: Place) -> Figures:
    """Two stages of each method: by how much its weights differ from the CPU's, in float64 where the device has it."""
    torch.set_default_dtype(torch.float32 if place.device.type == "mps" else torch.float64)
    tolerance = SINGLE if place.device.type == "mps" else DOUBLE
    worst: dict[str, float | str] = {}
    for name in methods.names():
        if time.monotonic() > place.ends - 10:
            return judged(worst, tolerance, sorted({*methods.names()} - worst.keys()))
        tiny = TinyRuns(name, methods.build, place.folder / "methods" / name)
        try:
            both = [two_stages(tiny, world) for world in (World(0, 1, CPU), place.world)]
            worst[name] = difference(*both)
        except Exception as error:  # of one method
            worst[name] = f"{type(error).__name__}: {error}"[:300]
    return judged(worst, tolerance)


def judged(worst: Mapping[str, float | str], tolerance: float, left_out: Sequence[str] = ()) -> Figures:
    """By how much each method's weights differ, or how it failed, and which were not tried."""
    equal = {name: value for name, value in worst.items() if isinstance(value, float) and value <= tolerance}
    bad = [name for name in worst if name not in equal]
    words = f"{len(equal)} methods, weights differ by {max(equal.values(), default=0.0):.0e} at most"
    words += f"; not {', '.join(bad)}" * bool(bad) + f"; not tried {', '.join(left_out)}" * bool(left_out)
    return {"differs": dict(worst), "left_out": list(left_out), "said": words, "ok": not (bad or left_out)}


def goes_on_after_kills(place: Place) -> Figures:
    """ELLE, killed in three steps: by how much its weights differ from those of a run that was not, and those from the
    weights of the same run again. A checkpoint cannot hold tensors of the tests' device: the CPU stands in."""
    tiny = TinyRuns("elle", methods.build, place.folder / "kills")
    world = World(0, 1, CPU) if place.stand_in else place.world
    first, again = (two_stages(tiny, world, store) for store in ("first", "again"))
    run_to_kill = partial(run_of_two_stages, tiny, world, "killed", checkpoint_seconds=1e-9)
    killed = train_through_kills(run_to_kill, KILLS)
    after, alone = difference(first, killed), difference(first, again)
    words = f"weights differ by {after:.0e}, trained again by {alone:.0e}"
    return {"killed": after, "again": alone, "said": words, "ok": after <= max(SINGLE, 2 * alone)}


def compiled_equals_eager(place: Place) -> Figures:
    """ELLE under torch.compile: by how much the weights differ from the eager ones."""
    tiny = TinyRuns("elle", methods.build, place.folder / "compiled")
    world, backend = (World(0, 1, CPU), "aot_eager") if place.stand_in else (place.world, True)
    eager, compiled = two_stages(tiny, world, "eager"), two_stages(tiny, world, "compiled", compile=backend)
    differs = difference(eager, compiled)
    return {"backend": backend, "differs": differs, "said": f"weights differ by {differs:.0e}", "ok": differs <= SINGLE}


def beside_the_trainer(place: Place, architecture: str) -> Figures:
    """Tokens a second of Naive's first stage beside transformers.Trainer's on the same model, batch and text, in turns;
    then compiled."""
    ours, theirs = list[float](), list[float]()
    memory: Figures = {}
    for turn in range(2):
        config = one_stage(place, architecture)
        forget_memory(place)
        run = trained(place, config, f"pair-{architecture}-{turn}")
        ours.append(tokens_per_second(run))
        memory["ours"] = peak_memory(place)
        model, tokens = run.store.stage(run.keys[0]) / "model", run.corpus.domains[0].train
        forget_memory(place)
        device = CPU if place.stand_in else place.device
        theirs.append(trainer_tokens_per_second(model, tokens, config, device, place.scale.seconds))
        memory["theirs"] = peak_memory(place)
    figures: Figures = {"ours": ours, "theirs": theirs, "ratio": sum(ours) / sum(theirs), "peak_bytes": memory}
    figures["precision"] = precision_of("auto", place.device)
    if not place.stand_in and time.monotonic() < place.ends - 5 * place.scale.seconds:
        compiled = trained(place, one_stage(place, architecture, compile=True), f"pair-{architecture}-compiled")
        figures["ours_compiled"] = tokens_per_second(compiled)
    words = f"{sum(ours) / 2:,.0f} and {sum(theirs) / 2:,.0f} tokens/s, {figures['ratio']:.1f} times"
    words += f", compiled {figures['ours_compiled']:,.0f}" if "ours_compiled" in figures else ""
    if memory["ours"]:
        words += f"; {memory['ours'] / 1e9:.1f} and {memory['theirs'] / 1e9:.1f} GB"
    return figures | {"said": f"{words}; {figures['precision']}", "ok": True}


def steps_of_methods(place: Place) -> Figures:
    """What a step of each method costs, by `speed`, and the most memory that it and a step of Naive's take. The matrix
    product that `speed` times is one for a GPU: without one the CPU stands in, and two methods."""
    place, names = (replace(place, device=CPU), COSTS[:2]) if place.stand_in else (place, COSTS)
    costs: list[Figures] = []
    for name in names:
        if time.monotonic() > place.ends - 20:
            break
        config = place.config(name)
        run = trained(place, config, "steps", last_stage=None)
        forget_memory(place)
        measured, _ = speed.measure([config], methods.build, partial(_corpus, run), run.world, pairs=3)
        more = {"peak_bytes": peak_memory(place)}
        costs += [asdict(cost) | {"tokens_per_second": cost.tokens / cost.seconds} | more for cost in measured]
    words = [
        f"{cost['row']} {cost['phase']} {cost['over_naive']:.2f} of Naive's, {cost['of_peak']:.0%} of the product"
        + (f", {cost['peak_bytes'] / 1e9:.1f} GB" if cost["peak_bytes"] else "")
        for cost in costs
        if cost["stage"] == 1
    ]
    return {"costs": costs, "said": "; ".join(words), "ok": bool(costs)}


def runs_side_by_side(place: Place) -> Figures:
    """Two runs one after the other, and at a time on one device: seconds, and whether they come to the same."""
    figures: Figures = {}
    for count in (1, 2):
        began = time.monotonic()
        run_suite(place, f"side-{count}", "--parallel", str(count), "--methods", "naive,er")
        figures[f"seconds_{count}"] = time.monotonic() - began
    words = f"{figures['seconds_1']:.0f} s one after the other, {figures['seconds_2']:.0f} s at a time"
    return figures | compared(place, "side-1", "side-2", words)


def processes_together(place: Place) -> Figures:
    """A run by all GPUs of the machine, two processes where it has none, beside a run by one: what it comes to."""
    count = 2 if place.stand_in else accelerators()[1]
    if count < 2:
        return {"said": "left out: one GPU", "ok": True}
    run_suite(place, "alone", "--methods", "naive")
    run_suite(place, "together", "--methods", "naive", "--processes", str(count))
    rates = {name: last_evaluations(place, name)[0].tokens_per_second for name in ("alone", "together")}
    words = f"{count} are {rates['together'] / rates['alone']:.2f} times as fast as one"
    return {"processes": count, "tokens_per_second": rates} | compared(place, "alone", "together", words)


PARTS: dict[str, tuple[Callable[[Place], Figures], float]] = {
    "bert beside Trainer": (partial(beside_the_trainer, architecture="bert"), 110),
    "methods": (methods_equal_the_cpus, 150),
    "kills": (goes_on_after_kills, 60),
    "compile": (compiled_equals_eager, 90),
    "processes": (processes_together, 90),
    "side by side": (runs_side_by_side, 80),
    "steps": (steps_of_methods, 120),
    "gpt beside Trainer": (partial(beside_the_trainer, architecture="gpt"), 110),
}

# What parts share


def run_of_two_stages(
    tiny: TinyRuns, world: World, store: str, stop: Callable[[], bool] = lambda: False, **training: Any
) -> Run:
    config = tiny.config(evaluations=1, **training)
    return tiny.run(config.model_copy(update={"domains": config.domains[:2]}), store, stop, world)


def two_stages(tiny: TinyRuns, world: World, store: str = "", **training: Any) -> list[Weights]:
    """The weights after each of two stages of a tiny run, trained on a device."""
    run = run_of_two_stages(tiny, world, store or world.device.type, **training)
    run.train()
    return weights_of(run)


def difference(ours: Sequence[Weights], theirs: Sequence[Weights]) -> float:
    """The largest one of any weight."""
    pairs = [(mine[name], other[name]) for mine, other in zip(ours, theirs, strict=True) for name in mine]
    return max(float((mine - other).abs().max()) for mine, other in pairs)


def one_stage(place: Place, architecture: str, **training: Any) -> RunConfig:
    """Naive at full size from the first stage on, for some seconds."""
    config = place.config("naive", architecture, **training)
    budget = config.budget.model_copy(update={"unit": "seconds", "amount": place.scale.seconds})
    model = config.model.model_copy(update={"ladder": config.model.ladder[1:] * 2})
    return config.model_copy(update={"model": model, "budget": budget})


def trained(place: Place, config: RunConfig, store: str, last_stage: int | None = 0) -> Run:
    """A run on the place's device; with `last_stage` None only its text is prepared."""
    tiny = TinyRuns(config.method, methods.build, place.folder)
    run = tiny.run(config, store, world=place.world)
    if last_stage is not None:
        run.train(last_stage)
    return run


def _corpus(run: Run, _: RunConfig) -> Corpus:
    return run.corpus


def tokens_per_second(run: Run) -> float:
    line = records.last(run.store.stage_lines(run.keys[0]), EvaluationLine)
    assert line
    return float(line.tokens_per_second)


def forget_memory(place: Place) -> None:
    if not place.stand_in:
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()


def peak_memory(place: Place) -> int | None:
    """Bytes."""
    return None if place.stand_in else int(torch.accelerator.max_memory_allocated())


SUITE = """
title = "GPU check"
methods = ["naive", "er"]
tables = ["main_pretraining"]
domains = [{{ name = "domain0", packages = {packages} }}, {{ name = "domain1", packages = {packages} }}]
[tokenizer]
vocabulary = {vocabulary}
sample_bytes = 10000000
[data]
sequence_length = {length}
memory_tokens = 51200
valid_share = 0.2
max_valid_bytes = 800
[model]
architecture = "bert"
head_size = {head}
dropout = 0.0
ladder = [{{ layers = {layers}, hidden_size = {width} }}, {{ layers = {layers}, hidden_size = {width} }}]
[training]
batch_size = {rows}
learning_rate = 1e-4
evaluations = 1
[budget]
unit = "steps"
amount = {steps}
"""


def run_suite(place: Place, store: str, *words: str) -> None:
    """`run_all.py run` on a suite of two rows, on folders of its own but for the text."""
    suite, runs = place.folder / "gpu_check.toml", place.folder / store
    values = asdict(place.scale) | {"packages": json.dumps(place.scale.packages)}
    suite.write_text(SUITE.format(**values))
    runs.mkdir()
    (place.folder / "data").mkdir(exist_ok=True)
    (runs / "data").symlink_to(place.folder / "data")
    command = [sys.executable, "run_all.py", "run", str(suite), "--runs", str(runs), "--out", str(runs / "report")]
    ended = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{words}: exit status {ended.returncode}: {ended.stderr[-1000:]}")


def last_evaluations(place: Place, store: str) -> list[EvaluationLine]:
    """Of each run, the one of its last stage."""
    runs = load_runs(place.folder / store, "gpu_check")
    return [line for run in runs if (line := records.last(run.stages[-1], EvaluationLine))]


def compared(place: Place, ours: str, theirs: str, words: str) -> Figures:
    """By how much the perplexities of runs in two folders differ, as a share, after other words on both."""
    pairs = zip(last_evaluations(place, ours), last_evaluations(place, theirs), strict=True)
    values = [(mine.perplexity[name], value) for mine, other in pairs for name, value in other.perplexity.items()]
    most = max(abs((mine or math.inf) / (other or math.inf) - 1) for mine, other in values)
    return {"differs": most, "said": f"{words}; perplexities differ by {most:.1%} at most", "ok": most <= PERPLEXITY}


# From outside


def machine(device: torch.device) -> Figures:
    count = accelerators()[1]
    figures: Figures = {"device": device_name(device), "kind": device.type, "count": count, "torch": torch.__version__}
    figures |= {"precision": precision_of("auto", device), "code": code_version(), "date": date.today().isoformat()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        figures |= {"memory": properties.total_memory, "capability": f"{properties.major}.{properties.minor}"}
        figures["cuda"] = torch.version.cuda or torch.version.hip
    return figures


def do_part(name: str, folder: Path, stand_in: bool, seconds: float) -> Figures:
    """A part in this process. Whatever goes wrong is in its figures."""
    began = time.monotonic()
    device = other_device.register() if stand_in else own_device()
    try:
        figures = PARTS[name][0](Place(folder, device, stand_in, began + seconds)) if name else machine(device)
    except Exception as error:
        figures = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000], "traceback": traceback.format_exc()}
    return figures | {"seconds": round(time.monotonic() - began, 1)}


def in_a_process(name: str, folder: Path, stand_in: bool, seconds: float) -> Figures:
    """A part in a process of its own, which is killed when its time is over."""
    out = folder / "figures.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.tools.gpu_check", "--part", name, "--folder", str(folder)]
    command += ["--seconds", str(seconds), *["--stand-in"] * stand_in]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"took more than {seconds:.0f} s", "seconds": seconds}
    if not out.exists():
        return {"ok": False, "error": f"exit status {ended.returncode}: {ended.stderr[-1000:]}"}
    figures: Figures = json.loads(out.read_text())
    return figures


def check(name: str, stand_in: bool, results: Path) -> dict[str, Figures]:
    """Do all parts, and write after each of them what came out so far."""
    ends = time.monotonic() + SECONDS
    with tempfile.TemporaryDirectory() as folder:
        parts = {"machine": in_a_process("", Path(folder), stand_in, 60)}
        name = name or re.sub(r"\W+", "-", str(parts["machine"].get("device", "unknown"))).strip("-").lower()
        for part, (_, most) in PARTS.items():
            left = ends - time.monotonic()
            late = {"ok": False, "error": "no time was left for it"}
            parts[part] = in_a_process(part, Path(folder), stand_in, min(most, left)) if left > 20 else late
            print(f"{part:20} {'ok   ' if parts[part]['ok'] else 'WRONG'}  {said(parts[part])}", flush=True)
            results.mkdir(exist_ok=True)
            (results / f"{name}.json").write_text(json.dumps(parts, indent=1) + "\n")
    return parts


# The table


def said(figures: Mapping[str, Any]) -> str:
    """What a part came to, in a few words."""
    words = str(figures.get("said") or figures.get("error", ""))
    return words.splitlines()[0][:300].replace("|", "/") if words else ""


def table(results: Path) -> str:
    """All files of results side by side, in Markdown."""
    files = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    rows = [["", *files], [":--"] * (len(files) + 1)]
    devices = [f"{of['machine']['count']} {of['machine']['device']}, {of['machine']['date']}" for of in files.values()]
    rows.append(["machine", *devices])
    for part in PARTS:
        rows.append([part, *(said(of.get(part, {})) for of in files.values())])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


BEGIN, END = "<!-- rendered by `make gpu-check` -->\n", "<!-- until here -->\n"


def write_table(page: Path, results: Path) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{table(results)}{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="", help="of the file of results (default: the device's)")
    parser.add_argument("--stand-in", action="store_true")
    for hidden in ("--part", "--folder", "--seconds"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        folder = Path(options.folder)
        figures = do_part(options.part, folder, options.stand_in, float(options.seconds))
        (folder / "figures.json").write_text(json.dumps(figures))
        return 0
    if not options.stand_in and not accelerators()[1]:
        print("torch finds no GPU here; --stand-in tries all of it without one", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) if options.stand_in else RESULTS
        parts = check(options.name, options.stand_in, results)
        if not options.stand_in:
            write_table(PAGE, RESULTS)
            print(f"wrote {RESULTS}, and the table in {PAGE}: they are worth a commit")
    return int(not all(figures.get("ok", True) for figures in parts.values()))


if __name__ == "__main__":
    sys.exit(main())
