"""The `Engine` contract over servers with OpenAI's completions endpoint: requests become bodies, answers completions.

Requests that may be interrupted are streamed: closing the stream is what a server learns from that it may stop.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import anyio
from anyio.abc import TaskGroup

from pipeline.engine import Completion, Fact, Request
from pipeline.engines.openai.client import NoAnswer, Server
from pipeline.engines.openai.replies import error_of
from pipeline.engines.openai.request import SCORING, Capabilities, candidates_asked, max_bytes, probe_request, request_bodies, streamed
from pipeline.engines.openai.response import ResponseBody, completion_of, decode_reply
from pipeline.engines.openai.served import ServedEngine
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.openai.stream import StreamedAnswer
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import validate_request
from pipeline.errors import RequestRefused
from pipeline.system.tasks import gather, unwrapped

PADDING_IDS = 4096
"""Most ids that a model has beyond those of its tokenizer: vocabularies are padded to sizes that suit a processor."""


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


class Arriving(NamedTuple):
    """The part of an interruptible request's answers that has arrived from one server."""

    server: Server
    answers: Sequence[StreamedAnswer]


class OpenAIEngine(ServedEngine):
    """The `Engine` contract over the servers of a deployment; open it with `open_openai`."""

    def __init__(
        self, deployment: Deployment, tokenizer: ServedTokenizer, can: Capabilities, facts: Mapping[str, Fact], tasks: TaskGroup
    ) -> None:
        """`can` is what all servers of `deployment` can do; `tasks` must live as long as the engine."""
        super().__init__(deployment.role, deployment.spec, deployment.servers, tasks)
        self.tokenizer, self.max_model_len, self.facts, self.can = tokenizer, deployment.max_model_len, facts, can
        self.vocab_size = tokenizer.vocab_size
        self._spec, self._max_ids = deployment.spec, tokenizer.vocab_size + PADDING_IDS
        self._interruptible: dict[str, anyio.CancelScope] = {}
        """The scope that `interrupt` cancels, by the id of the request."""
        self._arriving: dict[str, Arriving] = {}

    def check(self, request: Request) -> None:
        validate_request(request, self.max_model_len, self.vocab_size, self._spec.adapters)
        if request.scored_ids and SCORING not in self.can.fields:
            raise RequestRefused(f"request {request.request_id!r}: the server of {self.role!r} returns no log probabilities of a prompt")
        if request.option_ids and not self.can.top_logprobs:
            raise RequestRefused(f"request {request.request_id!r}: the server of {self.role!r} returns no log probabilities to choose by")

    def interrupt(self, request_id: str) -> None:
        """The stream is closed, from which a server learns that it may stop."""
        if (scope := self._interruptible.get(request_id)) is not None:
            scope.cancel()

    async def _ask(self, request: Request) -> Completion:
        if not (request.interruptible and self.can.streams):
            return await super()._ask(request)
        try:
            with anyio.CancelScope() as scope:
                self._interruptible[request.request_id] = scope
                return await super()._ask(request)
            return self._interrupted(request)
        finally:
            self._interruptible.pop(request.request_id, None)
            self._arriving.pop(request.request_id, None)

    def _interrupted(self, request: Request) -> Completion:
        """The completion of an interrupted call; raises the error to raise where what has arrived is none."""
        server, answers = self._arriving.get(request.request_id) or Arriving(self._servers[0], [StreamedAnswer()])
        asked = candidates_asked(request) // len(answers)
        try:
            return self._completion(request, [answer.interrupted(asked) for answer in answers], server)
        except NoAnswer as failure:
            raise error_of(failure, self.role, request, server.url, self.max_model_len) from None

    async def answer(self, request: Request, server: Server) -> Completion:
        max_tokens = min(request.max_tokens, self.max_model_len - len(request.prompt_ids))
        model = self._spec.model if request.adapter is None else self._spec.adapters[request.adapter]
        bodies = [{**body, **self._spec.extra} for body in request_bodies(request, self.can, model, self.tokenizer, max_tokens)]
        arriving: Sequence[StreamedAnswer] = ()
        if request.interruptible and self.can.streams:
            arriving = [StreamedAnswer() for _ in bodies]
            self._arriving[request.request_id] = Arriving(server, arriving)
        posts = [partial(self._post, server, body, answer) for body, answer in zip_longest(bodies, arriving)]
        with unwrapped(NoAnswer):
            answers = [await posts[0]()] if len(posts) == 1 else await gather(posts)
        return self._completion(request, answers, server)

    async def probe(self, server: Server) -> None:
        await self.answer(probe_request(self.tokenizer, self.can), server)

    def _completion(self, request: Request, answers: Sequence[ResponseBody], server: Server) -> Completion:
        """The completion that the `answers` of a server hold; raises `NoAnswer`."""
        completion = completion_of(request, answers, self.can, self.tokenizer)
        for candidate in completion.candidates:
            if server.repeats_key(candidate.text):
                raise NoAnswer("withheld", "repeats the API key in its answer")
            # An id that the model has and its tokenizer lacks comes back in a prompt.
            self.vocab_size = max(self.vocab_size, min(1 + max(candidate.ids, default=0), self._max_ids))
        return completion

    async def _post(self, server: Server, body: Mapping[str, Any], arriving: StreamedAnswer | None) -> ResponseBody:
        if arriving is None:
            return decode_reply(await server.post("/completions", body, max_bytes(body)))
        reply = await server.post("/completions", streamed(body, self.can), max_bytes(body), arriving.feed)
        return arriving.body() if reply.streamed else decode_reply(reply)
