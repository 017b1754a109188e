"""Perplexity right after growth over perplexity before it: the figures of docs/growth.md.

Trains small models on the docstrings of Python's standard library, grows each in every way, and prints a Markdown
table with mean and standard deviation over seeds. Rows are short, and the vocabulary is hardly more than the bytes, for
a masked language model to learn within minutes. About 25 minutes on one core:

    python -m tests.tools.measure_growth
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmark.data.tokens import Corpus, prepare
from benchmark.models.growth import grow
from benchmark.models.transformer import LanguageModel, build
from benchmark.settings.suite import Data, Domain, Tokenizer
from benchmark.training.evaluate import perplexity
from benchmark.training.method import Phase
from benchmark.training.processes import World
from benchmark.training.stream import Stream

DATA = Data(sequence_length=18, max_valid_tokens=16_384)
WORLD = World(rank=0, size=1, device=torch.device("cpu"))
SMALL, LARGE = (2, 128), (6, 384)
WAYS: list[tuple[int, int, dict[str, Any]]] = [
    (3, 128, {}),
    (2, 192, {}),
    (3, 192, {}),
    (3, 192, {"calibration": None}),
    (4, 256, {}),
    (2, 192, {"mode": "fpi"}),
    (2, 256, {"mode": "fpi"}),
    (3, 128, {"mode": "fpi"}),
    (3, 192, {"mode": "fpi"}),
    (3, 192, {"mode": "fpi", "noise": 0.01}),
    (3, 192, {"mode": "fpi", "noise": 0.01, "noise_scale": "relative"}),
]


@dataclass
class Figures:
    """What growth did, seed by seed: perplexity after over before, and the largest difference of a logit."""

    case: str = ""
    ratios: list[float] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)


def train(architecture: str, size: tuple[int, int], corpus: Corpus, seed: int, steps: int, rows: int) -> LanguageModel:
    """A model after `steps` steps."""
    stream = Stream(corpus, DATA, architecture != "gpt", seed)
    torch.manual_seed(seed)
    model = build(architecture, *size, corpus.vocabulary, DATA.sequence_length, dropout=0.0)
    optimise(model, stream, range(steps), rows, peak=3e-3 if size == SMALL else 1e-3)
    return model


def optimise(model: LanguageModel, stream: Stream, steps: range, rows: int, peak: float) -> None:
    """Train with Adam on batches number `steps`; warm-up over a tenth of them, then linear decay."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=peak, betas=(0.9, 0.98), eps=1e-6)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * len(steps)), (len(steps) - step) / (0.9 * len(steps)))
    )
    for step in steps:
        batch = stream.batch(0, Phase("adapt"), 0, step, rows, range(rows))
        logits = model(batch.tokens, batch.domains, batch.positions)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def measure(
    model: LanguageModel,
    corpus: Corpus,
    seed: int,
    ways: list[tuple[int, int, dict[str, Any]]],
    table: dict[Any, Figures],
) -> float:
    """Grow `model` in all ways, add the figures to `table` and return the perplexity before."""
    stream = Stream(corpus, DATA, model.masked, seed)
    calibration = stream.batch(0, Phase("adapt"), 1, 0, 256, range(256)).tokens
    tokens = next(stream.validation(0, 128)).tokens
    before = perplexity(model, stream, 0, WORLD)
    for layers, width, options in ways:
        arguments = {"calibration": calibration, **options}
        network, record = grow(model.network, layers, width, seed=seed, **arguments)
        grown = LanguageModel(network, model.vocabulary).eval()
        with torch.no_grad():
            difference = (model.network(tokens).logits - network(tokens).logits).abs().max().item()
        figures = table[model.architecture, layers, width, label(model, width, options)]
        figures.case = record["case"]
        figures.ratios.append(perplexity(grown, stream, 0, WORLD) / before)
        figures.differences.append(difference)
    return before


def label(model: LanguageModel, width: int, options: dict[str, Any]) -> str:
    mode: str = options.get("mode", "exact")
    if "noise" in options:
        return f"{mode}, noise {options['noise']}{' σ' if 'noise_scale' in options else ''}"
    fits = mode == "exact" and model.masked and width % model.hidden_size
    return mode + (", not fitted" if "calibration" in options else ", fitted") if fits else mode


def spread(values: list[float], digits: int) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="of BERT; GPT gets a third")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    table: dict[tuple[str, int, int, str], Figures] = defaultdict(Figures)
    before: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        domain = Domain(name="python", packages=("stdlib",))
        corpus = prepare([domain], Tokenizer(vocabulary=300), DATA, Path(folder))
        for seed in range(arguments.seeds):
            for architecture in ("gpt", "bert_preln", "bert"):
                steps = arguments.steps // (3 if architecture == "gpt" else 1)
                model = train(architecture, SMALL, corpus, seed, steps, 64)
                ways = [way for way in WAYS if model.masked or "calibration" not in way[2]]
                before[architecture].append(measure(model, corpus, seed, ways, table))
                print(f"{architecture}, seed {seed}: perplexity {before[architecture][-1]:.2f}", flush=True)
            large = train("gpt", LARGE, corpus, seed, arguments.steps // 30, 32)
            measure(large, corpus, seed, [(8, 512, {})], table)
        unigram = corpus.domains[0].info["unigram_perplexity"]

    print(f"\nPerplexity of unigrams {unigram:.0f}; before growth, mean ± standard deviation:")
    print(", ".join(f"{name} {spread(values, 2)}" for name, values in before.items()))
    print("\n| model | to | mode | case | perplexity after / before | largest logit difference |")
    print("|---|---|---|---|---|---|")
    for (architecture, layers, width, mode), figures in sorted(table.items(), key=lambda item: item[0][0]):
        size = LARGE if layers > 6 else SMALL
        cells = [
            f"{architecture} L{size[0]}_D{size[1]}",
            f"L{layers}_D{width}",
            mode,
            figures.case,
            spread(figures.ratios, 4),
            f"{max(figures.differences):.1e}",
        ]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
