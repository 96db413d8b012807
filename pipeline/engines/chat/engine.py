"""Engine `chat`: a server with chat completions alone. Specs enter, open engines leave.

It says no log probabilities, no token ids and no more than one reply a request; verdicts are read from the text of a reply, so that their
values are 0 or 1. Token counts are the server's.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import anyio
import msgspec

from pipeline.engine import (
    Availability,
    Backend,
    Candidate,
    Completion,
    EngineStatistics,
    Examination,
    Fact,
    Finding,
    FinishReason,
    Request,
    Tokenizer,
    Usage,
)
from pipeline.engines.chat.messages import Asked, ChatTokenizer, asked_of, candidate_of, option_in
from pipeline.engines.chat.probe import check_model, lasting_nonsense
from pipeline.engines.chat.spec import ChatSpec
from pipeline.engines.meter import UsageMeter
from pipeline.engines.openai.breaker import FAILURES_IN_ROW
from pipeline.engines.openai.client import Broken, Oversized, Server, check_url, read_key
from pipeline.engines.openai.replies import (
    Malformed,
    Said,
    Unanswered,
    Unreadable,
    error_of,
    finish_of,
    refusal_of,
    said_in,
)
from pipeline.engines.openai.request import longest_answer
from pipeline.engines.openai.response import ResponseBody, decode_response
from pipeline.engines.openai.stated import UsageBody, model_of, read_usage
from pipeline.engines.sim.tokenizer import VOCAB_SIZE
from pipeline.engines.startup import READY, tell_phase
from pipeline.engines.validate import validate_completion, validate_request
from pipeline.errors import BadCompletion, EngineDead, EngineUnavailable, GraphError, PipelineError, RequestRefused, install_command
from pipeline.machine import Machine
from pipeline.tasks import gather

TEMPLATE_TOKENS = 32
"""Tokens of a prompt that are left for what the server's chat template adds to the messages."""
SEEDS = 1 << 31
NEVER = -1e9
"""The log probability of an option that a reply does not name."""


class Answer(NamedTuple):
    """The server's answer to one request."""

    said: Said
    finish: FinishReason
    usage: UsageBody
    model: str | None


class ChatEngine:
    """The `Engine` contract over one server with chat completions; open it with `open_chat`."""

    def __init__(self, role: str, spec: ChatSpec, server: Server) -> None:
        self.role, self._spec, self._server = role, spec, server
        self._tokenizer = ChatTokenizer()
        self.tokenizer: Tokenizer = self._tokenizer
        self.max_model_len, self.vocab_size = spec.max_model_len, VOCAB_SIZE
        self.facts: dict[str, Fact] = {
            "answers": "model",
            "servers": (server.url,),
            "api": "chat",
            "cannot": spec.cannot,
            "doubts": ("it is unknown whether the server truncates messages: its tokens are unknown",),
        }
        self._meter = UsageMeter()
        self._exit_reason: str | None = None
        """Why the server will answer nothing any more; None: it may."""
        self._nonsense = 0
        """How many answers in a row were none."""
        self._examining = anyio.Lock()

    async def generate(self, request: Request) -> Completion:
        if self._exit_reason is not None:
            raise EngineDead(self.role, self._exit_reason)
        validate_request(request, self.max_model_len, self.vocab_size)
        asked = asked_of(request, self._tokenizer)
        self._meter.begin()
        try:
            answers = await gather([partial(self._answer, request, asked, index) for index in range(request.n)])
        except EngineDead as death:
            self._exit_reason = death.exit_reason
            raise
        finally:
            self._meter.end()
        completion = self._completion(request, asked, answers)
        if (flaw := validate_completion(completion, request, self.vocab_size)) is not None:
            raise BadCompletion(self.role, request.request_id, flaw)
        self._meter.count(completion.usage)
        return completion

    @property
    def received_bytes(self) -> int:
        return self._server.received_bytes

    def statistics(self) -> EngineStatistics:
        """Counted on this side of the connection."""
        return self._meter.statistics(running=self._meter.open_calls)

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._server.aclose()

    async def _answer(self, request: Request, asked: Asked, index: int) -> Answer:
        """The server's answer to one candidate of `request`; raises the error to raise where there is none."""
        body = self._body(request, asked, index)
        failure: PipelineError
        try:
            found = await self._send(body)
            if isinstance(found, Unanswered):
                raise found
            if not found.choices:
                raise Malformed("holds no reply")
            choice = found.choices[0]
            finish = finish_of(choice.finish_reason, choice.error)
            if choice.message is None:
                raise Malformed("holds no message")
            said = Said(*map(self._server.scrub_answer, said_in(choice.message, finish)))
            self._nonsense = 0
            return Answer(said, finish, read_usage(found.usage), model_of(found.model))
        except Oversized as error:
            nonsense, failure = True, BadCompletion(self.role, request.request_id, str(error))
        except Broken as error:
            raise EngineUnavailable(self.role, f"cannot ask: the server {error}") from None
        except Unanswered as reply:
            nonsense = isinstance(reply, Malformed | Unreadable)
            failure = error_of(reply, self.role, request, self._server, self.max_model_len)
        if nonsense:
            await self._examine()
        raise failure

    async def _examine(self) -> None:
        """Count an answer that was none; raises `EngineDead` where there are too many of them, and the server has no other."""
        self._nonsense += 1
        async with self._examining:
            if self._nonsense < FAILURES_IN_ROW:
                return
            if self._exit_reason is None and (words := await lasting_nonsense(self._server, self._spec)) is not None:
                self._exit_reason = f"the server {words}"
            if self._exit_reason is not None:
                raise EngineDead(self.role, self._exit_reason)
            self._nonsense = 0

    async def _send(self, body: Mapping[str, Any]) -> ResponseBody | Unanswered:
        """The body of the server's answer, or what its refusal means; raises `Broken`, and what `decode_response` does."""
        longest = longest_answer({"max_tokens": body[self._spec.max_tokens_key], "prompt": ()})
        reply = await self._server.send("/chat/completions", body, longest)
        return decode_response(reply.content) if reply.ok else refusal_of(reply)

    def _body(self, request: Request, asked: Asked, index: int) -> dict[str, Any]:
        spec = self._spec
        most = request.max_tokens if asked.thinks else spec.thinking_tokens + (0 if asked.options else request.max_tokens)
        most = max(1, min(most, self.max_model_len - len(request.prompt_ids) - TEMPLATE_TOKENS))
        body: dict[str, Any] = {"model": spec.model, "messages": msgspec.to_builtins(asked.messages), spec.max_tokens_key: most}
        if spec.send_sampling:
            body |= {"temperature": request.temperature, "top_p": request.top_p}
            body |= {"seed": (request.seed + index) % SEEDS} if request.temperature else {}
        return body | spec.fields

    def _completion(self, request: Request, asked: Asked, answers: Sequence[Answer]) -> Completion:
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
                candidates.append(candidate_of(*answer.said, answer.finish, request, asked, self._tokenizer))
        return Completion(
            candidates=tuple(candidates),
            option_logprobs=logprobs,
            usage=_usage(request, answers, candidates),
            model=next((answer.model for answer in answers), None),
        )

    def _chosen(self, request: Request, asked: Asked, answer: Answer) -> int:
        """The place of the option that an answer names; raises the error to raise where it names none."""
        content = answer.said.content
        if (place := option_in(content, asked.options)) is not None:
            return place
        if answer.finish == "length" and not content.strip():
            what = f"all tokens of its reply went into reasoning, before it named one of {', '.join(asked.options)}"
            raise RequestRefused(f"request {request.request_id!r}: engine {self.role!r}: {what}; raise thinking_tokens")
        what = f"its reply names none of {', '.join(asked.options)}: {content[:100]!r}"
        raise BadCompletion(self.role, request.request_id, what)


def _usage(request: Request, answers: Sequence[Answer], candidates: list[Candidate]) -> Usage:
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
                await check_model(where, server, spec)
            if patience.cancelled_caught:
                raise GraphError(where, f"{url} did not list its models within startup_timeout_s={spec.startup_timeout_s:g}")
            engines[role] = ChatEngine(role, spec, server)
            tell_phase(role, READY)
        yield engines


def chat_available(machine: Machine) -> Availability:
    """Whether the client for servers is installed."""
    if "httpx2" in machine.versions:
        return Availability(usable=True, what="servers with chat completions", remedy="")
    return Availability(usable=False, what="httpx2 is not installed", remedy=install_command("openai"))


async def examine_chat(specs: Mapping[str, ChatSpec], machine: Machine) -> Examination:
    """Ask the server of every role for a small reply, as a run would at its start."""
    findings = []
    for role, spec in specs.items():
        try:
            async with open_chat({role: spec}):
                pass
            words = f"{spec.base_url} answers a chat with {spec.model!r}"
            findings.append(Finding(role=role, what=words, remedy="verdicts are read from the text of its replies", fatal=False))
        except GraphError as error:
            what, _, remedy = error.what.partition("; ")
            findings.append(Finding(role=role, what=what, remedy=remedy, fatal=True))
    return Examination(findings=tuple(findings))


BACKEND = Backend(
    spec=ChatSpec, open=open_chat, available=chat_available, examine=examine_chat, tokenizer=lambda role, spec: ChatTokenizer()
)
