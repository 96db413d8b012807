"""One server with OpenAI's endpoints, over HTTP: requests are sent, replies come back, or an error for a broken connection.

The only module that imports `httpx2`, and only when a server is opened. It never sends a request twice. The key is sent in
a header only, and removed from whatever a server says before that is passed on.
"""

import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Raw, Struct

from pipeline.engines.openai.request import longest_answer
from pipeline.errors import GraphError, install_command
from pipeline.proxies import is_loopback, proxy_variable
from pipeline.redaction import LEAST_CHARACTERS, declare_secret, redact, without

if TYPE_CHECKING:
    import httpx2

CONNECT_S = 10.0
"""Longest wait for a connection."""
ASK_S = 30.0
"""Longest wait for an answer about the server itself; without one it counts as gone."""
MAX_BODY_BYTES = 64 << 20
"""Longest answer that is read, whatever was asked: 35 candidates of 8,192 tokens, with log probabilities, are half of that."""
MAX_FACTS_BYTES = 16 << 20
"""Longest answer that is read to a question about the server itself: some list thousands of models."""
MAX_RETRY_AFTER_S = 1e8
"""A server that asks to wait for longer, three years, or for no time that there is, counts as one that does not say."""
UNREADABLE = (ValueError, RecursionError)
"""What msgspec raises for bytes that are not the JSON asked for: its own errors are `ValueError`s, as are those of UTF-8 and of integers
with thousands of digits; JSON that is too deep is a `RecursionError`."""
_KEEPALIVE_S = 3.0
"""Shorter than the 5 s after which uvicorn closes an idle connection: one that is being closed is not taken again."""
_MAX_MESSAGE_CHARS = 300
_JSON = {"Content-Type": "application/json"}
_MOST_BYTES = "most_bytes"
"""The longest answer that is read to a request, among the extensions of the request."""


class Broken(Exception):
    """There is no complete reply of this server; the text says where and why."""


class Oversized(Broken):
    """A reply was longer than any answer to the request, or compressed and so of unknown length; it was not read to its end."""


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
    def streamed(self) -> bool:
        """Whether its answer comes in pieces, which are not in `content`."""
        return self.ok and self.headers.get("content-type", "").lower().startswith("text/event-stream")

    @property
    def retry_after_s(self) -> float | None:
        """Seconds that the server asks to wait, as a number or a date in the header `Retry-After`, at most `MAX_RETRY_AFTER_S`; None
        where it does not say, or nothing sensible."""
        value = self.headers.get("retry-after", "").strip()
        try:
            number = re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII)
            seconds = float(value) if number else max(0.0, parsedate_to_datetime(value).timestamp() - time())
        except (ValueError, OverflowError, TypeError, LookupError, OSError):  # the parser of dates raises what its parts raise
            return None
        return seconds if seconds <= MAX_RETRY_AFTER_S else None


class ServerError(NamedTuple):
    """Why a server refused a request."""

    text: str
    """The server's own words, on one line."""
    code: str
    """Its error code and error type; empty where it gives none."""
    context: int | None
    """The context length that it names; None where it names none."""


class _Error(Struct):
    message: Raw = Raw()
    code: Raw = Raw()
    type: Raw = Raw()
    n_ctx: Raw = Raw()
    """llama.cpp: the context length."""
    metadata: Raw = Raw()
    """OpenRouter: what the provider itself said is `raw` in it."""


class _Refusal(Struct):
    """The body of a refusal: OpenAI, vLLM and llama.cpp put an object or a text into `error`, SGLang a `message` next to it, FastAPI a
    `detail`. Each may hold anything, so that its JSON is kept as it is."""

    error: Raw = Raw()
    message: Raw = Raw()
    detail: Raw = Raw()
    msg: Raw = Raw()
    code: Raw = Raw()
    type: Raw = Raw()


class _Metadata(Struct):
    raw: Raw = Raw()


def server_error_of(reply: Reply) -> ServerError:
    """Why the server refused, out of a `reply` that is not `ok`."""
    nothing = f"status {reply.status}"
    try:
        body = msgspec.json.decode(reply.content, type=_Refusal | tuple[_Refusal])  # Gemini sends a list of one
    except UNREADABLE:
        return ServerError(_one_line(redact(_text(reply.content))) or nothing, "", None)
    body = body if isinstance(body, _Refusal) else body[0]
    try:
        error = msgspec.json.decode(body.error, type=_Error)
    except UNREADABLE:
        error = _Error(body.error, body.code, body.type)
    said = next((words for each in (error.message, body.message, body.detail, body.msg) if (words := _said(each))), nothing)
    text = _one_line(redact(": ".join(words for words in (said, _provider_said(error.metadata)) if words)))
    named = re.search(r"(?:context (?:length|size|window)|max_model_len)[^0-9]{0,40}([0-9]+)", text)
    context = _context(_said(error.n_ctx)) or (_context(named[1]) if named else None)
    return ServerError(text, _one_line(f"{_said(error.code)} {_said(error.type)}"), context)


def _provider_said(metadata: Raw) -> str:
    try:
        return _said(msgspec.json.decode(metadata, type=_Metadata).raw)
    except UNREADABLE:
        return ""


def _said(value: Raw) -> str:
    """A JSON value as text: a string without its quotes, null and nothing as an empty one."""
    try:
        return msgspec.json.decode(value, type=str)
    except UNREADABLE:
        words = _text(bytes(value))
        return "" if words in ("null", "{}", "[]") else words


def _text(content: bytes) -> str:
    """Bytes as text, whatever they are; the charset that a server names is not asked, as not every charset is one of text."""
    return content.decode(errors="replace")


def _context(digits: str) -> int | None:
    """A context length out of its digits; None where they are none, or too many."""
    return int(digits) if re.fullmatch(r"[1-9][0-9]{0,8}", digits) else None


def _one_line(words: str) -> str:
    """`words` on one line, cut where they are too many."""
    line = " ".join(words.split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[:_MAX_MESSAGE_CHARS]}..."


def check_url(where: str, url: str) -> str:
    """`url` without a slash at its end; raises `GraphError` for one that holds a secret or is not an address."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        what = f"base_url must be a plain URL, {shown}, because run.json records it; api_key_env names the variable that holds a key"
        raise GraphError(where, what)
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
        raise GraphError(
            where, f"what the environment variable {api_key_env} holds is not a valid key: it has spaces or control characters"
        )
    declare_secret(api_key_env)
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
        self.heard_s = -math.inf
        """When the last of them came, by the clock of the event loop."""
        self._closed = False
        self._key = key
        self._key_in_texts = key if key is not None and len(key) >= LEAST_CHARACTERS else None
        self._failures = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, RuntimeError)
        self._unreachable = (httpx2.ConnectError, httpx2.ConnectTimeout)
        self._proxy = proxy_variable(url)
        self._client = httpx2.AsyncClient(
            base_url=url,
            trust_env=self._proxy is not None or not is_loopback(url),  # what listens here is never asked through a proxy
            headers={"Accept": "application/json", "Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            # How long an answer may take is the caller's business.
            timeout=httpx2.Timeout(None, connect=CONNECT_S),
            # No bound of its own: the lane already bounds what is in flight, and a call may be sent as several requests.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=max_in_flight, keepalive_expiry=_KEEPALIVE_S),
            follow_redirects=True,
            event_hooks={"request": [_staying_at(httpx2.URL(url))], "response": [_bounding()]},
        )

    async def post(self, body: Mapping[str, Any]) -> Reply:
        """The reply to the `body` of a request for a completion; raises `Broken`."""
        longest = min(longest_answer(body), MAX_BODY_BYTES)
        return await self._send("POST", "/completions", longest, msgspec.json.encode(body))

    async def stream(self, body: Mapping[str, Any], take: Callable[[bytes], None]) -> Reply | None:
        """Send the `body` of a request for an answer in pieces, and call `take` with what arrives until it has ended.

        Returns the reply where that is no stream but a refusal, or an answer as a whole. Raises `Broken`.
        """
        longest = min(longest_answer(body), MAX_BODY_BYTES)
        reply = await self._send("POST", "/completions", longest, msgspec.json.encode(body), take)
        return None if reply.streamed else reply

    async def send(self, path: str, body: Mapping[str, Any], longest: int) -> Reply:
        """The reply of at most `longest` bytes to a `body` sent to another endpoint, whose `path` is relative to the base URL; raises
        `Broken`."""
        return await self._send("POST", path, longest, msgspec.json.encode(body))

    async def get(self, path: str) -> Reply:
        """The reply to a question about the server itself; `path` is relative to its base URL or is a full URL. Raises `Broken`."""
        with anyio.move_on_after(ASK_S):
            return await self._send("GET", path, MAX_FACTS_BYTES)
        raise Broken(f"at {self.url} has not answered GET {path} for {ASK_S:g} s")

    async def aclose(self) -> None:
        """Close all connections."""
        self._closed = True
        await self._client.aclose()

    async def _send(
        self, method: str, path: str, longest: int, content: bytes | None = None, take: Callable[[bytes], None] | None = None
    ) -> Reply:
        if self._closed:
            raise Broken(f"at {self.url} is no longer asked")
        headers, extensions = _JSON if content else None, {_MOST_BYTES: longest}
        try:
            async with self._client.stream(method, path, content=content, headers=headers, extensions=extensions) as response:
                reply = Reply(response.status_code, response.headers, b"")
                streamed, pieces = take is not None and reply.streamed, list[bytes]()
                async for received in response.aiter_bytes():
                    if method == "POST":
                        self.received_bytes, self.heard_s = self.received_bytes + len(received), anyio.current_time()
                    (take if take is not None and streamed else pieces.append)(received)
                if streamed:
                    return reply
        except Broken as error:
            failure: type[Broken] = type(error)
            words = f"at {self.url} {self.quote(str(error))}"
        except self._failures as error:
            failure = Broken
            fate = "cannot be reached" if isinstance(error, self._unreachable) else "broke the connection"
            through = f" through the proxy that {self._proxy} names" if self._proxy else ""
            words = f"at {self.url} {fate}{through}: {self.quote(_cause(error))}"
        else:
            # Of an answer nothing is replaced: a key such as `1`, for servers that take any, would garble it.
            content = b"".join(pieces)
            content = content if response.status_code == 200 else self.scrub(_text(content)).encode()
            return Reply(response.status_code, response.headers, content)
        raise failure(words)

    def scrub(self, words: str) -> str:
        """`words` that the server said, with the key removed."""
        return without(words, self._key) if self._key else words

    def quote(self, words: str) -> str:
        """`words` that the server said, as they may be part of a message: with no secret in them, on one line and not too long."""
        return _one_line(redact(self.scrub(words)))

    def scrub_answer(self, text: str) -> str:
        """The `text` of an answer, with the key removed unless it is so short that it may well be a part of the text."""
        return without(text, self._key_in_texts) if self._key_in_texts else text


def _staying_at(home: "httpx2.URL") -> "Callable[[httpx2.Request], Awaitable[None]]":
    """A hook, called before a request is sent, that keeps prompts and key from any other server than `home`, wherever that redirects."""

    async def stay(request: "httpx2.Request") -> None:
        url = request.url
        if (url.host, url.port, url.scheme) != (home.host, home.port, home.scheme):
            raise Broken(f"redirects to {url}, which is not followed; if that is the right server, set base_url to it")

    return stay


def _bounding() -> "Callable[[httpx2.Response], Awaitable[None]]":
    """A hook, called when a reply begins, that cuts the reply off once it is too long."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream, longest: int) -> None:
            self._stream, self._longest = stream, longest

        async def __aiter__(self) -> AsyncIterator[bytes]:
            length = 0
            async for chunk in self._stream:
                length += len(chunk)
                if length > self._longest:
                    raise Oversized(f"sent an answer of more than {self._longest >> 10:,} KiB, the maximum for this request")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "").lower() not in ("", "identity"):
            raise Oversized("sent a compressed answer, which was not requested")  # a few bytes of it may stand for gigabytes
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Bounded(response.stream, response.request.extensions[_MOST_BYTES])

    return bound


def _cause(error: BaseException) -> str:
    """The innermost reason, which names the system's own error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _one_line(str(error)) or type(error).__name__
