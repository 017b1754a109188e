"""The report page: complete, self-contained, safe, and drawn by a real browser."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import paper_tables
from analysis.render import render
from analysis.study import Study
from benchmark.record_lines import FailedLine
from benchmark.records import load_runs
from benchmark.settings.suite_files import load_suite
from tests.support import synthetic

TABLES = ["main_pretraining", "trend_main", "main_downstream", "f1_by_stage"]
NASTY = "<script>alert(1)</script> & \"'{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A report whose last row has a name that must be escaped and stopped in its third stage with an error."""
    folder = tmp_path_factory.mktemp("report")
    rows = [("Naive", "naive", {}), ("ER", "er", {}), ("ELLE", "elle", {}), (NASTY, "er", {"note": NASTY})]
    synthetic.write(folder / "runs", "demo", rows=rows, finished=2)
    runs = load_runs(folder / "runs", "demo")
    runs[-1].failure = FailedLine(kind="failed", stage=2, error=NASTY)
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


def test_the_page_loads_nothing_and_runs_nothing(report):
    """Oracle: no element that could; every source is a data URI, every link stays in the folder and leads somewhere."""
    found = tags(report)
    assert not {"script", "iframe", "object", "embed", "form"} & {tag for tag, _ in found}
    assert not any(name.startswith("on") for _, attributes in found for name in attributes)
    assert all(
        (attributes["src"] or "").startswith("data:image/png;base64,") for tag, attributes in found if tag == "img"
    )
    ids = {attributes.get("id") for _, attributes in found}
    for tag, attributes in found:
        if tag == "a":
            link = attributes["href"] or ""
            assert link[1:] in ids if link.startswith("#") else (report.parent / link).exists(), link
    style = re.search(r"<style>(.*?)</style>", report.read_text(encoding="utf-8"), re.S)
    assert style and "url(" not in style[1] and "@import" not in style[1]


def test_whatever_a_user_gave_is_escaped(report):
    """Oracle: the name appears as text, never as markup or template."""
    text = report.read_text(encoding="utf-8")
    assert "<script" not in text and "{{ 7 * 7 }}" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_page_says_what_is_missing_failed_and_unequal(report):
    """Oracle: six of eight runs end, one is made to fail, hardware and budgets are the same."""
    text = report.read_text(encoding="utf-8")
    assert "8 runs (4 rows, 2 seeds), 6 done, 1 failed." in text
    assert "python run_all.py run demo" in text
    assert "All rows ran on the same hardware." in text and "within 2%" in text
    assert "failed in stage Rev" in text and "Example CPU, 2 threads, fp32" in text
    assert 'id="scorecard"' in text and "claims can be decided with 2 seeds; together they need at least" in text


def test_every_claim_opens_to_its_comparisons(tmp_path):
    """Oracle: ELLE against ER after each of four later domains, in a details element without a script."""
    synthetic.write(tmp_path / "runs", "demo", rows=[("ER", "er", {}), ("ELLE", "elle", {})], seeds=5)
    synthetic.report("demo", load_runs(tmp_path / "runs", "demo"), [], tmp_path)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    claim = text[text.index("below ER&#39;s after every domain.") :]
    details = claim[claim.index("<details>") : claim.index("</details>")]
    assert "<summary>4 comparisons</summary>" in details
    assert re.findall(r"ELLE against ER after (\w+)", details) == ["Ns", "Rev", "Bio", "CS"]


@pytest.mark.parametrize("paper", [False, True])
def test_parts_of_the_paper_are_shown_to_who_asks(tmp_path, paper):
    """Oracle: what a suite says: its title heads the page; scorecard and printed numbers come with `paper` alone."""
    synthetic.write(tmp_path / "runs", "demo", rows=[("ER", "er", {}), ("ELLE", "elle", {})])
    suite = load_suite("demo").model_copy(update={"paper": paper, "title": "Tales & <saga>"})
    study = Study("demo", load_runs(tmp_path / "runs", "demo"), title=suite.title, paper=suite.paper)
    render(study, [synthetic.load("main_pretraining")], paper_tables.catalogue(), tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "<h1>Tales &amp; &lt;saga&gt;</h1>" in text
    shown = ("scorecard" in text.lower(), "the paper prints" in text, (tmp_path / "out" / "scorecard.md").exists())
    assert shown == (paper, paper, paper)


def test_no_figure_stands_twice_in_a_page(tmp_path):
    """Oracle: three exhibits that look the same in this suite: one picture, and links to the files of all three."""
    synthetic.write(tmp_path / "runs", "demo", rows=[("ER", "er", {})], seeds=1, scores=False, evaluations=1)
    names = ["trend_main", "trend_gpt", "trend_half_time"]
    synthetic.report("demo", load_runs(tmp_path / "runs", "demo"), names, tmp_path)
    found = tags(tmp_path / "index.html")
    assert sum(tag == "img" for tag, _ in found) == 1
    links = {attributes["href"] for tag, attributes in found if tag == "a"}
    assert {f"{name}.{suffix}" for name in names for suffix in ("pdf", "png")} <= links


def browse(report: Path, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on this machine (Debian: chromium)")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=3000", *options, report.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


# added to a copy of the page, so that the browser itself says what it drew
PROBE = """<script>
addEventListener("load", () => { document.title = JSON.stringify({
  images: [...document.images].map(i => i.complete && i.naturalWidth > 400 && i.getBoundingClientRect().width > 200),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  background: getComputedStyle(document.body).backgroundColor,
})});
</script>"""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (500, "dark")])
def test_a_browser_draws_all_figures_without_complaint(report, tmp_path, width, scheme):
    """Oracle: Chromium: no console message, every image decoded, no sideways scrolling, the asked colour scheme."""
    copy = tmp_path / "probe.html"
    copy.write_text(report.read_text(encoding="utf-8").replace("</body>", PROBE + "</body>"), encoding="utf-8")
    # preferredColorScheme: 0 is dark, 1 is light
    setting = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
    done = browse(copy, tmp_path, setting, f"--window-size={width},900", "--dump-dom")
    assert "CONSOLE" not in done.stderr, done.stderr
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title
    assert '"images":[true,true]' in title[1] and '"overflow":0' in title[1], title[1]
    assert ("rgb(255, 255, 255)" in title[1]) == (scheme == "light"), title[1]
