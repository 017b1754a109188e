"""Whether a model that was grown exactly trains as well as one that was grown as in the paper (docs/growth.md).

For each architecture and seed one small model is trained on docstrings of Python's standard library and grown in both
ways; both go on with the same batches for as many steps. Prints a Markdown table, pairs by seed:

    python -m tests.tools.compare_growth
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmark.data.tokens import Corpus, prepare
from benchmark.models.growth import grow
from benchmark.models.transformer import LanguageModel, build
from benchmark.settings.suite import Domain, Tokenizer
from benchmark.training.evaluate import perplexity
from benchmark.training.stream import Stream
from tests.tools.measure_growth import DATA, WORLD, optimise, spread

SMALL, GROWN = (2, 32), (3, 48)
ROWS, PEAK = 32, 5e-3
WAYS: tuple[dict[str, Any], ...] = ({"mode": "exact"}, {"mode": "fpi", "noise": 0.01})  # ELLE's noise


def compare(architecture: str, seed: int, corpus: Corpus, steps: int) -> list[float]:
    """Perplexity of a model that was trained for `steps`, and of each way of growing it after as many more."""
    stream = Stream(corpus, DATA, False, seed)
    torch.manual_seed(seed)
    small = build(architecture, *SMALL, corpus.vocabulary, DATA.sequence_length, head_size=16, dropout=0.0)
    optimise(small, stream, range(steps), ROWS, PEAK)
    reached = [perplexity(small, stream, 0, WORLD)]
    for way in WAYS:
        network, _ = grow(small.network, *GROWN, seed=seed, **way)
        grown = LanguageModel(network, small.vocabulary)
        optimise(grown, stream, range(steps, 2 * steps), ROWS, PEAK)
        reached.append(perplexity(grown, stream, 0, WORLD))
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150, help="before growth, and as many after it")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--architectures", nargs="+", default=["gpt", "llama"])
    arguments = parser.parse_args()
    print("| model | before growth | exact | fpi | exact / fpi | seeds in which exact is better |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        domain = Domain(name="python", packages=("stdlib",))
        corpus = prepare([domain], Tokenizer(vocabulary=300), DATA, Path(folder))
        for architecture in arguments.architectures:
            found = [compare(architecture, seed, corpus, arguments.steps) for seed in range(arguments.seeds)]
            before, exact, fpi = (list(values) for values in zip(*found, strict=True))
            ratios = [one / other for one, other in zip(exact, fpi, strict=True)]
            columns = [spread(before, 1), spread(exact, 1), spread(fpi, 1), spread(ratios, 3)]
            print(f"| {architecture} | {' | '.join(columns)} | {sum(ratio < 1 for ratio in ratios)} of {len(ratios)} |")


if __name__ == "__main__":
    main()
