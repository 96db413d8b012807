"""One server with OpenAI's endpoints, over HTTP: requests are sent; complete replies come back, or `NoAnswer` is raised.

The only module that imports `httpx2`, and only when a server is opened. It never sends a request twice. The key is sent in a header only;
whatever a server says is quoted with `quoted`, which removes it.
"""

import os
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import cache
from time import time
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Raw

from pipeline.errors import GraphError, PipelineError, install_command

CONNECT_S = 10.0
"""Longest wait for a connection."""
ASK_S = 30.0
"""Longest wait for an answer about the server itself; without one it counts as gone."""
MAX_BODY_BYTES = 64 << 20
"""Longest answer that is read, whatever was asked: 35 candidates of 8,192 tokens, with log probabilities, are half of that."""
UNREADABLE = (ValueError, RecursionError)
"""The errors of msgspec for bytes that are not the JSON asked for: its own errors are `ValueError`s, as are those of UTF-8 and of integers
with thousands of digits; JSON that is too deep is a `RecursionError`."""
_MAX_FACTS_BYTES = 16 << 20
"""Longest answer that is read to a question about the server itself: some list thousands of models."""
_MAX_RETRY_AFTER_S = 1e8
"""A server that asks to wait for longer, three years, counts as one that does not say."""
_KEEPALIVE_S = 3.0
"""Shorter than the 5 s after which uvicorn closes an idle connection: one that is being closed is not taken again."""
_MAX_MESSAGE_CHARS = 300

Verdict = Literal["busy", "failing", "unreadable", "malformed", "refused", "withheld", "overflow", "gone", "closed"]
"""The fate of a request without an answer. It is sent again: the server is `busy`; it is `failing`, or cannot be reached; what it sent
is `unreadable`, no JSON; or `malformed`, no answer to the request. Its chain ends: the server `refused` it by its status, `withheld` its
answer, or its prompt is an `overflow` of the context. The run ends where the server answers nobody: it is `gone` (no such model or address,
which may pass) or `closed` (a key or a purse, which will not within seconds)."""


class NoAnswer(PipelineError):
    """A reply is no answer to its request, or there is no complete reply."""

    def __init__(
        self,
        verdict: Verdict,
        words: str,
        *,
        retry_after_s: float | None = None,
        context: int | None = None,
        excess: int | None = None,
    ) -> None:
        """`words` are the end of a sentence about the server; of a `malformed` answer, about the answer. `context`: the context length
        that the server named. `excess`: how many more prompt tokens it states than were sent."""
        super().__init__(f"sent an answer that {words}" if verdict == "malformed" else words)
        self.verdict, self.words = verdict, words
        self.retry_after_s, self.context, self.excess = retry_after_s, context, excess


class Reply(NamedTuple):
    """A complete reply, of whatever status."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def ok(self) -> bool:
        """True if it holds an answer (status 200)."""
        return self.status == 200

    @property
    def retry_after_s(self) -> float | None:
        """Seconds that the server asks to wait, a number or a date in the header `Retry-After`; None where it states nothing sensible."""
        value = self.headers.get("retry-after", "").strip()
        try:
            number = re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII)
            seconds = float(value) if number else max(0.0, parsedate_to_datetime(value).timestamp() - time())
        except (ValueError, OverflowError, TypeError, LookupError, OSError):  # the parser of dates raises what its parts raise
            return None
        return seconds if seconds <= _MAX_RETRY_AFTER_S else None


def read_json(content: bytes | Raw, kind: Any = Any) -> Any:
    """The JSON in `content`; None where it holds none of this kind."""
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE:
        return None


def quoted(words: str) -> str:
    """`words` of a server as they may be part of a message: on one line and not too long."""
    line = " ".join(words.split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[:_MAX_MESSAGE_CHARS]}..."


def check_url(where: str, url: str) -> str:
    """`url` without a slash at its end; raises `GraphError` for one that is not an address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise GraphError(where, f"base_url {url!r} is not a URL such as http://127.0.0.1:8000/v1")
    return url.rstrip("/")


def read_key(where: str, api_key_env: str | None) -> str | None:
    """The key in the environment variable `api_key_env`, None where that is None; raises `GraphError` where the variable holds no key."""
    if api_key_env is None:
        return None
    key = os.environ.get(api_key_env, "").strip()
    if not key:
        raise GraphError(where, f"the environment variable {api_key_env}, named by api_key_env, is not set or is empty")
    if not re.fullmatch(r"[!-~]+", key):
        what = f"what the environment variable {api_key_env} holds is not a valid key: it has spaces or control characters"
        raise GraphError(where, what)
    return key


class Server:
    """A server at one base URL, and the connections to it; close it with `aclose`."""

    def __init__(self, where: str, url: str, key: str | None, max_in_flight: int) -> None:
        """Raises `GraphError` at `where` when the HTTP library is missing. `key`, if any, goes with every request."""
        try:
            import httpx2
        except ImportError:
            raise GraphError(where, f"backend `openai` needs the package `httpx2`: {install_command('openai')}") from None
        self.url = url
        self.received_bytes = 0
        """Bytes of answers to requests that have arrived."""
        self._key = (key or "").encode()
        self._failures = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, RuntimeError)
        self._unreachable = (httpx2.ConnectError, httpx2.ConnectTimeout)
        self._client = httpx2.AsyncClient(
            base_url=url,
            verify=_certificates(),
            headers={"Accept": "application/json", "Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx2.Timeout(None, connect=CONNECT_S),  # how long an answer may take is the caller's business
            # No bound of its own: the lane already bounds what is in flight, and a call may be sent as several requests.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=max_in_flight, keepalive_expiry=_KEEPALIVE_S),
        )

    async def post(self, path: str, body: Mapping[str, Any], max_bytes: int) -> Reply:
        """The reply to the `body` of a request, read up to `max_bytes`; `path` is relative to the base URL. Raises `NoAnswer`."""
        return await self._send("POST", path, min(max_bytes, MAX_BODY_BYTES), msgspec.json.encode(body))

    async def get(self, path: str) -> Reply:
        """The reply to a question about the server itself; `path` is relative to its base URL or is a full URL. Raises `NoAnswer`."""
        with anyio.move_on_after(ASK_S):
            return await self._send("GET", path, _MAX_FACTS_BYTES)
        raise NoAnswer("failing", f"has not answered GET {path} for {ASK_S:g} s")

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _send(self, method: str, path: str, max_bytes: int, content: bytes | None = None) -> Reply:
        headers, pieces, length = {"Content-Type": "application/json"} if content else None, list[bytes](), 0
        try:
            async with self._client.stream(method, path, content=content, headers=headers) as response:
                # Raw: nothing is unpacked, as a few compressed bytes may stand for gigabytes.
                async for received in response.aiter_raw():
                    length += len(received)
                    if length > max_bytes:
                        raise NoAnswer("malformed", f"is longer than {max_bytes >> 10:,} KiB, the maximum for this request")
                    self.received_bytes += len(received) if method == "POST" else 0
                    pieces.append(received)
        except self._failures as error:
            fate = "cannot be reached" if isinstance(error, self._unreachable) else "broke the connection"
            raise NoAnswer("failing", f"{fate}: {quoted(_cause(error))}") from None
        read = b"".join(pieces)
        if self._key and response.status_code != 200:  # some servers repeat a key that they reject
            read = read.replace(self._key, b"***")
        return Reply(response.status_code, response.headers, read)


@cache
def _certificates() -> Any:
    """What a server's certificate is checked against, read once: that takes longer than all questions to a server on this machine."""
    import httpx2

    return httpx2.create_ssl_context()


def _cause(error: BaseException) -> str:
    """The innermost reason, which names the system's own error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
