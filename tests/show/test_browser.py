"""Pages as a browser shows them: light and dark, narrow and wide, by mouse and by keyboard; hostile text stays text."""

import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
DRAWN = "all => all.map((each) => each.getBBox()).filter((box) => box.width + box.height > 0)"
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
Open = Callable[[str], Any]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def opened(runs: Path, swept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Opens a page of the server, or one in a file, in one browser; at the end all of them asked for nothing elsewhere and said nothing.

    The runs are made before: the browser keeps an event loop running in this thread.
    """
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on PATH")
    folder, said, asked = tmp_path_factory.mktemp("files"), list[str](), list[str]()
    of = {"one": [runs / "speccot"], "two": [runs / "speccot", runs / "alone"], "hostile": [runs / "sweep/<b>run"], "sweep": [swept]}
    for name, shown in of.items():
        (folder / f"{name}.html").write_text(report(shown))
    server = uvicorn.Server(uvicorn.Config(view_app(runs), log_level="critical", lifespan="off"))
    with api.sync_playwright() as play, socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        page, address = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page(), listener.getsockname()[1]
        page.set_default_timeout(1000 * HANGS_S)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        pool.submit(server.run, [listener])

        def open_page(what: str) -> Any:
            page.goto(f"http://127.0.0.1:{address}{what}" if what.startswith("/") else (folder / f"{what}.html").as_uri())
            return page

        try:
            yield open_page
        finally:
            page.close()
            server.should_exit = True
    assert [url for url in asked if not url.startswith((f"http://127.0.0.1:{address}/", "data:", "file:"))] == []
    assert [text for text in said if "400 (Bad Request)" not in text] == []


def names(page: Any) -> list[str]:
    found: list[str] = page.locator(".problems > li:not([hidden]) .problem > small").all_inner_texts()
    return found


def test_every_page_is_readable_within_its_edges_and_hostile_text_stays_text(opened: Open) -> None:
    run, chain, text = quote("sweep/<b>run"), quote(f"p3#0{HOSTILE}", safe=""), quote(HOSTILE, safe="")
    hostile = ("hostile", f"/run?run={run}", f"/run?run={run}&search={text}", f"/chain?run={run}&chain={chain}", f"/run?run={text}", "/")
    undrawn = (*hostile[3:], "/run?run=damaged")
    for what in (*hostile, "/run?run=damaged", "/run?run=speccot", "two", "sweep"):
        page = opened(what)
        page.evaluate(OPEN_ALL)
        assert bool(page.locator(".panel svg > path:not(.grid)").evaluate_all(DRAWN)) == (what not in undrawn), what
        for width, scheme in ((500, "light"), (1400, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.scrollingElement.scrollWidth") <= width, what
            ink, ground = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
            light = [sum(map(int, colour[4:-1].split(","))) for colour in (ink, ground)]
            assert ((light[0] < light[1]) == (scheme == "light"), abs(light[0] - light[1]) > 400) == (True, True)
        if what in hostile[:3]:
            page.locator("[data-rows]").first.hover()
            assert SHOWN in page.locator(".tip").inner_text()
        assert page.evaluate("window.hit") is None
        foreign = "main img:not([src^='/spark']), main b b, main i b, a[href^='https:'], main script"
        assert page.locator(foreign).count() == 0, what
        seen = page.locator("body").inner_text()
        assert (what not in hostile or SHOWN in seen or "<b>run" in seen, "\u202e" in seen) == (True, False), what


def test_from_the_list_to_a_chain_and_on_by_keyboard(opened: Open) -> None:
    page = opened("/")
    page.locator("table a", has_text="speccot").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/run?run=speccot")
    page.keyboard.press("/")
    page.keyboard.type("is 1")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=is+1*")
    page.locator("label", has_text="wrong").click()
    page.wait_for_url("**verdict=wrong*")
    page.locator("select").select_option("rejected")
    page.wait_for_url("**order=rejected*")
    found = names(page)
    page.locator(".problems a").first.click()
    for key, name in (("", found[0]), ("j", found[1]), ("j", found[2]), ("k", found[1]), ("k", found[0])):
        if key:
            page.keyboard.press(key)
        page.wait_for_selector(f"h1:text-is('{name}')")
    assert page.locator(".step.fallback .candidate.rejected").first.is_visible()
    page.locator(".only input").check()
    assert page.locator(".step.accepted:visible").count() == 0
    assert page.locator(".step.fallback:visible").count() > 0


def test_a_row_of_a_chart_leads_to_its_chain_and_problems_of_a_file_are_found_and_ordered(opened: Open) -> None:
    for what in ("/run?run=speccot", "one"):
        page = opened(what)
        chart = page.locator("[data-rows]").first
        chart.hover(position={"x": 200, "y": 20})
        name = page.locator(".tip").inner_text()
        chart.click(position={"x": 200, "y": 20})
        page.wait_for_selector(f"h1:text-is('{name}')" if what != "one" else f"details[open] > .row .problem > small:text-is('{name}')")
    page.locator("label", has_text="failed").click()
    assert names(page) == ["(row 21)#0"]
    page.locator("label", has_text="all").click()
    page.locator("select").select_option("rejected")
    rejected = page.locator(".problems > li").evaluate_all("all => all.map((each) => Number(each.dataset.rejected))")
    assert rejected == sorted(rejected)
    page.locator("input[type=search]").fill("is 7 +")
    assert names(page) == ["p7#0"]


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
