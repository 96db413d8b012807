"""Errors as the OpenAI API tells them: why a request is refused, or a chain failed, enters; status, message, parameter and code leave."""

from msgspec import Struct

INVALID = "invalid_request_error"


class ErrorObject(Struct, frozen=True):
    """The object `error` of an answer."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, frozen=True):
    """The body of an answer that is an error."""

    error: ErrorObject


class ApiError(Exception):
    """A request that is answered with an error."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, *, status: int = 400, kind: str = INVALID) -> None:
        """`param`: the parameter that is wrong, as a path; `kind`: the error's `type`; `status`: that of HTTP."""
        super().__init__(message)
        self.message, self.param, self.code, self.status, self.kind = message, param, code, status, kind

    @property
    def body(self) -> ErrorBody:
        """The body of the answer."""
        return ErrorBody(ErrorObject(self.message, self.kind, self.param, self.code))


def error_of(error_type: str | None, message: str) -> ApiError:
    """What a chain that failed is answered with, from the columns `error_type` and `error_message` of its row: a request that an engine
    cannot run is the caller's error, all else the server's."""
    match error_type:
        case "ContextOverflow":
            return ApiError(message, "messages", "context_length_exceeded")
        case "RequestRefused" | "BadRow":
            return ApiError(message)
        case _:
            return ApiError(message, status=500, kind="server_error")
