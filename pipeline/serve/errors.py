"""Answers that are errors: what is wrong enters, a response in the API's form leaves."""

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pipeline.data.requests.errors import ApiError
from pipeline.serve.desk import Overloaded

KNOWN = "/v1/chat/completions, /v1/models, /v1/files, /v1/batches, /health and /metrics"


def error_response(error: ApiError) -> Response:
    """The response that says `error`."""
    headers = {"retry-after": str(error.wait_s)} if isinstance(error, Overloaded) else {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(msgspec.json.encode(error.body), error.status, headers, "application/json")


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
    return error_response(ApiError("the server failed; see its log", status=500, kind="server_error"))
