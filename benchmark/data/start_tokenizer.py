"""The tokenizer of a published model, with its own ids and special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmark.data.bpe import TextTokenizer, plainly
from benchmark.data.documents import DataError
from benchmark.data.vocabulary import Special
from benchmark.files import check_snapshot, only_files, read_text, unique
from benchmark.settings.base import digest

FILES = ("tokenizer.json", "tokenizer_config.json")  # that libraries read, whatever key stands twice in them


def load_tokenizer(folder: Path) -> TextTokenizer:
    """The tokenizer in a Hugging Face folder.

    A document begins with its `bos` or `cls` token, or where there is none with what ends one, and ends with its `eos`
    or `sep` token. Raises DataError when it has no such token, is not a fast one, or has more ids than the model rows.
    """
    only_files(folder)
    check_snapshot(folder, without=".safetensors")
    try:
        for name in FILES:
            if (path := folder / name).exists():
                json.loads(read_text(path), object_pairs_hook=unique)
        from transformers import AutoTokenizer  # it brings torch, 200 MB that tokenising can do without

        wrapped: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers does not say what damaged files may raise
        told = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise DataError(f"{folder}: no tokenizer ({told}): copy the one that the model was trained with") from None
    if not wrapped.is_fast:
        raise DataError(f"{folder}: its tokenizer has no tokenizer.json: save it as a fast one (tokenizer_object)")
    rows = json.loads(read_text(folder / "config.json")).get("vocab_size")
    if not isinstance(rows, int):
        raise DataError(f"{folder}: its config.json does not say vocab_size, the rows of its vocabulary: add it")
    bpe = wrapped.backend_tokenizer
    if missing := plainly(bpe):
        raise DataError(
            f"{folder}: its tokenizer lacks {missing} of the 256 bytes: copy the one that the model was trained with"
        )
    largest = max(bpe.get_vocab().values())
    if largest >= rows:
        raise DataError(
            f"{folder}: its tokenizer has ids up to {largest}, but the model only {rows} rows of vocabulary"
            ": copy the one that the model was trained with"
        )
    eos = _first(wrapped.eos_token_id, wrapped.sep_token_id)
    if eos is None:
        raise DataError(
            f"{folder}: its tokenizer has no token that ends a document (eos_token or sep_token)"
            ": name one in tokenizer_config.json"
        )
    bos = _first(wrapped.bos_token_id, wrapped.cls_token_id, eos)
    pad, mask = _first(wrapped.pad_token_id, eos), _first(wrapped.mask_token_id, -1)
    special = Special(bos, pad, eos, mask)
    return TextTokenizer(bpe, rows, special, digest([json.loads(bpe.to_str()), rows, vars(special)]))


def _first(*ids: int | None) -> Any:
    return next((one for one in ids if one is not None), None)
