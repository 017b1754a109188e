"""The report page: complete, self-contained, safe, and drawn by a real browser."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from analysis import catalogue
from analysis.exhibits import TableExhibit
from analysis.figures import FigureExhibit
from analysis.page import BESIDE, render
from analysis.study import Study
from analysis.tables import format_number
from benchmark.ledger.records import EvaluationLine, FailedLine
from benchmark.ledger.runs import load_runs
from benchmark.settings.load import load_suite
from tests.support import synthetic
from tests.support.thorough import program

TABLES = ["main_pretraining", "trend_main", "main_downstream", "f1_by_stage"]
NASTY = "<script>alert(1)</script> & \"'{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A report whose last row has a name that must be escaped, and failed in its third stage."""
    folder = tmp_path_factory.mktemp("report")
    rows = [
        ("Naive", "naive", {}),
        ("ER", "er", {}),
        ("ELLE", "elle", {}),
        (NASTY, "er", {"note": NASTY}),
    ]
    synthetic.write(folder / "runs", "demo", rows=rows, finished=2)
    runs = load_runs(folder / "runs", "demo")
    runs[-1].failure = FailedLine(stage=2, error=NASTY)
    synthetic.report("demo", runs, TABLES, folder)
    return folder / "index.html"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def tags(page: Path) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser.seen


def test_links_lead_somewhere(report):
    """Oracle: the ids of the page and the files beside it; all scripts are inside."""
    elements = tags(report)
    assert not any("src" in attributes for tag, attributes in elements if tag == "script")
    ids = {attributes.get("id") for _, attributes in elements}
    for tag, attributes in elements:
        if tag == "a":
            link = attributes["href"] or ""
            assert link[1:] in ids if link.startswith("#") else (report.parent / link).exists(), (
                link
            )


def test_who_cannot_see_the_page_gets_headers_and_words(report):
    """Oracle: by hand: header cells say whether they head columns or rows. A picture's words say
    where its lines end.
    """
    elements = tags(report)
    heads = [attributes.get("scope") for tag, attributes in elements if tag == "th"]
    assert {*heads} == {"col", "colgroup", "row", "rowgroup"}
    words = [attributes["alt"] or "" for tag, attributes in elements if tag == "img"]
    assert "AP (log): " in words[0] and "ELLE 6." in words[0]
    assert "Mean of 2 seeds" in report.read_text("utf-8")


@pytest.mark.parametrize("seeds", [2, 6])
def test_the_page_begins_with_table_curve_and_words(tmp_path, seeds):
    """Oracle: the order of the page's parts. Two seeds decide nothing, so the scorecard is folded
    into one line. Six seeds decide.
    """
    synthetic.write(tmp_path, "demo", seeds=seeds, evaluations=2)
    synthetic.report(
        "demo", load_runs(tmp_path, "demo"), ["main_pretraining", "main_downstream"], tmp_path
    )
    text = (tmp_path / "index.html").read_text("utf-8")
    parts = [
        'id="main_pretraining"',
        'id="explore"',
        "<li>Best: ELLE",
        'id="scorecard"',
        'id="main_downstream"',
    ]
    assert sorted(parts, key=text.index) == parts
    assert ('<details id="scorecard">' in text) == (seeds == 2)


def test_whatever_a_user_gave_is_escaped(report):
    """Oracle: the name appears as text, never as markup or template."""
    text = report.read_text(encoding="utf-8")
    assert "<script>" not in text and "{{ 7 * 7 }}" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "\\u003cscript>alert(1)" in text


def test_the_page_says_what_is_missing_failed_and_unequal(report):
    """Oracle: by hand: six of eight runs end, one fails, and hardware and budgets are equal. No
    note of the audit is repeated below a table.
    """
    text = report.read_text(encoding="utf-8")
    assert "8 runs, 6 done, 1 failed." in text
    assert "python run_all.py run demo" in text
    audit = text.partition('id="audit"')[2]
    assert (
        audit.count("failed in stage Rev: ") == text.count("failed in stage Rev: ") == 1
        and "well." not in audit
    )
    for part in (
        "Hardware differs",
        "Texts differ",
        "Budgets differ in stage ",
        "Other programs took cores",
    ):
        assert part not in text
    notes = re.findall(
        "<li>(.*?)</li>", "".join(re.findall('<ul class="soft">(.*?)</ul>', text, re.S)), re.S
    )
    assert len(notes) > 4 and not any(f"<li>{note}</li>" in audit for note in notes)
    assert "<code>python run_all.py run demo" in text
    assert "Example CPU, 2 threads, fp32" in text
    assert 'id="scorecard"' in text and "decided with 2 seeds" in text


class Words(HTMLParser):
    """The texts of a page's paragraphs and list items."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._is_open = False

    def handle_starttag(self, tag, attrs):
        self._is_open = self._is_open or tag in ("p", "li")
        if tag in ("p", "li"):
            self.texts.append("")

    def handle_endtag(self, tag):
        self._is_open = self._is_open and tag not in ("p", "li")

    def handle_data(self, data):
        if self._is_open:
            self.texts[-1] += data


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_page_says_each_note_once(tmp_path, seeds):
    """Oracle: counts: each note of a table, each text on how to read it, and the sentences of each
    figure stand on the page once, though tables share some.
    """
    names = ["main_pretraining", "main_downstream", "trend_ap", "trend_main"]
    synthetic.write(tmp_path / "runs", "demo", seeds=seeds, evaluations=2)
    runs = load_runs(tmp_path / "runs", "demo")
    study = Study("demo", runs, paper=True, printed={"demo": "bert_base"})
    render(study, [catalogue.load(name) for name in names], catalogue.load, tmp_path)
    page = Words()
    page.feed((tmp_path / "index.html").read_text("utf-8"))
    shown = Counter(page.texts)
    expected = Counter([BESIDE])
    for name in names:
        exhibit = catalogue.load(name)
        if isinstance(exhibit, TableExhibit):
            table = exhibit.build(study)
            texts = [table.reading, *table.notes]
        else:
            assert isinstance(exhibit, FigureExhibit)
            texts = [exhibit.render(study).sentences]
        expected.update(text.replace("`", "") for text in texts if text)
    assert max(expected.values()) > 1
    assert {shown[text] for text in expected} == {1}


@pytest.mark.parametrize("paper", [False, True])
def test_parts_of_the_paper_are_shown_to_who_asks(tmp_path, paper):
    """Oracle: the suite's settings: its title heads the page, and scorecard and printed numbers
    come only with `paper`.
    """
    synthetic.write(tmp_path / "runs", "demo", rows=[("ER", "er", {}), ("ELLE", "elle", {})])
    suite = load_suite("demo").model_copy(update={"paper": paper, "title": "Tales & <saga>"})
    runs = load_runs(tmp_path / "runs", "demo")
    study = Study("demo", runs, title=suite.title, paper=suite.paper, printed={"demo": "bert_base"})
    render(study, [synthetic.load("main_pretraining")], catalogue.load, tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "<h1>Tales &amp; &lt;saga&gt;</h1>" in text
    shown = (
        "scorecard" in text.lower(),
        "the paper prints" in text,
        (tmp_path / "out" / "scorecard.md").exists(),
        (tmp_path / "out" / "main_pretraining.both.md").exists(),
    )
    assert shown == (paper,) * 4


KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    " ": 32,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
PATIENCE = 120.0  # seconds for an answer, on a machine that is busy


class Browser:
    """One page in a headless Chromium, driven by Chromium's own protocol, with a profile below
    `folder`. As a context manager it ends the browser.
    """

    def __init__(self, program: str, folder: Path) -> None:
        (to_read, self._to), (self._from, to_write) = os.pipe(), os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder / 'profile'}",
        ]
        command = [program, *options, "--remote-debugging-pipe", "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", *command]
        self._process = subprocess.Popen(
            shell, pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._count, self._session = b"", 0, ""
        self.said: list[str] = []  # on the console, and what was thrown
        self.asked: list[str] = []  # addresses that the page asked for
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, path: Path, width: int = 1280, *, scripts: bool = True, **media: str) -> None:
        """Show a file in a window of this width, under media features like
        `prefers_color_scheme="dark"`.

        `scripts`: whether the page's scripts may run. The test's own scripts always run.
        """
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.said, self.asked = [], []
        features = [
            {"name": name.replace("_", "-"), "value": value} for name, value in media.items()
        ]
        self._call("Emulation.setEmulatedMedia", media="", features=features)
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        self._call("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def print_media(self) -> None:
        """Lay the page out as it is printed."""
        self._call("Emulation.setEmulatedMedia", media="print", features=[])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, ten seconds at most."""
        for _ in range(200):  # not in the page: without scripts it has no timers
            if self.run(f"Boolean({condition})"):
                return
            time.sleep(0.05)
        raise AssertionError(f"never: {condition}")

    def press(self, key: str, times: int = 1) -> None:
        """Press a key of the keyboard."""
        code = {"key": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
        for _ in range(times):
            self._call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", **code)

    def _attach(self) -> None:
        page = next(
            target
            for target in self._call("Target.getTargets")["targetInfos"]
            if target["type"] == "page"
        )
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._count, "method": method, "params": parameters, **session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                self.said.append(json.dumps(answer["params"]))
            if answer.get("method") == "Network.requestWillBeSent":
                self.asked.append(answer["params"]["request"]["url"])

    def _read(self) -> Any:
        while b"\0" not in self._buffer:
            answers, _, _ = select.select([self._from], [], [], PATIENCE)
            assert answers, f"the browser said nothing for {PATIENCE:.0f} s"
            piece = os.read(self._from, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    chromium = program("chromium", "chromium-browser", "google-chrome", package="chromium")
    with Browser(chromium, tmp_path_factory.mktemp("browser")) as tab:
        yield tab


def test_without_scripts_tables_and_pictures_are_there(report, browser):
    """Oracle: Chromium without the page's scripts: numbers, pictures and parts that unfold are laid
    out. Parts that only scripts fill take no room, and there are no controls that would do nothing.
    """
    browser.open(report, scripts=False)
    assert not browser.run("document.documentElement.classList.contains('explorable')")
    study = Study("demo", load_runs(report.parent / "runs", "demo"))
    ends = study.ends[(study.ends["stage"] == 4) & (study.ends["row"] == "ER")]["ap"]
    assert format_number(ends.mean(), 2) in browser.run(
        "document.querySelector('table.sorts').innerText"
    )
    sizes = (
        "[...document.images].map("
        "image => image.naturalWidth > 400 && image.getBoundingClientRect().width > 200)"
    )
    assert browser.run(sizes) == [True, True]
    shown = "[...document.querySelectorAll('{}')].filter(part => part.checkVisibility()).length"
    assert browser.run(shown.format("button, select, input, #explore")) == 0
    assert (
        browser.run(shown.format("details > summary")) > 0
        and browser.run(shown.format("details > pre")) == 0
    )
    browser.run("document.querySelector('details[data-settings] summary').focus()")
    browser.press("Enter")
    assert browser.run(shown.format("details > pre")) == 1
    assert browser.run(OVERFLOW) == 0 and not browser.said


DRAWN = "document.querySelector('#explore-chart').dataset.points > 0"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (320, "dark")])
def test_a_browser_draws_all_figures_without_complaint(report, browser, width, scheme):
    """Oracle: Chromium: nothing on the console, every image decoded and wide enough to read, no
    sideways scrolling, the requested colour scheme, and no request beyond the page and what it
    holds. Printed, the page is light and has no controls.
    """
    browser.open(report, width, prefers_color_scheme=scheme)
    browser.wait(DRAWN)
    images = (
        "[...document.images].map("
        "i => i.complete && i.naturalWidth > 400 && i.getBoundingClientRect().width > 400)"
    )
    assert browser.run(images) == [True, True]
    assert browser.run(OVERFLOW) == 0
    assert (browser.run(BACKGROUND) == "rgb(255, 255, 255)") == (scheme == "light")
    assert not browser.said
    assert {url.partition(":")[0] for url in browser.asked} <= {"file", "data"}
    assert [url for url in browser.asked if url.startswith("file")] == [report.as_uri()]
    browser.print_media()
    assert browser.run(BACKGROUND) == "rgb(255, 255, 255)"
    hidden = (
        "[...document.querySelectorAll('nav, #explore select')]"
        ".every(part => !part.getClientRects().length)"
    )
    assert browser.run(hidden)


def test_curves_follow_the_keyboard(report, browser):
    """Oracle: keys that Chromium gets, and the records: each row has four evaluations per stage,
    except that the row that failed has two in its third stage.
    """
    browser.open(report)
    browser.wait(DRAWN)
    points = "+document.querySelector('#explore-chart').dataset.points"
    assert browser.run(points) == 3 * 5 * 4 + 2 * 4 + 2
    browser.run("document.querySelector('[name=row]').focus()")
    browser.press(" ")  # switch the first row off
    browser.wait(f"{points} === {2 * 5 * 4 + 2 * 4 + 2}")
    browser.press("Tab", 3)
    browser.press(" ")  # and the last one
    browser.wait(f"{points} === {2 * 5 * 4}")
    axes = (
        "[...document.querySelectorAll('#explore-chart .role-axis-title text')]"
        ".map(text => text.textContent).join()"
    )
    assert browser.run(axes) == "Measured train wall time (s, linear),AP (log)"
    for name, value in (("metric", "ap_plus"), ("unit", "tokens"), ("scale", "linear")):
        browser.run(f"document.querySelector('[name={name}]').value = '{value}'")
    browser.run(
        "document.querySelector('[name=unit]').dispatchEvent(new Event('change', {bubbles: true}))"
    )
    browser.wait(f"{axes} === 'Training tokens (linear),AP⁺ (linear)'")
    assert not browser.said


def test_the_chart_names_domains_and_rows(tmp_path, browser):
    """Oracle: the domains in their order, and each row's last AP in the records, in order. The
    names do not overlap, though three lines end side by side. A row that is switched off has no
    name. Without figures the page has no heading for them.
    """
    rows: list[Any] = [
        ("Naive", "naive", {}),
        ("EWC", "ewc", {}),
        ("MAS", "mas", {}),
        ("ELLE", "elle", {}),
    ]
    study = synthetic.study(tmp_path, rows=rows)
    synthetic.report("demo", study.runs, ["main_pretraining"], tmp_path)
    browser.open(tmp_path / "index.html")
    browser.wait(DRAWN)
    texts = (
        "[...document.querySelectorAll('#explore-chart .layer_{}_marks text')].map(text => text.{})"
    )
    assert browser.run(texts.format(1, "textContent")) == ["WB", "Ns", "Rev", "Bio", "CS"]
    ended = (
        study.ends[study.ends["stage"] == 4]
        .groupby("row")["ap"]
        .mean()
        .sort_values(ascending=False)
    )
    drawn = [f"{row} {format_number(end, 2)}" for row, end in ended.items()]
    assert browser.run(texts.format(7, "textContent")) == drawn
    tops = browser.run(texts.format(7, "getBoundingClientRect().top"))
    assert all(low - high > 12 for high, low in itertools.pairwise(tops))
    assert browser.run("document.querySelectorAll('#figures, [href=\"#figures\"]').length") == 0
    browser.run("document.querySelector('[name=row]').click()")
    browser.wait(f"!{texts.format(7, 'textContent')}.some(text => text.startsWith('Naive'))")
    assert not browser.said


def test_a_line_breaks_where_a_stage_begins(tmp_path, browser):
    """Oracle: a count by hand: two rows have a line in each of five stages, and a hollow circle
    where four of them begin.
    """
    rows: list[Any] = [("Naive", "naive", {}), ("ELLE", "elle", {})]
    study = synthetic.study(tmp_path, rows=rows, seeds=1)
    for run in study.runs:
        for lines in run.stages[1:]:
            first = next(line for line in lines if isinstance(line, EvaluationLine))
            first.phase = "start"
    synthetic.report("demo", study.runs, ["main_pretraining"], tmp_path)
    browser.open(tmp_path / "index.html")
    browser.wait(DRAWN)
    count = "document.querySelectorAll('#explore-chart .layer_{} path').length"
    assert browser.run(count.format("3_marks")) == 10
    assert browser.run(count.format("5_marks")) == 8


def test_a_phone_names_domains_whole_and_nine_rows(tmp_path, browser):
    """Oracle: the boxes that Chromium lays out: names of domains are as long at 320 pixels (turned,
    and apart) as at 1280. Nine rows, the most that all have colours, have nine names.
    """
    domains = [(f"d{place}", f"A long title {place}") for place in range(5)]
    rows: list[Any] = [(f"row {place}", "naive", {}) for place in range(9)]
    study = synthetic.study(tmp_path, rows=rows, domains=domains, seeds=1)
    synthetic.report("demo", study.runs, ["main_pretraining"], tmp_path)
    boxes = (
        "[...document.querySelectorAll('#explore-chart .layer_1_marks text')].map(text => "
        "text.getBoundingClientRect())"
        ".map(box => [box.left, box.right, box.height])"
    )
    shown = []
    for width in (1280, 320):
        browser.open(tmp_path / "index.html", width)
        browser.wait(DRAWN)
        shown.append(browser.run(boxes))
        assert all(left[1] < right[0] for left, right in itertools.pairwise(shown[-1]))
        assert browser.run(
            "document.querySelectorAll('#explore-chart .layer_7_marks text').length"
        ) == len(rows)
    (left, right, _), (*_, length) = shown[0][0], shown[1][0]
    assert length == pytest.approx(right - left, abs=2)


def test_tables_sort(report, browser):
    """Oracle: the table's own numbers, sorted. A third press restores the order of the page."""
    browser.open(report)
    browser.wait(DRAWN)
    names = (
        "[...document.querySelectorAll('table.sorts')[0].querySelectorAll('tr[data-row]')]"
        ".map(row => row.dataset.row)"
    )
    before = browser.run(names)
    assert sorted(before) == sorted(["Naive", "ER", "ELLE", NASTY])
    browser.run(
        "document.querySelectorAll('table.sorts')[0].querySelectorAll('th button')[2].focus()"
    )
    browser.press("Enter")
    values = names.replace("row.dataset.row", "+row.cells[2].dataset.value")
    assert browser.run(values) == sorted(browser.run(values))
    browser.press("Enter")
    assert browser.run(values) == sorted(browser.run(values), reverse=True)
    assert browser.run(names) != before
    browser.press("Enter")
    assert browser.run(names) == before
    assert not browser.said
