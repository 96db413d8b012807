"""The bounds of a server: how much may wait, how large a body and how slow a client may be; what is beyond them is an `ApiError`.

A body is bounded while it is read, whatever its head says of its length.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from msgspec import Struct

from pipeline.data.requests.errors import ApiError

SLOW_S = 30.0
"""Most seconds between two pieces of a body."""
Receive = Callable[[], Awaitable[Any]]
"""Waits for the next message of a client, as ASGI has it."""


class ServeLimits(Struct, frozen=True, kw_only=True):
    """The bounds of one server."""

    max_queue: int = 1024
    """Most requests that wait for their chains to begin; batches do not count."""
    max_body_bytes: int = 8 << 20
    """Most bytes of a body that is not a file."""
    max_file_bytes: int = 512 << 20
    """Most bytes of a body with a file."""
    timeout_s: float = 3600.0
    """Most seconds from a request to its answer."""


def bounded(receive: Receive, most: int) -> Receive:
    """A `receive` whose body has at most so many bytes, of which none is waited for longer than `SLOW_S`; it raises `ApiError`."""
    size, whole = 0, False

    async def bounded_receive() -> Any:
        nonlocal size, whole
        if whole:
            return await receive()  # what comes after a body is its client's leaving
        try:
            with anyio.fail_after(SLOW_S):
                message = await receive()
        except TimeoutError as error:
            raise ApiError(f"the body stopped for more than {SLOW_S:g} s", code="request_timeout", status=408) from error
        size += len(message.get("body", b""))
        if size > most:
            raise ApiError(f"the body has more than {most:,} bytes", code="request_too_large", status=413)
        whole = not message.get("more_body", False)
        return message

    return bounded_receive
