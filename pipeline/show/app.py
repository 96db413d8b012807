"""The pages of `pipeline view`, served on this machine: requests enter, HTML leaves. Only a shelf of runs is read, nothing is written.

Every page is made here, from templates that escape all text of runs; a page's own scripts are the only ones that its policy lets run.
Requests must name this machine as their host, so that no other site's name, made to mean this machine, reads anything (DNS rebinding).
"""

import hashlib
import socket
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.analysis.compare.cells import plain, plain_percent, size
from pipeline.analysis.progress import ACTIVE, duration
from pipeline.errors import Interrupted, PipelineError, UsageError
from pipeline.show import page as report_page
from pipeline.show.local_web import is_named, listening
from pipeline.show.pages import PAGES, Page, age
from pipeline.show.shelf import Shelf

HOST = "127.0.0.1"
_HERE = Path(__file__).parent
STATIC = {"page.css": "text/css", "view.css": "text/css", "page.js": "text/javascript", "view.js": "text/javascript"}
"""The files that pages ask for, and their types."""
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy of a page."""


class _Server(uvicorn.Server):
    """A server that does not wait for the queries of its pages when it is to end."""

    def __init__(self, config: uvicorn.Config, shelf: Shelf) -> None:
        super().__init__(config)
        self._shelf = shelf

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._shelf.interrupt()
        await super().shutdown(sockets)


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
        config = uvicorn.Config(view_app(shelf), log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        opened(f"http://{HOST}:{listener.getsockname()[1]}/")
        try:
            _Server(config, shelf).run(sockets=[listener])
        except KeyboardInterrupt:  # raised again by uvicorn once it has ended in order
            raise Interrupted from None
        finally:
            shelf.close()


def view_app(shelf: Shelf) -> Starlette:
    """The application that shows the runs of a shelf."""
    routes = [Route("/static/{name}", _static), *(Route(path, _shown(shelf, make)) for path, make in PAGES.items())]
    handlers: Mapping[Any, Any] = {HTTPException: _not_found, PipelineError: _refused(shelf)}
    return Starlette(routes=routes, middleware=[Middleware(OnlyThisMachine)], exception_handlers=handlers)


class OnlyThisMachine:
    """The application, for requests that name this machine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_named(Headers(scope=scope), ()):
            await self._app(scope, receive, send)
        else:
            await Response("Ask for these pages at 127.0.0.1 or localhost.\n", 400, HEADERS, "text/plain")(scope, receive, send)


def _shown(shelf: Shelf, make: Callable[[Shelf, Request], Page]) -> Callable[[Request], Response]:
    """What answers a request with the page that `make` makes; in a thread, as pages ask queries."""
    return lambda request: _rendered(shelf, make(shelf, request))


def _rendered(shelf: Shelf, page: Page, status: int = 200) -> Response:
    text = _template(page.template).render(**page.values, title=page.title, root=str(shelf.folder), active=page.active, here=page.here)
    return HTMLResponse(text, status, HEADERS | {"Content-Security-Policy": POLICY})


def _refused(shelf: Shelf) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        page = Page("error.html", "Cannot be shown", {"said": str(error).splitlines()})
        return _rendered(shelf, page, 400)

    return answer


def _not_found(request: Request, error: HTTPException) -> Response:
    return Response(f"{error.detail}\n", error.status_code, HEADERS, "text/plain")


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    return Response(_static_text(name), 200, HEADERS | {"Cache-Control": "max-age=86400"}, STATIC[name])


@cache
def _static_text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8") if name.startswith("view.") else report_page.asset(name)


def static_url(name: str) -> str:
    """The URL of one of the files of pages, another one where its text is another one."""
    return f"/static/{name}?{hashlib.sha256(_static_text(name).encode()).hexdigest()[:12]}"


def url(path: str, **params: Any) -> str:
    """The URL of a page: `path` with parameters; those that are empty are left out."""
    given = {name: value for name, value in params.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


@cache
def _template(name: str) -> Any:
    environment = report_page.environment(_HERE / "templates")
    environment.globals |= {"static_url": static_url, "url": url}
    environment.filters |= {"plain": plain, "percent": plain_percent, "bytes": size, "age": age, "duration": duration}
    environment.tests["active"] = lambda state: state in ACTIVE
    return environment.get_template(name)
