"""Validation documents, and test examples of tasks, that are near copies of training text.

Training text is that of a stream, or the `train` of a task. Near copies are documents that differ
in a few words, so that they have long runs of words in common. Each search is made once, and
`copies/` in the folder of prepared data keeps its result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from benchmark.data.tokenizer import Ids
from benchmark.data.tokens import Corpus, DataCache, describe_cure
from benchmark.files import read_json, write_json
from benchmark.settings.base import digest

NGRAM_WORDS = 13  # of an n-gram, so many that two texts rarely share one by chance
NEARLY = 0.5  # share of a document's n-grams in another text that makes it a near copy
BLOCK = 2**18  # ids that are searched at once
BLANKS = "\u0120\u010a\u0109\u010d\u2581 \t\r\n"  # how byte-level tokenizers and others write them
END = np.uint64(1)  # the end of a document, in place of a word's hash
# factors of letters in a word's hash, by place
POWERS = np.multiply.accumulate(np.full(1000, 0x9E3779B97F4A7C15, np.uint64))
# code points of scripts that are written without blanks between words. Ranges are whole rows of 64,
# because the first two bytes of UTF-8 tell no more. So they include some letters of other scripts
LONE = (
    (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
    (0x1000, 0x10BF),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x1940, 0x1ABF),  # Tai Le, New Tai Lue, Buginese, Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x3000, 0x9FFF),  # Japanese and Chinese
    (0xA000, 0xA4FF),  # Yi
    (0xA980, 0xAAFF),  # Javanese, Cham, Tai Viet, more of Burmese
    (0xF900, 0xFAFF),  # Chinese, for compatibility
    (0xFF00, 0xFFBF),  # half-width Japanese, after full-width Latin of either case
    (0x20000, 0x2FFFF),  # rarer Chinese
)
LEADS = (0xE0, 0xE1, *range(0xE3, 0xEB), 0xEF, 0xF0)  # first UTF-8 bytes of LONE, and of others
BYTE = re.compile("<0x([0-9A-F]{2})>")  # how tokenizers like SentencePiece's write a byte
Hashes = NDArray[np.uint64]
Numbers = NDArray[np.int64]
FORMAT = 3  # increased when a change makes other documents near copies
Text = tuple[str, Callable[[], Ids]]  # its key, and a function that reads its ids
Found = dict[str, dict[str, list[int]]]  # by text, by suspect: numbers of the suspect's documents


def find_leaks(
    bpe: Tokenizer,
    eos: int,
    suspects: Mapping[str, Text],
    texts: Mapping[str, Text],
    cache: DataCache,
) -> Found:
    """The documents of each of `suspects` that nearly stand in each of `texts`.

    See `find_near_copies`. Ids are those of the tokenizer `bpe`, with `eos` after each document.
    Raises what `DataCache.make_once` raises.
    """
    copies: Found = {}
    if not suspects:
        return copies

    def make(read: Callable[[], Ids], unfinished: Path) -> None:
        documents = []
        for _, read_documents in suspects.values():
            documents.append(np.asarray(read_documents()))
        found = find_near_copies(bpe, eos, documents, read())
        write_json(unfinished / "copies.json", {"copies": found})

    suspect_keys = [key for key, _ in suspects.values()]
    for name, (key, read) in texts.items():
        identity = digest([FORMAT, key, suspect_keys])
        folder = cache.make_once("copies", identity, partial(make, read))
        content = read_json(folder / "copies.json", describe_cure(folder))
        copies[name] = dict(zip(suspects, content["copies"], strict=True))
    return copies


def list_training_texts(corpus: Corpus) -> dict[str, Text]:
    """The training text of each domain and probe, for `find_leaks`.

    Probes are included because some row may replay one.
    """
    texts: dict[str, Text] = {}
    for text in (*corpus.domains, *corpus.probes):
        texts[text.name] = (text.key, partial(np.asarray, text.train))
    return texts


def find_validation_leaks(corpus: Corpus, cache: DataCache) -> Found:
    """The documents of validation text that nearly stand in training text.

    Both texts are those of all domains and probes.
    """
    suspects: dict[str, Text] = {}
    for text in (*corpus.domains, *corpus.probes):
        key = text.valid_key or text.key
        suspects[text.name] = (key, partial(np.asarray, text.valid))
    texts = list_training_texts(corpus)
    return find_leaks(corpus.tokenizer, corpus.special.eos, suspects, texts, cache)


# Near copies


def find_near_copies(
    bpe: Tokenizer, eos: int, suspects: Sequence[NDArray[Any]], ids: NDArray[Any]
) -> list[list[int]]:
    """For each array of `suspects`, the numbers of its documents that nearly stand in `ids`.

    A document nearly stands in `ids` if at least a share NEARLY of its n-grams of NGRAM_WORDS words
    does. A document of fewer words has no n-gram, so it never does. Case, blanks and how the
    tokenizer cuts words do not count. In scripts that are written without blanks between words,
    each letter is a word.
    """
    words = WordNgrams(bpe, eos)
    suspect_ngrams = [words.hash_ngrams(suspect) for suspect in suspects]
    ngram_arrays = [np.empty(0, np.uint64)]
    ngram_arrays += [ngrams for ngrams, _ in suspect_ngrams]
    sought = np.unique(np.concatenate(ngram_arrays))
    is_copied = np.zeros(len(sought), bool)
    if len(sought):
        # a table by the hash's remainder, to drop most n-grams before the slower binary search
        is_likely = np.zeros(2**22, bool)
        is_likely[sought % len(is_likely)] = True
        for start in range(0, len(ids), BLOCK):
            end = start + BLOCK + 8 * NGRAM_WORDS  # with n-grams that cross the end of the block
            ngrams, _ = words.hash_ngrams(ids[start:end])
            slots = ngrams % len(is_likely)
            ngrams = ngrams[is_likely[slots]]
            places = np.searchsorted(sought, ngrams)
            places = np.minimum(places, len(sought) - 1)
            matches = sought[places] == ngrams
            is_copied[places[matches]] = True
    copies = []
    for ngrams, numbers in suspect_ngrams:
        places = np.searchsorted(sought, ngrams)
        copied_counts = np.bincount(numbers, is_copied[places])
        counts = np.bincount(numbers)
        shares = copied_counts / counts.clip(1)
        copies.append(np.flatnonzero(shares >= NEARLY).tolist())
    return copies


class WordNgrams:
    """Hashes of words and of n-grams of words, computed from token ids.

    A word's hash is the sum over its letters of the code point times POWERS[place in the word]. So
    the sum over its tokens is the same however the tokenizer cuts the word, if each token's hash is
    multiplied by the power for the letters before the token (see `_hash_words`).

    Letters of scripts that are written without blanks (LONE) are words by themselves.
    """

    def __init__(self, bpe: Tokenizer, eos: int) -> None:
        tokens = bpe.get_vocab()
        size = max(eos, *tokens.values()) + 1
        is_word_piece = isinstance(bpe.model, models.WordPiece)
        continuation = "##" if is_word_piece else ""  # begins a token inside a word
        definition = bpe.to_str()
        has_fallback = '"byte_fallback":true' in definition
        self._eos = eos
        # of each token: the hash of its letters, how many they are, and whether it begins a word
        self._hashes = np.zeros(size, np.uint64)
        self._letters = np.zeros(size, np.int64)
        self._begins = np.full(size, is_word_piece)
        symbols = list_byte_symbols()
        letters_by_id = {}
        for token, number in tokens.items():
            byte = BYTE.fullmatch(token) if has_fallback else None
            written = chr(int(byte[1], 16)) if byte else token
            if is_word_piece:
                self._begins[number] = not token.startswith(continuation)
            else:
                self._begins[number] = written[:1] in BLANKS
            letters = written.removeprefix(continuation).strip(BLANKS)
            if has_fallback:
                # some letters are one token, others a token per byte: all become bytes
                encoded = letters.encode("latin-1") if byte else letters.casefold().encode()
                letters = "".join(symbols[value] for value in encoded)
            letters_by_id[number] = letters
            # not more, because ignoring case can lengthen a text, and POWERS has 1000
            self._hashes[number], self._letters[number] = _hash_letters(letters[:500])
        has_bytes = has_fallback or '"ByteLevel"' in definition
        self._characters = _Characters(letters_by_id, size, has_bytes)

    def hash_ngrams(self, ids: NDArray[Any]) -> tuple[Hashes, Numbers]:
        """A hash of each n-gram inside a document, and the document's number."""
        if not len(ids):
            no_ngrams = np.empty(0, np.uint64)
            return no_ngrams, np.empty(0, np.int64)
        words = self._hash_words(ids)
        is_end = words == END
        next_documents = np.cumsum(is_end)  # the number of the document after each word
        documents = next_documents - is_end  # the number of each word's document
        count = max(0, len(words) - NGRAM_WORDS + 1)
        ngrams = np.zeros(count, np.uint64)
        for place in range(NGRAM_WORDS):
            following = words[place : place + count]
            ngrams = ngrams * POWERS[0] + following
        first_documents = documents[:count]
        last_documents = next_documents[NGRAM_WORDS - 1 :]
        # after END the next document begins, so an n-gram that ends with END is not inside
        is_inside = first_documents == last_documents[:count]
        return ngrams[is_inside], first_documents[is_inside]

    def _hash_words(self, ids: NDArray[Any]) -> Hashes:
        """A hash of each word, and END after each document. Words of blanks are left out."""
        is_end = ids == self._eos
        is_begin = self._begins[ids] | is_end
        is_begin[1:] |= is_end[:-1]
        is_begin[0] = True
        hashes = self._hashes[ids]
        counts = self._letters[ids]
        if self._characters.may_be_lone[ids].any():
            # from here on by character instead of by token, which takes longer, so only if needed
            characters, firsts = self._characters.list_of(ids)
            is_lone_begin = self._characters.find_begins(characters)
            is_lone_begin[firsts] |= is_begin
            ends = firsts[is_end]
            is_end = np.zeros(len(characters), bool)
            is_end[ends] = True
            is_begin = is_lone_begin
            hashes = self._characters.hashes[characters]
            counts = self._characters.letters[characters]
        starts = np.flatnonzero(is_begin)
        letters_before = np.cumsum(counts) - counts  # each token, or character
        sizes = np.diff(starts, append=len(counts))
        places = letters_before - np.repeat(letters_before[starts], sizes)  # in the word, from 0
        powers = POWERS[np.minimum(places, len(POWERS)) - 1]
        powers[places == 0] = 1
        words: Hashes = np.add.reduceat(hashes * powers, starts)
        words[is_end[starts]] = END
        word_hashes: Hashes = words[words != 0]
        return word_hashes


def _hash_letters(word: str) -> tuple[np.uint64, int]:
    """The hash of letters at the beginning of a word, ignoring case, and their number."""
    codes = np.array([ord(letter) for letter in word.casefold()], np.uint64)
    hashes = codes * POWERS[: len(codes)]
    return hashes.sum(dtype=np.uint64), len(codes)


class _Characters:
    """The characters of tokens, or their bytes if the tokenizer has tokens for bytes.

    `hashes` and `letters` have, for each character, its hash as the first of a word and its number
    of letters. `may_be_lone` says for each token whether it may have a part of a letter of LONE.
    """

    def __init__(self, letters_by_id: Mapping[int, str], size: int, has_bytes: bool) -> None:
        """`letters_by_id`: the characters of each token, by its id, of which there are `size`."""
        self._has_bytes = has_bytes
        alphabet = sorted(set().union(*letters_by_id.values()))
        # the character 0 stands for tokens that have none, such as blanks
        numbers = {letter: number for number, letter in enumerate(alphabet, start=1)}
        codes = [ord(letter) for letter in alphabet]
        if has_bytes:
            values = {symbol: value for value, symbol in enumerate(list_byte_symbols())}
            codes = [values.get(letter, 0) for letter in alphabet]
        self._codes = np.array([0, *codes], np.int64)
        self.hashes = np.zeros(len(self._codes), np.uint64)
        self.letters = np.zeros(len(self._codes), np.int64)
        for letter, number in numbers.items():
            self.hashes[number], self.letters[number] = _hash_letters(letter)
        parts = []  # the characters of each token
        for token in range(size):
            part = [numbers[letter] for letter in letters_by_id.get(token, "")]
            parts.append(part or [0])
        self._sizes = np.array([len(part) for part in parts])
        self._firsts = np.cumsum(self._sizes) - self._sizes
        self._parts = np.concatenate([np.array(part) for part in parts])
        is_lone = _is_lone(self._codes)
        if has_bytes:
            is_lone = np.isin(self._codes, LEADS)
        self.may_be_lone = np.logical_or.reduceat(is_lone[self._parts], self._firsts)

    def list_of(self, ids: NDArray[Any]) -> tuple[Numbers, Numbers]:
        """The characters of tokens one after the other, and the place of each token's first."""
        sizes = self._sizes[ids]
        firsts = np.cumsum(sizes) - sizes
        within = np.arange(sizes.sum()) - np.repeat(firsts, sizes)
        places = np.repeat(self._firsts[ids], sizes) + within
        return self._parts[places], firsts

    def find_begins(self, characters: Numbers) -> NDArray[np.bool_]:
        """Whether a word begins at each character: at a letter of LONE, and after one."""
        codes = self._codes[characters]
        is_begin = np.zeros(len(codes) + 4, bool)
        if not self._has_bytes:
            places = np.flatnonzero(_is_lone(codes))
            is_begin[places] = True
            is_begin[places + 1] = True
            return is_begin[: len(codes)]
        following = np.append(codes[1:], 0) & 0x3F
        # what the first two bytes tell of the code point of a letter of three bytes, or of four
        of_three = (codes & 0xF) << 12 | following << 6
        of_four = (codes & 0x7) << 18 | following << 12
        for length, is_lead, values in (
            (3, (codes >= 0xE0) & (codes < 0xF0), of_three),
            (4, codes >= 0xF0, of_four),
        ):
            places = np.flatnonzero(is_lead & _is_lone(values))
            is_begin[places] = True
            is_begin[places + length] = True
        return is_begin[: len(codes)]


def _is_lone(codes: Numbers) -> NDArray[np.bool_]:
    """Whether characters are of a script without blanks between words."""
    is_lone = np.zeros(codes.shape, bool)
    for first, last in LONE:
        is_lone |= (codes >= first) & (codes <= last)
    return is_lone


def list_byte_symbols() -> list[str]:
    """The symbol of each byte in the tokens of byte-level tokenizers (GPT-2's)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [value for value in range(256) if value not in printable]
    symbols = {value: chr(256 + number) for number, value in enumerate(others)}
    return [symbols.get(value, chr(value)) for value in range(256)]
