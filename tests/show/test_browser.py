"""Pages as a browser shows them: light and dark, narrow and wide, by mouse and by keyboard; hostile text stays text."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn

from pipeline.show.pages import view_app
from pipeline.show.report import report
from pipeline.store.folder import hold
from pipeline.store.rows import ChainRow
from pipeline.store.store import RunStore
from tests.show.conftest import HOSTILE, SHOWN
from tests.support.patience import HANGS_S
from tests.support.rows import blank

pytestmark = pytest.mark.browser
PATHS = ("/", "/run?run=speccot", "/run?run=sweep%2F%3Cb%3Erun", "/chain?run=speccot&chain=p3%230", "/run?run=damaged")
DRAWN = "all => all.map((each) => each.getBBox()).filter((box) => box.width + box.height > 0)"
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
Open = Callable[..., Any]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on PATH")
    with api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    """Where the pages of the runs are served."""
    server = uvicorn.Server(uvicorn.Config(view_app(runs), log_level="critical", lifespan="off"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def opened(browser: Any, address: str, tmp_path: Path) -> Iterator[Open]:
    """Opens a page of the server, or HTML as a file; at the end all of them asked for nothing elsewhere and said nothing."""
    contexts, said, asked = [], list[str](), list[str]()

    def open_page(what: str, width: int = 1400, scheme: str = "light") -> Any:
        if not what.startswith("/"):
            (tmp_path / "page.html").write_text(what)
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.set_default_timeout(1000 * HANGS_S)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address + what if what.startswith("/") else (tmp_path / "page.html").as_uri())
        return page

    yield open_page
    for each in contexts:
        each.close()
    assert [url for url in asked if not url.startswith((address, "data:", "file:"))] == []
    assert [text for text in said if "400 (Bad Request)" not in text] == []


def names(page: Any) -> list[str]:
    found: list[str] = page.locator(".problems > li:not([hidden]) .problem > small").all_inner_texts()
    return found


@pytest.mark.parametrize(("width", "scheme"), [(500, "light"), (1400, "dark")])
def test_no_page_runs_over_its_edge_and_all_are_readable(opened: Open, runs: Path, swept: Path, width: int, scheme: str) -> None:
    for path in (*PATHS, report([runs / "speccot", runs / "alone"]), report([swept])):
        page = opened(path, width, scheme)
        page.evaluate(OPEN_ALL)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, path[:80]
        ink, ground = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
        light = [sum(map(int, colour[4:-1].split(","))) for colour in (ink, ground)]
        assert (light[0] < light[1]) == (scheme == "light")
        assert abs(light[0] - light[1]) > 400
        boxes = page.locator(".panel svg > path:not(.grid)").evaluate_all(DRAWN)
        assert bool(boxes) == (not path.startswith("/") or path.startswith("/run?run=s")), path[:80]


def test_from_the_list_to_a_chain_and_on_by_keyboard(opened: Open) -> None:
    page = opened("/")
    page.locator("table a", has_text="speccot").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/run?run=speccot")
    page.keyboard.press("/")
    page.keyboard.type("is 1")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=is+1*")
    assert set(names(page)) == {"p1#0", *(f"p{i}#0" for i in range(10, 20))}
    page.locator("label", has_text="wrong").click()
    page.wait_for_url("**verdict=wrong*")
    found = names(page)
    page.locator(".problems a").first.click()
    for key, name in (("", found[0]), ("j", found[1]), ("j", found[2]), ("k", found[1])):
        if key:
            page.keyboard.press(key)
        page.wait_for_selector(f"h1:text-is('{name}')")


def test_a_chain_shows_its_steps_or_only_the_rejected_ones(opened: Open) -> None:
    page = opened("/run?run=speccot&order=rejected")
    page.locator(".problems a").first.click()
    page.wait_for_selector(".step.fallback")
    assert page.locator(".step.fallback .candidate.rejected").first.is_visible()
    assert "%" in page.locator(".fallback .candidate summary").first.inner_text(), "the verifier's probability"
    page.locator(".only input").check()
    assert page.locator(".step.accepted:visible").count() == 0
    assert page.locator(".step.fallback:visible").count() > 0


def test_a_row_of_a_chart_leads_to_its_chain(opened: Open, ran: Path) -> None:
    for what in ("/run?run=speccot", report([ran])):
        page = opened(what)
        chart = page.locator("[data-rows]").first
        chart.hover(position={"x": 200, "y": 20})
        name = page.locator(".tip").inner_text()
        chart.click(position={"x": 200, "y": 20})
        if what.startswith("/"):
            page.wait_for_selector(f"h1:text-is('{name}')")
        else:
            assert page.locator("details[open] > .row .problem > small").first.inner_text() == name


def test_problems_of_a_file_are_found_and_ordered(opened: Open, ran: Path) -> None:
    page = opened(report([ran]))
    page.locator("label", has_text="failed").click()
    assert names(page) == ["(row 21)#0"]
    page.locator("label", has_text="all").click()
    page.locator("select").select_option("rejected")
    rejected = page.locator(".problems > li").evaluate_all("all => all.map((each) => Number(each.dataset.rejected))")
    assert rejected == sorted(rejected)
    page.locator("input[type=search]").fill("is 7 +")
    assert names(page) == ["p7#0"]
    page.locator("summary.row:visible").click()
    assert page.locator(".transcript .step:visible").count() > 0


def test_a_run_that_goes_on_is_asked_for_anew_until_its_end(opened: Open, runs: Path) -> None:
    folder = runs / "going"
    folder.mkdir()
    shutil.copy(runs / "speccot" / "run.json", folder)
    with hold(folder):
        store = RunStore(folder)
        store.append("chains", [blank(ChainRow, chain_id="first#0", stop_reason="end", input_row=1)])
        page = opened("/run?run=going")
        assert page.locator(".badge.running").count() == 1
        store.append("chains", [blank(ChainRow, chain_id="second#0", stop_reason="end", input_row=2)])
        page.wait_for_selector("a:has-text('second#0')")
        assert page.locator("progress").get_attribute("value") == "2"
        store.close()
    page.wait_for_selector(".badge.finished")
    shutil.rmtree(folder)


def test_hostile_text_is_shown_as_text_and_nothing_of_it_runs(opened: Open, runs: Path) -> None:
    run, chain, text = quote("sweep/<b>run"), quote(f"p3#0{HOSTILE}", safe=""), quote(HOSTILE, safe="")
    paths = ("/", f"/run?run={run}", f"/run?run={run}&search={text}", f"/chain?run={run}&chain={chain}", f"/run?run={text}")
    for what in (*paths, report([runs / "sweep/<b>run"])):
        page = opened(what)
        page.evaluate(OPEN_ALL)
        if page.locator("[data-rows]").count():
            page.locator("[data-rows]").first.hover()
            assert SHOWN in page.locator(".tip").inner_text()
        assert page.evaluate("window.hit") is None
        foreign = "main img:not([src^='/spark']), main b b, main i b, a[href^='https:'], main script"
        assert page.locator(foreign).count() == 0, what[:80]
        seen = page.locator("body").inner_text()
        assert SHOWN in seen or "<b>run" in seen, what[:80]
        assert "\u202e" not in seen
