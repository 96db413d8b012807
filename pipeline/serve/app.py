"""The application of a server: its routes, who may call them, and what they reveal of the server."""

import hmac
import time
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.data.requests import ApiError
from pipeline.local_web import is_foreign, is_named
from pipeline.serve.completions import URL, ChatEndpoint, check_model, error_response

Phase = Literal["starting", "serving", "stopping"]
KNOWN = f"{URL}, /v1/models, /health and /metrics"


class ServerSelf(NamedTuple):
    """What a server tells of itself."""

    model: str
    phase: Callable[[], Phase]
    metrics: Callable[[], tuple[bytes, str]]
    """What Prometheus reads, and its media type."""


class Access(NamedTuple):
    """Who may ask."""

    key: str | None = None
    """What clients have to send to ask for a URL below `/v1`; None: nothing."""
    names: Collection[str] | None = ()
    """Names, besides `localhost` and addresses, by which the server may be asked for; None: any."""


class Guarded:
    """The application, for those who may ask: no web page of another site, and below `/v1` only who has the key."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._names = app, access.names
        self._expected = None if access.key is None else f"Bearer {access.key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Headers(scope=scope), scope["path"]) if scope["type"] == "http" else None
        await (self._app if refusal is None else error_response(refusal))(scope, receive, send)

    def _refusal(self, headers: Headers, path: str) -> ApiError | None:
        if self._names is not None and not is_named(headers, self._names):
            what = (
                f"the server is not known as {headers.get('host', '')!r}; ask by its address, or start it with a key, then any name will do"
            )
            return ApiError(what, code="wrong_host", status=403)
        if is_foreign(headers):
            return ApiError("a web page of another site sent this request; only programs may", code="cross_site", status=403)
        given = headers.get("authorization", "").encode("latin-1")
        if path.startswith("/v1") and self._expected is not None and not hmac.compare_digest(given, self._expected):
            what = "wrong API key; send the server's as `Authorization: Bearer KEY`"
            return ApiError(what, code="invalid_api_key", status=401)
        return None


def new_app(own: ServerSelf, chat: ChatEndpoint, access: Access) -> Starlette:
    """The application that answers chat completions by `chat`."""
    created = int(time.time())
    model = {"id": own.model, "object": "model", "created": created, "owned_by": "pipeline"}

    async def health(request: Request) -> Response:
        phase = own.phase()
        return as_json({"status": phase}, 200 if phase == "serving" else 503)

    async def metrics(request: Request) -> Response:
        content, kind = own.metrics()
        return Response(content, media_type=kind)

    async def models(request: Request) -> Response:
        return as_json({"object": "list", "data": [model]})

    async def one_model(request: Request) -> Response:
        check_model(request.path_params["model"], own.model)
        return as_json(model)

    async def completions(request: Request) -> Response:
        if own.phase() == "starting":
            raise ApiError("the engines are starting", code="service_unavailable", status=503)
        return await chat(request)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", one_model),
            Route(URL, completions, methods=["POST"]),
        ],
        middleware=[Middleware(Guarded, access=access)],
        exception_handlers={ApiError: api_error, ClientDisconnect: nobody_there, HTTPException: http_error, Exception: unexpected_error},
    )


def as_json(content: Any, status: int = 200) -> Response:
    """A response of JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


async def api_error(request: Request, error: Exception) -> Response:
    """The response to a request that is refused or failed."""
    assert isinstance(error, ApiError)
    return error_response(error)


async def http_error(request: Request, error: Exception) -> Response:
    """The response to a request for what is not there, or that Starlette refuses."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(ApiError(f"there is no {request.url.path} here; there are {KNOWN}", code="unknown_url", status=404))
    if error.status_code == 405:
        what = f"{request.url.path} does not take {request.method}"
        return error_response(ApiError(what, code="method_not_supported", status=405))
    return error_response(ApiError(error.detail, status=error.status_code))


async def nobody_there(request: Request, error: Exception) -> Response:
    """The response to a client that has left in the middle of its body, which reaches nobody."""
    return error_response(ApiError("the body ends too early", status=400))


async def unexpected_error(request: Request, error: Exception) -> Response:
    """The response where this program fails; the error goes on to the log."""
    return error_response(ApiError("the server failed; see its log", status=500))
