"""Prepared data: made once whoever asks, named by its content, whole or not there, in constant memory."""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

import methods
from benchmark.data import encoding, text_files, tokens
from benchmark.data.documents import Document
from benchmark.data.tokenizer import TextTokenizer, load_bpe
from benchmark.data.tokens import prepare
from benchmark.data.words import Words
from benchmark.files import CHECKSUMS, whole_file
from benchmark.instruments.tiny_runs import Lab
from benchmark.locks import Lease
from benchmark.settings.suite import Domain, Tokenizer
from benchmark.training.run import Run
from benchmark.training.stage import Stopped, Taken
from tests.support.texts import DATA, SMALL, gpt2_files, same, sentences, two_domains, write
from tests.support.thorough import only_thorough

ROOT = Path(__file__).parent.parent


def test_a_second_call_does_nothing(tmp_path, monkeypatch) -> None:
    """Oracle: nothing is reported, and nothing can be read; another length of rows is not another corpus."""
    lines: list[str] = []
    domains = two_domains(tmp_path)
    first = prepare(domains, SMALL, DATA, tmp_path / "data", lines.append)
    assert lines == ["tokenizer: training on a, b", "a: tokenising", "b: tokenising"]
    lines.clear()
    monkeypatch.setattr("benchmark.data.corpus.read", None)
    longer = DATA.model_copy(update={"sequence_length": 20, "memory_tokens": 1})
    for data in (DATA, longer):
        same(first, prepare(domains, SMALL, data, tmp_path / "data", lines.append))
    assert not lines


def test_what_a_writer_had_to_leave_is_not_kept(tmp_path) -> None:
    """Oracle: the names of the files where nobody was before; a killed process, and one whose disk has become
    read-only, cannot remove the file that it was writing."""
    domains = two_domains(tmp_path)
    prepare(domains, SMALL, DATA, tmp_path / "undisturbed")
    made = [path.relative_to(tmp_path / "undisturbed") for path in (tmp_path / "undisturbed").glob("*/*")]
    for folder in (tmp_path / "data" / f"{path}.unfinished" for path in made if not path.suffix):
        with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "unlink", lambda *_, **__: None)
            with whole_file(folder / CHECKSUMS):
                raise KeyboardInterrupt
        assert len(os.listdir(folder)) == 1
    prepare(domains, SMALL, DATA, tmp_path / "data")
    assert names_in(tmp_path / "data") == names_in(tmp_path / "undisturbed")


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_a_vocabulary_that_the_text_cannot_fill_is_reported(tmp_path) -> None:
    """Oracle: the trained tokenizer's size."""
    lines: list[str] = []
    made = prepare(two_domains(tmp_path), Tokenizer(vocabulary=9000), DATA, tmp_path / "data", lines.append)
    assert f"tokenizer: {made.text_vocabulary:,} of 9,000 entries" in lines[1]


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
    assert elsewhere.texts == first.texts
    assert [d.info["sha256"] for d in elsewhere.domains] == [d.info["sha256"] for d in first.domains]
    changed = tmp_path / "there/b/0.jsonl"
    changed.write_text(changed.read_text(encoding="utf-8").replace("other", "Other", 1), encoding="utf-8")
    again = prepare(moved, Tokenizer(vocabulary=320, domains=("a",)), DATA, tmp_path / "data")
    before = prepare(two_domains(tmp_path / "here"), Tokenizer(vocabulary=320, domains=("a",)), DATA, tmp_path / "data")
    assert again.domains[0].key == before.domains[0].key
    assert again.domains[1].key != before.domains[1].key
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


@pytest.mark.parametrize("learned", [False, True])
def test_each_byte_of_text_is_read_once(learned: bool, tmp_path, monkeypatch) -> None:
    """Oracle: the sizes of the files, packed or not; where a tokenizer learns from a domain that one's are read once
    more, for its sample. No file of text is opened otherwise."""
    folder, text = gpt2_files(tmp_path / "bpe"), tmp_path / "text"
    paths = [write(text / f"{name}.jsonl", sentences(seed)) for seed, name in enumerate(("train", "valid", "more"))]
    plain = [text / "plain.txt", text / "held.txt"]
    for seed, path in enumerate(plain, 7):
        path.write_text("\n".join(sentences(seed)), encoding="utf-8")
    packed = text / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(paths.pop().read_bytes()))
    read: Counter[Path] = Counter()
    opened: Counter[Path] = Counter()
    decompressed, plain_open = text_files._decompressed, io.open

    def counted(file: IO[bytes], suffix: str) -> Iterator[bytes]:
        yield from decompressed(file, suffix)
        read[Path(file.name)] += file.tell()

    def noted(file: Any, *arguments: Any, **named: Any) -> Any:
        opened.update([Path(file)] if isinstance(file, str | Path) and text in Path(file).parents else [])
        return plain_open(file, *arguments, **named)

    monkeypatch.setattr(text_files, "_decompressed", counted)
    monkeypatch.setattr(io, "open", noted)
    monkeypatch.setattr("builtins.open", noted)
    a = Domain(name="a", train=(str(paths[0]), str(packed)), valid=(str(paths[1]),))
    b = Domain(name="b", train=(str(plain[0]),), valid=(str(plain[1]),))
    tokenizer = Tokenizer(vocabulary=320, domains=("a",)) if learned else Tokenizer(folder=str(folder))
    prepare([a, b], tokenizer, DATA, tmp_path / "data")
    times = dict.fromkeys([*paths, packed], 1 + learned) | dict.fromkeys(plain, 1)
    assert opened == times
    assert read == {path: count * path.stat().st_size for path, count in times.items()}


CHILD = """
import json, os, signal, sys
from pathlib import Path
from benchmark.data import encoding, tokens
from benchmark.settings.suite import Data, Domain, Tokenizer
encoding.BATCH = tokens.REPORT_EVERY = 1000
def progress(line):
    print(line, flush=True)
    if line.startswith(os.environ.get("KILL_AT", "never")):
        os.kill(os.getpid(), signal.SIGKILL)
    if line.startswith(os.environ.get("WAIT_AT", "never")):
        sys.stdin.readline()
domains, folder = [Domain(**d) for d in json.loads(sys.argv[1])], Path(sys.argv[2])
data = Data(sequence_length=18, valid_share=0.2)
print(tokens.prepare(domains, Tokenizer(vocabulary=320), data, folder, progress).texts, flush=True)
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


class Counted:
    """A tokenizer that notes which texts it is asked for, and is stopped in the call of that number."""

    stops_at = calls = 0

    def __init__(self, bpe: Any, asked: list[str]) -> None:
        self.bpe, self.asked = bpe, asked
        bpe.encode_special_tokens = True

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.asked.extend(texts)
        self.calls += 1
        if self.calls == self.stops_at:
            raise KeyboardInterrupt
        return self.bpe.encode_batch_fast(texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bpe, name)


@pytest.mark.parametrize("harm", ["none", "ids", "cut short", "size", "other text"])
def test_tokenising_goes_on_within_a_domain(tmp_path, monkeypatch, harm: str) -> None:
    """Oracle: a folder where nobody was stopped, and the texts that are tokenised there: those of all batches but the
    ones that were kept, up to the first that is damaged or of other text. None is tokenised twice, and with one thread
    the library gets what is not ASCII alone."""
    monkeypatch.setattr(encoding, "BATCH", 1000)
    monkeypatch.setattr(encoding, "THREADS", 1)  # so that batches are tokenised in order, four ahead
    batches: list[list[str]] = []
    asked: list[str] = []
    looked_up: list[str] = []
    look_up, hash_batch = Words.ids, encoding._hash

    def ids(words: Words, text: str) -> Any:
        looked_up.append(text)
        return look_up(words, text)

    def hashed(batch: list[Document]) -> bytes:
        batches.append([document.text for document in batch])
        return hash_batch(batch)

    def prepared(folder: Path) -> dict[str, bytes]:
        for seen in (batches, asked, looked_up):
            seen.clear()
        counted: Any = Counted(load_bpe(tmp_path / "gpt2"), asked)
        tokens._domain(domain, TextTokenizer(counted, *rest), DATA, tokens._Place(folder, print, True))
        return {path.name: path.read_bytes() for path in folder.glob("domains/*/*")}

    monkeypatch.setattr(Words, "ids", ids)
    monkeypatch.setattr(encoding, "_hash", hashed)
    _, *rest = vars(TextTokenizer.of(load_bpe(gpt2_files(tmp_path / "gpt2")))).values()
    domain, _ = two_domains(tmp_path)
    undisturbed = prepared(tmp_path / "undisturbed")
    monkeypatch.setattr(Counted, "stops_at", 12)
    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path / "data")
    gc.collect()  # the stopped reader's database belongs to this thread, and another could be the one to collect it
    (kept,) = (tmp_path / "data").rglob("batches")
    content, heads = bytearray(kept.read_bytes()), [0]
    head = encoding.KeptBatches.HEAD
    while heads[-1] < len(content):
        heads.append(heads[-1] + head.size + head.unpack_from(content, heads[-1])[1])
    whole = len(heads) - 1
    assert 4 < whole < len(batches)
    if harm == "cut short":
        del content[-1]
        whole -= 1
    elif harm != "none":
        whole = 3
        content[heads[3] + {"other text": 0, "size": 39, "ids": head.size}[harm]] ^= 0x80
    kept.write_bytes(content)
    monkeypatch.setattr(Counted, "stops_at", 0)
    assert prepared(tmp_path / "data") == undisturbed
    assert sorted(asked + looked_up) == sorted(text for batch in batches[whole:] for text in batch)
    assert looked_up and all(text.isascii() for text in looked_up) and not any(text.isascii() for text in asked)


def test_who_polls_may_end_it_anywhere(tmp_path) -> None:
    """At each thirtieth document: of the tokenizer's sample, and of both domains. Oracle: a folder where nobody did."""
    domains = two_domains(tmp_path)
    alone = prepare(domains, SMALL, DATA, tmp_path / "alone")
    polls: Iterator[int] = iter(())
    left: list[set[str]] = [set()]  # what each attempt left unfinished

    def poll(waits: bool) -> None:
        if waits or next(polls, None) is None:
            raise Stopped

    for _ in range(100):
        attempts = left.count(left[-1])  # at the same work
        polls = iter(range(30 * attempts))
        try:
            made = prepare(domains, SMALL, DATA, tmp_path / "data", poll=poll)
            break
        except Stopped:
            gc.collect()  # the reader's database, as above
            left.append({path.name for path in (tmp_path / "data").glob("*/*.unfinished")})
    tokenizer, *texts = (left.count(each) for each in map(set, dict.fromkeys(map(frozenset, left[1:]))))
    assert tokenizer > 12 and len(texts) == 2 and min(texts) > 5, "of 400 documents, and of 200 each"
    same(made, alone)


def test_a_run_stops_and_waits_for_nobody_where_it_makes_its_text(tmp_path) -> None:
    """Oracle: the rule for stages: who is asked to stop does, who waits for none leaves what another process has."""
    lab = Lab("naive", methods.build, tmp_path)
    with pytest.raises(Stopped):
        lab.run(lab.config(), "stopped", lambda: True)
    run = lab.run(lab.config(), "made")
    text = run.corpus.domains[1].folder
    assert text is not None
    shutil.rmtree(text)
    with Lease(text.with_name(f"{text.name}.lock")):
        given = (run.config, run.new_method, run.store, run.world, run.progress)
        with pytest.raises(Taken):
            Run(*given, waits=False)
        asked = iter([False, False])
        with pytest.raises(Stopped) as stopped:
            Run(*given, asked_to_stop=lambda: next(asked, True))
    assert stopped.type is Stopped and not text.exists()
    assert Run(*given, waits=False).keys == run.keys


def test_two_processes_at_once(tmp_path) -> None:
    """Oracle: a process alone. The second starts while the first holds the lock, and finds the work done."""
    domains = two_domains(tmp_path)
    first = child(domains, tmp_path / "data", WAIT_AT="a: tokenising")
    assert first.stdout is not None
    begun = [first.stdout.readline(), first.stdout.readline()]
    second = child(domains, tmp_path / "data")
    assert second.stdout is not None
    assert second.stdout.readline().startswith(f"waiting for process {first.pid} of ")
    output, errors = first.communicate("go\n", timeout=100)
    rest, more_errors = second.communicate(timeout=100)
    alone = prepare(domains, SMALL, DATA, tmp_path / "alone")
    assert output.splitlines()[-1] == rest.splitlines()[-1] == str(alone.texts)
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


@only_thorough
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
    code = CHILD.replace("encoding.BATCH = tokens.REPORT_EVERY = 1000\n", "").replace("320", "1000")
    if sys.platform == "linux":  # ru_maxrss starts with what the process that forked us had
        code += "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    else:
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
