"""Tasks: their settings, errors in their data, metrics, baselines, and tasks from documentation."""

from __future__ import annotations

import gzip
import json
import random
import sys
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

import methods
from benchmark.data import corpus
from benchmark.data.documents import DataError, Document
from benchmark.downstream import passages, tasks
from benchmark.downstream.tasks import (
    TaskData,
    check_examples,
    compute_metric,
    make_score_key,
    record_baselines,
)
from benchmark.ledger.store import Store
from benchmark.settings.load import load_suite
from benchmark.settings.tasks import SPLITS, Docstrings, Finetuning, HubTask, Task
from benchmark.settings.texts import Domain
from tests.support.hub import stand_in
from tests.support.record_lines import read_lines


def write(path: Path, rows: list) -> str:
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def row(text: str | None, label: object, **more: object) -> dict:
    return {"text": text, "label": label, **more}


GOOD = [row("a b", "x"), row("c d", "x"), row("e f", "y"), row("g h", "y")]


def task_of(
    folder: Path, train: list = GOOD, dev: list = GOOD, test: list = GOOD, **more: object
) -> Task:
    splits = {"train": train, "dev": dev, "test": test}
    files = {split: write(folder / f"{split}.jsonl", rows) for split, rows in splits.items()}
    return Task(name="toy", domain="d", **files, **more)


def load(task: Task, folder: Path):
    return tasks.load_examples(task, [Domain(name="d", packages=("stdlib",))], folder)


def test_the_hyper_parameters_are_the_papers():
    """Oracle: the paper's tab:finetune, one column per task. Only MNLI has another learning rate
    and batch size. The other tasks' values are also our defaults.
    """

    def list_values(task: Task) -> tuple[float | str, ...]:
        rates = (task.learning_rate, task.batch_size, task.weight_decay)
        return *rates, task.max_epochs, task.schedule, task.warmup

    expected = dict.fromkeys(
        ("HyperPartisan", "Helpfulness", "ChemProt", "ACL-ARC"),
        (2e-5, 256, 0.1, 10, "linear", 0.06),
    )
    expected["MNLI"] = (1e-5, 32, 0.1, 10, "linear", 0.06)
    assert {task.title: list_values(task) for task in load_suite("bert_base").tasks} == expected
    task = Task(name="chemprot", domain="bio", docstrings=Docstrings())
    assert list_values(task) == expected["ChemProt"]
    assert Finetuning().patience == 3
    assert Finetuning().list_trials(task) == [("finetune", seed) for seed in range(5)]
    assert len(Finetuning().list_trials(task.model_copy(update={"seeds": 10}))) == 10


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, "given: none"),
        ({"train": "a", "dev": "b"}, "given: train, dev"),
        ({"docstrings": {}, "dataset": {"path": "p"}}, "given: dataset, docstrings"),
        (
            {"train": "a", "dev": "b", "test": "c", "docstrings": {}},
            "given: train, dev, test, docstrings",
        ),
        ({"which_domain": True}, "which is of none"),
        ({"docstrings": {}, "metric": "f1"}, "macro_f1"),
        ({"docstrings": {}, "warm_up": 0.1}, "warm_up"),
    ],
)
def test_a_task_that_cannot_be_is_refused_with_what_was_given(source, message):
    """Oracle: the rule that a task has exactly one source, and only known keys and metrics."""
    with pytest.raises(ValidationError, match=message):
        Task(name="toy", domain="d", **source)


def test_metrics_are_those_by_hand():
    """Oracle: precision and recall of three classes by hand (F1 4/5, 1/2, 2/3)."""
    targets, predictions = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2]
    assert compute_metric("accuracy", targets, predictions) == pytest.approx(4 / 6)
    assert compute_metric("micro_f1", targets, predictions) == pytest.approx(4 / 6)
    assert compute_metric("macro_f1", targets, predictions) == pytest.approx(
        (4 / 5 + 1 / 2 + 2 / 3) / 3
    )


def test_files_become_examples_with_classes_in_order(tmp_path):
    """Oracle: the rows written, gzip and plain, with a byte order mark, blank lines, pairs, and
    labels of all types.
    """
    paired = [
        row("a", 2, text_pair="b"),
        row("c", 2, text_pair="d"),
        row("e", 10, text_pair="f"),
        "",
    ]
    task = task_of(tmp_path, [*paired, row("g", 10, text_pair="h")], paired, paired)
    write(
        tmp_path / "train.jsonl.gz",
        ["\ufeff" + json.dumps(paired[0]), *paired[1:], row("g", 10, text_pair="h")],
    )
    data = load(task.model_copy(update={"train": str(tmp_path / "train.jsonl.gz")}), tmp_path)
    assert data.labels == ("10", "2")
    assert [(e.text, e.text_pair, e.label) for e in data.train] == [
        ("a", "b", 1),
        ("c", "d", 1),
        ("e", "f", 0),
        ("g", "h", 0),
    ]
    assert data.train[3].place.endswith("train.jsonl.gz:5")
    assert data.key == load(task, tmp_path).key
    booleans = [row("a", True), row("b", True), row("c", False), row("d", False)]
    assert load(task_of(tmp_path, booleans, booleans, booleans), tmp_path).labels == (
        "false",
        "true",
    )


@pytest.mark.parametrize(
    ("split", "rows", "message"),
    [
        ("test", [*GOOD, row("i", "z")], r"test\.jsonl:5: no row of train has the label 'z'"),
        ("train", [*GOOD, row(" ", "x")], r"train\.jsonl:5: 'text' .*not ' '"),
        ("test", [row("a", "x", text_pair="b")], r"test\.jsonl:1: .*'text_pair'"),
        ("test", [{"text": "a"}], r"test\.jsonl:1: 'label' .*not None"),
        ("test", ["[1]"], r"test\.jsonl:1: a list"),
    ],
)
def test_bad_examples_are_refused_with_file_and_row(tmp_path, split, rows, message):
    """Oracle: the line that was broken here."""
    task = task_of(tmp_path, **{split: rows})
    with pytest.raises(DataError, match=message):
        load(task, tmp_path)


def test_a_file_that_is_missing_is_named(tmp_path):
    """Oracle: the path of the missing file."""
    with pytest.raises(DataError, match=r"no file .*nowhere\.jsonl"):
        load(
            task_of(tmp_path).model_copy(update={"test": str(tmp_path / "nowhere.jsonl")}), tmp_path
        )


def test_a_hub_dataset_becomes_examples_with_the_names_of_its_classes(tmp_path, monkeypatch):
    """Oracle: a stand-in for the `datasets` library with GLUE's fields."""
    rows = [{"premise": "p", "hypothesis": f"h{i}", "label": i % 2} for i in range(4)]

    class Split(list):
        features = types.MappingProxyType({"label": types.SimpleNamespace(names=["yes", "no"])})

    asked = []

    def load_dataset(path, name, split):
        asked.append((path, name, split))
        return Split(rows)

    monkeypatch.setitem(sys.modules, "datasets", stand_in(load_dataset))
    hub = HubTask(
        path="glue", name="mnli", dev="train[90%:]", text_field="premise", pair_field="hypothesis"
    )
    data = load(Task(name="mnli", domain="d", dataset=hub), tmp_path)
    assert asked == [("glue", "mnli", split) for split in ("train", "train[90%:]", "test")]
    assert data.labels == ("no", "yes")
    assert [(e.text, e.text_pair, data.labels[e.label]) for e in data.dev[:2]] == [
        ("p", "h0", "yes"),
        ("p", "h1", "no"),
    ]
    monkeypatch.setattr(
        sys.modules["datasets"], "load_dataset", lambda *_, **__: pytest.fail("asked the Hub again")
    )
    # the rows are kept, for machines without a network
    renamed = load(Task(name="renamed", domain="d", dataset=hub), tmp_path)
    assert replace(renamed, task=data.task) == data
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", load_dataset)
    with pytest.raises(DataError, match="'mnli': .*'glue'.*'train': KeyError: 'sentence'"):
        load(
            Task(name="mnli", domain="d", dataset=HubTask(path="glue", text_field="sentence")),
            tmp_path,
        )


def test_rows_of_test_that_stand_in_train_are_left_out_of_the_second_score(tmp_path):
    """By hand: the same text with another second text is no leak. With another label, case or
    blanks it is one.
    """
    train = [
        row(t, label, text_pair="p")
        for t, label in (("a", "x"), ("b b", "x"), ("c", "y"), ("d", "y"))
    ]
    test = [
        row("A ", "x", text_pair="P"),
        row("b\n\tb", "y", text_pair="p"),
        row("c", "y", text_pair="q"),
    ]
    data = load(
        task_of(tmp_path, train, train, [*test, row("e", "x", text_pair="p")], metric="accuracy"),
        tmp_path,
    )
    assert data.leaked == (True, True, False, False)
    in_stream = replace(data, in_stream=frozenset({1, 3}))
    assert in_stream.list_leaks() == {0, 1, 3}
    kept = in_stream.leave_out_leaks()
    assert kept.test == data.test[2:3] and kept.left_out == 3 and kept.key != data.key
    clean = load(task_of(tmp_path, train, train, [row("z", "x", text_pair="p")]), tmp_path)
    assert clean.leave_out_leaks() is clean
    with pytest.raises(DataError, match="near_copies"):
        replace(clean, in_stream=frozenset({0})).leave_out_leaks()


@pytest.mark.parametrize("near_copies", ["drop", "keep"])
def test_tests_that_nearly_stand_in_train_are_left_out(tmp_path, monkeypatch, near_copies):
    """By hand: a pair in capitals, without its first words and with one more, is a near copy. A
    pair that shares a quarter of its words, and one of few words, are not. Near copies are searched
    once. Scores leave them out, or with "keep" include them and count them in records.
    """
    words = [f"w{number}x" for number in range(400)]
    some = lambda start, count: " ".join(words[start : start + count])  # noqa: E731
    train = [row(some(i * 40, 20), "xy"[i % 2], text_pair=some(i * 40 + 20, 20)) for i in range(8)]
    near = row(some(3, 17).upper(), "y", text_pair=some(20, 20) + " more")
    quarter = row(f"{some(330, 20)} {some(40, 15)}", "x", text_pair=some(350, 50))
    test = [near, quarter, row(some(40, 2), "x", text_pair="w42x"), {**train[5], "label": "y"}]
    task = task_of(tmp_path, train, train, test, metric="accuracy")
    store = Store(tmp_path / "runs")
    suite = load_suite("demo", {"data.near_copies": near_copies})
    suite = suite.model_copy(update={"tasks": (task,)})
    for again in (False, True):
        if again:
            monkeypatch.setattr("benchmark.data.leaks.find_near_copies", None)
        [data] = tasks.load_tasks(suite, store)
        assert data.in_train == {0, 3} and data.leaked == (True, False, False, True)
    [config, *_] = methods.list_runs(suite, ("naive",))
    monkeypatch.setattr(tasks, "prepare_corpus", lambda *given: None)
    monkeypatch.setattr(tasks, "mark_in_stream", lambda marked, *given: marked)
    [scored] = tasks.decontaminate_tasks([data], config, store)
    record_baselines([scored], store.scores_file("baselines"))
    majority = read_lines(store.scores_file("baselines"))[0]
    expected = (1.0, 0) if near_copies == "drop" else (0.5, 2)
    assert (majority["test"], majority.get("leaks", 0)) == expected
    assert load(task, tmp_path).leaked == (False, False, False, True)


def separable(count: int, seed: int, noise: bool = False) -> list[dict]:
    """Texts of nine letters and "left" or "right", their class. With `noise` it is random."""
    draw = random.Random(seed)
    rows = []
    for index in range(count):
        words = draw.choices("abcdefgh", k=10)
        words[draw.randrange(10)] = ("left", "right")[index % 2]
        rows.append(row(" ".join(words), draw.choice("lr") if noise else "lr"[index % 2]))
    return rows


def test_baselines_need_no_model(tmp_path):
    """Oracle: the majority's F1 by formula. Word counts solve a task that one word decides, and
    guess if labels are random.
    """
    train, test = separable(200, 0), separable(60, 1)
    data = load(task_of(tmp_path, [*train, row("more", "l")], test, test), tmp_path)

    def scores(data: TaskData, metric: str) -> dict[str, float]:
        record_baselines(
            [replace(data, task=task_of(tmp_path, metric=metric))], tmp_path / f"{metric}.jsonl"
        )
        return {line["name"]: line["test"] for line in read_lines(tmp_path / f"{metric}.jsonl")}

    known = scores(data, "macro_f1")
    assert known["majority"] == pytest.approx(
        (2 * 0.5 / 1.5) / 2
    )  # precision 1/2, recall 1; the other class has 0
    assert known["bag of words"] == 1.0
    noise = load(
        task_of(tmp_path, separable(200, 0, True), test, separable(100, 2, True)), tmp_path
    )
    assert 0.35 < scores(noise, "accuracy")["bag of words"] < 0.65  # 3 sigma


def test_baselines_are_recorded_once_for_each_content(tmp_path):
    """Oracle: the lines after a second call, after a kill between two of them, and after a change
    of the data.
    """
    path, task = tmp_path / "scores" / "baselines.jsonl", task_of(tmp_path)
    data = load(task, tmp_path)
    record_baselines([data], path)
    record_baselines([data], path)
    first, second = read_lines(path)
    path.write_text(json.dumps(first) + "\n")
    record_baselines([data], path)
    assert [line["name"] for line in read_lines(path)] == [first["name"], second["name"]]
    changed = load(task_of(tmp_path, [*GOOD, row("new", "x")]), tmp_path)
    record_baselines([changed], path)
    assert Counter(line["task_key"] for line in read_lines(path)) == {data.key: 2, changed.key: 2}


def test_a_score_is_known_by_what_it_depends_on(tmp_path):
    """Oracle: each setting that changes a score changes the key. Places of files, titles and
    numbers of seeds do not.
    """
    task, settings = task_of(tmp_path), Finetuning()
    data = load(task, tmp_path)
    key = make_score_key("stage", task, data.key, settings, "right", 0)
    moved = task_of((tmp_path / "else").parent, title="Toy", seeds=9)
    assert (
        make_score_key("stage", moved, load(moved, tmp_path).key, Finetuning(seeds=2), "right", 0)
        == key
    )
    changed = load(task_of(tmp_path, dev=GOOD[:3]), tmp_path)
    others = [
        make_score_key("other", task, data.key, settings, "right", 0),
        make_score_key(
            "stage", task.model_copy(update={"learning_rate": 1e-4}), data.key, settings, "right", 0
        ),
        make_score_key("stage", task, changed.key, settings, "right", 0),
        make_score_key("stage", task, data.key, Finetuning(patience=4), "right", 0),
        make_score_key("stage", task, data.key, settings, "none", 0),
        make_score_key("stage", task, data.key, settings, "right", 1),
        make_score_key("stage", task, data.key, settings, "right", 0, "linear_probe"),
    ]
    assert len({key, *others}) == 1 + len(others)
    slower = task.model_copy(update={"learning_rate": 1e-4})  # a linear probe has none
    assert (
        make_score_key(
            "stage", slower, data.key, Finetuning(patience=4), "right", 0, "linear_probe"
        )
        == others[-1]
    )


# Tasks cut from documentation


def test_parts_of_a_package_are_its_second_level_and_large_ones_are_divided():
    """By hand: names shaped like those of pandas and of Python's library."""
    sources = ["p.core.a.x:F", "p.core.a", "p.core.b:G", "p.core", "p.io.c:H", "p.tools:I"]
    assert passages.name_parts(sources, ["p"]) == [
        "p.core.a",
        "p.core.a",
        "p.core.b",
        "p.core",
        "p.io",
        "p.tools",
    ]
    library = ["email.message:M", "email", "json.encoder", "argparse:A"]
    assert passages.name_parts(library, ["stdlib"]) == ["email", "email", "json", "argparse"]


def test_names_of_the_classes_are_masked_in_prose_and_in_code():
    """By hand: names are masked in any case and with any separator, but not within words."""
    names = passages.compile_name_pattern(["sklearn.linear_model", "torch.nn", "email"])
    text = "sklearn.linear_model.Lasso is a Linear model, linear in nn.Linear, "
    text += "cnn_nn, EMAIL, emails of nnn"
    assert (
        names.sub("_", text)
        == "sklearn._.Lasso is a _, linear in _.Linear, cnn__, _, emails of nnn"
    )


def made_up(parts: dict[str, int]) -> list[Document]:
    """Documents of random numbers, each of which begins with its part's name."""
    draw = random.Random(0)
    return [
        Document(
            f"{part} " + " ".join(str(draw.random()) for _ in range(30)),
            f"lib.{part}.m:{part}_{index}",
        )
        for part, count in parts.items()
        for index in range(count)
    ]


def test_a_docstring_task_is_balanced_masked_and_disjoint_by_document():
    """Oracle: counts by hand, and the document from which each passage was cut."""
    documents = made_up({"alpha": 40, "beta": 30, "gamma": 25, "small": 3})
    options = Docstrings(classes=3, examples=40, characters=100)
    splits = passages.draw_balanced_splits("toy", options, ["lib"], documents)
    toy = Task(name="toy", domain="d", docstrings=options)
    data = check_examples(toy, splits)
    again = passages.draw_balanced_splits("toy", options, ["lib"], documents[::-1])
    assert check_examples(toy, again).key == data.key
    assert data.labels == ("lib.alpha", "lib.beta", "lib.gamma")
    for split, count in zip(SPLITS, (20, 8, 12), strict=True):
        assert Counter(data.list_targets(split)) == dict.fromkeys(range(3), count)
    places = [{example.place for example in rows} for rows in (data.train, data.dev, data.test)]
    assert not (places[0] & places[1] or places[0] & places[2] or places[1] & places[2])
    texts = [example.text for example in (*data.train, *data.dev, *data.test)]
    assert len(set(texts)) == len(texts)
    assert all(50 <= len(text) <= 100 for text in texts)
    assert not any(name in text for name in ("alpha", "beta", "gamma") for text in texts)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Three parts of forty documented functions each, made once because their place is cached."""
    folder = tmp_path_factory.mktemp("library")
    draw = random.Random(1)
    for part in ("alpha", "beta", "gamma"):
        (folder / "madeup" / part).mkdir(parents=True)
        (folder / "madeup" / part / "__init__.py").write_text("")
        lines = []
        for number in range(40):
            words = " ".join(
                draw.choice(["one", "two", "three", part]) + str(draw.random()) for _ in range(25)
            )
            lines.append(f'def f{number}():\n    """Of {part}: {words}."""\n')
        (folder / "madeup" / part / "m.py").write_text("\n".join(lines))
    (folder / "madeup" / "__init__.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield "madeup"


def test_a_docstring_task_comes_from_the_held_out_documents_alone_and_is_cut_once(
    library, tmp_path, monkeypatch
):
    """Oracle: the documents that training does not read. The second time the task is read from its
    file, because nothing can cut it then.
    """
    domain = Domain(name="d", packages=(library,), hold_out=0.4)
    task = Task(
        name="toy", domain="d", docstrings=Docstrings(classes=3, examples=20, characters=60)
    )
    data = tasks.load_examples(task, [domain], tmp_path / "data")
    assert data.labels == ("madeup.alpha", "madeup.beta", "madeup.gamma")
    places = {example.place for rows in (data.train, data.dev, data.test) for example in rows}
    trained_on = {document.source for document in corpus.read(domain, 0.05, Counter())}
    everything = {
        document.source
        for document in corpus.read(domain.model_copy(update={"hold_out": 0}), 0, Counter())
    }
    assert places <= everything - trained_on
    monkeypatch.setattr(passages, "_cut_text", None)
    assert tasks.load_examples(task, [domain], tmp_path / "data").key == data.key


def test_a_task_of_all_domains_comes_from_their_validation_text_alone(library, tmp_path):
    """Oracle: the documents of the validation split. Names of domains and packages are masked."""
    for name in ("valid", "train"):
        lines = [
            json.dumps({"text": f"{name} {i} of files and madeup, " + "word " * 30})
            for i in range(40)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = {split: (str(tmp_path / f"{split}.jsonl"),) for split in ("train", "valid")}
    domains = [Domain(name="docs", packages=(library,)), Domain(name="files", **files)]
    task = Task(name="toy", which_domain=True)
    data = tasks.load_examples(task, domains, tmp_path / "data", valid_share=0.5)
    assert data.labels == ("docs", "files")
    places = {example.place for split in SPLITS for example in getattr(data, split)}
    read = [document for domain in domains for document in corpus.read(domain, 0.5, Counter())]
    assert places <= {document.source for document in read if document.split == "valid"}
    texts = [example.text for split in SPLITS for example in getattr(data, split)]
    assert not any(name in text for name in ("docs", "files", "madeup") for text in texts)
    with pytest.raises(tasks.NotRead, match="'toy'"):
        tasks.load_examples(task, domains, tmp_path / "data", False, 0.4)
    assert Finetuning().list_trials(task) == [("linear_probe", 0)]
