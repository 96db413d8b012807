"""Engine `openai`: any server with OpenAI's completions endpoint, or several that are replicas of one another.

Specs enter, open engines leave: every server is asked what it is and what it can do before anything is run. Then requests become bodies,
and answers completions. Requests that may be interrupted are streamed: closing the stream tells a server that it may stop.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial, reduce
from importlib.metadata import version
from itertools import zip_longest
from typing import Any, NamedTuple

import anyio
from anyio.abc import TaskGroup

from pipeline.engine import Backend, Completion, Examination, Fact, Request
from pipeline.engines.models import resolve
from pipeline.engines.openai.answers import ResponseBody, StreamedAnswer, decode_reply
from pipeline.engines.openai.client import NoAnswer, Server
from pipeline.engines.openai.completions import completion_of
from pipeline.engines.openai.probe import CheckedServer, ServedModel, check_server, context_length, find_model
from pipeline.engines.openai.replies import error_of
from pipeline.engines.openai.request import (
    MANY,
    PRIORITY,
    SCORING,
    Capabilities,
    candidates_asked,
    max_bytes,
    probe_request,
    request_bodies,
    shared_capabilities,
    streamed,
)
from pipeline.engines.openai.served import ServedEngine, connect, examine_served, open_served, served_available, where_of, within
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.startup import READY, tell_phase
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import is_another_model, validate_request
from pipeline.errors import GraphError, RequestRefused, boundary
from pipeline.system.machine import Machine
from pipeline.system.tasks import gather, unwrapped

PADDING_IDS = 4096
"""Most ids that a model has beyond those of its tokenizer: vocabularies are padded to sizes that suit a processor."""
_SHORTENS = "whether the server truncates prompts"
_SHORTENS_OR_ADDS = f"{_SHORTENS}, or prepends a token (which `adds_bos` would state),"


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
        self._arriving: dict[str, tuple[Server, Sequence[StreamedAnswer]]] = {}
        """The part of an interruptible request's answers that has arrived, and from where."""

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
        server, answers = self._arriving.get(request.request_id) or (self._servers[0], [StreamedAnswer()])
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
            self._arriving[request.request_id] = server, arriving
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
            server.refuse_key(candidate.text)
            # An id that the model has and its tokenizer lacks comes back in a prompt.
            self.vocab_size = max(self.vocab_size, min(1 + max(candidate.ids, default=0), self._max_ids))
        return completion

    async def _post(self, server: Server, body: Mapping[str, Any], arriving: StreamedAnswer | None) -> ResponseBody:
        if arriving is None:
            return decode_reply(await server.post("/completions", body, max_bytes(body)))
        reply = await server.post("/completions", streamed(body, self.can), max_bytes(body), arriving.feed)
        return arriving.body() if reply.streamed else decode_reply(reply)


def open_openai(specs: Mapping[str, OpenAISpec]) -> AbstractAsyncContextManager[Mapping[str, OpenAIEngine]]:
    """Open an engine for each role, concurrently.

    Raises `GraphError` when a server cannot be reached, refuses the key, does not serve the model or cannot do what is needed.
    """
    return open_served(partial(_open_all, specs))


async def _open_all(specs: Mapping[str, OpenAISpec], stack: AsyncExitStack, tasks: TaskGroup) -> dict[str, OpenAIEngine]:
    """The engines of all roles, with what fails fast done first: addresses and keys, then the lists of models, then the
    tokenizers, which load slowly."""
    connected = [(role, spec, connect(role, spec, stack)) for role, spec in specs.items()]
    surveyed = await gather([partial(within, role, spec, partial(_survey, role, spec, servers)) for role, spec, servers in connected])
    engines: dict[str, OpenAIEngine] = {}
    for deployment, models in surveyed:
        role, where, spec = deployment.role, where_of(deployment.role), deployment.spec
        tell_phase(role, "loading the tokenizer")
        tokenizer = await anyio.to_thread.run_sync(_load_tokenizer, role, spec, abandon_on_cancel=True)
        tell_phase(role, "checking what its servers can do")
        pairs = zip(deployment.servers, models, strict=True)
        probes = [partial(check_server, where, server, model, spec, tokenizer) for server, model in pairs]
        probed = await within(role, spec, partial(gather, probes))
        if len({one.can.adds_bos for one in probed}) > 1:
            raise GraphError(where, "some of its servers put a beginning-of-sequence token before a prompt and others do not")
        can = reduce(shared_capabilities, (one.can for one in probed))
        tell_phase(role, READY)
        engines[role] = OpenAIEngine(deployment, tokenizer, can, facts(deployment, can, probed), tasks)
    return engines


async def _survey(role: str, spec: OpenAISpec, servers: Sequence[Server]) -> tuple[Deployment, list[ServedModel]]:
    """The deployment of a role, and its model as each of the servers lists it."""
    where = where_of(role)
    models = await gather([partial(find_model, where, server, spec) for server in servers])
    lengths = [context_length(where, server, spec, model) for server, model in zip(servers, models, strict=True)]
    return Deployment(role, spec, servers, min(lengths)), models


def _load_tokenizer(role: str, spec: OpenAISpec) -> ServedTokenizer:
    try:
        tokenizer = ServedTokenizer(resolve(role, spec.tokenizer or spec.model), template_arguments=spec.chat_template_kwargs)
    except GraphError as error:
        remedy = "" if spec.tokenizer else "; set tokenizer to the folder or the hub name of the model's own"
        raise GraphError(where_of(role), f"{error}{remedy}") from error
    with boundary(GraphError, where_of(role), foreign=GraphError):
        tokenizer.render([{"role": "user", "content": "0 or 1?"}])
    return tokenizer


def facts(deployment: Deployment, can: Capabilities, probed: Sequence[CheckedServer]) -> dict[str, Fact]:
    """The engine's `Engine.facts`, with what is assumed where the servers do not say."""
    by_text = not can.returns_ids and not can.reports_stop
    found: dict[str, Fact] = {
        "answers": "model",
        "servers": tuple(server.url for server in deployment.servers),
        "server": probed[0].model.owned_by or "unknown",
        "server_version": probed[0].version or "unknown",
        "httpx2_version": version("httpx2"),
        "replicas": len(probed),
        "prompts": can.prompts,
        "outputs": "ids" if can.returns_ids else "text, encoded here",
        "options": "exact" if can.exact_options else f"among the top {can.top_logprobs} tokens" if can.top_logprobs else "none",
        "stops": "assumed: a text that stopped ended at the stop string it was sent" if by_text else "reported by the server",
        "candidates": "all in one request" if MANY in can.fields else "a request each",
        "priorities": PRIORITY in can.fields,
        "prompt_tokens": "as sent" if can.counts_prompts else "not stated",
        "cannot": can.cannot,
    }
    if doubts := _doubts(deployment, can, probed):
        found["doubts"] = doubts
    caches = [server.cache for server in probed if server.cache is not None]
    if len(caches) == len(probed):
        found |= {"kv_cache_tokens": sum(cache.tokens for cache in caches), "block_size": max(cache.block_size for cache in caches)}
    return found


def _doubts(deployment: Deployment, can: Capabilities, probed: Sequence[CheckedServer]) -> tuple[str, ...]:
    """Things about the servers that are strange or cannot be known."""
    asked = deployment.spec.model
    names = ((server.url, one.answered_by) for server, one in zip(deployment.servers, probed, strict=True))
    said = [f"{url} answers as the model {name!r} where {asked!r} is asked for" for url, name in names if is_another_model(asked, name)]
    if not can.counts_prompts:
        known = can.prompts == "ids" or deployment.spec.adds_bos is not None
        said.append(f"it does not report how many tokens it read: {_SHORTENS if known else _SHORTENS_OR_ADDS} cannot be determined")
    return tuple(said)


async def examine_openai(specs: Mapping[str, OpenAISpec], machine: Machine) -> Examination:
    """Ask the servers of every role what they can do, as a run would at its start."""

    def described(engine: OpenAIEngine) -> tuple[str, str, Collection[str]]:
        found = engine.facts
        what = f"{found['server']} {found['server_version']} answers: prompts as {found['prompts']}, outputs as {found['outputs']}"
        how = f"options {found['options']}, stops {found['stops']}, prompt tokens {found['prompt_tokens']}"
        return what, how, engine.can.cannot

    return await examine_served(specs, open_openai, described)


BACKEND = Backend(spec=OpenAISpec, open=open_openai, available=served_available, examine=examine_openai, tokenizer=_load_tokenizer)
