"""`POST /v1/chat/completions`: a body enters, the chains of its problem are asked for, and their reply leaves whole, or in pieces as steps
are committed. A client that leaves, or has waited for too long, ends its chains.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import anyio
import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pipeline.data.requests import ApiError, AskedChat, ChainReply, completion, read_chat, usage_of
from pipeline.serve.desk import CommittedStep, Desk, Ended, Event
from pipeline.tasks import background_tasks

URL = "/v1/chat/completions"
BODY_BYTES = 8 << 20
"""Most bytes of a body."""
T = TypeVar("T")


class ChatEndpoint:
    """Answers requests with the chains of one `desk`; `model` is the name under which they ask."""

    def __init__(self, desk: Desk, model: str) -> None:
        self._desk, self.model = desk, model

    async def __call__(self, request: Request) -> Response:
        """The whole answer, or what streams it. Raises `ApiError`."""
        body = await read_body(request)
        chat = read_chat(body)
        if chat.model != self.model:
            what = f"there is no model {chat.model!r}; this server has {self.model!r}"
            raise ApiError(what, "model", "model_not_found", status=404)
        asked = AskedReply(self._desk, chat, body)
        with ExitStack() as ended:
            ended.callback(asked.leave)
            if chat.stream:
                first = await unless_gone(request.receive, asked.next)  # while an error still has its own status
                return StreamedReply(asked.pieces(first), ended.pop_all())
            answer = await unless_gone(request.receive, asked.whole)
        return Response(b"" if answer is None else msgspec.json.encode(answer), media_type="application/json")


class AskedReply:
    """A request that was taken, and what is known of its reply."""

    def __init__(self, desk: Desk, chat: AskedChat, body: bytes) -> None:
        """Raises `ApiError` where the request is not taken."""
        self._desk, self._chat, self._name, self._created = desk, chat, f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        self._deadline = anyio.current_time() + desk.limits.timeout_s
        # Of a client that does not read no more is kept than its chains write.
        self._events = asyncio.Queue[Event]()
        self._replies: dict[int, ChainReply] = {}
        self._why = "the client closed the connection"
        record = {"custom_id": self._name, "method": "POST", "url": URL, "body": Raw(body)}
        self._starts = desk.ask(self._name, chat, record, self._events.put_nowait)

    async def next(self) -> Event | None:
        """Wait for what happens next to its chains; None when all are over. Raises `ApiError` where one failed, or the time is over."""
        if len(self._replies) == len(self._starts):
            return None
        try:
            with anyio.fail_after(max(0.0, self._deadline - anyio.current_time())):
                event = await self._events.get()
        except TimeoutError as error:
            self._why = f"there was no answer within {self._desk.limits.timeout_s:g} s"
            raise ApiError(self._why, code="timeout", status=504) from error
        if isinstance(event, Ended):
            if isinstance(event.outcome, ApiError):
                self._why = "another choice of the same request failed"
                raise event.outcome
            self._replies[event.index] = event.outcome
        return event

    async def whole(self) -> dict[str, Any]:
        """The answer, when all chains are over. Raises `ApiError`."""
        while await self.next() is not None:
            pass
        return self._completion([self._replies[index] for index in sorted(self._replies)])

    async def pieces(self, event: Event | None) -> AsyncIterator[bytes]:
        """The lines of a stream that begins with `event`: each step when it is committed as `reasoning_content`, each answer as one
        `content`. An error is the last piece."""
        for index in range(len(self._starts)):
            yield self._piece(index, {"role": "assistant", "content": ""})
        try:
            while event is not None:
                if isinstance(event, CommittedStep):
                    if shown := event.text.removesuffix(self._desk.mark):
                        yield self._piece(event.index, {"reasoning_content": shown})
                else:
                    assert isinstance(event.outcome, ChainReply), "a chain that failed ends the stream"
                    [choice] = self._completion([event.outcome])["choices"]
                    if (content := choice["message"]["content"]) is not None:
                        yield self._piece(event.index, {"content": content})
                    yield self._piece(event.index, {}, choice["finish_reason"])
                event = await self.next()
        except ApiError as error:
            yield _line(error.body)
        else:
            if self._chat.include_usage:
                yield _line(self._about | {"choices": [], "usage": usage_of([*self._replies.values()])})
        yield b"data: [DONE]\n\n"

    def leave(self) -> None:
        """End the chains that are not over: nobody waits for them."""
        self._desk.withdraw(self._starts, self._why)

    def _completion(self, replies: list[ChainReply]) -> dict[str, Any]:
        """The answer that consists of these replies."""
        chat, close = self._chat, self._desk.mark
        return completion(replies, name=self._name, created=self._created, model=chat.model, stop=chat.settings.stop, close=close)

    @property
    def _about(self) -> dict[str, Any]:
        return {"id": self._name, "object": "chat.completion.chunk", "created": self._created, "model": self._chat.model}

    def _piece(self, index: int, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return _line(self._about | {"choices": [choice], "usage": None})


class StreamedReply(StreamingResponse):
    """The response that streams `pieces`; `ended` is closed when it is over, or the client has left."""

    def __init__(self, pieces: AsyncIterator[bytes], ended: ExitStack) -> None:
        super().__init__(pieces, headers={"cache-control": "no-cache"}, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._ended:
            await super().__call__(scope, receive, send)


def _line(content: dict[str, Any]) -> bytes:
    """A line of a stream."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


async def read_body(request: Request) -> bytes:
    """The body of a request, whatever its head says of its length. Raises `ApiError` where it is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            raise ApiError(f"the body has more than {BODY_BYTES:,} bytes", code="request_too_large", status=413)
    return bytes(body)


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[T]]) -> T | None:
    """The result of `work`, which is cancelled when the client leaves; then None."""
    result: T | None = None
    async with background_tasks() as tasks:

        async def wait_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(wait_gone)
        result = await work()
    return result
