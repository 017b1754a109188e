"""The commands of `run_all.py` that work on one model's folder. What they need is imported when they are called."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path


def evaluate(options: argparse.Namespace) -> int:
    """Print the perplexity of a checkpoint on a text."""
    from benchmark.instruments.checkpoints import evaluate_text

    result = evaluate_text(options.checkpoint, options.text, options.domain)
    print(json.dumps(result) if options.json else _lines(result))
    return 0


def new_suite(options: argparse.Namespace) -> int:
    """Write a suite for somebody's text, and say what to do next."""
    from benchmark.instruments.new_suite import new_suite as write
    from benchmark.instruments.speed import MatrixProduct
    from benchmark.training.processes import join

    with join() as alone:
        product = MatrixProduct("fp32", alone)
        fastest = max(product.flops_per_second() for _ in range(5))
    print("\n".join(write(options.name, options.text, fastest)))
    return 0


def track(options: argparse.Namespace) -> int:
    """Send what records say to a tracker, and print of which runs."""
    from benchmark.instruments import track as tracking
    from benchmark.settings.load import load_suite

    send = tracking.follow if options.watch else tracking.track
    new = False
    for line in send(load_suite(options.suite).name, options.runs, options.to, options.out):
        new = True
        print(line, flush=True)
    if not new:
        print(f"nothing new in {options.runs} since the last call")
    return 0


def export(options: argparse.Namespace) -> int:
    """Write the model of a stage as a plain Hugging Face folder, and say where it went."""
    from benchmark.instruments.checkpoints import export_model

    domain = export_model(Path(options.stage), options.out, options.prompt)
    reads = f"reads texts as those of {domain}" if domain else "reads all texts alike"
    print(f"wrote {options.out}, a Hugging Face model that {reads}; README.md in it is its card")
    print(f"next: `python run_all.py evaluate {options.out} --text FILE` measures it; transformers loads it")
    return 0


def grow(options: argparse.Namespace) -> int:
    """Write a larger model of the same function, and print what was kept."""
    from benchmark.instruments.checkpoints import grow_checkpoint

    size = {"layers": options.layers, "hidden_size": options.width}
    grown = grow_checkpoint(
        options.checkpoint, **size, out=options.out, mode=options.mode, text=options.text, seed=options.seed
    )
    print(_lines(grown.flat()))
    size_of = f"{options.layers} layers of width {options.width}"
    print(f"wrote {options.out}: {size_of}, {grown.growth.case}; transformers loads it", file=sys.stderr)
    again = shlex.join(["evaluate", str(options.out), "--text", str(options.text or "FILE")])
    print(
        f"next: `python run_all.py {again}` measures it; model.start of a suite trains on from it "
        "(docs/starting_from_a_model.md)",
        file=sys.stderr,
    )
    return 0


def _lines(found: Mapping[str, object]) -> str:
    return "\n".join(f"{key}: {value}" for key, value in found.items())
