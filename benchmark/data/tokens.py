"""Text to token ids: every domain tokenised once, into flat arrays on disk.

A folder of prepared data holds

    texts/<names, sizes and times of files>.txt, the identity of their content
    tokenizers/<identity>/tokenizer.json
    domains/<identity>/train.bin, valid.bin, info.json

and checksums.json in each <identity>, which is compared when the files are read.

An identity hashes what the content is made from: settings, and the content of files. A file is read
again only if its name, size or time is new. The `key` in info.json hashes the content itself. Runs
are identified by keys, so a corpus that moved to another folder keeps its runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, TypedDict, cast

import numpy as np
import tokenizers
from numpy.typing import NDArray

from benchmark import cancel
from benchmark.data import corpus, docstrings
from benchmark.data.documents import DataError, Sample
from benchmark.data.tokenizer import (
    UNUSED,
    Ids,
    Special,
    TextTokenizer,
    Vocabulary,
    encode_documents,
    load_bpe,
    load_tokenizer,
    train_bpe,
)
from benchmark.files import (
    BEGUN,
    check_checksums,
    read_json,
    replace_folder,
    take_over,
    write_checksums,
    write_json,
)
from benchmark.locks import Lease
from benchmark.settings.base import digest
from benchmark.settings.suite import Data, RunConfig
from benchmark.settings.suite import Tokenizer as TokenizerConfig
from benchmark.settings.texts import Domain, WeightedText

FORMAT = 1  # increased when a change makes other tokens from the same text
DOMAIN_FORMAT = 2  # increased when a change gives a domain's files other content
MEASURE = 2  # increased when a change gives the same validation text another perplexity
PROBES = 2**32  # their mask numbers begin here
SAMPLED_FROM = 16  # a tokenizer's sample is drawn from this many times its size of text
REPORT_EVERY = 2**24  # bytes of text between two lines of progress
SUMMED = ("documents", "valid_documents", "valid_bytes")  # over the sources of a mixed domain
BEYOND = "over the validation limit"  # why a document is left out
# before any text: documents read, a hash of their text, and bytes of train.bin
EMPTY_CHECKPOINT: dict[str, Any] = {"documents": 0, "sha256": "", "bytes": 0}
Say = Callable[[str], None]


class DomainInfo(TypedDict, total=False):
    """What records have of a domain's tokens: counts, and what the tokens were made from."""

    documents: int
    valid_documents: int  # of these
    valid_bytes: int  # of the validation text
    # the number of each validation document's source, if some share a source
    valid_sources: list[int]
    valid_sizes: list[int]  # bytes of each validation document, only in info.json
    tokens: int
    sha256: str  # of all text that was read
    skipped: dict[str, int]  # by reason
    near_copies: int  # validation documents that are near copies, if they are kept
    versions: dict[str, str]  # by package
    source: dict[str, Any]
    # training tokens of each source of a mixed domain, which come one after the other
    parts: list[int]
    keys: dict[str, str]  # of these sources, as in `Corpus.keys`
    unigram_perplexity: float


@dataclass(frozen=True)
class DomainTokens:
    """The tokens of a domain.

    `train` and `valid` are 1-D memory-mapped ids (uint16 or uint32), each document followed by
    `</s>`.
    """

    name: str
    title: str
    key: str
    train: Ids
    valid: Ids
    info: DomainInfo
    valid_key: str = ""  # a hash of the validation text, if documents were left out
    valid_sizes: tuple[int, ...] = ()  # bytes of each validation document
    folder: Path | None = None  # of the files with the ids, if there are any
    # of a mixed domain. `info["parts"]` has the number of training tokens of each
    sources: tuple[WeightedText, ...] = ()

    def check(self) -> None:
        """Compare all ids with their checksums, once per process. Raises DamagedFile."""
        if self.folder:
            check_checksums(self.folder, describe_cure(self.folder))


@dataclass(frozen=True)
class Corpus:
    """The domains of a stream as tokens.

    `tokenizer` encodes special tokens in a text as ordinary text.
    """

    tokenizer: tokenizers.Tokenizer
    text_vocabulary: int
    domains: tuple[DomainTokens, ...]
    probes: tuple[DomainTokens, ...] = ()  # never trained on
    special: Special = field(default_factory=Special)

    @property
    def vocabulary(self) -> Vocabulary:
        """The layout for a model that has met all domains."""
        names = tuple(domain.name for domain in self.domains)
        return Vocabulary(self.text_vocabulary, names, self.special)

    @cached_property
    def token_count(self) -> int:
        """The number of ids, from 0 on, that texts can have.

        A published model may have more rows, which only pad its embedding.
        """
        vocabulary = self.tokenizer.get_vocab()
        ids = [
            number
            for token, number in vocabulary.items()
            if number < self.text_vocabulary and not token.startswith(UNUSED)
        ]
        return max(ids) + 1

    @cached_property
    def keys(self) -> dict[str, str]:
        """A hash of tokens and tokenizer for each domain, probe and source, by name."""
        texts = (*self.domains, *self.probes)
        keys = {text.name: text.key for text in texts}
        for text in texts:
            keys |= text.info.get("keys", {})
        return keys


class Unprepared(Exception):
    """Something is missing that would have to be made."""


@dataclass(frozen=True)
class DataCache:
    """A folder of prepared data, and how it is made.

    `report` gets lines of progress. `makes`: whether what is missing is made. `waits`: whether this
    process waits for what another process makes.
    """

    folder: Path
    report: Say = lambda line: None
    makes: bool = True
    waits: bool = True

    def make_once(self, kind: str, identity: str, make: Callable[[Path], None]) -> Path:
        """A folder, filled by `make` if it does not exist.

        One process makes it while others wait. It appears whole or not at all. Raises Unprepared if
        it is not to be made, Stopped, and Taken.
        """
        folder = self.folder / kind / identity
        if folder.exists():
            return folder
        if not self.makes:
            raise Unprepared
        folder.parent.mkdir(parents=True, exist_ok=True)
        lease = Lease(folder.with_name(f"{folder.name}.lock"))

        def report_wait() -> None:
            self.report(f"waiting for {lease.name_owner()}, which prepares {folder}")

        lease.acquire(report_wait, lambda: cancel.check_wait(self.waits))
        try:
            if not folder.exists():
                with replace_folder(folder) as unfinished:
                    take_over(folder, unfinished)
                    make(unfinished)
                    write_checksums(unfinished)
                    lease.check()
        finally:
            lease.release()
        return folder


def describe_cure(folder: Path) -> str:
    return f"remove {folder}, and it is made from the text again"


def prepare(config: RunConfig, cache: DataCache) -> Corpus:
    """Tokenise what the cache lacks of a run's texts, and open them.

    Several processes may call this at once, and any may be killed. Of existing ids only the number
    is read: see `DomainTokens.check`. Raises DataError, DamagedFile, and what `DataCache.make_once`
    raises. After Stopped, another call continues.
    """
    data = config.data
    texts = (*config.domains, *config.probes)
    # before Unprepared can be raised, so that dry runs report missing text, too
    notes = cache.folder / "texts"
    identities = {
        text.name: corpus.identify(text, data.valid_share, notes, cache.makes) for text in texts
    }
    if config.start:
        tokenizer = load_tokenizer(Path(config.start.folder))
    else:
        tokenizer = make_tokenizer(config.domains, config.tokenizer, data, identities, cache)
    tokenizer.bpe.encode_special_tokens = True  # "<mask>" in a document is text
    tokenised = [
        prepare_domain(text, identities[text.name], tokenizer, data, cache) for text in texts
    ]
    prepared = Corpus(
        tokenizer=tokenizer.bpe,
        text_vocabulary=tokenizer.vocabulary,
        domains=tuple(tokenised[: len(config.domains)]),
        probes=tuple(tokenised[len(config.domains) :]),
        special=tokenizer.special,
    )
    repeats = [
        token
        for token in prepared.vocabulary.prompt_tokens
        if prepared.tokenizer.token_to_id(token) is not None
    ]
    if repeats:
        raise DataError(
            f"the tokenizer's vocabulary already holds {', '.join(repeats)}: rename the domain"
        )
    return prepared


# Tokenizers


def make_tokenizer(
    domains: Sequence[Domain],
    config: TokenizerConfig,
    data: Data,
    text_identities: dict[str, str],
    cache: DataCache,
) -> TextTokenizer:
    """The tokenizer of a suite.

    `text_identities` has the identity of each domain's text by the domain's name.
    """
    if config.folder:
        folder = Path(os.path.expanduser(config.folder))
        return TextTokenizer.wrap(load_bpe(folder))
    by_name = {domain.name: domain for domain in domains}
    sampled = [by_name[name] for name in config.domains or by_name]
    identities = [text_identities[domain.name] for domain in sampled]
    identity = digest([FORMAT, config.vocabulary, config.sample_bytes, identities])
    make = partial(_train, sampled, config, data, cache)
    return load_trained(cache.make_once("tokenizers", identity, make))


def load_trained(folder: Path) -> TextTokenizer:
    check_checksums(folder, describe_cure(folder))
    return TextTokenizer.wrap(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))


def _train(
    sampled: Sequence[Domain], config: TokenizerConfig, data: Data, cache: DataCache, folder: Path
) -> None:
    """Write tokenizer.json.

    Samples of a killed process are kept, because reading them from the Hub may have taken hours.
    """
    names = ", ".join(domain.name for domain in sampled)
    cache.report(f"tokenizer: training on {names}")
    files = [folder / f"sample_{domain.name}.json" for domain in sampled]
    texts: list[str] = []
    for domain, file in zip(sampled, files, strict=True):
        if not file.exists():
            size = config.sample_bytes // len(domain.parts)
            sample: list[str] = []
            for part in domain.parts:
                sample += _sample_texts(part, data.valid_share, size)
            write_json(file, {"texts": sample})
            write_json(folder / BEGUN, {})
        texts += read_json(file, f"remove {folder}")["texts"]
    bpe = train_bpe(texts, config.vocabulary)
    for file in files:
        file.unlink()
    entries = bpe.get_vocab_size()
    if entries < config.vocabulary:
        cache.report(
            f"tokenizer: {entries:,} of {config.vocabulary:,} entries, as the sample has no more "
            "pairs of tokens; give more text or raise tokenizer.sample_bytes"
        )
    bpe.save(str(folder / "tokenizer.json"))


def _sample_texts(domain: Domain, valid_share: float, size: int) -> list[str]:
    """About `size` bytes of training text, spread over the first `SAMPLED_FROM * size`."""
    sample: Sample[str] = Sample(size)
    bytes_read = 0
    for document in corpus.read(domain, valid_share, Counter()):
        cancel.check()
        if document.split == "train":
            text = document.text.encode()
            sample.add(document.text, len(text), zlib.crc32(text))
            bytes_read += len(text)
            if bytes_read >= SAMPLED_FROM * size:
                break
    return sample.list_items()


# Domains


def prepare_domain(
    domain: Domain, text_identity: str, tokenizer: TextTokenizer, data: Data, cache: DataCache
) -> DomainTokens:
    """The tokens of a domain, made if the cache lacks them.

    `text_identity` is what `corpus.identify` returns for the domain. Raises DataError if they fill
    no row, and what `DataCache.make_once` raises.
    """
    # The hash tells a limit in bytes from one in tokens.
    limit = data.max_valid_tokens or ["bytes", data.max_valid_bytes]
    parts: list[Any] = [DOMAIN_FORMAT, text_identity, tokenizer.key, data.max_train_tokens, limit]
    if data.max_train_tokens and not domain.valid:
        # Validation text ends early, as `_write_ids` explains. The hash tells it from older text.
        parts.append("early")
    identity = digest(parts)
    make = partial(_tokenise, domain, tokenizer, data, cache)
    folder = cache.make_once("domains", identity, make)
    check_checksums(folder, describe_cure(folder), sizes_alone=("train.bin", "valid.bin"))
    info = json.loads((folder / "info.json").read_text(encoding="utf-8"))
    train = _map_ids(folder / "train.bin", tokenizer)
    valid = _map_ids(folder / "valid.bin", tokenizer)
    tokens = DomainTokens(
        name=domain.name,
        title=domain.label,
        key=info.pop("key"),
        valid_sizes=tuple(info.pop("valid_sizes")),
        train=train,
        valid=valid,
        info=info,
        folder=folder,
        sources=domain.sources,
    )
    check_length(tokens, data)
    return tokens


def check_length(domain: DomainTokens, data: Data) -> None:
    """Raise DataError for a domain whose training or validation text fills no row."""
    for split, tokens in (("training", domain.train), ("validation", domain.valid)):
        if len(tokens) >= data.text_length:
            continue
        causes = ["data.sequence_length", "data.valid_share"]
        if data.max_train_tokens:
            # once it is reached, no more text is read for validation either
            causes.append("data.max_train_tokens")
        raise DataError(
            f"domain {domain.name!r}: {len(tokens):,} {split} tokens, less than one row of "
            f"{data.text_length} (documents: {domain.info['documents']:,}, "
            f"skipped: {domain.info['skipped'] or 'none'}). Add text, or change "
            f"{', '.join(causes)} or the domain's validation files"
        )


def _map_ids(path: Path, tokenizer: TextTokenizer) -> Ids:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, tokenizer.dtype)
    return np.memmap(path, tokenizer.dtype, mode="r")


def _tokenise(
    domain: Domain, tokenizer: TextTokenizer, data: Data, cache: DataCache, folder: Path
) -> None:
    """Write train.bin, valid.bin and info.json."""
    cache.report(f"{domain.name}: tokenising")
    write = _join_sources if domain.sources else _write_ids
    try:
        info = write(domain, tokenizer, data, cache, folder)
    except DataError:
        if not domain.datasets:  # once the text is corrected, what was begun is useless
            (folder / BEGUN).unlink(missing_ok=True)
        raise
    train_counts, train_hash = _count_and_hash(folder / "train.bin", tokenizer)
    valid_counts, valid_hash = _count_and_hash(folder / "valid.bin", tokenizer)
    key = digest([tokenizer.key, train_hash, valid_hash, *info.get("parts", [])])
    packages = [name for part in domain.parts for name in part.packages]
    info |= {
        "tokens": int(train_counts.sum() + valid_counts.sum()),
        "unigram_perplexity": measure_unigram_perplexity(train_counts, valid_counts),
        "versions": docstrings.read_versions(packages),
        "source": domain.model_dump(
            mode="json", include={"packages", "train", "valid", "datasets", "sources"}
        ),
    }
    (folder / "info.json").write_text(json.dumps({"key": key, **info}), encoding="utf-8")


def number_documents(ids: NDArray[Any], eos: int) -> NDArray[np.int64]:
    """The number of each token's document, if each document ends with `eos`."""
    ends = (ids == eos).astype(np.int64)
    numbers: NDArray[np.int64] = np.cumsum(ends) - ends
    return numbers


def make_validation_key(text: DomainTokens, mask_number: int | None, separates: bool) -> str:
    """A hash of a validation text as it is measured: of its tokens, and of its masks if it has any.

    `mask_number`: see `choose_mask_number`, None without masks. `separates`: whether documents are
    kept apart (`data.document_mask`), so that no `</s>` is masked.
    """
    parts: list[Any] = [MEASURE, text.valid_key or text.key, mask_number]
    if mask_number is not None and separates:
        parts.append("document_mask")
    return digest(parts)


def choose_mask_number(name: str, index: int, places: Sequence[int]) -> int:
    """The number by which the masks of a validation text are drawn.

    `index` is the text's place in the stream's domains, followed by the probes. `places` are the
    domains' places in the suite's list. A probe's number does not depend on the stream.
    """
    is_probe = index >= len(places)
    if is_probe:
        return PROBES + zlib.crc32(name.encode())
    return places[index]


def measure_unigram_perplexity(
    train_counts: NDArray[np.int64], valid_counts: NDArray[np.int64]
) -> float:
    """The perplexity of validation text for a unigram model of training text, add-one smoothed.

    Both arguments are counts by id, (vocabulary,).
    """
    total = train_counts.sum() + len(train_counts)
    log_probs = np.log((train_counts + 1) / total)
    entropy = -(valid_counts @ log_probs) / max(1, valid_counts.sum())
    return float(np.exp(entropy))


def _join_sources(
    domain: Domain, tokenizer: TextTokenizer, data: Data, cache: DataCache, folder: Path
) -> DomainInfo:
    """Write the ids of the sources of a mixed domain one after the other.

    Each source is tokenised by itself first.
    """
    parts = []
    for source in domain.parts:
        identity = corpus.identify(source, data.valid_share, cache.folder / "texts")
        parts.append(prepare_domain(source, identity, tokenizer, data, cache))
    for name in ("train.bin", "valid.bin"):
        with (folder / name).open("wb") as file:
            for part in parts:
                with (cast(Path, part.folder) / name).open("rb") as part_file:
                    shutil.copyfileobj(part_file, file)
    infos: list[Any] = [part.info for part in parts]
    skipped = Counter[str]()
    for info in infos:
        skipped += Counter(info["skipped"])
    joined: Any = {}
    for name in SUMMED:
        joined[name] = sum(info[name] for info in infos)
    # what each validation document was cut from: the number of its part, and a number in the part
    origins: list[tuple[int, int]] = []
    valid_sizes: list[int] = []
    for number, part in enumerate(parts):
        in_part = part.info.get("valid_sources", range(part.info["valid_documents"]))
        origins += [(number, origin) for origin in in_part]
        valid_sizes += part.valid_sizes
    joined |= number_sources(origins)
    joined |= {
        "valid_sizes": valid_sizes,
        "sha256": digest([info["sha256"] for info in infos]),
        "skipped": dict(skipped),
        "parts": [len(part.train) for part in parts],
        "keys": {part.name: part.key for part in parts},
    }
    return cast(DomainInfo, joined)


def _write_ids(
    domain: Domain, tokenizer: TextTokenizer, data: Data, cache: DataCache, folder: Path
) -> DomainInfo:
    """Write train.bin while text is read, and valid.bin at the end, and return what was read.

    After an interruption, the text before the checkpoint is read again, but training text is not
    tokenised again. If the text has changed, all is done again.

    With `max_train_tokens` and no validation files, validation text must not depend on where a
    tokenizer fills train.bin and reading stops. A tokenizer makes at most one token per byte and
    two more per document. So validation text ends already where bytes of training text, with two
    more per document, reach `max_train_tokens`.
    """
    checkpoint = EMPTY_CHECKPOINT
    if (folder / BEGUN).exists():
        checkpoint = read_json(folder / BEGUN, describe_cure(folder))
    written: int = checkpoint["documents"]  # before the interruption
    max_train_tokens = data.max_train_tokens or sys.maxsize
    room = max_train_tokens - checkpoint["bytes"] // tokenizer.dtype.itemsize
    valid: Sample[tuple[Ids, int, str]] = Sample(data.max_valid_tokens or data.max_valid_bytes)
    skipped = Counter[str]()
    text_hash = hashlib.sha256()
    count = bytes_read = train_documents = train_bytes = 0
    with (folder / "train.bin").open("ab") as file:
        file.truncate(checkpoint["bytes"])
        documents = corpus.read(domain, data.valid_share, skipped)
        for document, ids in encode_documents(tokenizer, documents, written):
            cancel.check()
            was_written = count < written
            if document.split == "train" and not was_written and not room:
                break
            count += 1
            text = document.text.encode()
            header = b"%s %d\n" % (document.split.encode(), len(text))
            text_hash.update(header + text)
            if document.split != "valid":
                train_documents += 1
                train_bytes += len(text)
                file.write(ids[:room].tobytes())  # empty for a document that was written before
                room -= min(room, len(ids))
            elif not domain.valid and train_bytes + 2 * train_documents >= max_train_tokens:
                skipped[BEYOND] += 1
            else:
                size = len(ids) if data.max_valid_tokens else len(text)
                valid.add((ids, len(text), document.source), size, zlib.crc32(text))
            if count == written and text_hash.hexdigest() != checkpoint["sha256"]:
                break
            reports = bytes_read // REPORT_EVERY
            bytes_read += len(text)
            if reports < bytes_read // REPORT_EVERY:
                if count > written:
                    _write_checkpoint(folder, file, count, text_hash.hexdigest())
                cache.report(f"{domain.name}: {bytes_read / 1e6:,.0f} MB of text tokenised")
    # reading ended at the checkpoint or before, with another hash than at the interruption
    has_changed = count <= written and text_hash.hexdigest() != checkpoint["sha256"]
    if written and has_changed:
        (folder / BEGUN).unlink()
        return _write_ids(domain, tokenizer, data, cache, folder)
    skipped[BEYOND] += valid.dropped
    valid_items = valid.list_items()
    sizes = _write_valid(valid_items, tokenizer, data.max_valid_tokens, folder)
    info: DomainInfo = {
        "documents": train_documents + len(valid_items),
        "valid_documents": len(valid_items),
        "valid_bytes": sum(sizes),
        "valid_sizes": sizes,
        "sha256": text_hash.hexdigest(),
        "skipped": dict(sorted((+skipped).items())),
    }
    return {**info, **number_sources([source for _, _, source in valid_items])}


def number_sources(sources: Sequence[Hashable]) -> DomainInfo:
    """The `valid_sources` of documents, or nothing if each document has a source of its own."""
    numbers: dict[Hashable, int] = {}
    for source in sources:
        numbers.setdefault(source, len(numbers))
    if len(numbers) == len(sources):
        return {}
    return {"valid_sources": [numbers[source] for source in sources]}


def _write_checkpoint(folder: Path, file: IO[bytes], documents: int, sha256: str) -> None:
    """Write how far train.bin has come, so that a later call continues from there."""
    file.flush()
    os.fsync(file.fileno())  # the checkpoint must not count bytes that are not on the disk
    state = {"documents": documents, "sha256": sha256, "bytes": file.tell()}
    write_json(folder / BEGUN, state)


def _write_valid(
    items: Sequence[tuple[Ids, int, str]],
    tokenizer: TextTokenizer,
    max_tokens: int | None,
    folder: Path,
) -> list[int]:
    """Write valid.bin, of at most `max_tokens` tokens, and return the bytes of each document."""
    sizes = []
    room = max_tokens or sys.maxsize
    with (folder / "valid.bin").open("wb") as file:
        for ids, size, _ in items:
            part = ids[:room]
            room -= len(part)
            file.write(part.tobytes())
            if len(part) < len(ids):
                text = tokenizer.bpe.decode(part.tolist(), skip_special_tokens=False)
                size = len(text.encode())
            sizes.append(size)
    return sizes


def _count_and_hash(path: Path, tokenizer: TextTokenizer) -> tuple[NDArray[np.int64], str]:
    """The counts of each id in a file, (vocabulary,), and a hash of the ids.

    The hash is the same for ids of 16 and 32 bits. The file is read in parts, because pages of a
    memory-mapped file would count as our memory.
    """
    counts = np.zeros(tokenizer.vocabulary, np.int64)
    ids_hash = hashlib.sha256()
    with path.open("rb") as file:
        while (part := np.fromfile(file, tokenizer.dtype, 2**20)).size:
            counts += np.bincount(part, minlength=tokenizer.vocabulary)
            ids_hash.update(part.astype("<u4").tobytes())
    return counts, ids_hash.hexdigest()
