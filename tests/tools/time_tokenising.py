"""How fast text becomes ids, beside `datasets.map(batched=True, num_proc=2)` with the same tokenizer, and in how much
memory.

    pip install datasets
    python -m tests.tools.time_tokenising            # 64 MB, in turns
    python -m tests.tools.time_tokenising --memory   # the peak of our own for 1 GB

The text is the source code of the installed packages, over and over where it does not suffice. Both write their ids to
disk; reading the text counts for ours alone, which also hashes it and holds documents out. Each turn is a process of
its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from benchmark.data.tokens import prepare
from benchmark.settings.suite import Data, Domain, Tokenizer

TURNS = 3
PROCESSES = 2
VOCABULARY = Tokenizer(vocabulary=30_000, sample_bytes=8_000_000)
DATA = Data(sequence_length=128, valid_share=0.01)


def sources() -> Iterator[str]:
    """The installed packages' modules, over and over."""
    for path in cycle(sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))):
        text = path.read_text(encoding="utf-8", errors="ignore")
        if len(text) > 1000:
            yield text


def write_text(file: Path, size: int) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for number, text in enumerate(sources()):
            # a document that is there already would be left out
            lines.write(json.dumps({"text": f"{number}\n{text}"}) + "\n")
            if lines.tell() >= size:
                return


def ours(text: Path, folder: Path) -> float:
    """Seconds of `prepare`; the tokenizer is in `folder` already."""
    began = time.perf_counter()
    prepare([Domain(name="code", train=(str(text),))], VOCABULARY, DATA, folder)
    return time.perf_counter() - began


def theirs(text: Path, folder: Path) -> float:
    """Seconds of `datasets.map` alone; its input is in Arrow's format already."""
    import datasets

    (tokenizer,) = folder.glob("tokenizers/*/tokenizer.json")
    wrapped = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
    lines = datasets.load_dataset("json", data_files=str(text), split="train", cache_dir=str(folder / "arrow"))
    began = time.perf_counter()
    lines.map(
        lambda batch: {"ids": wrapped(batch["text"])["input_ids"]},
        batched=True,
        num_proc=PROCESSES,
        remove_columns=lines.column_names,
    )
    return time.perf_counter() - began


WAYS = {"ours": ours, "theirs": theirs}


def turn(way: str, text: Path, folder: Path) -> tuple[float, float]:
    """Seconds, and the peak of memory in bytes, of one way in a process of its own."""
    for left in ("domains", "arrow"):
        shutil.rmtree(folder / left, ignore_errors=True)
    this = [sys.executable, "-m", "tests.tools.time_tokenising", "--turn", way, str(text), str(folder)]
    said = subprocess.run(this, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    seconds, peak = map(float, said.split()[-2:])
    return seconds, peak


def say_turn(way: str, text: Path, folder: Path) -> None:
    seconds = WAYS[way](text, folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(seconds, peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--turn", nargs=3, metavar=("WAY", "TEXT", "FOLDER"))
    options = parser.parse_args()
    if options.turn:
        way, text, folder = options.turn
        say_turn(way, Path(text), Path(folder))
        return
    size = 10**9 if options.memory else 64 * 10**6
    with tempfile.TemporaryDirectory() as name:
        text, folder = Path(name) / "text.jsonl", Path(name) / "data"
        write_text(text, size)
        if not options.memory:
            ours(text, folder)  # trains the tokenizer
        ratios = []
        for _ in range(1 if options.memory else TURNS):
            found = {way: turn(way, text, folder) for way in (["ours"] if options.memory else WAYS)}
            for way, (seconds, peak) in found.items():
                print(f"{way:6}  {size / 1e6 / seconds:6.1f} MB/s  peak {peak / 1e6:6.0f} MB", flush=True)
            if len(found) == 2:
                ratios.append(found["theirs"][0] / found["ours"][0])
        if ratios:
            print(f"{statistics.median(ratios):.2f} times as fast, median of {TURNS} turns")


if __name__ == "__main__":
    main()
