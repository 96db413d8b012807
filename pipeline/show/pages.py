"""The pages of `pipeline view`, served on this machine: requests enter, HTML leaves. Only a shelf of runs is read, nothing is written.

Requests must name this machine as their host, so that no other site's name, made to mean this machine, reads anything (DNS rebinding).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from pipeline.analysis.progress import run_state
from pipeline.errors import Interrupted, PipelineError, UsageError
from pipeline.local_web import is_named, listening
from pipeline.show.page import page, policy
from pipeline.show.plot import ChartAxis, Mark, path
from pipeline.show.problems import AskedChains, chain_page, neighbours
from pipeline.show.report import RunPage, is_sweep, sweep_sections
from pipeline.show.sections import clock
from pipeline.show.shelf import figures_of, folder_of, listed_runs, runs_by_name
from pipeline.show.transcripts import read_transcripts
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from pipeline.store.store import count_rows

HOST = "127.0.0.1"
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
AT_ONCE = 20_000
"""Calls up to which the figures of a run are worked out before its page is shown; those of a longer one are asked for after that."""
SPARKS = 30
"""Bars of a run's little chart in the list."""
_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10000 10000" preserveAspectRatio="none">
<path fill="#3573b9" opacity="0.8" d="{}"/></svg>"""


def serve_view(folder: Path, port: int, opened: Callable[[str], None]) -> None:
    """Serve the runs in `folder` on a port of 127.0.0.1, 0 for a free one; `opened` gets the URL once it answers.

    Raises `UsageError` where `folder` holds no runs, or the port cannot be listened on, and `Interrupted` at Ctrl-C.
    """
    if not runs_by_name(folder):
        raise UsageError(f"{folder}: contains no runs; name the folder that contains your run folders")
    with listening(HOST, port) as listener:
        config = uvicorn.Config(view_app(folder), log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        opened(f"http://{HOST}:{listener.getsockname()[1]}/")
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # raised again by uvicorn once it has ended in order
            raise Interrupted from None


def view_app(shelf: Path) -> Starlette:
    """The application that shows the runs in a folder to requests that name this machine; in threads, as pages ask queries."""

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

    return Starlette(routes=[Route("/{path:path}", answer)])


def _page(shelf: Path, template: str, title: str, status: int = 200, **values: Any) -> Response:
    text = page(template, title, **values, root=str(shelf), served=True)
    return HTMLResponse(text, status, HEADERS | {"Content-Security-Policy": f"{policy()}; frame-ancestors 'none'"})


def _runs(shelf: Path, request: Request) -> Response:
    """The list of runs, below the curves of a sweep."""
    runs = listed_runs(shelf)
    active = any(each.state is not None and each.state.state == "running" for each in runs)
    first = sweep_sections(shelf)[1] if is_sweep(shelf) else []
    return _page(shelf, "runs.html", "Runs", runs=runs, first=first, active=active)


def _run(shelf: Path, request: Request) -> Response:
    """A run: its figures, at first without those of a long one, and a page of its problems."""
    name, asked = _given(request, "run"), AskedChains.of(request.query_params)
    folder = folder_of(shelf, name)
    state = run_state(folder, name)
    with Query(folder) as db:
        found = chain_page(db, asked, state.made_up)
    figures = figures_of(folder) if "figures" in request.query_params or count_rows(folder, "calls") <= AT_ONCE else None
    shown, active = RunPage(state=state, figures=figures, found=found), state.state == "running" or figures is None
    return _page(shelf, "run.html", name, runs=[shown], first=[], asked=asked, run=name, active=active)


def _chain(shelf: Path, request: Request) -> Response:
    """A chain step by step, with the way to those before and after it in the list that it was chosen from."""
    name, chain, asked = _given(request, "run"), _given(request, "chain"), AskedChains.of(request.query_params)
    folder = folder_of(shelf, name)
    run, made_up = RunFile.read(folder), run_state(folder, name).made_up
    with Query(folder) as db:
        if not (found := read_transcripts(db, [chain], made_up)):
            raise UsageError(f"{name}: no chain {chain!r} that has ended")
        place = neighbours(db, asked, chain, made_up)
    return _page(shelf, "chain.html", f"{chain} of {name}", run=name, chain=chain, it=found[0], place=place, asked=asked, clock=clock(run))


def _spark(shelf: Path, request: Request) -> Response:
    """How many chains of a run ended over time, as a picture."""
    with Query(folder_of(shelf, _given(request, "run"))) as db:
        heights, _ = np.histogram(db.columns("SELECT end_unix_ns FROM chains")["end_unix_ns"], SPARKS)
    at = np.arange(SPARKS)
    mark = Mark(kind="bars", hue="blue", x=at, until=at + 0.8, y=heights, low=np.zeros(SPARKS))
    return Response(_SVG.format(path(mark, ChartAxis(high=SPARKS), ChartAxis(high=max(1, heights.max())))), 200, HEADERS, "image/svg+xml")


def _given(request: Request, name: str) -> str:
    """A parameter of the URL; raises `UsageError` where it is missing."""
    if not (value := request.query_params.get(name)):
        raise UsageError(f"{request.url.path}: the parameter `{name}` is missing")
    return value


PAGES: dict[str, Callable[[Path, Request], Response]] = {
    "/": _runs,
    "/run": _run,
    "/chain": _chain,
    "/spark": _spark,
}
"""The pages by their paths."""
