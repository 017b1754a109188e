"""How long growth from L12_D768 to L24_D1024 takes, as a multiple of saving the grown model and loading it again.

python -m tests.tools.time_growth

In turns, three times; what is said is the median ratio, and each turn's seconds. BERT, a vocabulary of 50,257 ids.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import torch

from benchmark.data.tokenizer import Vocabulary
from benchmark.models.growth import Mode, grow
from benchmark.models.transformer import build, load_network

SMALL, LARGE = (12, 768), (24, 1024)
MODES: tuple[Mode, ...] = ("exact", "fpi", "aki")
TURNS = 3


def main() -> None:
    torch.manual_seed(0)
    small = build("bert", *SMALL, Vocabulary(50_257, ("wb",)), 130).network
    for mode in MODES:
        ratios = []
        for turn in range(TURNS):
            began = time.perf_counter()
            large, _ = grow(small, *LARGE, mode=mode)
            growing = time.perf_counter() - began
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                large.save_pretrained(folder)
                load_network(folder)
                storing = time.perf_counter() - began
            ratios.append(growing / storing)
            print(
                f"{mode:5}  turn {turn + 1}  growth {growing:5.1f} s, saving and loading {storing:5.1f} s", flush=True
            )
        print(f"{mode:5}  growth takes {statistics.median(ratios):.2f} times as long as saving and loading")


if __name__ == "__main__":
    main()
