"""`POST /v1/chat/completions`: a body enters, the chains of its problem are asked for, and their reply leaves whole, or in pieces as steps
are committed. A client that leaves, or has waited for too long, ends its chains. A body is bounded while it is read, whatever its head says
of its length.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, TypeVar

import anyio
import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pipeline.data.requests import ApiError, AskedChat, ChainReply, completion, read_chat, usage_of
from pipeline.serve.desk import CommittedStep, Desk, Ended, Event, Overloaded, ServeLimits
from pipeline.tasks import background_tasks

URL = "/v1/chat/completions"
BODY_S = 60.0
"""Most seconds in which a body comes."""
T = TypeVar("T")


class Delta(Struct, frozen=True, omit_defaults=True):
    """What a piece adds to a choice."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None


class PieceChoice(Struct, frozen=True):
    """A piece of one choice."""

    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: None = None


class CompletionPiece(Struct, frozen=True, kw_only=True):
    """One piece of a reply that is streamed."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[PieceChoice]
    usage: dict[str, Any] | None = None


class ChatEndpoint:
    """Answers requests with the chains of one `desk`; `model` is the name under which they ask."""

    def __init__(self, desk: Desk, limits: ServeLimits, model: str) -> None:
        self._desk, self._limits, self._model = desk, limits, model

    async def __call__(self, request: Request) -> Response:
        """The whole answer, or what streams it. Raises `ApiError`."""
        body = await Request(request.scope, bounded(request.receive, self._limits.max_body_bytes)).body()
        chat = read_chat(body)
        check_model(chat.model, self._model)
        asked = AskedReply(self._desk, self._limits.timeout_s, chat, body)
        if chat.stream:
            return StreamedReply(asked)
        try:
            answer = await unless_gone(request.receive, asked.whole)
        finally:
            asked.leave()
        return Response(b"" if answer is None else msgspec.json.encode(answer), media_type="application/json")


def check_model(asked: str, served: str) -> None:
    """Raise `ApiError` where a model is asked for that is not the one that is served."""
    if asked != served:
        raise ApiError(f"there is no model {asked!r}; this server has {served!r}", "model", "model_not_found", status=404)


class AskedReply:
    """A request that was taken, and what is known of its reply."""

    def __init__(self, desk: Desk, timeout_s: float, chat: AskedChat, body: bytes) -> None:
        """Raises `ApiError` where the request is not taken."""
        self.chat, self.name, self.created = chat, f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        self._desk, self._timeout_s, self._deadline = desk, timeout_s, anyio.current_time() + timeout_s
        # Of a client that does not read no more is kept than its chains write.
        self._events = asyncio.Queue[Event]()
        record = {"custom_id": self.name, "method": "POST", "url": URL, "body": Raw(body)}
        self._replies: dict[int, ChainReply] = {}
        self._held: dict[int, str] = {}
        self._why = "the client closed the connection"
        self._ticket = desk.ask(self.name, chat, record, self._events.put_nowait)

    async def next(self) -> Event | None:
        """Wait for what happens next to its chains; None when all are over. Raises `ApiError` where one failed, or the time is over."""
        if len(self._replies) == len(self._ticket.starts):
            return None
        try:
            with anyio.fail_after(max(0.0, self._deadline - anyio.current_time())):
                event = await self._events.get()
        except TimeoutError as error:
            self._why = f"there was no answer within {self._timeout_s:g} s"
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
        return self.completion([self._replies[index] for index in sorted(self._replies)])

    def completion(self, replies: list[ChainReply]) -> dict[str, Any]:
        """The answer that consists of these replies."""
        chat, close = self.chat, self._desk.mark
        return completion(replies, name=self.name, created=self.created, model=chat.model, stop=chat.settings.stop, close=close)

    def said(self, step: CommittedStep) -> str:
        """What a step adds to the thought. A closing tag is held back until another step shows that it did not close the thought."""
        text = self._held.pop(step.index, "") + step.text
        shown = text.removesuffix(self._desk.mark)
        self._held[step.index] = text[len(shown) :]
        return shown

    @property
    def usage(self) -> dict[str, Any]:
        """The tokens of the chains that are over."""
        return usage_of([*self._replies.values()])

    def leave(self) -> None:
        """End the chains that are not over: nobody waits for them."""
        self._desk.withdraw(self._ticket, self._why)


class StreamedReply(Response):
    """The response that streams a reply: each step when it is committed as `reasoning_content`, each answer as one `content`."""

    def __init__(self, asked: AskedReply) -> None:
        super().__init__(headers={"cache-control": "no-cache"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._asked, self._begun = asked, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            refusal = await unless_gone(receive, partial(self._stream, send))
        finally:
            self._asked.leave()
        if refusal is not None:
            await error_response(refusal)(scope, receive, send)

    async def _stream(self, send: Send) -> ApiError | None:
        """Send everything; an error that came before anything was sent is the result."""
        try:
            while (event := await self._asked.next()) is not None:
                await self._begin(send)
                for choice in self._pieces(event):
                    await self._send(send, self._piece([choice]))
        except ApiError as error:
            if not self._begun:
                return error
            await self._send(send, error.body)
        else:
            if self._asked.chat.include_usage:
                await self._send(send, msgspec.structs.replace(self._piece([]), usage=self._asked.usage))
        await self._body(send, b"data: [DONE]\n\n", more=False)
        return None

    async def _begin(self, send: Send) -> None:
        """Send the head of the response, and of each choice, once."""
        if self._begun:
            return
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for index in range(self._asked.chat.settings.samples or 1):
            await self._send(send, self._piece([PieceChoice(index, Delta("assistant", ""))]))

    def _pieces(self, event: Event) -> list[PieceChoice]:
        if isinstance(event, CommittedStep):
            text = self._asked.said(event)
            return [PieceChoice(event.index, Delta(reasoning_content=text))] if text else []
        assert isinstance(event.outcome, ChainReply), "a chain that failed ends the stream"
        [choice] = self._asked.completion([event.outcome])["choices"]
        content = choice["message"]["content"]
        said = [] if content is None else [PieceChoice(event.index, Delta(content=content))]
        return [*said, PieceChoice(event.index, Delta(), choice["finish_reason"])]

    def _piece(self, choices: list[PieceChoice]) -> CompletionPiece:
        asked = self._asked
        return CompletionPiece(id=asked.name, created=asked.created, model=asked.chat.model, choices=choices)

    async def _send(self, send: Send, piece: Struct | dict[str, Any]) -> None:
        await self._body(send, b"data: " + msgspec.json.encode(piece) + b"\n\n", more=True)

    async def _body(self, send: Send, content: bytes, *, more: bool) -> None:
        await send({"type": "http.response.body", "body": content, "more_body": more})


def bounded(receive: Receive, most: int) -> Receive:
    """A `receive` that raises `ApiError` for a body that is too large, or takes longer than `BODY_S`."""
    size, whole, deadline = 0, False, anyio.current_time() + BODY_S

    async def bounded_receive() -> Any:
        nonlocal size, whole
        if whole:
            return await receive()  # what comes after a body is its client's leaving
        try:
            with anyio.fail_after(deadline - anyio.current_time()):
                message = await receive()
        except TimeoutError as error:
            raise ApiError(f"the body did not come within {BODY_S:g} s", code="request_timeout", status=408) from error
        size += len(message.get("body", b""))
        if size > most:
            raise ApiError(f"the body has more than {most:,} bytes", code="request_too_large", status=413)
        whole = not message.get("more_body", False)
        return message

    return bounded_receive


def error_response(error: ApiError) -> Response:
    """The response that says `error`."""
    headers = {"retry-after": str(error.wait_s)} if isinstance(error, Overloaded) else {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(msgspec.json.encode(error.body), error.status, headers, "application/json")


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
