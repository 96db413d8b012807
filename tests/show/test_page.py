"""Pages of any sections."""

from pipeline.analysis.tables import Table
from pipeline.show.page import numeric, page, prose
from pipeline.show.plot import Chart, ChartAxis, Mark, Panel
from pipeline.show.problems import AskedChains
from pipeline.show.sections import Section

HOSTILE = "</script><i>"
MARK = Mark(kind="spans", name=HOSTILE, hue="blue", x=[0], until=[1], y=[0])
PANEL = Panel(y=ChartAxis(), marks=[MARK], rows=[f"{HOSTILE}'\""], height=321)


def test_sections_of_any_kind_become_one_page_on_which_only_our_own_script_may_run() -> None:
    charts = [Chart(title="A chart", x=ChartAxis(title=HOSTILE), panels=[PANEL])]
    tables = [Table("A table", ("name", "number"), (("<x>", "12"),), "its note")]
    one = Section(title="One <b>", notices=["Careful & slow"], text=["Some text."], charts=charts, tables=tables)
    html = page("run.html", "Title <1>", first=[one, Section(title="Two", folded=True)], runs=[], asked=AskedChains())
    assert "<title>Title &lt;1&gt;</title>" in html
    assert "<h2>One &lt;b&gt;</h2>" in html
    assert "<summary>Two</summary>" in html
    assert '<p class="notice">Careful &amp; slow</p>' in html
    assert '<th scope="row">&lt;x&gt;</th><td class="number">12</td>' in html
    assert 'style="height: 321px" data-rows="[&#34;&lt;/script&gt;&lt;i&gt;&#39;\\&#34;&#34;]"' in html
    assert 'd="M0 10000H10000"' in html
    assert "<i>" not in html
    assert html.count("<script") == 1, "ours"
    policy = html.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]


def test_columns_of_numbers_are_known() -> None:
    rows = (("a", "1,000", "-", "baseline", "x 1"), ("b", "-0.5%", "-", "+3", "2"))
    assert numeric(Table("", ("",) * 5, rows)) == [False, True, True, True, False]
    assert numeric(Table("", ("", ""), ())) == [False, False]


def test_backticks_are_code_and_nothing_else_is_markup() -> None:
    assert prose("a `b<i>` <b>\u202e") == "a <code>b&lt;i&gt;</code> &lt;b&gt;\\u202e"
