"""Tokens on disk: byte for byte the text, made once whoever asks, named by their content, in constant memory."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from transformers import GPT2TokenizerFast

from benchmark import tokens
from benchmark.bpe import content_key, load_bpe, train_bpe
from benchmark.config import Data, Domain, Tokenizer
from benchmark.corpus import DataError, read
from benchmark.tokens import Corpus, prepare
from benchmark.vocabulary import EOS, SPECIAL_TOKENS

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared" / "data"
WORDS = [
    "the",
    "model",
    "grows",
    "über",
    "東京",
    "🙂🙃",
    "don't",
    "x=1",
    "1234567",
    "<s>",
    "</s>",
    "<mask>",
    "<domain:a>",
]
ODD = ["\u0000", "\ufffd \u200b", "a\r\n\tb", " \n\n ", "<|endoftext|>", "ＡＢ  ｃ", "\u0301e", "\x85.\u2028"]
DATA = Data(sequence_length=18, valid_share=0.2)
SMALL = Tokenizer(vocabulary=320)


def sentences(seed: int, count: int = 200, words: list[str] = WORDS) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(5, 40))) for _ in range(count)]


def write(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def two_domains(folder: Path) -> tuple[Domain, Domain]:
    return (
        Domain(name="a", title="A", train=(str(write(folder / "a.jsonl", sentences(1) + ODD)),)),
        Domain(name="b", train=(str(write(folder / "b.jsonl", sentences(2, words=["other", "text"]))),)),
    )


def decoded(corpus: Corpus, ids: np.ndarray) -> list[str]:
    """The documents in an array, decoded one by one."""
    ends = np.flatnonzero(ids == EOS)
    assert ends[-1] == len(ids) - 1
    return [corpus.tokenizer.decode(part[:-1].tolist(), False) for part in np.split(ids, ends[:-1] + 1)]


def same(one: Corpus, other: Corpus) -> None:
    assert one.key == other.key
    for first, second in zip(one.domains, other.domains, strict=True):
        assert (first.key, first.info) == (second.key, second.info)
        assert np.array_equal(first.train, second.train)
        assert np.array_equal(first.valid, second.valid)


def gpt2_files(folder: Path, extra: int = 0) -> Path:
    """Files as GPT-2's: no special tokens, `<|endoftext|>` last; `extra` entries come first that no text uses."""
    model = json.loads(train_bpe(sentences(3), 500).to_str())["model"]
    entries = [f"unused{i}" for i in range(extra)] + [t for t in model["vocab"] if t not in SPECIAL_TOKENS]
    folder.mkdir()
    vocabulary = {token: index for index, token in enumerate([*entries, "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    return folder


# Text to ids and back


@pytest.mark.parametrize("loaded", [False, True])
def test_text_comes_back_byte_for_byte(tmp_path, monkeypatch, loaded: bool) -> None:
    """Oracle: the documents themselves, in their order, none in both halves; several batches in several threads."""
    monkeypatch.setattr(tokens, "BATCH", 100)
    tokenizer = Tokenizer(folder=str(gpt2_files(tmp_path / "bpe"))) if loaded else SMALL
    corpus = prepare(two_domains(tmp_path), tokenizer, DATA, tmp_path / "data")
    texts = [text for text in sentences(1) + ODD if text.strip()]
    train, valid = (decoded(corpus, ids) for ids in (corpus.domains[0].train, corpus.domains[0].valid))
    assert sorted(train + valid) == sorted(texts)
    assert [text for text in texts if text in set(train)] == train
    assert [text for text in texts if text in set(valid)] == valid
    info = corpus.domains[0].info
    assert (info["documents"], info["valid_documents"]) == (len(texts), len(valid))
    assert info["bytes"] == sum(len(text.encode()) for text in texts)
    assert info["tokens"] == len(corpus.domains[0].train) + len(corpus.domains[0].valid)
    assert info["skipped"] == {"blank": 1}


def test_layout_of_the_vocabulary(tmp_path) -> None:
    """Oracle: the layout in benchmark/vocabulary.py; text that looks like a special token is text."""
    corpus = prepare(two_domains(tmp_path), SMALL, DATA, tmp_path / "data")
    assert [corpus.tokenizer.id_to_token(i) for i in range(4)] == list(SPECIAL_TOKENS)
    assert corpus.vocabulary.text == corpus.text_vocabulary == 320
    assert [corpus.tokenizer.token_to_id(t) for t in ("<domain:a>", "<domain:b>")] == [320, 321]
    assert corpus.tokenizer.get_vocab_size() == corpus.vocabulary.size == 322
    for domain in corpus.domains:
        ids = np.concatenate([domain.train, domain.valid])
        assert set(ids[ids < 4].tolist()) == {EOS}
        assert (ids == EOS).sum() == domain.info["documents"]
        assert ids.max() < 320


def check_against_gpt2(folder: Path, texts: list[str]) -> None:
    theirs = GPT2TokenizerFast.from_pretrained(folder)
    ours = load_bpe(folder)
    ours.encode_special_tokens = True
    for text in texts:
        assert [i - 4 for i in ours.encode(text, add_special_tokens=False).ids] == theirs(text)["input_ids"]
    entries = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    assert {token: index + 4 for token, index in entries.items()}.items() <= ours.get_vocab().items()
    assert ours.get_vocab_size() == len(entries) + 4


def test_a_loaded_tokenizer_cuts_as_gpt2(tmp_path) -> None:
    """Oracle: transformers' GPT-2 tokenizer on the same files, ids shifted by 4."""
    texts = [text for text in sentences(4) + ODD if "<|endoftext|>" not in text]
    check_against_gpt2(gpt2_files(tmp_path / "bpe"), texts)


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data with GPT-2's files")
def test_the_real_gpt2_files(tmp_path) -> None:
    """Oracles: transformers' tokenizer; token counts and cross-entropy in ../shared/data/README.md."""
    texts = [text for text in sentences(5) + ODD if "<|endoftext|>" not in text]
    check_against_gpt2(SHARED / "tokenizer", texts)
    stream = SHARED / "stream" / "bio"
    bio = Domain(name="bio", train=(str(stream / "train.jsonl.gz"),), valid=(str(stream / "valid.jsonl.gz"),))
    corpus = prepare([bio], Tokenizer(folder=str(SHARED / "tokenizer")), Data(), tmp_path)
    assert corpus.text_vocabulary == 50257 + 4
    assert corpus.domains[0].train.dtype == np.uint16
    assert len(corpus.domains[0].train) == 1_867_011 + 3_155  # and one </s> a document
    assert len(corpus.domains[0].valid) == 71_541 + 125
    assert math.log(corpus.domains[0].info["unigram_perplexity"]) == pytest.approx(7.481, abs=0.001)


def test_a_vocabulary_with_our_special_tokens_keeps_one_of_each(tmp_path) -> None:
    """As RoBERTa's, whose ids 0 to 2 are ours. Oracle: the layout in benchmark/vocabulary.py."""
    folder = gpt2_files(tmp_path / "bpe")
    entries = list(json.loads((folder / "vocab.json").read_text(encoding="utf-8")))
    roberta = {t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<unk>", *entries, "<mask>"])}
    (folder / "vocab.json").write_text(json.dumps(roberta), encoding="utf-8")
    ids = load_bpe(folder).get_vocab()
    assert sorted(ids, key=ids.__getitem__) == [*SPECIAL_TOKENS, "<unk>", *entries]


def test_tokenizer_folders_that_cannot_be_used(tmp_path) -> None:
    folder = gpt2_files(tmp_path / "bpe")
    entries = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merged = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1].replace(" ", "")
    for content, message in [
        ("[1]", "not an object"),
        ("{", "must hold vocab.json"),
        ('{"a": 0}', "lacks 255 of the 256 bytes"),
        (json.dumps({token: index for token, index in entries.items() if token != merged}), "does not go with"),
    ]:
        (folder / "vocab.json").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            load_bpe(folder)
    with pytest.raises(DataError, match="must hold vocab.json"):
        prepare(two_domains(tmp_path), Tokenizer(folder=str(tmp_path / "none")), DATA, tmp_path / "data")


@pytest.mark.parametrize(("extra", "dtype"), [(0, np.uint16), (70_000, np.uint32)])
def test_16_bits_where_the_vocabulary_allows(tmp_path, extra: int, dtype: type) -> None:
    """Oracle: the text, of ids that all lie above 65,536 in the second case."""
    corpus = prepare(
        two_domains(tmp_path), Tokenizer(folder=str(gpt2_files(tmp_path / "bpe", extra))), DATA, tmp_path / "data"
    )
    train = corpus.domains[1].train
    assert train.dtype == dtype
    assert (train[train != EOS] >= 4 + extra).all()
    assert set(decoded(corpus, train)) <= set(sentences(2, words=["other", "text"]))


@pytest.mark.parametrize(("size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_the_last_vocabulary_that_fits_16_bits(tmp_path, size: int, dtype: type) -> None:
    """Oracle: 2^16 ids fit 16 bits, one more does not."""
    plain = load_bpe(gpt2_files(tmp_path / "plain")).get_vocab_size()
    folder = gpt2_files(tmp_path / "bpe", extra=size - plain)
    corpus = prepare(two_domains(tmp_path), Tokenizer(folder=str(folder)), DATA, tmp_path / "data")
    assert corpus.text_vocabulary == size
    assert corpus.domains[0].train.dtype == dtype


def test_training_a_tokenizer_is_repeatable(tmp_path) -> None:
    """Oracle: other processes, with other hash seeds, get the same content."""
    texts = sentences(6) + ODD
    code = "import json, sys; from benchmark.bpe import *; print(content_key(train_bpe(json.load(sys.stdin), 600)))"
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
    assert keys == {content_key(train_bpe(texts, 600))}


def test_the_tokenizer_learns_from_the_named_domains_only(tmp_path) -> None:
    """Oracle: words that stand in one domain only are single tokens or not."""
    domains = two_domains(tmp_path)
    of_b = prepare(domains, Tokenizer(vocabulary=300, domains=("b",)), DATA, tmp_path / "data")
    assert of_b.tokenizer.token_to_id("Ġother") is not None
    assert of_b.tokenizer.token_to_id("Ġmodel") is None
    of_a = prepare(domains, Tokenizer(vocabulary=500, domains=("a",)), DATA, tmp_path / "data")
    assert of_a.tokenizer.token_to_id("Ġother") is None
    assert of_a.tokenizer.token_to_id("Ġmodel") is not None


# What is kept


def test_limits_on_tokens(tmp_path) -> None:
    """Oracles: the first tokens of the whole training text; validation documents from all over, each whole but one."""
    texts = [f"document {i}" for i in range(2000)]
    domain = Domain(name="a", train=(str(write(tmp_path / "a.jsonl", texts)),))
    everything = prepare([domain], SMALL, DATA, tmp_path / "data")
    limited = prepare(
        [domain], SMALL, DATA.model_copy(update={"max_train_tokens": 1000, "max_valid_tokens": 337}), tmp_path / "data"
    )
    whole, part = everything.domains[0], limited.domains[0]
    assert np.array_equal(part.train, whole.train[:1000])
    assert not part.info["complete"] and whole.info["complete"]
    some = prepare([domain], SMALL, DATA.model_copy(update={"max_valid_tokens": 337}), tmp_path / "data").domains[0]
    assert len(some.valid) == 337
    assert np.array_equal(some.train, whole.train)
    kept = some.info["valid_documents"]
    assert some.info["skipped"]["beyond max_valid_tokens"] == whole.info["valid_documents"] - kept
    *documents, _ = np.split(some.valid, np.flatnonzero(some.valid == EOS) + 1)
    numbers = [int(everything.tokenizer.decode(ids[:-1].tolist()).split()[1]) for ids in documents]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) >= kept - 1
    assert abs(np.mean(numbers) - 1000) < 5 * 2000 / 12**0.5 / len(numbers) ** 0.5
    assert len({everything.key, limited.key, everything.domains[0].key, part.key, some.key}) == 5


def test_the_sample_for_a_tokenizer_is_even(tmp_path, monkeypatch) -> None:
    """Oracles: the mean place of the documents is within five standard errors of the middle; none is held out."""
    texts = [f"document {i:04}" for i in range(2000)]  # 13 bytes each
    domain = Domain(name="a", train=(str(write(tmp_path / "a.jsonl", texts)),))
    taken = tokens._sample(domain, 0.2, 1300)
    held_out = [document.text for document in read(domain, 0.2, Counter()) if document.split == "valid"]
    assert held_out and set(taken).isdisjoint(held_out)
    places = [int(text.split()[1]) for text in taken]
    assert len(taken) == 100
    assert abs(np.mean(places) - 1000) < 5 * 2000 / 12**0.5 / 10
    monkeypatch.setattr(tokens, "SAMPLED_FROM", 2)
    assert max(int(text.split()[1]) for text in tokens._sample(domain, 0.2, 1300)) < 300


def test_unigram_perplexity(tmp_path) -> None:
    """Oracle: exp of the mean of -ln((count + 1) / (total + V)) over the validation tokens, in plain Python."""
    for domain in (corpus := prepare(two_domains(tmp_path), SMALL, DATA, tmp_path / "data")).domains:
        counts, total = Counter(domain.train.tolist()), len(domain.train) + corpus.text_vocabulary
        logs = [math.log((counts[token] + 1) / total) for token in domain.valid.tolist()]
        assert domain.info["unigram_perplexity"] == pytest.approx(math.exp(-sum(logs) / len(logs)), rel=1e-12)


def test_too_little_text_is_an_error(tmp_path) -> None:
    """Oracle: a row of N tokens fits or not; the message says what to do."""
    some = write(tmp_path / "some.jsonl", sentences(1))
    few = write(tmp_path / "few.jsonl", ["one word"])
    none = write(tmp_path / "none.jsonl", ["", " "])
    for train, valid, message in [
        (some, few, r"domain 'a': \d+ validation tokens, less than one row of 16"),
        (few, some, r"domain 'a': \d+ training tokens, less than one row of 16"),
        (none, some, r"domain 'a': 0 training tokens, .*skipped: {'blank': 2}"),
        (some, none, r"domain 'a': 0 validation tokens, .*Add text, or change data.sequence_length"),
    ]:
        with pytest.raises(DataError, match=message):
            prepare([Domain(name="a", train=(str(train),), valid=(str(valid),))], SMALL, DATA, tmp_path / "data")
    corpus = prepare([Domain(name="a", train=(str(some),))], SMALL, DATA, tmp_path / "data")
    length = len(corpus.domains[0].valid)
    fits = DATA.model_copy(update={"sequence_length": length + 2})
    assert prepare([Domain(name="a", train=(str(some),))], SMALL, fits, tmp_path / "data").key == corpus.key
    with pytest.raises(DataError, match=f"less than one row of {length + 1}"):
        prepare(
            [Domain(name="a", train=(str(some),))],
            SMALL,
            DATA.model_copy(update={"sequence_length": length + 3}),
            tmp_path / "data",
        )


# Keys, reuse, several processes


def test_a_second_call_does_nothing(tmp_path, monkeypatch) -> None:
    """Oracle: nothing is reported, and nothing can be read; another length of rows is not another corpus."""
    lines: list[str] = []
    domains = two_domains(tmp_path)
    first = prepare(domains, SMALL, DATA, tmp_path / "data", lines.append)
    assert lines == ["tokenizer: training on a, b", "a: tokenising", "b: tokenising"]
    lines.clear()
    monkeypatch.setattr("benchmark.corpus.read", None)
    longer = DATA.model_copy(update={"sequence_length": 20, "memory_tokens": 1})
    for data in (DATA, longer):
        same(first, prepare(domains, SMALL, data, tmp_path / "data", lines.append))
    assert not lines


def test_keys_follow_the_content(tmp_path) -> None:
    """Oracle: the same bytes under other paths, names of files, times and packing; then one letter differs."""
    first = prepare(two_domains(tmp_path / "here"), SMALL, DATA, tmp_path / "data")
    for name in ("a", "b"):
        content = (tmp_path / f"here/{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        for part, lines in enumerate((content[:50], content[50:])):
            path = tmp_path / f"there/{name}/{part}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines), encoding="utf-8")
            os.utime(path, (1, 1))
    moved = [Domain(name=name, train=(str(tmp_path / "there" / name),)) for name in ("a", "b")]
    elsewhere = prepare(moved, SMALL, DATA, tmp_path / "other data")
    assert elsewhere.key == first.key
    assert [domain.key for domain in elsewhere.domains] == [domain.key for domain in first.domains]
    assert [d.info["sha256"] for d in elsewhere.domains] == [d.info["sha256"] for d in first.domains]
    changed = tmp_path / "there/b/0.jsonl"
    changed.write_text(changed.read_text(encoding="utf-8").replace("other", "Other", 1), encoding="utf-8")
    again = prepare(moved, Tokenizer(vocabulary=320, domains=("a",)), DATA, tmp_path / "data")
    before = prepare(two_domains(tmp_path / "here"), Tokenizer(vocabulary=320, domains=("a",)), DATA, tmp_path / "data")
    assert again.domains[0].key == before.domains[0].key
    assert again.domains[1].key != before.domains[1].key
    assert again.key != before.key
    assert before.domains[0].key != first.domains[0].key  # another tokenizer


def test_the_same_ids_of_other_tokens_are_other_content(tmp_path) -> None:
    """Oracle: a vocabulary where a token that no text uses has another name."""
    folder = gpt2_files(tmp_path / "bpe")
    first = prepare(two_domains(tmp_path), Tokenizer(folder=str(folder)), DATA, tmp_path / "data")
    content = (folder / "vocab.json").read_text(encoding="utf-8")
    (folder / "vocab.json").write_text(content.replace("<|endoftext|>", "<|end|>"), encoding="utf-8")
    second = prepare(two_domains(tmp_path), Tokenizer(folder=str(folder)), DATA, tmp_path / "data")
    assert np.array_equal(first.domains[0].train, second.domains[0].train)
    assert first.domains[0].key != second.domains[0].key


CHILD = """
import json, os, signal, sys
from pathlib import Path
from benchmark import tokens
from benchmark.config import Data, Domain, Tokenizer
tokens.BATCH = tokens.REPORT_EVERY = 1000
def progress(line):
    print(line, flush=True)
    if line.startswith(os.environ.get("KILL_AT", "never")):
        os.kill(os.getpid(), signal.SIGKILL)
    if line.startswith(os.environ.get("WAIT_AT", "never")):
        sys.stdin.readline()
domains, folder = [Domain(**d) for d in json.loads(sys.argv[1])], Path(sys.argv[2])
data = Data(sequence_length=18, valid_share=0.2)
print(tokens.prepare(domains, Tokenizer(vocabulary=320), data, folder, progress).key, flush=True)
"""


def child(domains: tuple[Domain, ...], folder: Path, **environment: str) -> subprocess.Popen:
    arguments = [json.dumps([domain.model_dump() for domain in domains]), str(folder)]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CHILD, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("at", ["tokenizer: training", "a: 0 MB of text tokenised", "b: tokenising"])
def test_killed_and_started_again(tmp_path, at: str) -> None:
    """Oracle: a folder where nobody was killed."""
    domains = two_domains(tmp_path)
    process = child(domains, tmp_path / "data", KILL_AT=at)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL
    assert output.splitlines()[-1].startswith(at)
    assert list((tmp_path / "data").rglob("*.unfinished"))
    same(
        prepare(domains, SMALL, DATA, tmp_path / "data"),
        prepare(domains, SMALL, DATA, tmp_path / "undisturbed"),
    )
    assert not list((tmp_path / "data").rglob("*.unfinished"))


def test_two_processes_at_once(tmp_path) -> None:
    """Oracle: a process alone. The second starts while the first holds the lock, and finds the work done."""
    domains = two_domains(tmp_path)
    first = child(domains, tmp_path / "data", WAIT_AT="a: tokenising")
    assert first.stdout is not None
    begun = [first.stdout.readline(), first.stdout.readline()]
    second = child(domains, tmp_path / "data")
    assert second.stdout is not None
    assert second.stdout.readline().startswith("waiting for another process")
    output, errors = first.communicate("go\n", timeout=100)
    rest, more_errors = second.communicate(timeout=100)
    alone = prepare(domains, SMALL, DATA, tmp_path / "alone")
    assert output.splitlines()[-1] == rest.splitlines()[-1] == alone.key
    assert "a: tokenising\n" in begun
    assert "a: tokenising" not in rest
    assert (output + rest).count("b: tokenising") == 1
    assert errors == more_errors == ""
    same(prepare(domains, SMALL, DATA, tmp_path / "data"), alone)


def test_a_process_forked_later_can_tokenise(tmp_path) -> None:
    """Oracle: it ends, and nobody warns; if the threads of the library had been started before, it would hang."""
    code = CHILD.rsplit("\n", 2)[0] + (
        "\ncorpus = tokens.prepare(domains, Tokenizer(vocabulary=320), data, folder)\n"
        "assert os.environ['TOKENIZERS_PARALLELISM'] == 'true'\n"
        "if pid := os.fork():\n    sys.exit(os.waitpid(pid, 0)[1])\n"
        "os._exit(len(corpus.tokenizer.encode_batch(['the model'] * 10)) != 10)\n"
    )
    arguments = [json.dumps([domain.model_dump() for domain in two_domains(tmp_path)]), str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "true"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_does_not_grow_with_the_corpus(tmp_path) -> None:
    """Oracle: 200 MB of text in 100,000 documents do not even fit once into the peak memory of a process (we promise
    less than 400 MB)."""
    path = tmp_path / "large.jsonl"
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=20)) for _ in range(50)]  # few and long, to be quick
    bodies = [" ".join(draw.choices(words, k=95)) for _ in range(500)]
    with path.open("w", encoding="utf-8") as file:
        for i in range(101_000):
            file.write(f'{{"text": "{i} {bodies[i % 500]}"}}\n')
    assert path.stat().st_size > 200e6
    code = CHILD.replace("tokens.BATCH = tokens.REPORT_EVERY = 1000\n", "").replace("320", "1000")
    code += "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    domains = json.dumps([{"name": "large", "train": [str(path)]}])
    done = subprocess.run(
        [sys.executable, "-c", code, domains, str(tmp_path / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout.splitlines()[-1]) * unit < 200e6
