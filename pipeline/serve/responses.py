"""Responses of JSON: values enter, a response leaves; of a list as many of its entries as a client asks for at a time."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from pipeline.data.requests.errors import ApiError


class Entry(Protocol):
    """What a list holds."""

    @property
    def id(self) -> str:
        """Its name, where the next page begins."""


def as_json(content: Any, status: int = 200) -> Response:
    """A response of JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def page(known: Mapping[str, Entry | None], query: QueryParams, *, usual: int, most: int) -> Response:
    """The entries that follow `after`, the newest first unless `order` is `asc`: at most `limit`, by itself `usual`. Raises `ApiError`.

    `known` has them by `id`, the oldest first. One that is None was deleted: it is not listed, and the entries after it still are.
    """
    limit, order, after = _limit(query, usual, most), query.get("order", "desc"), query.get("after")
    if order not in ("asc", "desc"):
        raise ApiError(f"`order` is {order!r}; it may be 'asc' or 'desc'", "order", "invalid_value")
    names = [*known] if order == "asc" else [*known][::-1]
    if after is not None:
        if after not in known:
            raise ApiError(f"`after` is {after!r}, which is not in this list", "after", "invalid_value")
        names = names[names.index(after) + 1 :]
    found = [entry for name in names if (entry := known[name]) is not None]
    shown = found[:limit]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return as_json({"object": "list", "data": shown, "has_more": len(found) > limit, "first_id": first, "last_id": last})


def _limit(query: QueryParams, usual: int, most: int) -> int:
    text = query.get("limit", str(usual))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise ApiError(f"`limit` is {text!r}; it may be from 1 to {most:,}", "limit", "invalid_value")
    return int(text)
