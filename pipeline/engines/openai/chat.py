"""Engine `chat`: servers with chat completions alone. Specs enter, open engines leave.

They say no log probabilities, no token ids and no more than one reply a request; verdicts are read from the text of a reply, so that their
values are 0 or 1. Token counts are the server's.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, NamedTuple

import msgspec
from anyio.abc import TaskGroup

from pipeline.engine import Backend, Candidate, Completion, Examination, FinishReason, Request, Usage
from pipeline.engines.openai.answers import CompletionChoice, ResponseBody, UsageBody, decode_reply
from pipeline.engines.openai.chat_messages import ChatRequest, ChatTokenizer, asked_of, candidate_of, option_in
from pipeline.engines.openai.client import NoAnswer, Reply, Server, quoted
from pipeline.engines.openai.probe import listed_models, served_model
from pipeline.engines.openai.replies import Said, finish_of, refuse_closed, said_in, server_error_of
from pipeline.engines.openai.request import max_bytes
from pipeline.engines.openai.served import ServedEngine, connect, examine_served, open_served, served_available, where_of, within
from pipeline.engines.openai.spec import ChatSpec
from pipeline.engines.sim.tokenizer import VOCAB_SIZE
from pipeline.engines.startup import READY, tell_phase
from pipeline.errors import BadCompletion, GraphError, RequestRefused
from pipeline.system.machine import Machine
from pipeline.system.tasks import gather, unwrapped

TEMPLATE_TOKENS = 32
"""Tokens of a prompt that are left for what the server's chat template adds to the messages."""
SEEDS = 1 << 31
NEVER = -1e9
"""The log probability of an option that a reply does not name."""
_SMALL_TOKENS = 16
"""Most tokens of the small reply that a server is asked for."""


class ChatReply(NamedTuple):
    """The server's answer to one request."""

    said: Said
    finish: FinishReason
    usage: UsageBody
    model: str | None


class ChatEngine(ServedEngine):
    """The `Engine` contract over servers with chat completions; open it with `open_chat`."""

    def __init__(self, role: str, spec: ChatSpec, servers: Sequence[Server], tasks: TaskGroup) -> None:
        """`tasks` must live as long as the engine."""
        super().__init__(role, spec, servers, tasks)
        self._spec, self._chat_tokenizer = spec, ChatTokenizer()
        self.tokenizer, self.max_model_len, self.vocab_size = self._chat_tokenizer, spec.max_model_len, VOCAB_SIZE
        self.facts = {
            "answers": "model",
            "servers": tuple(server.url for server in servers),
            "api": "chat",
            "cannot": spec.cannot,
            "doubts": ("it is unknown whether the server truncates messages: its tokens are unknown",),
        }

    async def answer(self, request: Request, server: Server) -> Completion:
        asked = asked_of(request, self._chat_tokenizer)
        with unwrapped(NoAnswer):
            answers = await gather([partial(self._reply, server, self._body(request, asked, index)) for index in range(request.n)])
        return self._completion(request, asked, answers)

    async def probe(self, server: Server) -> None:
        _only(decode_reply(await post(server, small_body(self._spec, self._spec.model))))

    async def _reply(self, server: Server, body: Mapping[str, Any]) -> ChatReply:
        """The server's answer to one candidate of a request; raises `NoAnswer`."""
        found = decode_reply(await post(server, body, body[self._spec.max_tokens_key]))
        choice = _only(found)
        finish = finish_of(choice.finish_reason, choice.error)
        if choice.message is None:
            raise NoAnswer("malformed", "holds no message")
        said = said_in(choice.message, finish)
        for text in said:
            server.refuse_key(text)
        return ChatReply(said, finish, found.counted, found.answered_by)

    def _body(self, request: Request, asked: ChatRequest, index: int) -> dict[str, Any]:
        spec = self._spec
        limit = request.max_tokens if asked.thinks else spec.thinking_tokens + (0 if asked.options else request.max_tokens)
        limit = max(1, min(limit, self.max_model_len - len(request.prompt_ids) - TEMPLATE_TOKENS))
        body: dict[str, Any] = {"model": spec.model, "messages": msgspec.to_builtins(asked.messages), spec.max_tokens_key: limit}
        if spec.send_sampling:
            body |= {"temperature": request.temperature, "top_p": request.top_p}
            body |= {"seed": (request.seed + index) % SEEDS} if request.temperature else {}
        return body | spec.fields

    def _completion(self, request: Request, asked: ChatRequest, answers: Sequence[ChatReply]) -> Completion:
        """The completion that the answers are, a candidate each."""
        candidates: list[Candidate] = []
        logprobs: tuple[float, ...] = ()
        for answer in answers:
            if asked.options:
                place = self._chosen(request, asked, answer)
                logprobs = tuple(0.0 if each == place else NEVER for each in range(len(asked.options)))
                chosen = request.option_ids[place]
                text = self.tokenizer.decode([chosen])
                candidates.append(Candidate(ids=(chosen,), text=text, cumulative_logprob=None, finish_reason="length"))
            else:
                candidates.append(candidate_of(*answer.said, answer.finish, request, asked, self._chat_tokenizer))
        usage, model = _usage(request, answers, candidates), next((answer.model for answer in answers), None)
        return Completion(candidates=tuple(candidates), option_logprobs=logprobs, usage=usage, model=model)

    def _chosen(self, request: Request, asked: ChatRequest, answer: ChatReply) -> int:
        """The place of the option that an answer names; raises the error to raise where it names none."""
        content, options = answer.said.content, ", ".join(asked.options)
        if (place := option_in(content, asked.options)) is not None:
            return place
        if answer.finish == "length" and not content.strip():
            what = f"all tokens of its reply went into reasoning, before it named one of {options}; raise thinking_tokens"
            raise RequestRefused(f"request {request.request_id!r}: engine {self.role!r}: {what}")
        raise BadCompletion(self.role, request.request_id, f"its reply names none of {options}: {content[:100]!r}")


def _only(found: ResponseBody) -> CompletionChoice:
    """The first reply of an answer; raises `NoAnswer` where there is none."""
    if not found.choices:
        raise NoAnswer("malformed", "holds no reply")
    return found.choices[0]


def _usage(request: Request, answers: Sequence[ChatReply], candidates: list[Candidate]) -> Usage:
    """The tokens that the server counts, as far as they can be those of `request`, in whose tokens limits are counted; where it counts
    none, those of `request` and of the candidates."""
    stated = [answer.usage for answer in answers]
    read = [each.prompt_tokens for each in stated if each.prompt_tokens]
    cached = [each.cached_tokens for each in stated if each.cached_tokens is not None]
    written = [each.completion_tokens for each in stated if each.completion_tokens]
    given = sum(read) if len(read) == len(stated) else len(request.prompt_ids)
    sampled = sum(written) if len(written) == len(stated) else sum(len(each.ids) for each in candidates)
    return Usage(
        input_tokens=given,
        cached_input_tokens=min(sum(cached), given) if len(cached) == len(stated) else None,
        output_tokens=min(sampled, request.n * (request.max_tokens + 1)),
    )


async def post(server: Server, body: Mapping[str, Any], max_tokens: int = _SMALL_TOKENS) -> Reply:
    """The reply to a chat; raises `NoAnswer`."""
    return await server.post("/chat/completions", body, max_bytes({"max_tokens": max_tokens, "prompt": ()}))


def small_body(spec: ChatSpec, model: str) -> dict[str, Any]:
    """A small request to `model` with all fields that the requests of a run have."""
    sampling = {"temperature": 0.6, "top_p": 1.0, "seed": 0} if spec.send_sampling else {}
    messages = [{"role": "user", "content": "0 or 1?"}]
    return {"model": model, "messages": messages, spec.max_tokens_key: _SMALL_TOKENS, **sampling, **spec.fields}


async def check_chat(where: str, server: Server, spec: ChatSpec) -> None:
    """Ask the server for its models, and its model for one small reply with all fields that a run sends. Raises `GraphError`, with the
    server's own words, where it cannot be reached, wants another key, does not serve the model, refuses the request or answers with what
    is no chat."""

    async def ask(model: str) -> Reply:
        return await post(server, small_body(spec, model))

    models = await listed_models(where, server, spec.api_key_env, spec.startup_timeout_s)
    model = await served_model(where, server, models, spec.model, ask)
    try:
        reply = await ask(model.id)
        refuse_closed(where, server.url, spec.api_key_env, reply)
        if not reply.ok and reply.status not in (429, 503):
            said = server_error_of(reply).text
            remedy = "max_tokens_key, send_sampling, chat_template_kwargs and extra determine what is sent"
            raise GraphError(where, f"{server.url} rejects a small chat with {spec.model!r} (status {reply.status}): {said}; {remedy}")
        if reply.ok:
            _only(decode_reply(reply))
    except NoAnswer as found:
        if found.verdict in ("unreadable", "malformed"):
            said = f"it {quoted(str(found))}"
            raise GraphError(where, f"{server.url} does not answer a chat with {spec.model!r} ({said}); check base_url") from None
        if found.verdict == "failing":
            raise GraphError(where, f"the server at {server.url} {found}") from None


def open_chat(specs: Mapping[str, ChatSpec]) -> AbstractAsyncContextManager[Mapping[str, ChatEngine]]:
    """Open an engine for each role; raises `GraphError` when a server cannot be reached, refuses the key or does not serve the model."""
    return open_served(partial(_open_all, specs))


async def _open_all(specs: Mapping[str, ChatSpec], stack: AsyncExitStack, tasks: TaskGroup) -> dict[str, ChatEngine]:
    engines: dict[str, ChatEngine] = {}
    for role, spec in specs.items():
        servers = connect(role, spec, stack)
        await within(role, spec, partial(gather, [partial(check_chat, where_of(role), server, spec) for server in servers]))
        engines[role] = ChatEngine(role, spec, servers, tasks)
        tell_phase(role, READY)
    return engines


async def examine_chat(specs: Mapping[str, ChatSpec], machine: Machine) -> Examination:
    """Ask the servers of every role for a small reply, as a run would at its start."""

    def described(engine: ChatEngine) -> tuple[str, str, Collection[str]]:
        spec = specs[engine.role]
        return f"{', '.join(spec.urls)} answers a chat with {spec.model!r}", "verdicts are read from the text of its replies", spec.cannot

    return await examine_served(specs, open_chat, described)


BACKEND = Backend(
    spec=ChatSpec, open=open_chat, available=served_available, examine=examine_chat, tokenizer=lambda role, spec: ChatTokenizer()
)
