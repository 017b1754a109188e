"""Data sets of the Hub. The real library reads local files in the form of the data sets that the
suites name.
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import methods
from benchmark.data import corpus
from benchmark.data.documents import DataError
from benchmark.downstream import tasks
from benchmark.jobs.preparation import name_moving_sets
from benchmark.settings.load import load_suite
from benchmark.settings.tasks import HubTask, Task
from benchmark.settings.texts import Domain, HubDataset
from tests.support.record_lines import write_lines

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def read(*sets: HubDataset) -> list[str]:
    domain = Domain(name="hub", datasets=sets)
    return [document.text for document in corpus.read(domain, 0.5, Counter())]


def repository(folder: Path, configurations: dict[str, dict[str, str]]) -> Path:
    """Make a data set's folder. Its card names the splits of each configuration and the pattern of
    their files. Without configurations there is no card.
    """
    (folder / "data").mkdir(parents=True)
    if not configurations:
        return folder
    lines = ["---", "configs:"]
    for name, files in configurations.items():
        lines += [f"- config_name: {name}", "  data_files:"]
        lines += [f"  - split: {split}\n    path: {pattern}" for split, pattern in files.items()]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return folder


def json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(rows).to_parquet(path)


def test_a_configuration_of_parquet_or_json_lines_is_read(tmp_path: Path) -> None:
    """Files like those of Wikipedia, PG-19 and C4. Oracle: the texts that were written, in the
    order of the files, as many as asked for.
    """
    wiki = repository(tmp_path / "wiki", {"20231101.en": {"train": "20231101.en/train-*"}})
    for part in range(2):
        rows = [
            {"id": f"{i}", "url": "u", "title": "t", "text": f"article {part} {i}"}
            for i in range(5)
        ]
        parquet(wiki / f"20231101.en/train-0000{part}-of-00002.parquet", rows)
    books = repository(
        tmp_path / "books", {"default": {"train": "data/train-*", "test": "data/test-*"}}
    )
    for split in ("train", "test"):
        rows = [
            {"short_book_title": "b", "text": f"{split} " + f"a line {i}\n" * 30_000}
            for i in range(2)
        ]
        parquet(books / f"data/{split}-00000-of-00001.parquet", rows)
    news = repository(
        tmp_path / "news",
        {"realnewslike": {"train": "realnewslike/c4-train.*"}, "en": {"train": "en/*"}},
    )
    json_lines(
        news / "realnewslike/c4-train.00000-of-00512.json.gz",
        [{"text": "news", "timestamp": "", "url": ""}],
    )
    json_lines(news / "en/c4-train.00000.json.gz", [{"text": "web", "timestamp": "", "url": ""}])
    texts = read(
        HubDataset(path=str(wiki), name="20231101.en", documents=7), HubDataset(path=str(books))
    )
    assert texts[:7] == [f"article {number // 5} {number % 5}" for number in range(7)]
    assert (
        "".join(texts[7:]) == "".join("train " + f"a line {i}\n" * 30_000 for i in range(2))
        and len(texts) > 9
    )
    assert read(HubDataset(path=str(news), name="realnewslike")) == ["news"]


def test_files_are_read_whatever_their_other_columns_are(tmp_path: Path) -> None:
    """Files like those of reviews, papers by field and articles. Oracle: the texts that were
    written. If the library reads such files itself, it refuses them.
    """
    papers = repository(
        tmp_path / "papers",
        {"ComputerScience,2022-2022": {"train": "ComputerScience,2022-2022/train/*"}},
    )
    for part, metadata in enumerate([{"year": 2022}, {"year": 2022, "fields": ["a"]}, None]):
        rows = [
            {"text": f"paper {part} \u2028 {i}" if i else "", "metadata": metadata}
            for i in range(3)
        ]
        json_lines(
            papers / f"ComputerScience,2022-2022/train/Computer Science-2022.gz-000{part}.json.gz",
            rows,
        )
    files = HubDataset(path=str(papers), files=("ComputerScience,2022-2022/train/*.json.gz",))
    assert read(files) == [f"paper {part} \u2028 {i}" for part in range(3) for i in (1, 2)]
    parquet(papers / "tables/1.parquet", [{"meta": {"body": "of a table"}, "text": "no"}])
    (papers / "tables/2.csv").write_text("title,text\nA,of a second\n")
    tables = [HubDataset(path=str(papers), files=("tables/*.parquet",), text_field="meta.body")]
    tables.append(
        HubDataset(path=str(papers), files=("tables/2.csv",), text_field=("title", "text"))
    )
    assert read(*tables) == ["of a table", "A\n\nof a second"]
    with pytest.raises(DataError, match="Couldn't cast"):
        read(HubDataset(path=str(papers), name="ComputerScience,2022-2022"))
    json_lines(
        tmp_path / "papers/raw/Books.jsonl", [{"text": "good", "images": []}, {"title": "no text"}]
    )
    with pytest.raises(DataError, match=r"papers:1: .*'text'.* title"):
        read(HubDataset(path=str(papers), files=("raw/Books.jsonl",)))
    some = ("ComputerScience,2022-2022/train/*.json.gz", "raw/*.json")  # of which one has no file
    with pytest.raises(DataError, match=r"no file matches .*raw/\*\.json"):
        read(HubDataset(path=str(papers), files=some))


@pytest.mark.parametrize(("end", "separator"), [(".csv", ","), (".csv.gz", ","), (".tsv", "\t")])
def test_ragged_rows_of_a_table_are_broken_and_lose_no_text(
    tmp_path: Path, end: str, separator: str
) -> None:
    """Rows with too many and too few fields, between commas or tabs, in a local file and in a data
    set with and without `files`.

    Oracle: by hand: the texts of whole rows, and the line numbers of broken rows.
    """
    rows = 'text|label\n"quoted| text"|0\n"of two\nlines"|1\nshort\nbad| text|0|1\nNA|1\n'
    content = rows.replace("|", separator).encode()
    folder = repository(tmp_path / "set", {})
    path = folder / f"train{end}"
    path.write_bytes(gzip.compress(content) if end.endswith(".gz") else content)
    place = rf"train\{end}:5: 1 fields"
    dataset = HubDataset(path=str(folder))
    domains = [Domain(name="hub", datasets=(dataset,))]
    if end != ".tsv":  # which neither `files` nor `train` may name
        for pattern in (path.name, f"t*{end}"):
            of_files = dataset.model_copy(update={"files": (pattern,)})
            domains.append(Domain(name="hub", datasets=(of_files,)))
        domains.append(Domain(name="hub", train=(str(path),)))
        with pytest.raises(DataError, match="none"):
            read(dataset.model_copy(update={"files": (f"none*{end}",)}))
    for domain in domains:
        with pytest.raises(DataError, match=rf"{place}.*on_error"):
            list(corpus.read(domain, 0.5, Counter()))
        skips = domain.model_copy(update={"on_error": "skip"})
        skipped = Counter[str]()
        texts = [document.text for document in corpus.read(skips, 0.5, skipped)]
        assert texts == [f"quoted{separator} text", "of two\nlines", "NA"]
        broken = {f"train{end}:{line}" for line in (5, 6)}
        assert {reason.rpartition("/")[2] for reason in skipped} == broken
    task = Task(name="t", domain="hub", dataset=HubTask(path=str(folder), test="train"))
    with pytest.raises(DataError, match=rf"'t'.*{place}"):
        tasks.load_examples(task, domains[:1], tmp_path / "kept")
    with pytest.raises(DataError, match="Bad split"):
        read(dataset.model_copy(update={"split": "nowhere"}))


def test_a_task_of_whole_csv_is_read(tmp_path: Path) -> None:
    """Oracle: the rows by hand. Each split of the task is a slice of one split of the data set."""
    lines = [f'"text, {number}",{"xy"[number % 2]}\n' for number in range(8)]
    folder = repository(tmp_path / "set", {})
    (folder / "train.csv").write_text("".join(["text,label\n", *lines]))
    hub = HubTask(path=str(folder), train="train[:4]", dev="train[4:6]", test="train[6:]")
    task = Task(name="t", domain="hub", dataset=hub)
    domain = Domain(name="hub", datasets=(HubDataset(path=str(folder)),))
    data = tasks.load_examples(task, [domain], tmp_path / "kept")
    assert [example.text for example in data.test] == ["text, 6", "text, 7"]
    assert data.labels == ("x", "y") and len(data.train) == 4


def test_csv_that_is_read_in_a_way_of_its_own_is_refused(tmp_path: Path) -> None:
    """Oracle: the message names the option of the data set's card, `header`."""
    folder = repository(tmp_path / "set", {"default": {"train": "a.csv"}})
    card = folder / "README.md"
    card.write_text(card.read_text().replace("  data_files:", "  header: null\n  data_files:"))
    (folder / "a.csv").write_text("some text,0\nother, text,1\n")
    with pytest.raises(DataError, match="header"):
        read(HubDataset(path=str(folder)))


def test_the_suites_name_a_commit_of_each_data_set() -> None:
    """Oracle: a commit has forty hexadecimal digits, which no push to the Hub moves. Four tasks
    have no commit, and `prepare` warns of them.
    """
    for name, lacking in (("bert_base", 4), ("expand_size", 0)):
        suite = load_suite(name)
        of_tasks = [task.dataset.revision for task in suite.tasks if task.dataset]
        named = [
            *filter(None, of_tasks),
            *(dataset.revision for domain in suite.domains for dataset in domain.datasets),
        ]
        assert of_tasks.count(None) == lacking and len(named) > 4
        said = name_moving_sets(methods.list_runs(suite)[0])
        assert (
            said.count("zapsdcn/") == lacking and "wikimedia" not in said and "nyu-mll" not in said
        )
        assert all(len(revision or "") == 40 and int(revision or "", 16) for revision in named)
