"""Finds out what a server can do by asking it: its models, its context length, and the richest request that it answers.

The questions are ordinary requests, built and read as those of a run are.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, NamedTuple, TypeVar
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import UNSET, Meta, Raw, Struct, structs

from pipeline.engine import Request, Tokenizer
from pipeline.engines.openai.client import UNREADABLE, Broken, Reply, Server, server_error_of
from pipeline.engines.openai.replies import Closed, Miscounted, Unanswered, refusal_of, refuse_closed
from pipeline.engines.openai.request import MANY, SCORING, SEED, Capabilities, capability_levels, request_bodies, streamed
from pipeline.engines.openai.response import ResponseBody, completion_of, decode_response
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.openai.stated import model_of, read_usage
from pipeline.engines.openai.stream import StreamedAnswer
from pipeline.engines.openai.text_mode import close_mark
from pipeline.errors import GraphError, did_you_mean

T = TypeVar("T")
ContextLength = Annotated[int, Meta(ge=16, lt=1 << 31)]
"""Tokens; some servers state numbers such as -1 or 10^30 for a length that they do not know."""
_MAX_NAMES = 20
QUESTION = (
    "So each of the 4 friends at the café first has 12 apples, then gives away half of them: is 24 = \\frac{48}{2} left, or 12.5? "
    "Answer 1 for yes, 0 for no."
)
"""What a server is asked: tokenizers of different models count it differently."""
LONG_PROMPT, SPARE_TOKENS = 4352, 64
"""Tokens of a prompt that is too long for the context that Ollama has by default, and what is left of a smaller one."""
FIRST_DELAY_S, LONGEST_DELAY_S = 0.25, 5.0
"""First and longest wait between two questions to a server that is still loading, whatever it asks for; each wait is twice as long as
the one before."""

_NOBODY = "which-nobody-serves"
"""Added to the name of a model, it makes one that no server has."""
_BIAS = 100
"""The greatest bias of a token's logit that servers take: it is sampled for certain."""
_OWN_CONTEXT = ("max_model_len", "context_length", "context_window", "max_context_length")
"""Every key under which servers state the context length of a model, in the order in which they are asked."""


class ServedModel(Struct, frozen=True):
    """One model in a server's list."""

    id: str
    owned_by: str | None = None
    own_context: int | None = None
    """The context length that the server allows; None where it does not say."""
    trained_context: int | None = None
    """The context length that the model was trained for; None where the server does not say."""
    parent: str | None = None
    """Of an adapter, as vLLM lists it: the name of the model that it belongs to."""
    root: str | None = None
    """As vLLM lists it: the folder or the hub name of the model."""


class ModelList(Struct, frozen=True):
    """The answer to GET /models."""

    data: tuple[Raw, ...]


class ProbedServer(NamedTuple):
    """What one server of a deployment answered when it was asked about itself."""

    model: ServedModel
    can: Capabilities
    version: str
    """The server's version; empty where it does not say."""
    cache: "CacheConfig | None" = None
    """The size of its cache; None where it does not say."""
    answered_by: str | None = None
    """The model that answered; None where it does not say."""


class CacheConfig(NamedTuple):
    """What a vLLM server states about the cache of keys and values of its model."""

    block_size: int
    """Tokens in a block."""
    tokens: int
    """Tokens that fit, over all of its engines."""


def _model_list(server: Server, reply: Reply) -> list[ServedModel] | None:
    """The models that a reply lists, or None where it is no list of models. What is odd about one model does not matter to another, and
    a field of a wrong type is as one that is not there."""
    listed = _readable(reply.content, ModelList) if reply.ok else None
    return None if listed is None else [model for card in listed.data if (model := _model_of(server, card)) is not None]


def _model_of(server: Server, raw: Raw) -> ServedModel | None:
    card = _readable(raw, dict[str, Raw]) or {}
    name = _field(card, "id", str)
    if name is None:
        return None
    meta = _field(card, "meta", dict[str, Raw]) or {}  # of llama.cpp
    stated = (_field(card, key, ContextLength) for key in _OWN_CONTEXT)
    owner = _field(card, "owned_by", str)
    return ServedModel(
        id=name,
        owned_by=None if owner is None else server.quote(owner),
        own_context=next((length for length in stated if length is not None), None) or _field(meta, "n_ctx", ContextLength),
        trained_context=_field(meta, "n_ctx_train", ContextLength),
        parent=_field(card, "parent", str),
        root=_field(card, "root", str),
    )


def _field(card: Mapping[str, Raw], name: str, kind: type[T]) -> T | None:
    """A field of a card; None where it is not there or not of this kind."""
    return _readable(card[name], kind) if name in card else None


def _readable(content: bytes | Raw, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE:
        return None


async def find_model(where: str, server: Server, spec: OpenAISpec) -> ServedModel:
    """The spec's model as the server lists it, or, where the server does not list it and yet answers for it, by its name alone.

    Raises `GraphError` where nothing listens, the key is wrong, or the model or one of its adapters is not served.
    """

    async def ask(name: str) -> Reply:
        return await server.post({"model": name, "prompt": "0 or 1?", "max_tokens": 1, **spec.extra})

    models = await listed_models(where, server, spec.api_key_env, spec.reconnect_s)
    for name, served in spec.adapters.items():
        found = await served_model(where, server, models, served, ask, f" as the adapter {name!r}")
        if found.parent not in (None, spec.model):
            what = f"{server.url} serves {served!r}, configured as the adapter {name!r} of {spec.model!r},"
            raise GraphError(where, f"{what} as an adapter of {server.quote(found.parent)!r}; name another, or correct model")
    return await served_model(where, server, models, spec.model, ask)


async def listed_models(where: str, server: Server, api_key_env: str | None, most_s: float) -> list[ServedModel] | Reply:
    """The models that the server lists, or its reply where that is no list; raises `GraphError` where nothing listens or the key is
    wrong."""
    try:
        reply = await _send_until_loaded(lambda: server.get("/models"), most_s)
    except Broken as error:
        raise GraphError(where, f"the server {error}; start it, or check base_url") from None
    refuse_closed(where, server, api_key_env, reply)
    if reply.status in (429, 503):
        raise GraphError(where, f"{server.url}/models returns no list of models ({server_error_of(reply).text}); wait until it has loaded")
    models = _model_list(server, reply)
    return reply if models is None else models


async def served_model(
    where: str, server: Server, models: Sequence[ServedModel] | Reply, name: str, ask: Callable[[str], Awaitable[Reply]], purpose: str = ""
) -> ServedModel:
    """The one of the server's `models` (`listed_models`) that has this name. One that is not listed is served where the server answers
    `ask`, a small request to the model of a name, and rejects a made-up name. Raises
    `GraphError` for any other."""
    known = [] if isinstance(models, Reply) else models
    model = next((each for each in known if each.id == name), None)
    if model is not None:
        return model

    async def asked(other: str) -> Reply:
        with suppress(Broken):
            return await ask(other)
        return await ask(other)  # once more: a server that failed may close the connection behind its answer

    try:
        reply = await asked(name)
        if reply.ok and (isinstance(models, Reply) or not (await asked(f"{name}-{_NOBODY}")).ok):
            return ServedModel(name)
    except Broken as error:
        raise GraphError(where, f"the server {error}") from None
    raise GraphError(where, _why_not_served(server, models, name, reply, purpose))


def _why_not_served(server: Server, models: Sequence[ServedModel] | Reply, name: str, reply: Reply, purpose: str) -> str:
    """Why a model that is not listed cannot be used; `reply` is that to a request for it."""
    said = server_error_of(reply).text
    if isinstance(models, Reply):
        listed = "something else" if models.ok else server_error_of(models).text
        unlisted = f"{server.url}/models returns no list of models ({listed})"
        if reply.status == 404:
            return f"{unlisted}, and no completion ({said}); base_url usually ends with /v1"
        return f"{unlisted}, and the server rejects a completion with {name!r}{purpose} (status {reply.status}): {said}"
    names = [server.quote(each.id) for each in models]
    near = did_you_mean(name, names) if len(names) <= _MAX_NAMES else f"it serves {len(names)} other models"
    if reply.ok or reply.status in (400, 404, 422):
        return f"{server.url} does not serve {name!r}{purpose}; {near}"
    return f"{server.url} does not list {name!r}{purpose}, and rejects a completion with it (status {reply.status}): {said}; {near}"


def context_length(where: str, server: Server, spec: OpenAISpec, model: ServedModel) -> int:
    """Most tokens of a prompt and its output together; raises `GraphError` where neither the spec nor the server says."""
    own, trained = model.own_context, model.trained_context
    if own and spec.max_model_len:
        return min(own, spec.max_model_len)
    length = spec.max_model_len or own or trained
    if length is None:
        raise GraphError(where, f"{server.url} does not report the context length of {spec.model!r}; set max_model_len")
    return length


_COME_BACK = (429, 503)
"""Statuses of a server that is busy, or still loads its model."""


class _Prober(NamedTuple):
    """Asks one server, whose answers are about one model."""

    where: str
    server: Server
    spec: OpenAISpec
    tokenizer: Tokenizer

    async def ask(self, can: Capabilities, request: Request, **fields: object) -> ResponseBody | Reply | Unanswered:
        """The server's answer to `request`, with further `fields`; the reply that refuses it, or what is wrong with its answer."""
        [body] = request_bodies(request, can, self.spec.model, self.tokenizer, request.max_tokens)
        try:
            reply = await _send_until_loaded(lambda: self.server.post({**body, **self.spec.extra, **fields}), self.spec.reconnect_s)
        except Broken as error:
            raise GraphError(self.where, f"the server {error}") from None
        refuse_closed(self.where, self.server, self.spec.api_key_env, reply)
        if reply.status in _COME_BACK:  # what a busy server can do is not known, and each question would wait as long
            busy = self.server.quote(str(refusal_of(reply)))
            raise GraphError(
                self.where, f"the server at {self.server.url} {busy}; it has been busy for reconnect_s={self.spec.reconnect_s:g}"
            )
        if not reply.ok:
            return reply
        try:
            answer = decode_response(reply.content)
            completion_of(request, [answer], can, self.tokenizer)
        except Unanswered as flaw:
            return flaw
        return answer

    async def answers(self, can: Capabilities, request: Request) -> bool:
        """Whether the server answers `request`."""
        return isinstance(await self.ask(can, request), ResponseBody)

    async def streams(self, can: Capabilities, request: Request) -> bool:
        """Whether the answer to `request` comes in pieces."""
        [body] = request_bodies(request, can, self.spec.model, self.tokenizer, request.max_tokens)
        answer = StreamedAnswer()
        try:
            if await self.server.stream({**streamed(body, can), **self.spec.extra}, answer.feed) is not None:
                return False
            answer.body()
        except (Broken, Unanswered):
            return False
        return True

    async def shows(self, can: Capabilities, id_: int) -> bool | None:
        """Whether the server shows the text of a token that it samples; None where it cannot be made to sample it."""
        request = probe_request(self.tokenizer, structs.replace(can, top_logprobs=0))
        answer = await self.ask(can, request, logit_bias={str(id_): _BIAS})
        if not isinstance(answer, ResponseBody):
            return None
        choice, text = answer.choices[0], self.tokenizer.decode([id_])
        if text.strip() in (choice.text or ""):
            return True
        return None if choice.text or choice.finish_reason != "length" else False


async def probe_server(where: str, server: Server, model: ServedModel, spec: OpenAISpec, tokenizer: Tokenizer) -> ProbedServer:
    """What the server can do: the first of the capability levels at which it answers, refined by further questions.

    Raises `GraphError` where it answers at none.
    """
    prober, refusals = _Prober(where, server, spec, tokenizer), list[Reply | Unanswered]()
    for each in capability_levels(spec.prompts):
        level = structs.replace(each, adds_bos=bool(spec.adds_bos)) if each.prompts == "text" else each
        request = probe_request(tokenizer, level)
        answer = await prober.ask(level, request)
        if isinstance(answer, Miscounted) and answer.excess == 1 and level.prompts == "text" and spec.adds_bos is None:
            level = structs.replace(level, adds_bos=True)
            answer = await prober.ask(level, request)
        if isinstance(answer, ResponseBody):
            can = await _refine(prober, _observed(level, answer))
            await _check_reading(prober, context_length(where, server, spec, model), can)
            version, cache = await _version(server, model, answer), await _cache_config(server, model)
            return ProbedServer(model, can, version, cache, model_of(answer.model))
        refusals.append(answer)
    raise GraphError(where, _why_not(server, spec, max(reversed(refusals), key=_tells)))


async def _check_reading(prober: _Prober, most: int, can: Capabilities) -> None:
    """Raise `GraphError` where the server, whose context has `most` tokens, makes other tokens of a text than the tokenizer does, or reads
    less of a long one than is sent, as Ollama does beyond 4,096 tokens; servers that take ids refuse too many of them."""
    if not can.counts_prompts:
        return
    length = max(1, min(most - SPARE_TOKENS, LONG_PROMPT))
    question = f"{QUESTION}\n\n" * (1 + length // 16 if can.prompts == "text" else 1)
    request = structs.replace(probe_request(prober.tokenizer, can, question), request_id="long probe", option_ids=())
    request = structs.replace(request, prompt_ids=request.prompt_ids[:length])
    found = await prober.ask(structs.replace(can, prompts="text"), request)
    if isinstance(found, Miscounted) and not (can.prompts == "ids" and found.excess == 1):
        raise GraphError(prober.where, _why_not(prober.server, prober.spec, found))


def _tells(reply: Reply | Unanswered) -> int:
    """How much a reply at one level tells of why a server cannot be used."""
    return 2 if isinstance(reply, Miscounted) else 1 if isinstance(reply, Reply) else 0


def _why_not(server: Server, spec: OpenAISpec, reply: Reply | Unanswered) -> str:
    """Why a server that answers at no level cannot be used; `reply` is the most telling one."""
    if isinstance(reply, Miscounted):
        return f"{server.url} {reply}"
    said = server_error_of(reply).text if isinstance(reply, Reply) else f"it {server.quote(str(reply))}"
    if isinstance(reply, Reply) and reply.status in (404, 405):
        return f"{server.url} has no /completions ({said}); a server with only chat completions cannot continue a partial reply"
    if spec.prompts != "auto":
        return f"{server.url} does not accept `prompts: {spec.prompts}` ({said}); leave it out to use what the server supports"
    return f"{server.url} does not answer a completion with {spec.model!r} ({said})"


def probe_request(tokenizer: Tokenizer, level: Capabilities, question: str = "0 or 1?") -> Request:
    """The request that is tried: one token after a short chat, a choice between two where `level` has log probabilities."""
    prompt = tokenizer.encode(tokenizer.render([{"role": "user", "content": question}]))
    options = tuple(dict.fromkeys(tokenizer.encode(digit)[-1] for digit in "01")) if level.top_logprobs else ()
    return Request(request_id="probe", prompt_ids=prompt, max_tokens=1, option_ids=options, priority=1)


def _observed(level: Capabilities, answer: ResponseBody) -> Capabilities:
    """`level` with what `answer` shows beyond that the server answers: whether it reports stops and counts prompts."""
    return structs.replace(
        level,
        reports_stop=answer.choices[0].reported_stop is not UNSET,
        counts_prompts=bool(read_usage(answer.usage).prompt_tokens),
    )


async def _refine(prober: _Prober, can: Capabilities) -> Capabilities:
    """`can` with what further questions show: whether the server takes seeds, samples several candidates at once, scores a prompt's
    tokens, shows the closing reasoning tag, and streams answers."""
    question = structs.replace(probe_request(prober.tokenizer, can), option_ids=())
    sampled = structs.replace(question, temperature=1.0)
    for extra in ({SEED, MANY}, {SEED}, {MANY}):
        able = structs.replace(can, fields=can.fields | extra)
        if await prober.answers(able, structs.replace(sampled, n=2 if MANY in extra else 1)):
            can = able
            break
    scoring = structs.replace(can, fields=can.fields | {SCORING})
    scored = structs.replace(question, prompt_ids=question.prompt_ids[:-1], scored_ids=tuple(question.prompt_ids[-1:]))
    if can.returns_ids and await prober.answers(scoring, scored):
        can = scoring
    return structs.replace(can, hides_marks=await _hides_marks(prober, can), streams=await prober.streams(can, question))


async def _hides_marks(prober: _Prober, can: Capabilities) -> bool:
    """Whether the server's texts lack the closing reasoning tag, though they show a digit that it is made to sample in the same way. False
    if that cannot be determined, and for a chat that begins after a thought, which no tag closes."""
    tokenizer = prober.tokenizer
    close = close_mark(tokenizer)
    if can.returns_ids or close is None or tokenizer.render([{"role": "user", "content": "0 or 1?"}]).rstrip().endswith(close):
        return False
    return await prober.shows(can, tokenizer.encode("1")[-1]) is True and await prober.shows(can, tokenizer.special_ids[close]) is False


async def _version(server: Server, model: ServedModel, answer: ResponseBody) -> str:
    """The server's version: of vLLM from its page `/version`, else the `system_fingerprint` of its answers, else empty."""
    said: str | None = None
    if model.owned_by == "vllm":
        with suppress(Broken):
            reply = await server.get(_beside(server, "version"))
            said = _field(_readable(reply.content, dict[str, Raw]) or {}, "version", str)
    return server.quote(said or _readable(answer.system_fingerprint, str) or "")


async def _cache_config(server: Server, model: ServedModel) -> CacheConfig | None:
    """The cache of a vLLM server, from its page `/metrics`; None for other servers, and where that page does not say."""
    if model.owned_by != "vllm":
        return None
    with suppress(Broken):
        reply = await server.get(_beside(server, "metrics"))
        return cache_config(reply.content.decode(errors="replace")) if reply.ok else None
    return None


def cache_config(metrics: str) -> CacheConfig | None:
    """What `metrics`, in Prometheus' text format, say in `vllm:cache_config_info`, which has a line for each engine of a server."""
    sizes, tokens = set(), 0
    for labels in re.findall(r"^vllm:cache_config_info\{(.*)\}", metrics, re.MULTILINE):
        found = dict(re.findall(r'(\w+)="(\d{1,12})"', labels))
        if not int(found.get("block_size", 0)) or not int(found.get("num_gpu_blocks", 0)):
            return None
        size = int(found.get("effective_attention_block_size") or found["block_size"])
        sizes.add(size)
        # Where layers have caches of their own kinds, a block is shared out among them: vLLM works out what fits.
        tokens += int(found.get("kv_cache_size_tokens") or size * int(found["num_gpu_blocks"]))
    return CacheConfig(sizes.pop(), tokens) if len(sizes) == 1 else None


def _beside(server: Server, page: str) -> str:
    """The URL of a page of the server that is next to `/v1`."""
    parts = urlsplit(server.url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/v1')}/{page}"


async def _send_until_loaded(send: Callable[[], Awaitable[Reply]], most_s: float) -> Reply:
    """The reply to `send`, which is repeated for up to `most_s` seconds while the server says to come back later (429, 503: still
    loading)."""
    reply: Reply | None = None
    delay = FIRST_DELAY_S
    with anyio.move_on_after(most_s):
        while True:
            reply = await send()
            if reply.status not in _COME_BACK or isinstance(refusal_of(reply), Closed):
                return reply
            await anyio.sleep(min(reply.retry_after_s or delay, LONGEST_DELAY_S))
            delay = min(2 * delay, LONGEST_DELAY_S)
    if reply is None:
        raise Broken(f"has not answered for {most_s:g} s")
    return reply
