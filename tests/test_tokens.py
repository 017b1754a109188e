"""Tokens on disk: byte for byte the text, cut as the tokenizer says, as many as asked for."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from transformers import GPT2TokenizerFast, PreTrainedTokenizerFast

from benchmark.data import corpus, tokens
from benchmark.data.documents import DataError
from benchmark.data.tokenizer import EOS, SPECIAL_TOKENS, hash_tokenizer, load_bpe, train_bpe
from benchmark.settings.suite import Tokenizer
from benchmark.settings.texts import Domain
from tests.support.texts import (
    DATA,
    ODD,
    SMALL,
    decoded,
    gpt2_files,
    prepare,
    sentences,
    two_domains,
    write,
)

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("loaded", [False, True])
def test_text_comes_back_byte_for_byte(tmp_path, monkeypatch, loaded: bool) -> None:
    """Oracle: the documents themselves, in their order, none both in training and validation text.
    They are encoded in several batches, by several threads.
    """
    monkeypatch.setattr("benchmark.data.tokenizer.BATCH", 3)
    tokenizer = Tokenizer(folder=str(gpt2_files(tmp_path / "bpe"))) if loaded else SMALL
    corpus = prepare(two_domains(tmp_path), tmp_path / "data", tokenizer=tokenizer)
    texts = [text for text in sentences(1) + ODD if text.strip()]
    train, valid = (
        decoded(corpus, ids) for ids in (corpus.domains[0].train, corpus.domains[0].valid)
    )
    assert sorted(train + valid) == sorted(texts)
    assert [text for text in texts if text in set(train)] == train
    assert [text for text in texts if text in set(valid)] == valid
    info = corpus.domains[0].info
    assert (info["documents"], info["valid_documents"]) == (len(texts), len(valid))
    assert info["tokens"] == len(corpus.domains[0].train) + len(corpus.domains[0].valid)
    assert info["skipped"] == {"blank": 1}


def test_layout_of_the_vocabulary(tmp_path) -> None:
    """Oracle: the layout in benchmark/data/tokenizer.py; text that looks like a special token is
    text.
    """
    corpus = prepare(two_domains(tmp_path), tmp_path / "data")
    assert [corpus.tokenizer.id_to_token(i) for i in range(4)] == list(SPECIAL_TOKENS)
    assert corpus.vocabulary.text == corpus.text_vocabulary == 320
    assert (
        corpus.vocabulary.prompt_tokens == ("<domain:a>", "<domain:b>")
        and corpus.vocabulary.size == 322
    )
    assert corpus.tokenizer.get_vocab_size() == 320
    for domain in corpus.domains:
        ids = np.concatenate([domain.train, domain.valid])
        assert set(ids[ids < 4].tolist()) == {EOS}
        assert (ids == EOS).sum() == domain.info["documents"]
        assert ids.max() < 320


def test_a_loaded_tokenizer_cuts_as_gpt2(tmp_path) -> None:
    """Oracle: transformers' GPT-2 tokenizer on the same files, ids shifted by 4."""
    folder = gpt2_files(tmp_path / "bpe")
    theirs, ours = GPT2TokenizerFast.from_pretrained(folder), load_bpe(folder)
    ours.encode_special_tokens = True
    for text in (text for text in sentences(4) + ODD if "<|endoftext|>" not in text):
        assert [i - 4 for i in ours.encode(text, add_special_tokens=False).ids] == theirs(text)[
            "input_ids"
        ]
    entries = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    assert {
        token: index + 4 for token, index in entries.items()
    }.items() <= ours.get_vocab().items()
    assert ours.get_vocab_size() == len(entries) + 4


def test_a_vocabulary_with_our_special_tokens_keeps_one_of_each(tmp_path) -> None:
    """Ids 0 to 2 of RoBERTa's vocabulary are ours. Oracle: the layout in
    benchmark/data/tokenizer.py.
    """
    folder = gpt2_files(tmp_path / "bpe")
    entries = list(json.loads((folder / "vocab.json").read_text(encoding="utf-8")))
    roberta = {t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<unk>", *entries, "<mask>"])}
    (folder / "vocab.json").write_text(json.dumps(roberta), encoding="utf-8")
    ids = load_bpe(folder).get_vocab()
    assert sorted(ids, key=ids.__getitem__) == [*SPECIAL_TOKENS, "<unk>", *entries]


def test_tokenizer_folders_that_cannot_be_used(tmp_path) -> None:
    """By hand: no JSON, a single token, a vocabulary without a merged token, and a folder that does
    not exist.
    """
    folder = gpt2_files(tmp_path / "bpe")
    entries = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merged = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1].replace(" ", "")
    for content, message in [
        ("{", "must hold vocab.json"),
        ('{"a": 0}', " 255 of the 256 "),
        (
            json.dumps({token: index for token, index in entries.items() if token != merged}),
            "does not go with",
        ),
    ]:
        (folder / "vocab.json").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            load_bpe(folder)
    with pytest.raises(DataError, match="must hold vocab.json"):
        prepare(
            two_domains(tmp_path),
            tmp_path / "data",
            tokenizer=Tokenizer(folder=str(tmp_path / "none")),
        )


@pytest.mark.parametrize(("extra", "dtype"), [(0, np.uint16), (70_000, np.uint32)])
def test_16_bits_where_the_vocabulary_allows(tmp_path, extra: int, dtype: type) -> None:
    """Oracle: the text itself. In the second case all its ids lie above 65,536."""
    corpus = prepare(
        two_domains(tmp_path),
        tmp_path / "data",
        tokenizer=Tokenizer(folder=str(gpt2_files(tmp_path / "bpe", extra))),
    )
    train = corpus.domains[1].train
    assert train.dtype == dtype
    assert (train[train != EOS] >= 4 + extra).all()
    assert set(decoded(corpus, train)) <= set(sentences(2, words=["other", "text"]))


def test_training_a_tokenizer_is_repeatable(tmp_path) -> None:
    """Oracle: other processes, with other hash seeds, get the same content."""
    texts = sentences(6) + ODD
    code = "import json, sys; from benchmark.data.tokenizer import *; print(hash_tokenizer(train_bpe(json.load(sys.stdin), 600)))"  # noqa: E501
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(texts),
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert keys == {hash_tokenizer(train_bpe(texts, 600))}


def test_the_tokenizer_learns_from_the_named_domains_only(tmp_path) -> None:
    """By hand: a domain's own word is a single token only if the tokenizer learns from it."""
    domains = two_domains(tmp_path)
    of_b = prepare(domains, tmp_path / "data", tokenizer=Tokenizer(vocabulary=300, domains=("b",)))
    assert of_b.tokenizer.token_to_id("Ġother") is not None
    assert of_b.tokenizer.token_to_id("Ġmodel") is None
    of_a = prepare(domains, tmp_path / "data", tokenizer=Tokenizer(vocabulary=500, domains=("a",)))
    assert of_a.tokenizer.token_to_id("Ġother") is None
    assert of_a.tokenizer.token_to_id("Ġmodel") is not None


def test_limits_on_tokens(tmp_path) -> None:
    """Oracles: the first tokens of the whole training text. Validation documents come from all
    parts of the domain, and all except one are whole.
    """
    texts = [f"document {i}" for i in range(2000)]
    domain = Domain(name="a", train=(str(write(tmp_path / "a.jsonl", texts)),))
    everything = prepare([domain], tmp_path / "data")
    limited = prepare(
        [domain],
        tmp_path / "data",
        data=DATA.model_copy(update={"max_train_tokens": 1000, "max_valid_tokens": 337}),
    )
    whole, part = everything.domains[0], limited.domains[0]
    assert np.array_equal(part.train, whole.train[:1000])
    some = prepare(
        [domain], tmp_path / "data", data=DATA.model_copy(update={"max_valid_tokens": 337})
    ).domains[0]
    assert len(some.valid) == 337
    assert np.array_equal(some.train, whole.train)
    kept = some.info["valid_documents"]
    assert some.info["skipped"][tokens.BEYOND] == whole.info["valid_documents"] - kept
    *documents, _ = np.split(some.valid, np.flatnonzero(some.valid == EOS) + 1)
    numbers = [int(everything.tokenizer.decode(ids[:-1].tolist()).split()[1]) for ids in documents]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) >= kept - 1
    assert abs(np.mean(numbers) - 1000) < 5 * 2000 / 12**0.5 / len(numbers) ** 0.5
    assert len({whole.key, part.key, some.key}) == 3
    parts = np.split(some.valid, np.flatnonzero(some.valid == EOS))
    held = [everything.tokenizer.decode(ids[ids != EOS].tolist(), False) for ids in parts]
    assert some.info["valid_bytes"] == sum(len(text.encode()) for text in held)


def test_the_validation_text_is_the_same_for_every_tokenizer(tmp_path) -> None:
    """Oracle: whole documents in the order of their hash until they have 3,000 bytes, counted in
    the documents themselves.
    """
    texts = [f"Document {i}: {'à la carte ' * (i % 7)}" for i in range(2000)]
    domain = Domain(name="a", train=(str(write(tmp_path / "a.jsonl", texts)),))
    data = DATA.model_copy(update={"max_valid_bytes": 3000})
    kinds = [
        prepare([domain], tmp_path / "data", tokenizer=Tokenizer(vocabulary=size), data=data)
        for size in (300, 1500)
    ]
    published = word_pieces(tmp_path / "published", texts)  # its ids decode to other text
    kinds.append(prepare([domain], tmp_path / "data", data=data, start=published))
    domains = [corpus.domains[0] for corpus in kinds]
    assert len({len(domain.valid) for domain in domains}) == len(domains)
    held = decoded(kinds[0], domains[0].valid)
    everything = prepare([domain], tmp_path / "data")
    ordered = sorted(
        decoded(everything, everything.domains[0].valid), key=lambda text: zlib.crc32(text.encode())
    )
    assert set(held) == set(ordered[: len(held)])
    sizes = [len(text.encode()) for text in ordered[: len(held)]]
    assert sum(sizes[:-1]) < 3000 <= sum(sizes)
    for prepared in domains:
        assert (prepared.info["valid_bytes"], prepared.info["valid_documents"]) == (
            sum(sizes),
            len(sizes),
        )


def test_the_validation_text_is_the_same_where_reading_ends_early(tmp_path) -> None:
    """Oracle: by hand: the validation documents that come before 5,000 bytes of training text, with
    two bytes more per document. Validation files are read whole.
    """
    texts = [f"Document {i}: {'à la carte ' * (i % 7)}" for i in range(2000)]
    place, data = (
        str(write(tmp_path / "a.jsonl", texts)),
        DATA.model_copy(update={"max_train_tokens": 5000}),
    )
    read = list(corpus.read(Domain(name="a", train=(place,)), DATA.valid_share, Counter()))
    expected, size = [], 0
    for document in read:
        expected += [document.text] * (document.split == "valid" and size < 5000)
        size += (len(document.text.encode()) + 2) * (document.split == "train")
    held = write(tmp_path / "held.jsonl", texts[::-40])
    for vocabulary in (300, 1500):
        domains = [
            Domain(name="a", train=(place,)),
            Domain(name="b", train=(place,), valid=(str(held),)),
        ]
        cut = prepare(
            domains, tmp_path / "data", tokenizer=Tokenizer(vocabulary=vocabulary), data=data
        )
        assert decoded(cut, cut.domains[0].valid) == expected and 5 < len(expected) < 100
        assert decoded(cut, cut.domains[1].valid) == texts[::-40]
        assert [len(domain.train) for domain in cut.domains] == [5000] * 2
    left = sum(document.split == "valid" for document in read) - len(expected)
    assert 0 < cut.domains[0].info["skipped"][tokens.BEYOND] < left, (
        "what was never read is not counted"
    )


def word_pieces(folder: Path, texts: list[str]) -> Path:
    """Write a published model's tokenizer, which ignores case and accents like BERT's."""
    saved = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    saved.normalizer = tokenizers.normalizers.BertNormalizer()
    saved.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    saved.decoder = tokenizers.decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    saved.train_from_iterator(
        texts, tokenizers.trainers.WordPieceTrainer(vocab_size=300, special_tokens=special)
    )
    names = dict(
        zip(
            ("unk_token", "cls_token", "sep_token", "pad_token", "mask_token"), special, strict=True
        )
    )
    PreTrainedTokenizerFast(tokenizer_object=saved, **names).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 300, "model_type": "bert"}))
    return folder


def test_unigram_perplexity(tmp_path) -> None:
    """Oracle: exp of the mean of -ln((count + 1) / (total + V)) over the validation tokens, in
    plain Python.
    """
    for domain in (corpus := prepare(two_domains(tmp_path), tmp_path / "data")).domains:
        counts, total = Counter(domain.train.tolist()), len(domain.train) + corpus.text_vocabulary
        logs = [math.log((counts[token] + 1) / total) for token in domain.valid.tolist()]
        assert domain.info["unigram_perplexity"] == pytest.approx(
            math.exp(-sum(logs) / len(logs)), rel=1e-12
        )


def test_too_little_text_is_an_error(tmp_path) -> None:
    """Oracle: the message says where the text is too short for a row, and what to do."""
    some = write(tmp_path / "some.jsonl", sentences(1))
    few = write(tmp_path / "few.jsonl", ["one word"])
    none = write(tmp_path / "none.jsonl", ["", " "])
    for train, valid, message in [
        (some, few, r"domain 'a': \d+ validation tokens, .* 16 "),
        (few, some, r"domain 'a': \d+ training tokens, .* 16 "),
        (none, some, r"domain 'a': 0 training tokens, .*skipped: {'blank': 2}"),
        (
            some,
            none,
            r"domain 'a': 0 validation tokens, .*data.sequence_length, data.valid_share or",
        ),
    ]:
        with pytest.raises(DataError, match=message):
            prepare([Domain(name="a", train=(str(train),), valid=(str(valid),))], tmp_path / "data")

    ends_early = DATA.model_copy(update={"max_train_tokens": 20})
    with pytest.raises(DataError, match="validation tokens.*data.max_train_tokens"):
        prepare([Domain(name="a", train=(str(some),))], tmp_path / "data", data=ends_early)


@pytest.mark.parametrize("pages", [False, True])
def test_documents_that_were_cut_from_one_text_are_known(tmp_path, monkeypatch, pages) -> None:
    """By hand: all pieces of a novel in one record or file are one source. Each other record is
    one, and so is each part between blank lines if `cut_at_blank_lines` is set.
    """
    monkeypatch.setattr("benchmark.data.documents.LONGEST_DOCUMENT", 400)
    monkeypatch.setattr("benchmark.data.documents.PIECE", 100)
    lines = sentences(30)
    train = write(tmp_path / "train.jsonl", lines)
    valid = write(tmp_path / "valid.jsonl", [" ".join(lines[:9]), "one line", "another line"])
    novel = tmp_path / "novel.txt"
    novel.write_text("\n\n".join(line.ljust(120, "x") for line in lines[:4]))
    domain = Domain(
        name="a",
        train=(str(train),),
        valid=(str(valid), str(novel)),
        cut_at_blank_lines=pages,
    )
    [made] = prepare([domain], tmp_path / "data").domains
    sources = made.info["valid_sources"]
    assert len(sources) == made.info["valid_documents"]
    pieces = sources.count(0)
    assert pieces > 1 and sources[:pieces] == [0] * pieces
    assert sources[pieces : pieces + 2] == [1, 2]
    rest = sources[pieces + 2 :]
    assert len(rest) > 1 and rest == ([3, *range(4, 3 + len(rest))] if pages else [3] * len(rest))
    monkeypatch.undo()
    plain = prepare(two_domains(tmp_path), tmp_path / "data").domains[0]
    assert "valid_sources" not in plain.info
