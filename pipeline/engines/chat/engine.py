"""Engine `chat`: a server with chat completions alone. Specs enter, open engines leave.

It says no log probabilities, no token ids and no more than one reply a request; verdicts are read from the text of a reply, so that their
values are 0 or 1. Token counts are the server's.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec
from msgspec import Struct

from pipeline.engine import (
    Availability,
    Backend,
    Candidate,
    Completion,
    EngineStatistics,
    Examination,
    Fact,
    FinishReason,
    Request,
    Tokenizer,
    Usage,
)
from pipeline.engines.chat.messages import Asked, ChatTokenizer, asked_of, candidate_of, option_in
from pipeline.engines.chat.spec import ChatSpec
from pipeline.engines.meter import UsageMeter
from pipeline.engines.openai.client import UNREADABLE, Broken, Reply, Server, check_url, is_context_overflow, read_key, server_error_of
from pipeline.engines.sim.tokenizer import VOCAB_SIZE
from pipeline.engines.startup import READY, tell_phase
from pipeline.engines.validate import validate_completion, validate_request
from pipeline.errors import BadCompletion, ContextOverflow, EngineUnavailable, GraphError, RequestRefused, install_command
from pipeline.machine import Machine
from pipeline.tasks import gather

MOST_BYTES = 1 << 26
"""Most bytes of a reply."""
TEMPLATE_TOKENS = 32
"""Tokens of a prompt that are left for what the server's chat template adds to the messages."""
SEEDS = 1 << 31
NEVER = -1e9
"""The log probability of an option that a reply does not name."""


class ReplyMessage(Struct, frozen=True):
    """What the model said."""

    content: str | None = None
    reasoning_content: str | None = None
    """Its thought, as vLLM, SGLang and DeepSeek call it."""
    reasoning: str | None = None
    """Its thought, as others call it."""


class Choice(Struct, frozen=True):
    """One reply."""

    message: ReplyMessage
    finish_reason: str | None = None


class Details(Struct, frozen=True):
    """How many tokens of a prompt were cached."""

    cached_tokens: int | None = None


class Counts(Struct, frozen=True):
    """Token counts, as the server's own tokenizer counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Body(Struct, frozen=True):
    """The body of an answer."""

    choices: tuple[Choice, ...]
    usage: Counts | None = None


_decode = msgspec.json.Decoder(Body).decode


class ChatEngine:
    """The `Engine` contract over one server with chat completions; open it with `open_chat`."""

    def __init__(self, role: str, spec: ChatSpec, server: Server) -> None:
        self.role, self._spec, self._server = role, spec, server
        self._tokenizer = ChatTokenizer()
        self.tokenizer: Tokenizer = self._tokenizer
        self.max_model_len, self.vocab_size = spec.max_model_len, VOCAB_SIZE
        sampling = ("top_p",) if spec.send_sampling else ()
        self.facts: dict[str, Fact] = {
            "answers": "model",
            "servers": (server.url,),
            "api": "chat",
            "sampling": sampling,
            "continues": False,
        }
        self._meter = UsageMeter()

    async def generate(self, request: Request) -> Completion:
        """See `Engine.generate`."""
        validate_request(request, self.max_model_len, self.vocab_size)
        asked = asked_of(request, self._tokenizer)
        self._meter.begin()
        try:
            bodies = await gather([partial(self._reply, request, asked, index) for index in range(request.n)])
        finally:
            self._meter.end()
        completion = self._completion(request, asked, bodies)
        if (flaw := validate_completion(completion, request, self.vocab_size)) is not None:
            raise BadCompletion(self.role, request.request_id, flaw)
        self._meter.count(completion.usage)
        return completion

    def statistics(self) -> EngineStatistics:
        """See `EngineStatistics`, counted on this side of the connection."""
        return self._meter.statistics(running=self._meter.open_calls)

    async def aclose(self) -> None:
        """See `Engine.aclose`."""
        with anyio.CancelScope(shield=True):
            await self._server.aclose()

    async def _reply(self, request: Request, asked: Asked, index: int) -> Body:
        """The server's answer to one candidate of `request`; raises the error to raise where there is none."""
        try:
            reply = await self._server.send("/chat/completions", self._body(request, asked, index), MOST_BYTES)
        except Broken as error:
            raise EngineUnavailable(self.role, f"cannot ask: the server {error}") from None
        if not reply.ok:
            raise self._refusal(request, reply)
        try:
            body = _decode(reply.content)
        except (*UNREADABLE, RecursionError) as error:
            raise BadCompletion(self.role, request.request_id, f"not a chat completion: {error}") from None
        if not body.choices:
            raise BadCompletion(self.role, request.request_id, "it holds no reply")
        return body

    def _body(self, request: Request, asked: Asked, index: int) -> dict[str, Any]:
        spec = self._spec
        most = request.max_tokens if asked.thinks else spec.thinking_tokens + (0 if asked.options else request.max_tokens)
        most = max(1, min(most, self.max_model_len - len(request.prompt_ids) - TEMPLATE_TOKENS))
        body: dict[str, Any] = {"model": spec.model, "messages": msgspec.to_builtins(asked.messages), spec.max_tokens_key: most}
        if spec.send_sampling:
            body |= {"temperature": request.temperature, "top_p": request.top_p}
            body |= {"seed": (request.seed + index) % SEEDS} if request.temperature else {}
        return body | dict(spec.extra)

    def _refusal(self, request: Request, reply: Reply) -> Exception:
        """The error that a reply without an answer is."""
        refused = server_error_of(reply)
        said = f"the server at {self._server.url} said: {refused.text}"
        if is_context_overflow(refused):
            return ContextOverflow(len(request.prompt_ids), refused.context or self.max_model_len)
        if reply.transient:
            return EngineUnavailable(self.role, f"could not answer: {said}", reply.retry_after_s)
        return RequestRefused(f"request {request.request_id!r}: {said} (status {reply.status})")

    def _completion(self, request: Request, asked: Asked, bodies: list[Body]) -> Completion:
        """The completion that the answers are, a candidate each."""
        candidates: list[Candidate] = []
        logprobs: tuple[float, ...] = ()
        for body in bodies:
            said, finish = body.choices[0].message, _finish(body.choices[0].finish_reason)
            content, reasoning = said.content or "", said.reasoning_content or said.reasoning or ""
            if asked.options:
                place = option_in(content, asked.options)
                if place is None:
                    what = f"its reply names none of {', '.join(asked.options)}: {content[:100]!r}"
                    raise BadCompletion(self.role, request.request_id, what)
                logprobs = tuple(0.0 if each == place else NEVER for each in range(len(asked.options)))
                chosen = request.option_ids[place]
                text = self.tokenizer.decode([chosen])
                candidates.append(Candidate(ids=(chosen,), text=text, cumulative_logprob=None, finish_reason="length"))
            else:
                candidates.append(candidate_of(reasoning, content, finish, request, asked, self._tokenizer))
        return Completion(
            candidates=tuple(candidates),
            option_logprobs=logprobs,
            usage=_usage(request, bodies, candidates),
            cache_stated=all(body.usage is not None and body.usage.prompt_tokens_details is not None for body in bodies),
        )


def _finish(stated: str | None) -> FinishReason:
    return "length" if stated == "length" else "stop"


def _usage(request: Request, bodies: list[Body], candidates: list[Candidate]) -> Usage:
    """The tokens that the server counts, as far as they can be those of `request`, in whose tokens limits are counted."""
    read = sum(body.usage.prompt_tokens for body in bodies if body.usage is not None)
    cached = sum((details.cached_tokens or 0) for body in bodies if body.usage and (details := body.usage.prompt_tokens_details))
    written = sum(body.usage.completion_tokens for body in bodies if body.usage is not None) or sum(len(each.ids) for each in candidates)
    return Usage(input_tokens=read, cached_input_tokens=min(cached, read), output_tokens=min(written, request.n * (request.max_tokens + 1)))


@asynccontextmanager
async def open_chat(specs: Mapping[str, ChatSpec]) -> AsyncIterator[Mapping[str, ChatEngine]]:
    """Open an engine for each role; raises `GraphError` when a server cannot be reached, refuses the key or does not serve the model."""
    async with AsyncExitStack() as stack:
        engines: dict[str, ChatEngine] = {}
        for role, spec in specs.items():
            where = f"engine {role!r}"
            url, key = check_url(where, spec.base_url), read_key(where, spec.api_key_env)
            tell_phase(role, f"connecting to {url}")
            server = Server(where, url, key, spec.max_in_flight)
            stack.push_async_callback(server.aclose)
            with anyio.move_on_after(spec.startup_timeout_s) as patience:
                await _check_model(where, server, spec)
            if patience.cancelled_caught:
                raise GraphError(where, f"{url} did not list its models within startup_timeout_s={spec.startup_timeout_s:g}")
            engines[role] = ChatEngine(role, spec, server)
            tell_phase(role, READY)
        yield engines


class _Listed(Struct, frozen=True):
    id: str


class _Models(Struct, frozen=True):
    data: tuple[_Listed, ...]


async def _check_model(where: str, server: Server, spec: ChatSpec) -> None:
    """Raise `GraphError` where the server cannot be reached, wants another key, or lists models without the spec's."""
    try:
        reply = await server.get("/models")
    except Broken as error:
        raise GraphError(where, f"the server {error}; start it, or correct base_url") from None
    if reply.unauthorized:
        remedy = (
            f"does not accept the key in {spec.api_key_env}" if spec.api_key_env else "asks for a key: name its variable in api_key_env"
        )
        raise GraphError(where, f"{server.url} {remedy} (status {reply.status})")
    try:
        names = [model.id for model in msgspec.json.decode(reply.content, type=_Models).data] if reply.ok else []
    except UNREADABLE:
        names = []
    if names and spec.model not in names:
        raise GraphError(where, f"{server.url} does not serve {spec.model!r}; it serves {', '.join(map(server.quote, names[:20]))}")


def chat_available(machine: Machine) -> Availability:
    """Whether the client for servers is installed."""
    if "httpx2" in machine.versions:
        return Availability(usable=True, what="servers with chat completions", remedy="")
    return Availability(usable=False, what="httpx2 is not installed", remedy=install_command("openai"))


async def examine_chat(specs: Mapping[str, ChatSpec], machine: Machine) -> Examination:
    """Nothing of a server is looked at before a run; it needs no memory here."""
    return Examination(findings=(), memory=(), checkpoints=())


BACKEND = Backend(
    spec=ChatSpec, open=open_chat, available=chat_available, examine=examine_chat, tokenizer=lambda role, spec: ChatTokenizer()
)
