"""The pages of `pipeline view`, served on this machine: requests enter, HTML leaves. Only a shelf of runs is read, nothing is written.

Requests must name this machine as their host, so that no other site's name, made to mean this machine, reads anything (DNS rebinding).
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from pipeline.errors import Interrupted, PipelineError, UsageError
from pipeline.local_web import is_named, listening
from pipeline.show.page import page, policy
from pipeline.show.plot import ChartAxis, Mark, path
from pipeline.show.problems import AskedChains, chain_page, neighbours
from pipeline.show.report import RunPage, is_sweep, sweep_sections
from pipeline.show.sections import clock, settings
from pipeline.show.shelf import Shelf
from pipeline.show.transcripts import read_transcripts
from pipeline.store.run_file import RunFile
from pipeline.store.store import count_rows

HOST = "127.0.0.1"
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
AT_ONCE = 20_000
"""Calls up to which the figures of a run are worked out before its page is shown."""
SPARKS = 30
"""Bars of a run's little chart in the list."""
_SAMPLES = """
SELECT chain_id FROM chains WHERE input_row = (SELECT any_value(input_row) FROM chains WHERE chain_id = $chain) ORDER BY sample_index"""
_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10000 10000" preserveAspectRatio="none">
<path fill="#3573b9" opacity="0.8" d="{}"/></svg>"""


def serve_view(folder: Path, port: int, opened: Callable[[str], None]) -> None:
    """Serve the runs in `folder` on a port of 127.0.0.1, 0 for a free one; `opened` gets the URL once it answers.

    Raises `UsageError` where `folder` holds no runs, or the port cannot be listened on, and `Interrupted` at Ctrl-C.
    """
    shelf = Shelf(folder)
    if not folder.is_dir():
        what = "not a directory" if folder.exists() else "no such directory"
        raise UsageError(f"{folder}: {what}; name the one that contains your run folders")
    if not shelf.folders():
        raise UsageError(f"{folder}: contains no runs; name the folder that contains your run folders")
    with listening(HOST, port) as listener:
        config = uvicorn.Config(view_app(shelf), log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        opened(f"http://{HOST}:{listener.getsockname()[1]}/")
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # raised again by uvicorn once it has ended in order
            raise Interrupted from None


def view_app(shelf: Shelf) -> Starlette:
    """The application that shows the runs of a shelf to requests that name this machine; in threads, as pages ask queries."""

    def answer(request: Request) -> Response:
        if not is_named(request.headers, ()):
            return PlainTextResponse("Ask for these pages at 127.0.0.1 or localhost.\n", 400, HEADERS)
        make = PAGES.get(request.url.path)
        try:
            if make is None:
                raise UsageError(f"{request.url.path}: no such page; the list of runs is at /")
            return make(shelf, request)
        except PipelineError as error:
            return _page(shelf, "page.html", "Cannot be shown", 400 if make else 404, said=str(error).splitlines())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        shelf.interrupt()  # the end waits for threads

    return Starlette(routes=[Route("/{path:path}", answer)], lifespan=lifespan)


def _page(shelf: Shelf, template: str, title: str, status: int = 200, **values: Any) -> Response:
    text = page(template, title, **values, root=str(shelf.folder), served=True)
    return HTMLResponse(text, status, HEADERS | {"Content-Security-Policy": f"{policy()}; frame-ancestors 'none'"})


def _runs(shelf: Shelf, request: Request) -> Response:
    """The list of runs, below the curves of a sweep."""
    runs = shelf.runs()
    active = any(each.state is not None and each.state.state == "running" for each in runs)
    first = sweep_sections(shelf.folder)[1] if is_sweep(shelf.folder) else []
    return _page(shelf, "runs.html", "Runs", runs=runs, first=first, active=active)


def _run(shelf: Shelf, request: Request) -> Response:
    """A run: its figures, and a page of its problems."""
    name, asked = _given(request, "run"), AskedChains.of(request.query_params)
    folder, state = shelf.folder_of(name), shelf.state(name)
    with shelf.opened(name).query() as db:
        found = chain_page(db, asked, state.made_up)
    figures = shelf.opened(name, slow=True).figures() if count_rows(folder, "calls") <= AT_ONCE else None
    shown = RunPage(name=name, state=state, figures=figures, settings=settings(RunFile.read(folder)), found=found)
    return _page(shelf, "run.html", name, runs=[shown], first=[], asked=asked, run=name, active=state.state == "running")


def _figures(shelf: Shelf, request: Request) -> Response:
    """The figures of a run, as a part of its page that takes longer."""
    return _page(shelf, "part.html", "Figures", it=shelf.opened(_given(request, "run"), slow=True).figures())


def _chain(shelf: Shelf, request: Request) -> Response:
    """A chain step by step, with the way to those before and after it in the list that it was chosen from."""
    name, chain, asked = _given(request, "run"), _given(request, "chain"), AskedChains.of(request.query_params)
    run, state = RunFile.read(shelf.folder_of(name)), shelf.state(name)
    with shelf.opened(name).query() as db:
        if not (found := read_transcripts(db, [chain], state.made_up)):
            raise UsageError(f"{state.folder}: no chain {chain!r} that has ended")
        place = neighbours(db, asked, chain, state.made_up)
        samples = [each for (each,) in db.stream(_SAMPLES, chain=chain)]
    values: dict[str, Any] = {
        "it": found[0],
        "place": place,
        "samples": samples,
        "asked": asked,
        "clock": clock(run) if run.virtual_time else "",
    }
    return _page(shelf, "chain.html", f"{chain} of {name}", run=name, chain=chain, **values)


def _spark(shelf: Shelf, request: Request) -> Response:
    """How many chains of a run ended over time, as a picture."""
    with shelf.opened(_given(request, "run")).query() as db:
        heights, _ = np.histogram(db.columns("SELECT end_unix_ns FROM chains")["end_unix_ns"], SPARKS)
    at = np.arange(SPARKS)
    mark = Mark(kind="bars", hue="blue", x=at, until=at + 0.8, y=heights, low=np.zeros(SPARKS))
    return Response(_SVG.format(path(mark, ChartAxis(high=SPARKS), ChartAxis(high=max(1, heights.max())))), 200, HEADERS, "image/svg+xml")


def _given(request: Request, name: str) -> str:
    """A parameter of the URL; raises `UsageError` where it is missing."""
    if not (value := request.query_params.get(name)):
        raise UsageError(f"{request.url.path}: the parameter `{name}` is missing")
    return value


PAGES: dict[str, Callable[[Shelf, Request], Response]] = {
    "/": _runs,
    "/run": _run,
    "/figures": _figures,
    "/chain": _chain,
    "/spark": _spark,
}
"""The pages by their paths."""
