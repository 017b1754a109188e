"""How long commands take that train nothing, of a suite of 20 rows and 50 seeds, 1,000 runs, or of so many seeds.

python -m tests.tools.time_commands [SEEDS]

Each is called three times; what is said is the shortest wall time, of that the time of one core, and the most memory
that a call had. The report shows all tables and figures that there are, and must be the same bytes each time.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import methods
import paper_tables
from benchmark.data.tokens import corpus_of
from benchmark.settings.load import load_suite
from benchmark.store import Store
from benchmark.training.keys import stage_keys
from tests.support.synthetic import DOMAINS, LADDER, METHODS, TASKS, write_as

TIMES = 3
ELLE = "frw", "width", "depth", "both", "noise", "prompts"
ROWS = (
    *(f'{{ method = "{method}" }}' for method, _, _ in METHODS.values()),
    *(
        f'{{ method = "elle", name = "ELLE, {part}", options = {{ noise = 0.0{number} }} }}'
        for number, part in enumerate(ELLE)
    ),
    *(f'{{ method = "ewc", name = "EWC, λ = {10**i}", options = {{ strength = {10**i} }} }}' for i in range(1, 7)),
)
SUITE = """
title = "Many runs"
methods = []
seeds = [{seeds}]
tables = [{tables}]
domains = [{domains}]
tasks = [{tasks}]
rows = [{rows}]
[tokenizer]
vocabulary = 300
[data]
sequence_length = 16
memory_tokens = 1000
[model]
ladder = [{ladder}]
[training]
batch_size = 16
[budget]
unit = "seconds"
amount = 100
"""


def write_suite(folder: Path, seeds: int) -> Path:
    chosen = random.Random(0)
    for name, _ in DOMAINS:
        texts = [" ".join(chosen.choices(["the", "sea", "has", "waves", "and", "tides"], k=50)) for _ in range(200)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    quoted = ", ".join(f'"{name}"' for name in paper_tables.names())
    file = folder / "many.toml"
    file.write_text(
        SUITE.format(
            seeds=", ".join(map(str, range(seeds))),
            tables=quoted,
            domains=", ".join(f'{{ name = "{n}", title = "{t}", train = ["{folder}/{n}.jsonl"] }}' for n, t in DOMAINS),
            tasks=", ".join(f'{{ name = "{task}", domain = "{d}", docstrings = {{}} }}' for d, task in TASKS.items()),
            rows=", ".join(ROWS),
            ladder=", ".join(f"{{ layers = {layers}, hidden_size = {width} }}" for layers, width, _ in LADDER),
        )
    )
    return file


def write_runs(file: Path, runs: Path, finished: float) -> None:
    """Tokenise, and write what this share of the runs would have left; of the others half never started."""
    configs = methods.runs(load_suite(str(file)))
    corpus = corpus_of(configs[0], Store(runs))
    chosen = random.Random(0)
    for config in configs:
        keys = stage_keys(config, methods.build(config.method, config.options), corpus.texts)
        if chosen.random() < finished:
            write_as(runs, config, keys, finished=len(keys))
        elif chosen.random() < 0.5:
            write_as(runs, config, keys, finished=2)


def shortest(*arguments: str) -> str:
    """Time several calls of `run_all.py` and describe the shortest."""
    found, most = [], 0
    user = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # compiles once
    for _ in range(TIMES):
        began = time.perf_counter()
        with subprocess.Popen([sys.executable, "run_all.py", *arguments], stdout=subprocess.DEVNULL, env=user) as call:
            _, status, used = os.wait4(call.pid, 0)
            call.returncode = os.waitstatus_to_exitcode(status)
        assert call.returncode == 0
        found.append((time.perf_counter() - began, used.ru_utime + used.ru_stime))
        most = max(most, used.ru_maxrss)  # in KiB on Linux
    return "{:6.2f} s ({:.2f} s of one core), {:.0f} MB".format(*min(found), most * 1024 / 1e6)


def main() -> None:
    seeds = int(sys.argv[1]) if sys.argv[1:] else 50
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = write_suite(folder, seeds)
        print("--help                             ", shortest("--help"))
        for share in (1.0, 0.6, 0.0):
            runs = folder / f"runs-{share}"
            write_runs(file, runs, share)
            place, out = [str(file), "--runs", str(runs)], ["--out", str(folder / "report")]
            print(f"of {seeds * len(ROWS):,} runs {share:.0%} are done")
            print("  status                           ", shortest("status", *place))
            for executor in ("local", "slurm"):
                print(
                    f"  run --dry-run --executor {executor}   ",
                    shortest("run", "--dry-run", "--executor", executor, *place),
                )
            if share:
                reports = set()
                for _ in range(2):
                    print("  report                           ", shortest("report", *place, *out))
                    reports.add(b"".join(path.read_bytes() for path in sorted((folder / "report").rglob("*.*"))))
                print("  the reports are", "the same" if len(reports) == 1 else "DIFFERENT")


if __name__ == "__main__":
    main()
