"""`pipeline view` as a browser shows it: light and dark, narrow and wide, by mouse and by keyboard; hostile text stays text."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn

from pipeline.show.app import view_app
from pipeline.show.shelf import Shelf
from pipeline.store.folder import hold
from pipeline.store.rows import ChainRow
from pipeline.store.store import RunStore
from tests.support.patience import HANGS_S
from tests.support.rows import blank
from tests.support.shown_runs import HOSTILE, SHOWN

pytestmark = pytest.mark.browser
PATHS = ("/", "/run?run=speccot", "/run?run=sweep%2F%3Cb%3Erun", "/chain?run=speccot&chain=p3%230", "/run?run=damaged")


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    """Where the pages of the runs are served."""
    server = uvicorn.Server(uvicorn.Config(view_app(Shelf(runs)), log_level="critical", lifespan="off"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens a page; at the end all of them asked for nothing elsewhere and said nothing."""
    contexts, said, asked = [], list[str](), list[str]()

    def open_page(path: str, width: int = 1400, scheme: str = "light") -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.set_default_timeout(1000 * HANGS_S)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text) if "GL Driver Message" not in message.text else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address + path)
        return page

    yield open_page
    for each in contexts:
        each.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert [text for text in said if "400 (Bad Request)" not in text] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [500, 1400])
def test_no_page_runs_over_its_edge_and_all_are_readable(opened: Callable[..., Any], width: int, scheme: str) -> None:
    for path in PATHS:
        page = opened(path, width, scheme)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, path
        ink, ground = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
        light = [sum(map(int, colour[4:-1].split(","))) for colour in (ink, ground)]
        assert (light[0] < light[1]) == (scheme == "light")
        assert abs(light[0] - light[1]) > 400


def test_from_the_list_to_a_chain_and_on_by_keyboard(opened: Callable[..., Any]) -> None:
    page = opened("/")
    page.locator("table a", has_text="speccot").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/run?run=speccot")
    page.keyboard.press("/")
    page.keyboard.type("is 1")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=is+1*")
    names = page.locator("table.list tbody th a").all_inner_texts()
    assert set(names) == {"p1#0", *(f"p{i}#0" for i in range(10, 20))}
    page.locator("label", has_text="wrong").click()
    page.wait_for_url("**verdict=wrong*")
    names = page.locator("table.list tbody th a").all_inner_texts()
    page.locator("table.list tbody th a").first.focus()
    page.keyboard.press("Enter")
    for name in names[:3]:
        page.wait_for_selector(f"h1:text-is('{name}')")
        page.wait_for_selector(".told .step")
        page.keyboard.press("j")
    page.wait_for_selector(f"h1:text-is('{names[3]}')")
    page.keyboard.press("k")
    page.wait_for_selector(f"h1:text-is('{names[2]}')")
    page.reload()
    page.wait_for_selector(f"h1:text-is('{names[2]}')")


def test_verdicts_have_the_colours_of_a_report(opened: Callable[..., Any]) -> None:
    page = opened("/run?run=speccot&order=rejected")
    page.locator("table.list tbody th a").first.click()
    page.wait_for_selector(".step.fallback")
    hue = "selector => getComputedStyle(document.querySelector(selector)).borderLeftColor"
    assert page.evaluate(hue, ".step.fallback") == "rgb(224, 138, 30)"
    assert page.evaluate(hue, ".step.accepted") == "rgb(47, 158, 110)"
    assert page.locator(".step.fallback .candidate.rejected").first.is_visible()


def test_figures_are_fetched_when_they_are_asked_for(opened: Callable[..., Any]) -> None:
    page = opened("/run?run=speccot")
    page.locator("summary", has_text="Figures").click()
    page.wait_for_selector("#part table")
    assert "Stages" in page.locator("#part").inner_text()


def test_a_run_that_goes_on_is_asked_for_anew_until_its_end(opened: Callable[..., Any], runs: Path) -> None:
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


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/run?run={run}",
        "/run?run={run}&search={text}",
        "/chain?run={run}&chain={chain}",
        "/run?run={text}",
    ],
)
def test_hostile_text_is_shown_as_text_and_nothing_of_it_runs(opened: Callable[..., Any], path: str) -> None:
    filled = path.format(run=quote("sweep/<b>run"), chain=quote(f"p3#0{HOSTILE}", safe=""), text=quote(HOSTILE, safe=""))
    page = opened(filled)
    if path.startswith("/chain"):
        page.wait_for_selector(".told .step")
        assert SHOWN in page.locator(".told").inner_text()
    assert page.evaluate("window.hit") is None
    assert page.locator("img, main b b, a[href^='https:'], script:not([src]):not([type='application/json'])").count() == 0
    assert "<b>run" in page.locator("body").inner_text() or "={text}" in path
