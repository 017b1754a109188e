"""Commands on a model's folder: measure perplexity on a text, or make a larger model from it."""

from __future__ import annotations

import argparse
import math
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch import Tensor
from transformers import PreTrainedModel

from benchmark.data import corpus
from benchmark.data.tokenizer import TextTokenizer, Vocabulary, encode_texts, load_tokenizer
from benchmark.data.tokens import Corpus, DomainInfo, DomainTokens
from benchmark.devices import choose_device
from benchmark.files import CHECKSUMS, replace_folder, write_checksums
from benchmark.models import LanguageModel, growth, load
from benchmark.models.transformer import find_kind, load_network, read_configuration, read_tokenizer
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Data
from benchmark.settings.texts import Domain
from benchmark.training.evaluate import measure_loss, to_bits_per_byte
from benchmark.training.processes import World
from benchmark.training.stream import Stream

ModelAndText = tuple[LanguageModel, Stream]  # a model, and a text that it can read
NONE = "none"  # the domain of a published model
# columns. Published models may have positions for rows that do not fit in memory
LONGEST_ROW = 1024


def evaluate(options: argparse.Namespace) -> int:
    """Print the perplexity of a checkpoint on a text."""
    result = evaluate_text(options.checkpoint, options.text, options.domain)
    print(_format_facts(result))
    return 0


def grow(options: argparse.Namespace) -> int:
    """Write a larger model of the same function, and print what was kept."""
    facts = grow_checkpoint(
        options.checkpoint,
        options.layers,
        options.width,
        options.out,
        mode=options.mode,
        text=options.text,
        seed=options.seed,
    )
    print(_format_facts(facts))
    command = shlex.join(["evaluate", str(options.out), "--text", str(options.text or "FILE")])
    advice = f"`python run_all.py {command}` measures it; model.start of a suite trains on from it"
    print(f"next: {advice}", file=sys.stderr)
    return 0


def _format_facts(facts: Mapping[str, object]) -> str:
    return "\n".join(f"{key}: {value}" for key, value in facts.items())


def evaluate_text(checkpoint: Path, text: Path, domain: str | None = None) -> dict[str, Any]:
    """Measure how well a model predicts the documents of a file.

    The file is JSON Lines or text, .gz and .zst too. `domain` is the one whose prompt or column
    (PNN) reads the file. The default is the last domain.

    Returns the perplexity per token, the bits per byte (comparable between tokenizers), the domain
    whose prompt or column read it ("none" for a published model), and how much text there is.
    Raises ConfigError, DataError.
    """
    model, tokenizer = open_folder(checkpoint)
    names = model.vocabulary.domains
    if domain not in (None, *names):
        choices = ", ".join(names) or "no domain: leave --domain out"
        raise ConfigError(f"--domain {domain!r}: {checkpoint} knows {choices}")
    stream = open_text(model, tokenizer, text)
    index = names.index(domain) if domain else find_newest_domain(model)
    value = measure_perplexity(model, stream, index)
    measured = stream.evaluated[index]
    return {
        "perplexity": value,
        "bits_per_byte": to_bits_per_byte(value, measured),
        "domain": names[index] if names else NONE,
        "documents": measured.info["documents"],
        "tokens": len(measured.valid),
        "skipped": measured.info["skipped"],
    }


def find_newest_domain(model: LanguageModel) -> int:
    """The index of the model's last domain, 0 for a model without domains."""
    return max(0, len(model.vocabulary.domains) - 1)


def measure_perplexity(model: LanguageModel, stream: Stream, domain: int) -> float:
    """The perplexity of a model on a text, read as text of this domain.

    Raises ConfigError if it is not finite.
    """
    world = World(0, 1, choose_device())
    value = measure_loss(model.to(world.device), stream, domain, world).perplexity
    if not math.isfinite(value):
        raise ConfigError(
            f"the model's perplexity on {stream.evaluated[domain].title} is {value}: its weights "
            "or its config.json are damaged; take another"
        )
    return value


def open_folder(folder: Path) -> tuple[LanguageModel, TextTokenizer]:
    """The model in a folder that a run wrote, or in a published one, and its tokenizer.

    A published model has met no domain. Raises ConfigError, DataError.
    """
    if "text_vocabulary" not in read_configuration(folder):
        network = load_network(folder)
        tokenizer = load_tokenizer(folder)
        vocabulary = Vocabulary(tokenizer.vocabulary, (), tokenizer.special)
        model = LanguageModel(network, vocabulary).eval()
        encoded = tokenizer.bpe.encode("a")
        pairs = zip(encoded.tokens, encoded.special_tokens_mask, strict=True)
        added = [token for token, is_added in pairs if is_added]
        tokens_before_text = added[:-1] if model.masked else added  # the last is after the text
        if len(tokens_before_text) > 1:
            raise ConfigError(
                f"{folder}: texts begin with {' '.join(tokens_before_text)}, a prompt: evaluate "
                "the stage that it was exported from"
            )
        return model, tokenizer
    model = load(folder)
    bpe = read_tokenizer(folder, model.vocabulary)
    return model, TextTokenizer(bpe, model.vocabulary.text, model.vocabulary.special, "")


def open_text(model: LanguageModel, tokenizer: TextTokenizer, text: Path) -> Stream:
    """The documents of a file as validation text of each domain of a model.

    Rows are as long as the model can read, at most LONGEST_ROW. Raises ConfigError for a text
    shorter than a row, DataError.
    """
    bpe = tokenizer.bpe
    special = tokenizer.special
    bpe.encode_special_tokens = True  # "<s>" in a text is read as plain text
    skipped: Counter[str] = Counter()
    read = corpus.drop_repeats(Domain(name="text", train=(str(text),)), skipped)
    documents = [document.text for document in read]
    token_ids: list[int] = []
    for document_ids in encode_texts(bpe, documents):
        token_ids += [*document_ids, special.eos]
    ids = np.array(token_ids)
    size = sum(len(document.encode()) for document in documents)
    info: DomainInfo = {"documents": len(documents), "valid_bytes": size, "skipped": dict(skipped)}
    tokens = DomainTokens(name="text", title=str(text), key="", train=ids, valid=ids, info=info)
    domains = (tokens,) * max(1, len(model.vocabulary.domains))
    data = Data(
        sequence_length=min(model.sequence_length, LONGEST_ROW),
        document_mask=hasattr(model.network.config, "document_mask"),
    )
    text_corpus = Corpus(bpe, model.vocabulary.text, domains, special=special)
    return Stream(text_corpus, data, masked=model.masked, seed=0)


ROWS = 64  # rows of the text for calibration, at most
COMPARED = 4  # rows of which the outputs are compared
COLUMNS = 16  # of random rows, at most: few processors are fast in bf16
# files that depend on the model's size, and are not copied
SIZE_DEPENDENT_FILES = ("*.safetensors", "*.bin", "*.index.json", "config.json", CHECKSUMS)
PARTS = {
    "progressive": "columns (PNN): grow the model of another method",
    "extended": "modules of a method beside its network: grow what `run_all.py export` makes of "
    "it, where it can",
}


def grow_checkpoint(
    checkpoint: Path,
    layers: int,
    hidden_size: int,
    out: Path,
    mode: growth.Mode = "exact",
    text: Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Grow the model in `checkpoint`, and write it to `out` with its tokenizer.

    Returns what was done, and how near the new model is to the old one.

    With `text`, the perplexity on it is measured before and after, as `evaluate` does on either
    folder, and its first rows calibrate what cannot be exact. Outputs are compared on these rows,
    or without `text` on random tokens. Raises ConfigError for what cannot be grown, DataError for
    the text.
    """
    if out.exists():
        raise ConfigError(f"--out {out} exists already: name a new folder")
    kind = find_kind(checkpoint)
    if kind:
        raise ConfigError(f"cannot grow {checkpoint}: it has {PARTS[kind]}")
    model_and_text: ModelAndText | None = None
    if text:
        model, tokenizer = open_folder(checkpoint)
        model_and_text = model, open_text(model, tokenizer, text)
    network = model_and_text[0].network if model_and_text else load_network(checkpoint)
    rows = _take_rows(network, model_and_text, seed)
    old_logits, old_perplexity = _measure(network, rows, model_and_text)
    with replace_folder(out) as folder:
        calibration = rows if model_and_text else None
        noise = 0.0 if mode == "exact" else 0.5
        grown, record = growth.grow(
            network.cpu(),
            layers,
            hidden_size,
            mode=mode,
            noise=noise,
            seed=seed,
            calibration=calibration,
        )
        grown.save_pretrained(folder)
        for path in checkpoint.iterdir():
            if path.is_file() and not any(path.match(pattern) for pattern in SIZE_DEPENDENT_FILES):
                shutil.copy2(path, folder)
        write_checksums(folder)
        del network
        if model_and_text:
            model_and_text[0].set_network(grown)
        new_logits, new_perplexity = _measure(grown, rows, model_and_text)
    differences = [
        (new.float() - old.float()).abs().max().item()
        for old, new in zip(old_logits, new_logits, strict=True)
    ]
    facts = {**structs.asdict(record), "max_logit_difference": max(differences)}
    if model_and_text:
        facts |= {"perplexity_before": old_perplexity, "perplexity_after": new_perplexity}
    return facts


def _take_rows(network: PreTrainedModel, model_and_text: ModelAndText | None, seed: int) -> Tensor:
    """The first rows of the text, masked as in training, or random rows without a text.

    Rows of a text begin with the prompt that `evaluate` uses.
    """
    if model_and_text:
        model, stream = model_and_text
        batch = next(stream.read_validation(find_newest_domain(model), ROWS))
        return model.insert_prompts(batch.tokens, batch.domains)
    generator = torch.Generator().manual_seed(seed)
    columns = min(COLUMNS, network.config.max_position_embeddings // 2)
    return torch.randint(network.config.vocab_size, (COMPARED, columns), generator=generator)


@torch.no_grad()
def _measure(
    network: PreTrainedModel, rows: Tensor, model_and_text: ModelAndText | None
) -> tuple[list[Tensor], float]:
    """Logits of some rows, and the perplexity that `evaluate` finds (0 without a text)."""
    logits = []
    for row in rows[:COMPARED]:
        logits.append(network(row.unsqueeze(0).to(network.device)).logits.cpu())
    if model_and_text is None:
        return logits, 0.0
    model, stream = model_and_text
    return logits, measure_perplexity(model, stream, find_newest_domain(model))
