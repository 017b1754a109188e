"""A user's own text: the suite that `new-suite` writes for it, and what `prepare` warns of."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import methods
import run_all
from benchmark.data.decontamination import decontaminate
from benchmark.data.documents import DataError
from benchmark.data.leaks import find_validation_leaks
from benchmark.data.tokens import DataCache
from benchmark.downstream.passages import Example
from benchmark.downstream.tasks import TaskData, mark_in_stream
from benchmark.instruments.new_suite import (
    RUNGS,
    Text,
    choose_valid_share,
    write_suite,
)
from benchmark.jobs.preparation import (
    DOMAIN_TITLES,
    TASK_TITLES,
    describe_domains,
    describe_task,
    warn_of_text,
)
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.suite import Tokenizer
from benchmark.settings.tasks import Docstrings, Task
from benchmark.settings.texts import Domain
from tests.support import tiny_suite
from tests.support.texts import DATA, prepare, sentences
from tests.support.texts import write as write_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def texts(tmp_path) -> Path:
    """Three folders: JSON Lines whose text is in the field `body`, and 300 and 100 plain files.

    A fourth is hidden, so that it is no domain.
    """
    lines = [json.dumps({"id": "x", "body": text}) for text in sentences(1)]
    (tmp_path / "texts" / "My Letters").mkdir(parents=True)
    (tmp_path / "texts" / "My Letters" / "all.jsonl").write_text("\n".join(lines), encoding="utf-8")
    news = ["late", "early", "good", "bad", "old", "true", "false", "no"]
    for name, words, count in (("news", news, 300), ("2024", ["one", "two"], 100)):
        (tmp_path / "texts" / name).mkdir()
        for number, text in enumerate(sentences(2, count, words)):
            (tmp_path / "texts" / name / f"{number}.txt").write_text(f"{text} {number}")
    hidden = tmp_path / "texts" / ".ipynb_checkpoints"
    shutil.copytree(tmp_path / "texts" / "2024", hidden)
    return tmp_path / "texts"


def test_a_new_suite_runs_as_it_stands(texts: Path, monkeypatch, capsys) -> None:
    """Oracle: the suite loads, and `prepare` and `run --dry-run` accept it. Names and fields are by
    hand. A second call replaces no file.
    """
    monkeypatch.chdir(texts.parent)
    said = write_suite("suites/mine", [Path("texts")], 5e10)
    suite = load_suite("suites/mine.toml")
    assert [domain.name for domain in suite.domains] == ["2024", "My_Letters", "news"]
    assert suite.domains[1].text_field == "body" and suite.tokenizer.domains == ("2024",)
    assert suite.budget.unit == "seconds" and suite.budget.amount == 5, "so little text"
    assert [size for size in RUNGS if size in suite.model.ladder] == list(suite.model.ladder)
    assert "python run_all.py prepare suites/mine " in said[-3]
    arguments = ["suites/mine", "--runs", "runs"]
    assert run_all.main(["prepare", *arguments]) == 0
    told = capsys.readouterr().out
    assert "`python run_all.py run suites/mine --dry-run`" in told.splitlines()[-1]
    assert "\n!" not in told, "what it has chosen itself is nothing to warn of"
    written = Path("suites/mine.toml").read_text()
    assert (
        len([line for line in written.splitlines() if not line.startswith("#")])
        < 16
        > len(tomllib.loads(written))
    )
    assert run_all.main(["run", *arguments, "--dry-run"]) == 0
    assert (
        f"To train: {len(suite.methods)} of {len(methods.list_runs(suite))} runs"
        in capsys.readouterr().out
    )
    with pytest.raises(ConfigError, match="there already"):
        write_suite("suites/mine", [Path("texts")], 5e10)


@pytest.mark.parametrize(
    "name", ['x" }], methods = ["joint"] #', 'a", evil = "b', "back\\slash \\", "é 😀 '"]
)
@pytest.mark.parametrize("is_folder", [True, False], ids=["folder", "field"])
def test_names_of_others_write_nothing_into_the_suite(
    texts: Path, name: str, is_folder: bool, monkeypatch
) -> None:
    """Oracle: the suite loads with its usual methods, and the field or folder keeps its name."""
    monkeypatch.chdir(texts.parent)
    folder, field = (name, "body") if is_folder else ("My Letters", name)
    renamed = (texts / "My Letters").rename(texts / folder)
    lines = [json.dumps({"id": "x", field: text}) for text in sentences(1)]
    (renamed / "all.jsonl").write_text("\n".join(lines), encoding="utf-8")
    write_suite("mine", [texts / "news", renamed], 5e10)
    suite = load_suite("mine.toml")
    assert suite.domains[1].text_field == field and Path(suite.domains[1].train[0]).name == folder
    assert suite.methods == ("naive", "er", "elle", "elle_exact")


def test_a_broken_line_is_left_out_and_told(texts: Path, monkeypatch) -> None:
    """Oracle: by hand: only the domain with a broken line has `on_error = "skip"`. If nothing of a
    text can be read, that is an error.
    """
    monkeypatch.chdir(texts.parent)
    with (texts / "My Letters" / "all.jsonl").open("a") as file:
        file.write("\n{broken\n")
    said = write_suite("of mine", [texts], 5e10)
    assert [domain.on_error for domain in load_suite("of mine.toml").domains] == [
        "stop",
        "skip",
        "stop",
    ]
    assert "python run_all.py prepare 'of mine' " in said[-3]
    for name in (texts / "news").iterdir():
        name.write_text("no\0n\0e\0")
    with pytest.raises(DataError, match=r"news/0\.txt: 3 of 7 .*NUL"):
        write_suite("another", [texts], 5e10)
    (texts / "2024" / "9.jsonl").write_text("broken\n")
    with pytest.raises(DataError, match=r"2024/9\.jsonl:1: not JSON"):
        write_suite("another", [texts], 5e10)


def test_a_field_within_a_field_is_named(texts: Path, monkeypatch) -> None:
    """Oracle: by hand: the longest text of a record is in its field `meta.body`. A domain's name
    ends like its folder's, in `-C4`.
    """
    monkeypatch.chdir(texts.parent)
    nested = (texts / "My Letters").rename(texts / "نامه‌ها-C4")
    lines = [json.dumps({"id": "x", "meta": {"by": "me", "body": text}}) for text in sentences(1)]
    (nested / "all.jsonl").write_text("\n".join(lines), encoding="utf-8")
    write_suite("mine", [texts / "news", nested], 5e10)
    assert load_suite("mine.toml").domains[1].text_field == "meta.body"
    assert load_suite("mine.toml").domains[1].name.endswith("-C4")


def test_half_of_few_documents_are_held_out() -> None:
    """By hand: of 36 documents, 18 are held out and not 30."""
    text = Text(Domain(name="a", train=("x",)), 36, 3600, 1e4)
    assert choose_valid_share(text) == 0.5


def test_sizes_follow_the_machine_and_the_text(texts: Path, monkeypatch) -> None:
    """Oracle: by hand: of ten minutes evaluation has a sixth, so that each of eight stages has 62.5
    s. In 62.5 s, a tenth of 1e15 FLOPs per second trains 5.1 million parameters on 40 tokens each:
    L6_D256 has 5.0 million, and L6_D320 7.7. But a stage has at most 20 passes over a few thousand
    tokens, enough only for the smallest rung. At the middling speed, a stage takes the time of
    6 FLOPs per token for each of the 12 * 32² + 1,024 * 32 parameters of L1_D32, with 2.6 bytes per
    token. 5 s is the least.
    """
    monkeypatch.chdir(texts.parent)
    read = 20 * sum(path.stat().st_size for path in (texts / "2024").iterdir()) / 2.6
    suites = []
    for name, speed in (("slow", 1e8), ("middling", 1e10), ("fast", 1e15)):
        write_suite(name, [texts / "news", texts / "2024"], speed)
        suites.append(load_suite(name))
    assert {suite.model.ladder for suite in suites} == {(RUNGS[0], RUNGS[1])}
    assert [suite.budget.amount for suite in suites] == [62, round(6 * 45_056 * read / 1e9), 5]
    assert (
        "about 1 min for all" in Path("fast.toml").read_text() and 5 < suites[1].budget.amount < 62
    )
    monkeypatch.setattr("benchmark.instruments.new_suite.PASSES", 1e9)
    write_suite("faster", [texts / "news", texts / "2024"], 1e15)
    assert list(map(str, load_suite("faster").model.ladder)) == ["L6_D256", "L6_D320"]
    write_suite("many", [texts / "news"] * 60, 1e12)
    many, few = (tomllib.loads(Path(name).read_text()) for name in ("many.toml", "fast.toml"))
    assert many["model"]["ladder"] == [
        {"layers": size.layers, "hidden_size": size.hidden_size}
        for size in RUNGS[:5]
        for _ in range(12)
    ], "sixty domains: five sizes"
    sizes = [
        suite["data"]["max_valid_bytes"] * suite["training"].get("evaluations", 5)
        for suite in (many, few)
    ]
    assert 50 * sizes[0] <= sizes[1] == 1_000_000, (
        "all of a stage's evaluations read as much of sixty domains as of one"
    )


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["texts/news"], "two domains"),
        (["texts/news", "nowhere"], "nowhere"),
        (["texts/news", "one"], "1 documents"),
    ],
)
def test_text_that_makes_no_suite_is_refused(
    texts: Path, folders: list[str], message: str, monkeypatch
) -> None:
    """By hand: a single domain, a missing folder, a single document. The message names each, and
    nothing is written.
    """
    monkeypatch.chdir(texts.parent)
    (texts.parent / "one").mkdir()
    (texts.parent / "one" / "a.txt").write_text("short")
    with pytest.raises((ConfigError, DataError), match=message):
        write_suite("mine", list(map(Path, folders)), 1e10)
    assert not list(texts.parent.glob("*.toml"))


def test_prepare_counts_near_copies_of_validation_text_and_of_tests(tmp_path) -> None:
    """Oracle: by hand: of 30 validation documents two are training text of `a` without its first
    two words, and one of these also of `b`. So is one of two test examples.
    """
    words = [f"w{i}" for i in range(1000)]
    a, held, other, new = (
        sentences(seed, count, words) for seed, count in ((1, 30), (2, 28), (3, 30), (4, 300))
    )
    a = [f"{text} {' '.join(words[30 * i : 30 * i + 30])}" for i, text in enumerate(a)]
    near = [" ".join(text.split()[2:]) for text in a[:3]]
    texts = {"a": a, "a held": [*held, *near[:2]], "b": [*new, a[1]], "b held": other}
    places = {
        name: str(write_text(tmp_path / f"{name}.jsonl", text)) for name, text in texts.items()
    }
    domains = [
        Domain(name=name, train=(places[name],), valid=(places[f"{name} held"],)) for name in "ab"
    ]
    test = tuple(Example(text, None, 0, "") for text in (near[2], held[0]))
    task = Task(name="t", domain="a", docstrings=Docstrings())
    tasks = [TaskData(task, ("x", "y"), test, test, test)]
    whole = prepare(domains, tmp_path / "data", tokenizer=Tokenizer(vocabulary=300))
    cache = DataCache(tmp_path / "data")
    leaks = find_validation_leaks(whole, cache)
    assert (len(leaks["a"]["a"]), len(leaks["b"]["a"])) == (2, 1)
    [marked] = mark_in_stream(tasks, whole, cache)
    assert marked.in_stream == {0}
    kept = DATA.model_copy(update={"near_copies": "keep"})
    for data, found, documents in ((DATA, "2 left out", "28"), (kept, "2 kept", "30")):
        corpus = decontaminate(whole, data, cache)
        cells = [dict(zip(DOMAIN_TITLES, row, strict=True)) for row in describe_domains(corpus)]
        assert [row["near copies"] for row in cells] == [found, ""]
        assert [row["validation documents"] for row in cells] == [documents, "30"]
    task_cells = dict(zip(TASK_TITLES, describe_task(marked), strict=True))
    assert task_cells["near copies"] == "2 kept"  # both stand in its train set


@pytest.mark.parametrize(
    ("limits", "named", "unnamed"),
    [
        ({"max_valid_bytes": 200}, ["max_valid_bytes"], ["max_valid_tokens", "max_train_tokens"]),
        ({"max_valid_tokens": 64}, ["max_valid_tokens"], ["max_valid_bytes", "max_train_tokens"]),
        (
            {"max_valid_bytes": 200, "max_train_tokens": 4000},
            ["max_valid_bytes", "max_train_tokens"],
            ["max_valid_tokens"],
        ),
    ],
)
def test_a_warning_names_the_limits_that_a_suite_sets(limits, named, unnamed, tmp_path) -> None:
    """Oracle: the keys by which the suite leaves validation documents out, and no others."""
    domain = Domain(name="a", train=(str(write_text(tmp_path / "a.jsonl", sentences(1, 300))),))
    data = DATA.model_copy(update={"max_valid_tokens": None, **limits})
    corpus = prepare([domain], tmp_path / "data", data=data)
    config = methods.list_runs(load_suite("demo"), ("naive",))[0].model_copy(
        update={"domains": (domain,), "data": data}
    )
    warning = next(warn_of_text(corpus, config))
    assert all(f"data.{key}" in warning for key in named)
    assert not any(f"data.{key}" in warning for key in unnamed)


def test_prepare_warns_of_text_that_says_less_than_it_seems(tmp_path) -> None:
    """Oracle: by hand: `c` has 9 validation documents, which are training documents of `b`."""
    first, second = sentences(1, 300), sentences(2, 300)
    places = [
        write_text(tmp_path / f"{name}.jsonl", text) for name, text in (("a", first), ("b", second))
    ]
    held = write_text(tmp_path / "held.jsonl", second[:9])
    domains = [
        Domain(name=name, train=(str(place),)) for name, place in zip("ab", places, strict=True)
    ]
    domains += [
        Domain(
            name="c",
            train=(str(write_text(tmp_path / "c.jsonl", sentences(3))),),
            valid=(str(held),),
        )
    ]
    corpus = prepare(domains, tmp_path / "data")
    config = methods.list_runs(load_suite("demo"), ("naive",))[0].model_copy(
        update={"domains": tuple(domains)}
    )
    cache = DataCache(tmp_path / "data")
    said = list(warn_of_text(corpus, config))
    assert " c (9)" in said[0] and len(said) == 2
    leaks = find_validation_leaks(corpus, cache)
    assert len(leaks["b"]["c"]) == 8  # one is too short
    assert "tokenizer" in said[1] and "later domains too (2)" in said[1]


def test_prepare_and_a_plan_say_how_often_text_is_read(tmp_path, capsys) -> None:
    """Oracle: by hand: six steps of ten rows of 16 tokens, and a memory of 800 tokens, divided by
    the tokens that `prepare` recorded for each domain.
    """
    suite = tiny_suite.write(tmp_path)
    places = ["--runs", str(tmp_path / "runs")]
    told = []
    for command in (["prepare", str(suite)], ["run", str(suite), "--dry-run"]):
        assert run_all.main([*command, *places]) == 0
        told.append(capsys.readouterr().out)
    tokens = {}
    for info in (
        json.loads(path.read_text())
        for path in (tmp_path / "runs/data/domains").glob("*/info.json")
    ):
        tokens[Path(info["source"]["train"][0]).stem] = info["tokens"]
    times, share = (
        f": a {960 / tokens['a']:.1f}, b {960 / tokens['b']:.1f}. ",
        f": a {800 / tokens['a']:.1%}.",
    )
    assert all(text.count(times) == text.count(share) == 1 for text in told)
