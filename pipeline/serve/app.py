"""The application of a server: which URL is answered by what, who may ask, and what of it is told of the server itself."""

import hmac
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.data.requests.errors import ApiError
from pipeline.serve.completions import URL, ChatEndpoint, check_model
from pipeline.serve.errors import api_error, error_response, http_error, unexpected_error

Phase = Literal["starting", "serving", "stopping"]


class ServerSelf(NamedTuple):
    """What a server tells of itself."""

    model: str
    phase: Callable[[], Phase]
    metrics: Callable[[], tuple[bytes, str]]
    """What Prometheus reads, and its media type."""


class OnlyWithKey:
    """The application, whose URLs below `/v1` are only for those who have the key."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        """`key`: None lets everybody in."""
        self._app = app
        self._expected = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1") and not self._may(scope):
            what = "wrong API key; send that of the server as `Authorization: Bearer KEY`"
            await error_response(ApiError(what, code="invalid_api_key", status=401))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return self._expected is None or hmac.compare_digest(given, self._expected)


def new_app(own: ServerSelf, chat: ChatEndpoint, key: str | None, more: Sequence[Route] = ()) -> Starlette:
    """The application that answers chat completions by `chat`, and has `more` routes."""
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
            raise ApiError("the engines are starting", code="service_unavailable", status=503, kind="server_error")
        return await chat(request)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", one_model),
            Route(URL, completions, methods=["POST"]),
            *more,
        ],
        middleware=[Middleware(OnlyWithKey, key=key)],
        exception_handlers={ApiError: api_error, HTTPException: http_error, Exception: unexpected_error},
    )


def as_json(content: Any, status: int = 200) -> Response:
    """A response of JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")
