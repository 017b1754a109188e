"""Tokenizers, trained or loaded, and the layout of the vocabulary.

The layout is the same for every tokenizer, model and method. Ids 0 to 3 are special (a published
model keeps its own), then comes the text, then one prompt row for each domain that the model has
met. Prompt rows exist with and without prompts, so that all methods have the same softmax and the
same number of parameters.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmark.data.documents import DataError, Document, NotHere
from benchmark.settings.base import digest

BOS = 0
PAD = 1
EOS = 2
MASK = 3
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<mask>")
"""Token of each special id."""
UNUSED = "<unused:"  # prefix of the tokens of rows without a token in a published tokenizer
BATCH = 128  # documents that a thread tokenises at once
THREADS = min(os.cpu_count() or 1, 8)
# the library's own threads would stay, and a process that is forked later would hang or warn
os.environ["TOKENIZERS_PARALLELISM"] = "false"
Ids = NDArray[np.integer[Any]]  # uint16 or uint32


@dataclass(frozen=True)
class Special:
    """Ids of the special tokens.

    A published model has its own, and only a masked one needs `mask`.
    """

    bos: int = BOS
    pad: int = PAD
    eos: int = EOS
    mask: int = MASK


@dataclass(frozen=True)
class Vocabulary:
    """`text` ids of text (specials included), followed by one prompt row for each of `domains`.

    `domains` are names.
    """

    text: int
    domains: tuple[str, ...] = ()
    special: Special = Special()

    @property
    def size(self) -> int:
        """V: rows of the embedding."""
        return self.text + len(self.domains)

    @property
    def prompt_tokens(self) -> tuple[str, ...]:
        """Tokens of the prompt rows, of which token i has id `text` + i."""
        return tuple(f"<domain:{name}>" for name in self.domains)


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer of text.

    `vocabulary` is the number of rows for its ids, `key` a hash of all that decides ids.
    """

    bpe: Tokenizer
    vocabulary: int
    special: Special
    key: str

    @classmethod
    def wrap(cls, bpe: Tokenizer) -> TextTokenizer:
        """A tokenizer with our layout of ids."""
        return cls(bpe, bpe.get_vocab_size(), Special(), hash_tokenizer(bpe))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an id on disk."""
        return np.dtype("<u2" if self.vocabulary <= 2**16 else "<u4")


def train_bpe(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE of at most `vocabulary` ids, the special tokens first.

    The same text gives the same ids.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe = _make_byte_level(models.BPE())
    bpe.train_from_iterator(texts, trainer)
    return bpe


def load_bpe(folder: Path) -> Tokenizer:
    """The byte-level BPE of vocab.json and merges.txt, as GPT-2 has them, after our special tokens.

    So GPT-2's ids are shifted by 4. `<|endoftext|>` stays as a row that no text uses. Raises
    DataError.
    """
    vocabulary_file = folder / "vocab.json"
    try:
        published, merges = models.BPE.read_file(str(vocabulary_file), str(folder / "merges.txt"))
    except Exception as error:  # the library raises nothing narrower
        raise NotHere(
            f"tokenizer folder {str(folder)!r}: {error}; it must hold vocab.json and merges.txt"
        ) from None
    missing_bytes = set(pre_tokenizers.ByteLevel.alphabet()).difference(published)
    if missing_bytes:
        raise DataError(
            f"{vocabulary_file}: not byte-level: it lacks {len(missing_bytes)} of the 256 bytes"
            ": take that of a byte-level BPE"
        )
    tokens = list(SPECIAL_TOKENS)
    for token in sorted(published, key=published.__getitem__):
        if token not in SPECIAL_TOKENS:
            tokens.append(token)
    ids = {token: index for index, token in enumerate(tokens)}
    try:
        model = models.BPE(ids, merges)
    except Exception as error:
        raise DataError(f"{folder}: merges.txt does not go with vocab.json: {error}") from None
    bpe = _make_byte_level(model)
    bpe.add_special_tokens(list(SPECIAL_TOKENS))
    return bpe


def _make_byte_level(model: models.BPE) -> Tokenizer:
    bpe = Tokenizer(model)
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return bpe


def set_plain_encoding(bpe: Tokenizer) -> None:
    """Make a saved tokenizer encode whole texts, always in the same way, without padding.

    A unigram model samples only if its `alpha` is set, which no file stores.
    """
    bpe.no_truncation()
    bpe.no_padding()
    if isinstance(bpe.model, models.BPE):
        bpe.model.dropout = None  # a regulariser of training that leaves out random merges


def encode_texts(bpe: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, without special tokens.

    Raises DataError if the library panics, e.g. because the tokenizer's pattern gives up.
    """
    try:
        encodings = bpe.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]
    except BaseException as error:  # a panic of the library is no Exception
        if type(error).__name__ != "PanicException":
            raise
        reason = str(error).partition("\n")[0]
    if len(texts) > 1:
        for text in texts:
            encode_texts(bpe, [text])  # raises for the text that causes the panic
    raise DataError(
        f"the tokenizer gives up ({reason:.80}) on the text {texts[0]!r:.60}: leave it out, or "
        "take another"
    )


def encode_documents(
    tokenizer: TextTokenizer, documents: Iterable[Document], written: int = 0
) -> Iterator[tuple[Document, Ids]]:
    """Documents in their order, each with its ids and `</s>`.

    Threads encode in parallel, because the library releases Python's lock. Training documents among
    the first `written` get no ids.
    """

    def encode(batch: list[tuple[int, Document]]) -> list[tuple[Document, Ids]]:
        to_encode: dict[int, str] = {}
        for number, document in batch:
            if number >= written or document.split == "valid":
                to_encode[number] = document.text
        texts_ids = encode_texts(tokenizer.bpe, list(to_encode.values()))
        ids: dict[int, list[int]] = {}
        for number, text_ids in zip(to_encode, texts_ids, strict=True):
            ids[number] = [*text_ids, tokenizer.special.eos]
        return [
            (document, np.array(ids.get(number, []), tokenizer.dtype)) for number, document in batch
        ]

    numbered = enumerate(documents)
    pending: deque[Future[list[tuple[Document, Ids]]]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        while batch := list(islice(numbered, BATCH)):
            pending.append(pool.submit(encode, batch))
            if len(pending) > 2 * THREADS:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def hash_tokenizer(bpe: Tokenizer) -> str:
    """A hash of all that decides how text is cut and numbered."""
    model = json.loads(bpe.to_str())["model"]
    return digest([model["vocab"], model["merges"]])


# The tokenizer of a published model, with its own ids and special tokens


def load_tokenizer(folder: Path) -> TextTokenizer:
    """The tokenizer in a Hugging Face folder.

    A document ends with its `eos` token, else with `sep`. A row begins with `bos`, else `cls`, else
    the token that ends a document. Raises DataError if no token ends a document, if the tokenizer
    is not a fast one, or if it has ids that the model has no row for.
    """
    try:
        # here, because it imports torch, 200 MB that tokenising does not need
        from transformers import AutoTokenizer

        wrapped: Any = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers does not say what damaged files may raise
        message = str(error).strip() or type(error).__name__
        reason = message.splitlines()[0][:200]
        raise DataError(
            f"{folder}: no tokenizer ({reason}): copy the one that the model was trained with"
        ) from None
    if not wrapped.is_fast:
        raise DataError(
            f"{folder}: its tokenizer has no tokenizer.json: save it as a fast one "
            "(tokenizer_object)"
        )
    rows = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    eos = _pick_first(wrapped.eos_token_id, wrapped.sep_token_id)
    bos = _pick_first(wrapped.bos_token_id, wrapped.cls_token_id, eos)
    pad = _pick_first(wrapped.pad_token_id, eos)
    mask = _pick_first(wrapped.mask_token_id, -1)
    bpe = _drop_tokens_without_row(wrapped.backend_tokenizer, rows, {bos, pad, eos, mask})
    set_plain_encoding(bpe)
    largest = max(bpe.get_vocab().values())
    if largest >= rows:
        raise DataError(
            f"{folder}: its tokenizer has ids up to {largest}, but the model only {rows} rows: "
            "copy the model's own"
        )
    if eos is None:
        raise DataError(
            f"{folder}: its tokenizer has no token that ends a document (eos_token or sep_token)"
            ": name one in tokenizer_config.json"
        )
    special = Special(bos, pad, eos, mask)
    decisive = [json.loads(bpe.to_str()), rows, vars(special)]
    if mask >= 0 and largest + 1 < rows:
        # such models once drew from all rows: their stages need another key
        decisive.append("masked models draw random tokens from the tokenizer's ids")
    return TextTokenizer(bpe, rows, special, digest(decisive))


def _drop_tokens_without_row(bpe: Tokenizer, rows: int, used: set[int | None]) -> Tokenizer:
    """The tokenizer without added tokens that have no row in the model, unless they are `used`.

    Gemma 3's tokenizer has a token for images, but its text-only models have no row for it.
    """
    content = json.loads(bpe.to_str())
    added_tokens = []
    dropped = set()
    for token in content["added_tokens"]:
        if token["id"] >= rows and token["id"] not in used:
            dropped.add(token["content"])
        else:
            added_tokens.append(token)
    if not dropped:
        return bpe
    content["added_tokens"] = added_tokens
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, dict):
        for token in dropped:
            vocabulary.pop(token, None)
    return Tokenizer.from_str(json.dumps(content))


def _pick_first(*ids: int | None) -> Any:
    for id_ in ids:
        if id_ is not None:
            return id_
    return None
