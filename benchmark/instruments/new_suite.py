"""`run_all.py new-suite`: a suite for a user's own text.

Its sizes and budgets fit the text and the machine. The suite is a starting point, not a result: its
file gives reasons for its choices.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas

from benchmark.data import corpus
from benchmark.data.documents import (
    BROKEN,
    FEW_DOCUMENTS,
    KINDS,
    LONGEST_PAGE,
    PIECE,
    BrokenText,
    DataError,
    find_files,
    find_kind,
    parse_line,
    read_rows,
)
from benchmark.files import replace_file
from benchmark.instruments.speed import MatrixProduct
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Size, Training
from benchmark.settings.texts import Domain
from benchmark.training.evaluation_time import (
    FORWARD,
    UTILISATION,
    count_evaluations,
    count_parameters,
)
from benchmark.training.processes import join

METHODS = ("naive", "er", "elle", "elle_exact")
LOOKED_AT = 20e6  # bytes of a domain's text that are read to choose settings
PACKED = 4.0  # bytes of text per byte of a compressed file, roughly
# by size of vocabulary, on English text
BYTES_PER_TOKEN = {1024: 2.6, 2048: 3.0, 8192: 3.8, 32768: 4.3}
# sizes, each for less than so many bytes of text
VOCABULARIES = ((1024, 8e6), (2048, 4e7), (8192, 4e8))
# row lengths, and the largest model width that they are for
ROW_LENGTHS = ((66, 64), (130, 256), (258, 512))
# head sizes, and the model width from which a larger one is taken. Each divides the widths of all
# RUNGS for which it is taken, and of those after them
HEAD_SIZES = ((16, 128), (32, 384))
# rates, and the largest model width that they are for
LEARNING_RATES = ((5e-3, 64), (2e-3, 160), (1e-3, 320))
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)  # of the documents, for validation
FEWEST = 2 / SHARES[-1]  # documents that a domain needs so that some can be held out
TRAINING = 6  # FLOPs of a training step per parameter and token. A forward pass has FORWARD
TOKENS_PER_PARAMETER = 40  # that the first model sees before it grows, as in the demo
PASSES = 20  # over a domain's text in a stage, at most
SWEEP = 600.0  # seconds of training and evaluation of all runs together, at most
LEAST = 5.0  # seconds of a stage, at least: in fewer, the number of steps is chance
MOST_SIZES = 5  # of a ladder, as in the paper. In a longer stream, several domains share a size
EVALUATION = 0.2  # share of a stage's training time, at most
RUNGS = [Size(layers=layers, hidden_size=width) for layers, width in (
    (1, 32), (1, 48), (2, 48), (2, 64), (3, 64), (3, 96), (4, 96), (4, 128), (4, 160), (5, 192),
    (6, 224), (6, 256), (6, 320), (6, 384), (8, 448), (8, 512), (10, 576), (10, 640), (12, 704),
    (12, 768),
)]  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A folder of text as a domain, and what was read of it."""

    domain: Domain
    documents: int  # that were looked at
    size: int  # bytes of these documents
    total: float  # bytes of all text, roughly


def new_suite(options: argparse.Namespace) -> int:
    """Write a suite for somebody's text, and say what to do next."""
    with join() as world:
        product = MatrixProduct("fp32", world)
        fastest = max(product.measure_flops_per_second() for _ in range(5))
    print("\n".join(write_suite(options.name, options.text, fastest)))
    return 0


def write_suite(name: str, folders: Sequence[Path], flops_per_second: float) -> list[str]:
    """Write NAME.toml for the text in `folders`, and say what was chosen and what to do next.

    `folders` as for `find_domains`. Raises ConfigError or DataError.
    """
    file = Path(name if name.endswith(".toml") else f"{name}.toml")
    if file.exists():
        raise ConfigError(f"{file} is there already: choose another name, or remove it")
    texts = [read_beginning(place, _make_name(place)) for place in find_domains(folders)]
    content = write_content(file, texts, flops_per_second)
    with replace_file(file) as out:
        out.write(content.encode())
    suite = shlex.quote(str(file.with_suffix("")))
    sizes = []
    for text in texts:
        sizes.append(f"  {text.domain.name}: about {text.total / 1e6:,.3f} MB of text")
    return [
        f"wrote {file}, a suite of {len(texts)} domains:",
        *sizes,
        "What stands in it fits this text and this machine; change what you like. Then",
        f"  python run_all.py prepare {suite}          # reads the text, and warns of what looks "
        "wrong with it",
        f"  python run_all.py run {suite} --dry-run    # which runs, how long",
        f"  python run_all.py run {suite}              # trains them, then shows the table",
    ]


def find_domains(paths: Sequence[Path]) -> list[Path]:
    """The file or folder of each domain.

    A lone folder without files of text stands for those of its subfolders that contain text.
    """
    places = list(paths)
    if len(places) == 1 and places[0].is_dir():
        inner = list(places[0].iterdir())
        if not any(map(_is_text, inner)):
            folders = []
            for path in inner:
                if path.is_dir() and not path.name.startswith("."):
                    folders.append(path)
            places = sorted(path for path in folders if any(map(_is_text, path.rglob("*"))))
    if len(places) < 2:
        raise DataError(
            f"--text {' '.join(map(str, paths))}: a stream needs two domains at least: give two "
            f"folders, or one that holds a folder for each, with files that end in {KINDS}"
        )
    return places


def _is_text(path: Path) -> bool:
    return path.is_file() and bool(find_kind(path))


def _make_name(place: Path) -> str:
    stem = place.name.split(".")[0]
    if place.is_dir():
        stem = place.resolve().name
    return re.sub(r"[^\w-]+", "_", stem).strip("_-") or "domain"


def read_beginning(place: Path, name: str) -> Text:
    """Read the beginning of a domain's text. Raises DataError for text that cannot be used."""
    files = find_files(str(place), Counter())
    domain = Domain(name=name, train=(str(place),), text_field=_choose_text_field(files))
    text = _read_documents(domain, files)
    has_text_files = any(find_kind(file) == ".txt" for file in files)
    if has_text_files and text.size > LONGEST_PAGE * text.documents:
        pages = _read_documents(domain.model_copy(update={"cut_at_blank_lines": True}), files)
        if pages.documents > text.documents:
            return pages
    return text


def _read_documents(strict_domain: Domain, files: Sequence[Path]) -> Text:
    """The first documents of a domain, up to LOOKED_AT bytes.

    The domain gets on_error = "skip" if one of them is broken. Raises DataError if all are.
    """
    domain = strict_domain.model_copy(update={"on_error": "skip"})
    skipped: Counter[str] = Counter()
    documents = size = 0
    for document in corpus.drop_repeats(domain, skipped):
        documents += 1
        size += len(document.text.encode())
        if size > LOOKED_AT:
            break
    if not any(reason.startswith(BROKEN) for reason in skipped):
        domain = strict_domain
    elif not documents:
        # raises an error that says what is broken
        next(corpus.drop_repeats(strict_domain, Counter()))
    if size > LOOKED_AT:
        file_sizes = 0.0
        for path in files:
            is_packed = path.suffix in (".gz", ".zst")
            file_sizes += path.stat().st_size * (PACKED if is_packed else 1.0)
        return Text(domain, documents, size, max(file_sizes, size))
    if documents < FEWEST:  # pieces of the documents are held out instead
        documents = max(documents, size // PIECE)
    return Text(domain, documents, size, size)


def _choose_text_field(files: Sequence[Path]) -> str:
    """The name of the text field: `text`, or else that of the longest text in the first record.

    "a.b" is the field b of a.
    """
    record = _read_first_record(files)
    flat = pandas.json_normalize(record).to_dict("records")[0] if isinstance(record, dict) else {}
    texts = {str(key): value for key, value in flat.items() if isinstance(value, str)}
    if "text" in texts or not texts:
        return "text"
    return max(texts, key=lambda key: len(texts[key]))


def _read_first_record(files: Sequence[Path]) -> object:
    """The first record of the files other than .txt, which have no records, or None."""
    for path in files:
        if find_kind(path) == ".txt":
            continue
        domain = Domain(name="first", train=(str(path),))
        for place, row in read_rows(path, domain):
            if isinstance(row, BrokenText):
                raise row
            if not isinstance(row, bytes):
                return row
            if row.strip():
                return parse_line(row, place, '{"text": ...}')
    return None


@dataclass(frozen=True)
class Evaluation:
    """The validation text of a suite, and how often a stage reads it."""

    most_bytes: float  # of each domain
    evaluations: int
    seconds: float  # of a stage's training, which may be longer so that evaluation fits


def write_content(file: Path, texts: Sequence[Text], flops_per_second: float) -> str:
    """The file's content. The domain with the least text decides how long each stage is."""
    total = sum(text.total for text in texts)
    vocabulary = next((ids for ids, limit in VOCABULARIES if total < limit), 32768)
    tokens = [text.total / BYTES_PER_TOKEN[vocabulary] for text in texts]
    shares = [choose_valid_share(text) for text in texts]
    stages = len(METHODS) * len(texts)
    most_seconds = SWEEP / (1 + EVALUATION) / stages
    speed = UTILISATION * flops_per_second
    tokens_read = PASSES * min(tokens)
    # P parameters see TOKENS_PER_PARAMETER * P tokens, so FLOPs grow with the square of P
    affordable_parameters = (speed * most_seconds / TRAINING / TOKENS_PER_PARAMETER) ** 0.5
    most_parameters = min(affordable_parameters, tokens_read / TOKENS_PER_PARAMETER)
    parameters = [count_parameters(size, vocabulary) for size in RUNGS]
    fitting = [rung for rung, count in enumerate(parameters) if count <= most_parameters]
    first = max(fitting, default=0)
    reading_seconds = TRAINING * parameters[first] * tokens_read / speed
    seconds = min(most_seconds, max(LEAST, reading_seconds))
    sizes = min(len(texts), MOST_SIZES)
    ladder = []
    for stage in range(len(texts)):
        rung = first + stage * sizes // len(texts)
        ladder.append(RUNGS[min(rung, len(RUNGS) - 1)])
    last_parameters = count_parameters(ladder[-1], vocabulary)
    seconds_per_byte = last_parameters / BYTES_PER_TOKEN[vocabulary] / speed
    evaluation = choose_evaluation(texts, shares, seconds_per_byte, seconds, most_seconds)
    minutes = (1 + EVALUATION) * evaluation.seconds * stages / 60
    part_sizes: list[float] = []  # bytes for validation and for training, of each domain
    for text, share in zip(texts, shares, strict=True):
        part_sizes.append(min(share * text.size, evaluation.most_bytes))
        part_sizes.append((1 - share) * text.size)
    tokens_of_smallest_part = min(part_sizes) / BYTES_PER_TOKEN[vocabulary]
    width = ladder[0].hidden_size
    head = next((size for size, limit in HEAD_SIZES if width < limit), 64)
    longest_row = next((length for length, limit in ROW_LENGTHS if width <= limit), 514)
    lengths = [length for length in (514, 258, 130, 66, 34) if length <= longest_row]
    # at least ten rows in each part
    row = next((length for length in lengths if tokens_of_smallest_part >= 10 * length), 18)
    rate = next((rate for rate, limit in LEARNING_RATES if width <= limit), 5e-4)
    memory = max(row, round(min(tokens) / 20, -2))
    evaluations = ""
    if evaluation.evaluations != Training().evaluations:
        evaluations = f", evaluations = {evaluation.evaluations}"
    methods = ", ".join(f'"{name}"' for name in METHODS)
    validation = f"valid_share = {min(shares):g}, max_valid_bytes = {evaluation.most_bytes:_.0f}"
    return f"""\
# {file.stem}: written by `run_all.py new-suite`. Every key: docs/suite_keys.md; \
a walk through: docs/your_own_text.md.
title = "{_make_title(texts)}"
methods = [{methods}]  # files in methods/, or "baselines" for all of the paper's
domains = [  # the stream, in this order; paths are relative to this file
{_format_domains(texts, shares, file)}
]
# trained on the first domain alone: later ones come unseen, and more can be added
tokenizer = {{ vocabulary = {vocabulary}, domains = ["{texts[0].domain.name}"] }}
# valid_share of each domain's documents measures perplexity; \
memory_tokens of each are for methods that replay
data = {{ sequence_length = {row}, {validation}, memory_tokens = {memory:.0f} }}
training = {{ batch_size = 20, learning_rate = {rate:g}{evaluations} }}
# seconds of train wall time of a stage; with evaluation, which comes on top, \
about {minutes:.0f} min for all
budget = {{ amount = {evaluation.seconds:.0f} }}
# a size for each domain; methods that do not grow stay on the first
model = {{ architecture = "gpt", head_size = {head}, dropout = 0.0, init = "scaled", ladder = [
{_format_ladder(ladder)}
] }}
"""


def choose_evaluation(
    texts: Sequence[Text], shares: Sequence[float], cost: float, seconds: float, most_seconds: float
) -> Evaluation:
    """Choose validation text and evaluations that take at most EVALUATION of a stage's training.

    If even FEW_DOCUMENTS documents would take more, a stage has one evaluation, and if needed more
    seconds of training.

    Args:
        cost: seconds per byte of text, for one FLOP per parameter of the largest model.
        seconds: of a stage's training.
        most_seconds: of a stage's training, at most.
    """
    document = max(text.size / text.documents for text in texts)
    # smaller in a long stream, because each evaluation reads all domains
    share_of_stream = min(1.0, MOST_SIZES / len(texts))
    enough = FEW_DOCUMENTS * document
    most_bytes_wanted = max(200_000 * share_of_stream, (1 + share_of_stream) * enough)

    def estimate(most_bytes: float, evaluations: int) -> float:
        held = [
            min(share * text.total, most_bytes + document)
            for text, share in zip(texts, shares, strict=True)
        ]
        return FORWARD * cost * sum(held) * count_evaluations(evaluations, stage=1)

    evaluations = Training().evaluations if share_of_stream > 0.5 else 1
    if estimate(enough, evaluations) > EVALUATION * seconds:
        evaluations = 1
        seconds = min(most_seconds, max(seconds, estimate(enough, evaluations) / EVALUATION))
    while (
        estimate(most_bytes_wanted, evaluations) > EVALUATION * seconds
        and most_bytes_wanted > document
    ):
        most_bytes_wanted *= 0.9
    return Evaluation(max(1000.0, round(most_bytes_wanted, -3)), evaluations, seconds)


def choose_valid_share(text: Text) -> float:
    """The smallest share that holds out enough documents of a domain.

    It holds out more than needed, because documents are picked by chance. Raises DataError for a
    domain with too few documents to train on some and hold out others.
    """
    if text.documents < FEWEST:
        raise DataError(
            f"{text.domain.train[0]}: {text.documents} documents, too few to train on some and "
            "keep others for validation: give more text"
        )
    for share in SHARES:
        if share * text.documents >= 1.5 * FEW_DOCUMENTS:
            return share
    return SHARES[-1]


def _make_title(texts: Sequence[Text]) -> str:
    names = [text.domain.name for text in texts]
    if len(names) <= MOST_SIZES:
        return ", ".join(names)
    return f"{len(names)} domains, {names[0]} to {names[-1]}"


def _format_ladder(ladder: Sequence[Size]) -> str:
    rungs = [f"{{ layers = {size.layers}, hidden_size = {size.hidden_size} }}" for size in ladder]
    lines = []
    for i in range(0, len(rungs), 3):
        lines.append(f"  {', '.join(rungs[i : i + 3])},")
    return "\n".join(lines)


def _format_domains(texts: Sequence[Text], shares: Sequence[float], file: Path) -> str:
    """The domains as TOML, with `valid_share` for those that need a larger share than others."""
    usual = min(shares)
    lines = []
    for text, share in zip(texts, shares, strict=True):
        own_share = share if share != usual else None
        lines.append(f"  {_format_domain(text, own_share, file)},")
    return "\n".join(lines)


def _format_domain(text: Text, share: float | None, file: Path) -> str:
    place = Path(text.domain.train[0])
    path = place if place.is_absolute() else Path(os.path.relpath(place, file.parent))
    keys = ""
    if text.domain.text_field != "text":
        keys += f", text_field = {_quote(str(text.domain.text_field))}"
    if text.domain.on_error == "skip":
        keys += ', on_error = "skip"'
    if text.domain.cut_at_blank_lines:
        keys += ", cut_at_blank_lines = true"
    if share:
        keys += f", valid_share = {share:g}"
    return f'{{ name = "{text.domain.name}", train = [{_quote(path.as_posix())}]{keys} }}'


def _quote(text: str) -> str:
    """A text that users or their data chose, as a TOML string."""
    return json.dumps(text, ensure_ascii=False)
