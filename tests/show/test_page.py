"""Pages of any sections, and the file they are written to."""

import json
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest

from pipeline.analysis.compare.cells import Table
from pipeline.errors import UsageError
from pipeline.show.page import Figure, Section, is_page, numeric, page
from pipeline.show.report import check_place, write

SECTIONS = [
    Section(
        title="One <b>",
        notices=["Careful & slow"],
        text=["Some text."],
        figures=[Figure("A plot", go.Figure(go.Bar(x=["</script><i>"], y=[1]), layout={"height": 321}), "a note")],
        tables=[Table("A table", ("name", "number"), (("<x>", "12"),), "its note")],
        sections=[Section(title="Inner")],
    ),
    Section(title="Two"),
]


def test_sections_of_any_kind_and_depth_become_one_page() -> None:
    html = page("Title <1>", SECTIONS)
    assert "<title>Title &lt;1&gt;</title>" in html
    assert "<h2>One &lt;b&gt;</h2>" in html
    assert "<h3>Inner</h3>" in html
    assert '<a href="#s-1-1">Inner</a>' in html
    assert '<p class="notice">Careful &amp; slow</p>' in html
    assert '<th scope="row">&lt;x&gt;</th><td class="number">12</td>' in html
    assert "min-height: 321px" in html
    assert html.count("<script") == 3, "plotly, ours, and one plot's JSON"
    assert html.count("plotly.js v") == 1


def test_a_plot_is_json_in_which_no_parser_finds_an_element() -> None:
    found = re.search(r'<script type="application/json" id="s-1-plot1">(.*?)</script>', page("x", SECTIONS), re.DOTALL)
    assert found is not None
    assert not set("<>&") & set(found[1])
    assert json.loads(found[1])["data"][0]["x"] == ["</script><i>"]


def test_only_our_own_scripts_may_run() -> None:
    html = page("x", SECTIONS)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert policy[1].count("sha256-") == 2
    assert "unsafe-inline" not in policy[1].partition("script-src")[2].partition(";")[0]


def test_long_tables_are_closed_at_first() -> None:
    short, long = (Table("t", ("a",), (("1",),) * rows) for rows in (16, 17))
    assert "<details>" not in page("x", [Section(title="s", tables=[short])]).partition("<main>")[2].partition("<script")[0]
    assert "<summary>t <span" in page("x", [Section(title="s", tables=[long])])


def test_columns_of_numbers_are_known() -> None:
    rows = (("a", "1,000", "-", "baseline", "x 1"), ("b", "-0.5%", "-", "+3", "2"))
    assert numeric(Table("", ("",) * 5, rows)) == [False, True, False, True, False]
    assert numeric(Table("", ("", ""), ())) == [False, False]


def test_a_report_is_known_by_its_start() -> None:
    assert is_page(page("x", [])[:4096])
    assert not is_page("<!doctype html><html>")


def test_only_a_page_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("my notes")
    with pytest.raises(UsageError, match=r"report.html: exists and is not a page of this program; choose another file with --output"):
        check_place(path)
    write(path, page("first", []))
    check_place(path)
    write(path, page("second", []))
    assert "<h1>second</h1>" in path.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("output", "says"), [(".", "is a directory; expected a file"), ("nowhere/x.html", "no such directory")], ids=["folder", "no folder"]
)
def test_places_where_no_report_can_be(tmp_path: Path, output: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_place(tmp_path / output)


def test_what_cannot_be_written_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written: no such file or directory; choose another file with --output"):
        write(tmp_path / "gone/report.html", "x")
