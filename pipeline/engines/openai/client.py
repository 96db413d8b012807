"""One server with OpenAI's endpoints, over HTTP: requests are sent, replies come back, or an error for a broken connection.

The only module that imports `httpx2`, and only when a server is opened. It never sends a request twice. The key is sent in
a header only, and removed from whatever a server says before that is passed on.
"""

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct

from pipeline.errors import GraphError, install_command
from pipeline.redaction import without

if TYPE_CHECKING:
    import httpx2

CONNECT_S = 10.0
"""Longest wait for a connection."""
ASK_S = 30.0
"""Longest wait for an answer about the server itself; without one it counts as gone."""
MAX_BODY_BYTES = 64 << 20
"""Longest answer that is read: 35 candidates of 8,192 tokens, with log probabilities, are half of that."""
_KEEPALIVE_S = 3.0
"""Shorter than the 5 s after which uvicorn closes an idle connection: one that is being closed is not taken again."""
_MAX_MESSAGE_CHARS = 300
_UNAUTHORIZED = (401, 403)
_TRANSIENT = (408, 425, 429)
_JSON = {"Content-Type": "application/json"}


class Broken(Exception):
    """The connection failed before a reply was complete; the text says where and how."""


class Oversized(Broken):
    """A reply was longer than `MAX_BODY_BYTES`, or compressed and so of unknown length; it was not read to its end."""


class Reply(NamedTuple):
    """A complete reply, of whatever status."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def ok(self) -> bool:
        """Whether it holds an answer (status 200)."""
        return self.status == 200

    @property
    def unauthorized(self) -> bool:
        """Whether the server refused the key, or the lack of one."""
        return self.status in _UNAUTHORIZED

    @property
    def transient(self) -> bool:
        """Whether the same request may be answered later."""
        return self.status >= 500 or self.status in _TRANSIENT

    @property
    def retry_after_s(self) -> float | None:
        """Seconds that the server asks to wait, as a number or a date in the header `Retry-After`; None where it does not."""
        value = self.headers.get("retry-after", "").strip()
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value)
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time())
        except ValueError:
            return None


class ServerError(NamedTuple):
    """Why a server refused a request."""

    text: str
    """The server's own words, on one line."""
    code: str
    """Its error code and error type; empty where it gives none."""
    context: int | None
    """The context length that it names; None where it names none."""


class _Error(Struct):
    message: Any = None
    code: Any = None
    type: Any = None
    n_ctx: int | None = None
    """llama.cpp: the context length."""


class _Refusal(Struct):
    """The body of a refusal: OpenAI, vLLM and llama.cpp put an object or a text into `error`, SGLang a `message` beside it,
    FastAPI a `detail`."""

    error: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None
    type: Any = None


def server_error_of(reply: Reply) -> ServerError:
    """Why the server refused, out of a `reply` that is not `ok`."""
    nothing = f"status {reply.status}"
    try:
        body = msgspec.json.decode(reply.content, type=_Refusal)
        error = msgspec.convert(body.error, _Error) if isinstance(body.error, dict) else _Error(body.error, body.code, body.type)
    except msgspec.DecodeError:
        return ServerError(_one_line(reply.content.decode(errors="replace")) or nothing, "", None)
    said = next((words for words in (error.message, body.message, body.detail) if words), nothing)
    text = _one_line(said if isinstance(said, str) else msgspec.json.encode(said).decode())
    named = re.search(r"(?:context (?:length|size|window)|max_model_len)[^0-9]{0,40}(\d+)", text)
    context = error.n_ctx or (int(named[1]) if named else None)
    return ServerError(text, f"{error.code or ''} {error.type or ''}".strip(), context)


def is_context_overflow(error: ServerError) -> bool:
    """Whether the server refused because the prompt is too long for its context."""
    if "context_length_exceeded" in error.code or "exceed_context_size" in error.code:
        return True
    return bool(re.search(r"context (length|size|window)|max_model_len", error.text.lower()))


def _one_line(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[:_MAX_MESSAGE_CHARS]}..."


def check_url(where: str, url: str) -> str:
    """`url` without a slash at its end; raises `GraphError` for one that holds a secret or is not an address."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        what = f"base_url must be an address alone, {shown}, as run.json keeps it; api_key_env names the variable that holds a key"
        raise GraphError(where, what)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise GraphError(where, f"base_url {url!r} is no address such as http://127.0.0.1:8000/v1")
    return url.rstrip("/")


def read_key(where: str, api_key_env: str | None) -> str | None:
    """The key in the environment variable `api_key_env`, None where that is None; raises `GraphError` where the variable holds no key."""
    if api_key_env is None:
        return None
    key = os.environ.get(api_key_env, "").strip()
    if not key:
        raise GraphError(where, f"the environment variable {api_key_env}, named by api_key_env, is not set or is empty")
    if not re.fullmatch(r"[!-~]+", key):
        raise GraphError(where, f"what the environment variable {api_key_env} holds is no key: it has spaces or odd characters in it")
    return key


class Server:
    """A server at one base URL, and the connections to it; close it with `aclose`. Works on asyncio and trio."""

    def __init__(self, where: str, url: str, key: str | None, max_in_flight: int) -> None:
        """Raises `GraphError` at `where` when the HTTP library is missing. `key`, if any, goes with every request."""
        try:
            import httpx2
        except ImportError:
            raise GraphError(where, f"backend `openai` needs the package `httpx2`: {install_command('openai')}") from None
        self.url = url
        self._closed = False
        self._key = key
        self._failures = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, RuntimeError)
        self._unreachable = (httpx2.ConnectError, httpx2.ConnectTimeout)
        self._client = httpx2.AsyncClient(
            base_url=url,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            # How long an answer may take is the caller's business.
            timeout=httpx2.Timeout(None, connect=CONNECT_S),
            # No bound of its own: the lane already bounds what is in flight, and a call may be sent as several requests.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=max_in_flight, keepalive_expiry=_KEEPALIVE_S),
            follow_redirects=True,
            event_hooks={"response": [_bounding()]},
        )

    async def post(self, body: Mapping[str, Any]) -> Reply:
        """The reply to the `body` of a request for a completion; raises `Broken`."""
        return await self._send("POST", "/completions", msgspec.json.encode(body))

    async def get(self, path: str) -> Reply:
        """The reply to a question about the server itself; `path` stands below its base URL or is a full address. Raises `Broken`."""
        with anyio.move_on_after(ASK_S):
            return await self._send("GET", path)
        raise Broken(f"at {self.url} has not answered GET {path} for {ASK_S:g} s")

    async def aclose(self) -> None:
        """Close all connections."""
        self._closed = True
        await self._client.aclose()

    async def _send(self, method: str, path: str, content: bytes | None = None) -> Reply:
        if self._closed:
            raise Broken(f"at {self.url} is no longer asked")
        try:
            response = await self._client.request(method, path, content=content, headers=_JSON if content else None)
        except Oversized as error:
            raise Oversized(f"at {self.url} {error}") from None
        except self._failures as error:
            fate = "cannot be reached" if isinstance(error, self._unreachable) else "broke the connection"
            words = f"at {self.url} {fate}: {self.scrub(_cause(error))}"
        else:
            # Of an answer nothing is replaced: a key such as `1`, for servers that take any, would garble it.
            content = response.content if response.is_success else self.scrub(response.text).encode()
            return Reply(response.status_code, response.headers, content)
        raise Broken(words)

    def scrub(self, words: str) -> str:
        """`words` that the server said, with the key removed."""
        return without(words, self._key) if self._key else words


def _bounding() -> "Callable[[httpx2.Response], Awaitable[None]]":
    """A hook, called when a reply begins, that cuts the reply off once it is too long."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            length = 0
            async for chunk in self._stream:
                length += len(chunk)
                if length > MAX_BODY_BYTES:
                    raise Oversized(f"sent an answer of more than {MAX_BODY_BYTES >> 20} MiB")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise Oversized("sent a compressed answer, which nobody asked for")  # a few bytes of it may stand for gigabytes
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Bounded(response.stream)

    return bound


def _cause(error: BaseException) -> str:
    """The innermost reason, which names the system's own error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _one_line(str(error)) or type(error).__name__
