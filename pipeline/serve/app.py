"""The application of a server: its routes, who may call them, and what they reveal of the server."""

import hmac
import socket
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.data.requests import ApiError
from pipeline.local_web import is_foreign, is_named
from pipeline.serve.completions import URL, ChatEndpoint
from pipeline.serve.desk import RETRY_S

Phase = Literal["starting", "serving", "stopping"]
KNOWN = f"{URL}, /v1/models, /health and /metrics"


class Address(NamedTuple):
    """Where a server listens, and who may ask."""

    host: str
    port: int
    """0: any that is free."""
    key: str | None = None
    """The API key that clients have to send for a URL below `/v1`; None: none."""


class Guarded:
    """The application, for those who may ask: no web page of another site, and below `/v1` only who has the key.

    With a key the server may be asked for by any name: a page of another site has none.
    """

    def __init__(self, app: ASGIApp, address: Address) -> None:
        self._app, self._names = app, (address.host.lower(), socket.gethostname().lower())
        self._expected = None if address.key is None else f"Bearer {address.key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Headers(scope=scope), scope["path"]) if scope["type"] == "http" else None
        await (self._app if refusal is None else error_response(refusal))(scope, receive, send)

    def _refusal(self, headers: Headers, path: str) -> ApiError | None:
        if self._expected is None and not is_named(headers, self._names):
            what = f"not known as {headers.get('host', '')!r}; ask by its address, or start it with a key, then any name will do"
            return ApiError(f"the server is {what}", code="wrong_host", status=403)
        if is_foreign(headers):
            return ApiError("a web page of another site sent this request; only programs may", code="cross_site", status=403)
        given = headers.get("authorization", "").encode("latin-1")
        if path.startswith("/v1") and self._expected is not None and not hmac.compare_digest(given, self._expected):
            what = "wrong API key; send the server's as `Authorization: Bearer KEY`"
            return ApiError(what, code="invalid_api_key", status=401)
        return None


def new_app(chat: ChatEndpoint, address: Address, phase: Callable[[], Phase], metrics: Callable[[], tuple[bytes, str]]) -> Starlette:
    """The application that answers chat completions by `chat`; `metrics`: what Prometheus reads, and its media type."""
    model = {"id": chat.model, "object": "model", "created": int(time.time()), "owned_by": "pipeline"}

    async def health(request: Request) -> Response:
        return JSONResponse({"status": phase()}, 200 if phase() == "serving" else 503)

    async def measured(request: Request) -> Response:
        content, kind = metrics()
        return Response(content, media_type=kind)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    async def completions(request: Request) -> Response:
        if phase() == "starting":
            raise ApiError("the engines are starting", code="service_unavailable", status=503)
        return await chat(request)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", measured),
            Route("/v1/models", models),
            Route(URL, completions, methods=["POST"]),
        ],
        middleware=[Middleware(Guarded, address=address)],
        exception_handlers=dict.fromkeys((ApiError, ClientDisconnect, HTTPException, Exception), failed),
    )


async def failed(request: Request, error: Exception) -> Response:
    """The response to a request that is refused or fails; an error of this program goes on to the log."""
    if isinstance(error, HTTPException):
        what = f"there is no {request.url.path} here; there are {KNOWN}" if error.status_code == 404 else error.detail
        error = ApiError(what, code="unknown_url" if error.status_code == 404 else None, status=error.status_code)
    elif isinstance(error, ClientDisconnect):
        error = ApiError("the body ends too early")  # reaches nobody
    return error_response(error if isinstance(error, ApiError) else ApiError("the server failed; see its log", status=500))


def error_response(error: ApiError) -> Response:
    """The response that says `error`."""
    headers = {429: {"retry-after": str(RETRY_S)}, 401: {"www-authenticate": "Bearer"}}
    return JSONResponse(error.body, error.status, headers.get(error.status))
