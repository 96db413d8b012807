"""One server with OpenAI's endpoints, over HTTP: requests are sent; complete replies come back, or `NoAnswer` is raised.

The only module that imports `aiohttp`, and only when a server is opened. It never sends a request twice. The key is sent in a header only;
where a refusal repeats it, it is removed.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from pipeline.errors import GraphError, PipelineError, install_command

_CONNECT_S, _KEEPALIVE_S = 10.0, 3.0
"""Longest wait for a connection. An idle one is kept for less than the 5 s after which uvicorn closes it."""
_MAX_MESSAGE_CHARS = 300

Verdict = Literal["busy", "failing", "malformed", "refused"]
"""The fate of a request without an answer. The server is `busy`, or `failing`; what it sent is `malformed`: no JSON, or no answer to the
request. Such requests are sent again. What it `refused` by its status is not, unless it refuses everything."""


class NoAnswer(PipelineError):
    """A reply is no answer to its request, or there is no complete reply."""

    def __init__(self, verdict: Verdict, words: str, retry_after_s: float | None = None) -> None:
        """`words` are the end of a sentence about the server; of a `malformed` answer, about the answer."""
        super().__init__(f"sent an answer that {words}" if verdict == "malformed" else words)
        self.verdict, self.words, self.retry_after_s = verdict, words, retry_after_s


class Reply(NamedTuple):
    """A complete reply, of whatever status."""

    status: int
    headers: Mapping[str, str]
    content: bytes


def quoted(words: str) -> str:
    """`words` of a server as they may be part of a message: on one line and not too long."""
    line = " ".join(words.split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[:_MAX_MESSAGE_CHARS]}..."


def read_key(where: str, api_key_env: str | None) -> str | None:
    """The key in the environment variable `api_key_env`, None where that is None; raises `GraphError` where the variable holds no key."""
    key = None if api_key_env is None else os.environ.get(api_key_env, "").strip()
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        what = f"the environment variable {api_key_env}, named by api_key_env, is not set, or is no key: empty, spaces, control characters"
        raise GraphError(where, what)
    return key


class Server:
    """The connections to a server at one base URL; made in a running event loop, to be closed with `aclose`."""

    def __init__(self, where: str, url: str, key: str | None) -> None:
        """Raises `GraphError` at `where` when the HTTP library is missing. `key`, if any, goes with every request."""
        try:
            import aiohttp
        except ImportError:
            raise GraphError(where, f"backend `openai` needs the package `aiohttp`: {install_command('openai')}") from None
        self.url, self._key = url.rstrip("/"), (key or "").encode()
        self._failures, self._unreachable = (aiohttp.ClientError, TimeoutError, OSError), aiohttp.ClientConnectorError
        self._session = aiohttp.ClientSession(
            # No bound here: the lane bounds what is in flight, the caller how long an answer may take.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self.aclose = self._session.close

    async def ask(self, url: str, body: bytes | None = None, limit_s: float | None = None) -> Reply:
        """The reply to a question about the server itself, or to a request with a `body`, within `limit_s`. Raises `NoAnswer`."""
        method, headers = ("GET", None) if body is None else ("POST", {"Content-Type": "application/json"})
        try:
            async with (
                asyncio.timeout(limit_s),
                self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                read = await response.read()
        except self._failures as error:
            if type(error) is TimeoutError:
                raise NoAnswer("failing", f"has not answered for {limit_s:g} s") from None
            cause: Exception = getattr(error, "os_error", error)  # of one that names no port
            fate = "cannot be reached" if isinstance(error, self._unreachable) else "broke the connection"
            raise NoAnswer("failing", f"{fate}: {quoted(str(cause)) or type(cause).__name__}") from None
        # Some servers repeat a key that they reject.
        content = read.replace(self._key, b"***") if self._key and response.status != 200 else read
        return Reply(response.status, response.headers, content)
