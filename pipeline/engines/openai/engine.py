"""The `Engine` contract over servers with OpenAI's completions endpoint that are replicas of one another.

Requests enter and completions leave; nothing is computed here and nothing is sent twice (`pipeline.runtime.retry` does that). What a
reply says of its replica is told to `pipeline.engines.openai.recovery`: a replica that fails gets no calls until it answers a probe,
its calls go to another one, and when no replica answers any more the engine is dead.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import structs

from pipeline.engine import Completion, EngineStatistics, Fact, Request, Tokenizer
from pipeline.engines.meter import UsageMeter
from pipeline.engines.openai.breaker import Cause
from pipeline.engines.openai.client import ASK_S, Broken, Oversized, Server
from pipeline.engines.openai.probe import probe_request
from pipeline.engines.openai.recovery import Owner, Probe, Recovery
from pipeline.engines.openai.replies import Aborted, Closed, Malformed, Overflowing, Unanswered, Unreadable, Withheld, error_of, refusal_of
from pipeline.engines.openai.request import SCORING, Capabilities, candidates_asked, request_bodies, streamed
from pipeline.engines.openai.response import ResponseBody, completion_of, decode_response, scrubbed
from pipeline.engines.openai.routing import Router
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.openai.stated import states_what_was_cached
from pipeline.engines.openai.stream import StreamedAnswer
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import validate_completion, validate_request
from pipeline.errors import BadCompletion, ContextOverflow, EngineDead, EngineUnavailable, PipelineError, RequestRefused
from pipeline.tasks import gather

T = TypeVar("T")
BUSY_S = 1.0
"""A replica that has too many requests (429) gets no new ones for this long, or as long as it asks, where others take them."""
PADDING_IDS = 4096
"""Most ids that a model has beyond those of its tokenizer: vocabularies are padded to sizes that suit a processor."""
_TIMED_OUT = 0.9
"""A call that is cancelled after this share of `timeout_s`, or of `hang_s` without anything from its server, counts as timed out."""


class ServedTokenizer(HFTokenizer):
    """The tokenizer of a model that is served elsewhere."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id in the tokenizer."""
        highest: int = max(self._hf.get_vocab().values())
        return 1 + highest


class Deployment(NamedTuple):
    """Where the model of a role is served."""

    role: str
    spec: OpenAISpec
    servers: Sequence[Server]
    """Its replicas."""
    max_model_len: int
    """The least context length of the servers, in tokens."""


class Failed(PipelineError):
    """A replica gave no answer to a request."""

    def __init__(self, cause: Cause | Literal["busy"], what: str, error: PipelineError) -> None:
        """`what` says how, after the name of the engine; `error` is raised where no other replica can be asked."""
        super().__init__(what)
        self.cause, self.what, self.error = cause, what, error


class Sent:
    """A call while it is in flight; `replica` is None before it has one."""

    __slots__ = ("arrived", "began", "moved", "replica", "request", "sent")

    def __init__(self, request: Request, began: float) -> None:
        self.request, self.began = request, began
        self.replica: int | None = None
        self.sent = 0.0
        """When it was sent to that replica."""
        self.arrived: Sequence[StreamedAnswer] = ()
        """Of an interruptible request: what has arrived of each answer."""
        self.moved = ""
        """Why it was taken from the replica; empty: it was not."""


class OpenAIEngine:
    """The `Engine` contract over the servers of a deployment; open it with `open_openai`."""

    def __init__(
        self, deployment: Deployment, tokenizer: ServedTokenizer, can: Capabilities, facts: Mapping[str, Fact], tasks: TaskGroup
    ) -> None:
        """`can` is what all servers of `deployment` can do; `tasks` must live as long as the engine."""
        self.role = deployment.role
        self.tokenizer: Tokenizer = tokenizer
        self.max_model_len = deployment.max_model_len
        self.facts = facts
        self.can, self._tasks = can, tasks
        self._spec, self._servers = deployment.spec, deployment.servers
        self.vocab_size = tokenizer.vocab_size
        self._most_ids = tokenizer.vocab_size + PADDING_IDS
        self._router = Router(len(deployment.servers))
        self._recovery = Recovery(self._router, self._spec.reconnect_s, Owner(self._start, self._probe, self._abandon, self._die))
        self._tried: dict[str, set[int]] = {}
        """Replicas at which a request, by its id, has failed since it was sent for the first time or had to wait."""
        self._exit_reason: str | None = None
        self._calls: dict[anyio.CancelScope, Sent | None] = {}
        """Everything that ends with the engine: calls, and None for its other tasks."""
        self._interruptible: dict[str, anyio.CancelScope] = {}
        """What `interrupt` cancels, by the id of the request."""
        self._meter = UsageMeter()
        self._states_cached = False
        """Whether an answer said how many tokens of its prompt were cached: older versions of vLLM say so only where some were."""
        if len(deployment.servers) > 1:
            self._start(self._recovery.watch)

    async def generate(self, request: Request) -> Completion:
        self._check_alive()
        validate_request(request, self.max_model_len, self.vocab_size, self._spec.adapters)
        self._check_possible(request)
        call = Sent(request, anyio.current_time())
        completion: Completion | None = None
        self._meter.begin()
        try:
            with anyio.CancelScope() as scope:
                self._calls[scope] = call
                completion = await (self._ask_interruptibly(call) if self._is_streamed(request) else self._ask(call))
        except anyio.get_cancelled_exc_class():
            self._dropped(call)
            raise
        finally:
            del self._calls[scope]
            self._meter.end()
        if completion is None:
            raise self._interrupted(call)
        self._meter.count(completion.usage)
        return completion

    def interrupt(self, request_id: str) -> None:
        """The stream is closed, from which a server learns that it may stop."""
        if (scope := self._interruptible.get(request_id)) is not None:
            scope.cancel()

    async def wait_answering(self) -> bool:
        self._check_alive()
        with anyio.CancelScope() as scope:
            self._calls[scope] = None
            try:
                return await self._recovery.wait_answering()
            finally:
                del self._calls[scope]
        raise EngineDead(self.role, self._exit_reason or "it was closed")

    @property
    def received_bytes(self) -> int:
        return sum(server.received_bytes for server in self._servers)

    def statistics(self) -> EngineStatistics:
        """Counted on this side of the connection: a request waits while no replica takes calls."""
        running = self._router.in_flight
        return self._meter.statistics(running=running, waiting=self._meter.open_calls - running)

    async def aclose(self) -> None:
        self._die("it was closed")
        with anyio.CancelScope(shield=True):
            for server in self._servers:
                await server.aclose()

    # One request.

    async def _ask_interruptibly(self, call: Sent) -> Completion:
        """What `_ask` does, or as much of the answer as has arrived when `interrupt` is called."""
        request = call.request
        with anyio.CancelScope() as scope:
            self._interruptible[request.request_id] = scope
            try:
                return await self._ask(call)
            finally:
                self._interruptible.pop(request.request_id, None)
        self._tried.pop(request.request_id, None)
        return self._arrived(call)

    def _arrived(self, call: Sent) -> Completion:
        """The completion of an interrupted call; raises the error to raise where what has arrived is none."""
        request, server, arrived = call.request, self._servers[call.replica or 0], call.arrived or [StreamedAnswer()]
        asked = candidates_asked(request) // len(arrived)
        try:
            answers = [self._understand(request, server, partial(answer.interrupted, asked)) for answer in arrived]
            return self._completion(request, server, answers)
        except Failed as failed:
            raise failed.error from None

    async def _ask(self, call: Sent) -> Completion:
        """The answer of one replica; raises the error to raise where there is none."""
        request = call.request
        replica = await self._recovery.place(request.affinity, self._tried.get(request.request_id, ()))
        call.replica, call.sent = replica, anyio.current_time()
        try:
            bodies = self._bodies(request)
            if self._is_streamed(request):
                call.arrived = [StreamedAnswer() for _ in bodies]
            completion = await self._answer(request, self._servers[replica], bodies, call.arrived)
        except Failed as failure:
            failed = failure
        else:
            self._recovery.answered(replica, call.sent)
            self._tried.pop(request.request_id, None)
            return completion
        finally:
            self._router.leave(replica)
        call.replica = None
        raise await self._settle(request, replica, failed) from None

    def _is_streamed(self, request: Request) -> bool:
        return request.interruptible and self.can.streams

    def _bodies(self, request: Request) -> list[dict[str, Any]]:
        max_tokens = min(request.max_tokens, self.max_model_len - len(request.prompt_ids))
        model = self._spec.model if request.adapter is None else self._spec.adapters[request.adapter]
        return [{**body, **self._spec.extra} for body in request_bodies(request, self.can, model, self.tokenizer, max_tokens)]

    async def _answer(
        self, request: Request, server: Server, bodies: Sequence[Mapping[str, Any]], arriving: Sequence[StreamedAnswer] = ()
    ) -> Completion:
        """What the server makes of all bodies; raises `Failed`, or `ContextOverflow`. With `arriving`, one for each body, the answers
        come in pieces."""
        posts = [partial(self._post, request, server, body, answer) for body, answer in zip_longest(bodies, arriving)]
        answers = [await posts[0]()] if len(posts) == 1 else await gather(posts)
        return self._completion(request, server, answers)

    def _completion(self, request: Request, server: Server, answers: Sequence[ResponseBody]) -> Completion:
        """The completion that the `answers` of a server hold; raises `Failed`."""
        completion = self._understand(request, server, lambda: completion_of(request, answers, self.can, self.tokenizer))
        completion = scrubbed(completion, server.scrub_answer, self.tokenizer)
        usage = completion.usage
        self._states_cached = self._states_cached or usage.cached_input_tokens is not None
        if self._states_cached and usage.cached_input_tokens is None and states_what_was_cached(request, len(answers)):
            completion = structs.replace(completion, usage=structs.replace(usage, cached_input_tokens=0))
        for candidate in completion.candidates:  # an id that the model has and its tokenizer lacks comes back in a prompt
            self.vocab_size = max(self.vocab_size, min(1 + max(candidate.ids, default=0), self._most_ids))
        if flaw := validate_completion(completion, request, self.vocab_size):
            error = BadCompletion(self.role, request.request_id, flaw)
            raise Failed("nonsense", f"at {server.url} gave no answer to request {request.request_id!r}: {flaw}", error)
        return completion

    async def _post(self, request: Request, server: Server, body: Mapping[str, Any], arriving: StreamedAnswer | None) -> ResponseBody:
        try:
            reply = await (server.post(body) if arriving is None else server.stream(streamed(body, self.can), arriving.feed))
        except Oversized as error:
            raise Failed("nonsense", str(error), BadCompletion(self.role, request.request_id, str(error))) from None
        except Broken as error:
            self._check_alive()
            raise Failed("silence", str(error), EngineUnavailable(self.role, str(error))) from None
        if reply is None:
            assert arriving is not None
            return self._understand(request, server, arriving.body)
        if not reply.ok:
            raise self._failed(request, server, refusal_of(reply))
        return self._understand(request, server, lambda: decode_response(reply.content))

    def _check_possible(self, request: Request) -> None:
        if request.scored_ids and SCORING not in self.can.fields:
            raise RequestRefused(f"request {request.request_id!r}: the server of {self.role!r} returns no log probabilities of a prompt")
        if request.option_ids and not self.can.top_logprobs:
            raise RequestRefused(f"request {request.request_id!r}: the server of {self.role!r} returns no log probabilities to choose by")

    def _understand(self, request: Request, server: Server, read: Callable[[], T]) -> T:
        """The result of `read`, which decodes an answer; its errors become `Failed`, `ContextOverflow` or `RequestRefused`, without the key
        that they may hold."""
        try:
            return read()
        except Withheld as found:  # of one answer: a server that refuses does so with a status
            failed: PipelineError = error_of(found, self.role, request, server, self.max_model_len)
        except Unanswered as found:
            failed = self._failed(request, server, found)
        raise failed

    def _failed(self, request: Request, server: Server, reply: Unanswered) -> PipelineError:
        """The error to raise for a `reply` that is no answer."""
        error = error_of(reply, self.role, request, server, self.max_model_len)
        if isinstance(reply, Overflowing):
            return error
        what = f"at {server.url} {server.quote(str(reply))}"
        if isinstance(reply, Closed):  # not for another server behind the same address, perhaps
            return Failed("closure" if reply.final else "refusal", what, EngineUnavailable(self.role, what))
        if isinstance(reply, Malformed | Unreadable):
            return Failed("nonsense", what, error)
        busy = isinstance(reply, Aborted) and reply.busy
        return Failed("busy" if busy else "refusal" if isinstance(reply, Withheld) else "errors", what, error)

    # Replicas that fail and come back.

    async def _settle(self, request: Request, replica: int, failed: Failed) -> PipelineError:
        """Tell the replica's breaker of a failure; the error to raise for it."""
        sick = await self._recovery.examine(replica, failed.what) if failed.cause in ("refusal", "closure") else None
        state, now = self._router.replicas[replica], anyio.current_time()
        if failed.cause == "busy":
            asked_s = failed.error.retry_after_s if isinstance(failed.error, EngineUnavailable) else None
            state.busy_until = now + (BUSY_S if asked_s is None else asked_s)
        elif sick is None:
            state.breaker.fail(now, failed.what)
        if failed.cause == "silence":
            state.breaker.suspect(now, "silence", failed.what)
        self._recovery.begin(replica)
        if self._goes_elsewhere(request, replica):
            return EngineUnavailable(self.role, failed.what, moved=True)
        del self._tried[request.request_id]
        return failed.error if sick is None else EngineUnavailable(self.role, failed.what, moved=sick in ("refusal", "closure"))

    def _goes_elsewhere(self, request: Request, replica: int) -> bool:
        """Whether there is a replica at which a request that has failed at `replica` has not been tried."""
        tried = self._tried.setdefault(request.request_id, set())
        tried.add(replica)
        return self._router.has_other(tried)

    def _dropped(self, call: Sent) -> None:
        """A call was cancelled; one that took too long speaks against its replica, and is sent to another one next time."""
        now, spec = anyio.current_time(), self._spec
        elapsed_s = now - call.began
        silent_s = 0.0 if call.replica is None else now - max(call.sent, self._servers[call.replica].heard_s)
        too_long = silent_s >= _TIMED_OUT * spec.hang_s or (spec.timeout_s is not None and elapsed_s >= _TIMED_OUT * spec.timeout_s)
        if call.replica is None or not too_long:
            self._tried.pop(call.request.request_id, None)
            return
        words = f"at {self._servers[call.replica].url} has not answered for {elapsed_s:.3g} s"
        self._router.replicas[call.replica].breaker.suspect(now, "silence", words)
        self._recovery.begin(call.replica)
        self._goes_elsewhere(call.request, call.replica)

    def _interrupted(self, call: Sent) -> PipelineError:
        """The error for a call that the engine itself has ended."""
        if call.moved and self._exit_reason is None:
            return EngineUnavailable(self.role, call.moved, moved=True)
        return EngineDead(self.role, self._exit_reason or "it was closed")

    def _abandon(self, replica: int, since_s: float) -> None:
        """Let those calls go to other replicas that have been in flight at this one for `since_s`, as far as they have not failed there."""
        latest = anyio.current_time() - since_s
        for scope, call in list(self._calls.items()):
            if call is not None and call.replica == replica and call.sent <= latest and self._goes_elsewhere(call.request, replica):
                call.moved = f"at {self._servers[replica].url} has not answered for {anyio.current_time() - call.sent:.3g} s"
                scope.cancel()

    async def _probe(self, replica: int) -> Probe:
        """Send a small request and see what comes of it."""
        server, request = self._servers[replica], probe_request(self.tokenizer, self.can)
        patience_s = self._router.probe_s if self._router.has_other((replica,)) else max(ASK_S, self._router.silence_s)
        limit_s = min(self._spec.timeout_s or patience_s, self._spec.hang_s, patience_s)
        try:
            with anyio.move_on_after(limit_s):
                await self._answer(request, server, self._bodies(request))
                return Probe(None)
        except Failed as failed:
            return Probe("errors" if failed.cause == "busy" else failed.cause, failed.what)
        except ContextOverflow as overflow:
            return Probe("refusal", f"at {server.url} rejects a prompt of a few tokens: {overflow}")
        except RequestRefused:
            return Probe(None)  # it answers, and withholds that
        return Probe("silence", f"at {server.url} has not answered a small request for {limit_s:.3g} s")

    def _start(self, job: Callable[[], Awaitable[None]]) -> None:
        self._tasks.start_soon(self._until_dead, job)

    async def _until_dead(self, job: Callable[[], Awaitable[None]]) -> None:
        """Run `job`, but no longer than the engine lives."""
        with anyio.CancelScope() as scope:
            self._calls[scope] = None
            if self._exit_reason is None:
                with suppress(EngineDead):  # closed while it asks
                    await job()
        del self._calls[scope]

    def _die(self, exit_reason: str) -> None:
        """Make every call raise `EngineDead` from now on, the waiting ones first."""
        if self._exit_reason is None:
            self._exit_reason = exit_reason
        for scope in self._calls:
            scope.cancel()

    def _check_alive(self) -> None:
        if self._exit_reason is not None:
            raise EngineDead(self.role, self._exit_reason)
