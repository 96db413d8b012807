"""Pages as a browser shows them: nothing is asked of a network, every plot is drawn, chains open, hostile text stays text."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.points import POINTS, sweep_folder

pytestmark = pytest.mark.browser
MARKS = "place => place._fullData.map((trace) => (trace.visible === true ? trace._length : null))"
"""Points of each trace that is not switched off."""
COLOURED = """async (place) => {
  const image = new Image();
  image.src = await Plotly.toImage(place, { format: "png", width: 900, height: 700 });
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [900, 700];
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const dots = context.getImageData(0, 100, 900, 600).data;
  let coloured = 0;
  for (let at = 0; at < dots.length; at += 4) coloured += Math.max(...dots.slice(at, at + 3)) - Math.min(...dots.slice(at, at + 3)) > 60;
  return coloured;
}"""
"""Dots of the drawn picture that are no grey."""


class Opened:
    """A page in the browser, and what it asked for and said."""

    def __init__(self, browser: Any, path: Path, width: int) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("console", self._hear)
        self.page.goto(path.as_uri())

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning") and "GL Driver Message" not in message.text:
            self.said.append(f"{message.type}: {message.text}")

    def plots(self) -> Iterator[Any]:
        """Each plot, once it is drawn."""
        for place in self.page.query_selector_all(".plot"):
            place.scroll_into_view_if_needed()
            self.page.wait_for_function("place => place.calcdata && place.calcdata.length > 0", arg=place)
            yield place

    def gantt(self) -> Any:
        """The plot of chains, in view and drawn."""
        place = next(
            each for each in self.all(".plot") if "row each" in each.evaluate("place => place.parentElement.textContent.slice(0, 200)")
        )
        place.scroll_into_view_if_needed()
        self.page.wait_for_function("place => place.calcdata && place.calcdata.length > 0", arg=place)
        return place

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.page.query_selector_all(selector)
        return found

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.page.eval_on_selector_all(selector, "all => all.map(each => each.textContent)")
        return found

    def check(self) -> None:
        """It asked for itself alone, and nothing went wrong."""
        assert self.said == []
        outside = [url for url in self.requests if not url.startswith(("blob:null/", "data:"))]  # pictures made in the page itself
        assert outside == [self.page.url]
        assert self.page.url.startswith("file:")


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Opened]]:
    folder, pages = tmp_path_factory.mktemp("pages"), []

    def open_page(html: str, width: int = 1200) -> Opened:
        path = folder / f"{len(pages)}.html"
        path.write_text(html)
        pages.append(Opened(browser, path, width))
        return pages[-1]

    yield open_page
    for each in pages:
        each.context.close()


@pytest.fixture(scope="module")
def report(ran: Path, page_of: Callable[..., str], opened: Callable[..., Opened]) -> Opened:
    """The page of the small run, all of its chains to read."""
    return opened(page_of(ran))


def test_every_plot_is_drawn_without_a_network_or_an_error(report: Opened) -> None:
    titles = []
    for place in report.plots():
        titles.append(place.evaluate("place => place.parentElement.querySelector('figcaption').textContent"))
        marks = [count for count in place.evaluate(MARKS) if count is not None]
        assert marks, titles[-1]
        assert all(count > 0 for count in marks), titles[-1]
        assert place.evaluate(COLOURED) > 100, titles[-1]
    assert len(titles) == len(set(titles)) >= 9
    report.check()


def test_zooming_into_a_few_chains_widens_their_lines(report: Opened) -> None:
    place = report.gantt()
    width = "place => place.data[0].line.width"
    place.evaluate("place => Plotly.relayout(place, { 'yaxis.range': [99.5, -0.5] })")
    narrow = place.evaluate(width)
    place.evaluate("place => Plotly.relayout(place, { 'yaxis.range': [9.5, -0.5] })")
    assert place.evaluate(width) == 16 > narrow
    assert place.evaluate("place => place.data.every(trace => trace.line.width === 16)")
    report.check()


def test_a_chain_opens_with_its_steps_in_their_colours(ran: Path, report: Opened) -> None:
    steps = pq.read_table(ran / "steps", columns=["chain_id", "decision", "step_text"]).to_pylist()
    decided = {row["chain_id"] for row in steps if row["decision"] == "fallback"}
    transcript = next(each for each in report.all(".transcript") if name_of(each) in decided)
    mine = [row for row in steps if row["chain_id"] == name_of(transcript)]
    assert transcript.query_selector(".step") is None, "what is not opened costs nothing"
    transcript.query_selector("summary").click()
    transcript.wait_for_selector(".told")
    boxes = transcript.query_selector_all(".step")
    assert [box.get_attribute("class") for box in boxes] == [f"step {row['decision']}" for row in mine]
    assert [box.query_selector(".text").text_content() for box in boxes] == [row["step_text"].strip("\n") for row in mine]
    hues = {box.get_attribute("class"): box.evaluate("box => getComputedStyle(box).borderLeftColor") for box in boxes}
    assert hues == {"step guidance": "rgb(53, 115, 185)", "step accepted": "rgb(47, 158, 110)", "step fallback": "rgb(224, 138, 30)"}
    rejected = transcript.query_selector_all(".step.fallback .candidate.rejected")
    assert len(rejected) == 5 * sum(row["decision"] == "fallback" for row in mine)
    assert all(each.is_visible() for each in rejected)
    assert "%" in rejected[0].query_selector(".head").inner_text(), "the verifier's probability"
    assert "What is" in transcript.inner_text(), "the problem"
    report.check()


def test_unverified_steps_show_what_the_gate_found_and_reject_nothing(opened: Callable[..., Opened], page_of: Any, routed: Path) -> None:
    page = opened(page_of(routed))
    for transcript in page.all(".transcript"):
        transcript.query_selector("summary").click()
        transcript.wait_for_selector(".told")
    unverified = page.all(".step.unverified")
    assert unverified
    assert all("passed" in step.query_selector_all(".head")[1].inner_text() for step in unverified)
    assert all(step.query_selector(".candidate.not_chosen") and not step.query_selector(".candidate.rejected") for step in unverified)
    page.check()


def test_chains_are_filtered_by_why_they_are_shown(report: Opened) -> None:
    report.page.click(".filter button[data-kind=failed]")
    seen = [each for each in report.all(".transcript") if each.is_visible()]
    assert [name_of(each) for each in seen] == ["(row 21)#0"]
    seen[0].query_selector("summary").click()
    seen[0].wait_for_selector(".told")
    assert "BadRow" in seen[0].inner_text()
    report.page.click(".filter button[data-kind=all]")
    assert all(each.is_visible() for each in report.all(".transcript"))
    report.check()


def test_hostile_text_is_shown_as_text_and_nothing_of_it_runs(
    hostile: Path, shown: str, page_of: Callable[..., str], opened: Callable[..., Opened]
) -> None:
    report = opened(page_of(hostile))
    for place in report.plots():
        place.hover()
    for line in report.all(".transcript > summary"):
        line.click()
    report.page.wait_for_function("[...document.querySelectorAll('.transcript')].every(transcript => transcript.querySelector('.told'))")
    report.gantt()
    assert report.page.evaluate("window.hit") is None
    foreign = "main img:not(.plot img), main a[href], main section b b, main script:not([type])"
    assert report.page.locator(foreign).count() == 0
    assert report.page.title() == "Run <b>run"
    for place in ("#s-1 table", ".transcript .name", ".step .text", ".candidate .text", ".plot .legendtext", ".plot .ytick text"):
        texts = report.texts(place)
        assert any(shown in text for text in texts), (place, texts[:3])
    report.check()


def test_a_narrow_page_does_not_run_over_its_edge(ran: Path, page_of: Callable[..., str], opened: Callable[..., Opened]) -> None:
    report = opened(page_of(ran), width=420)
    assert sum(1 for _ in report.plots()) >= 9
    assert report.page.evaluate("document.scrollingElement.scrollWidth") <= 420
    report.check()


def test_several_runs_are_compared_first(ran: Path, alone: Path, page_of: Callable[..., str], opened: Callable[..., Opened]) -> None:
    report = opened(page_of(ran, alone))
    assert report.texts("h2") == ["Comparison", "run", "alone"]
    assert {"run", "alone"} <= set(report.texts("#s-1 tbody th"))
    assert sum(1 for _ in report.plots()) >= 16
    report.check()


def test_runs_that_cannot_be_compared_are_shown_all_the_same(hostile: Path, ran: Path, page_of: Callable[..., str]) -> None:
    html = page_of(ran, hostile)
    assert "These runs are not compared: &lt;b&gt;run and run have no finished problem in common." in html
    assert html.count("Summary</h3>") == 2


def test_a_sweep_shows_its_curves(tmp_path: Path, page_of: Callable[..., str], opened: Callable[..., Opened]) -> None:
    report = opened(page_of(sweep_folder(tmp_path / "sweep", POINTS)))
    places = list(report.plots())
    assert len(places) >= 6
    marks = [[count for count in place.evaluate(MARKS) if count is not None] for place in places]
    assert all(marks)
    assert all(count > 0 for of_place in marks for count in of_place)
    assert report.page.title() == "Sweep sweep"
    report.check()


def name_of(transcript: Any) -> str:
    name: str = transcript.query_selector(".name").inner_text()
    return name
