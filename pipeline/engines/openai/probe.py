"""Finds out what a server is and checks what its preset says of it, by asking it: its models, its context length, and a few small requests.

The questions are ordinary requests, built and read as those of a run are. What a server cannot do is left out of its capabilities; one
that does not answer a prompt as it was sent is refused with its own words.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
from msgspec import UNSET, structs

from pipeline.engine import Request, Tokenizer
from pipeline.engines.openai.answers import ResponseBody, decode_reply
from pipeline.engines.openai.client import NoAnswer, Reply, Server, quoted, read_json
from pipeline.engines.openai.completions import completion_of
from pipeline.engines.openai.replies import refusal_of, refuse_closed, server_error_of
from pipeline.engines.openai.request import (
    EXACT,
    MANY,
    OWNERS,
    PRESETS,
    PRIORITY,
    SCORING,
    SEED,
    Capabilities,
    close_mark,
    max_bytes,
    probe_request,
    request_bodies,
)
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.errors import GraphError, did_you_mean

QUESTION = (
    "So each of the 4 friends at the café first has 12 apples, then gives away half of them: is 24 = \\frac{48}{2} left, or 12.5? "
    "Answer 1 for yes, 0 for no."
)
"""The question to a server: tokenizers of different models count it differently."""
LONG_PROMPT, SPARE_TOKENS = 4352, 64
"""Tokens of a prompt that is too long for the context that Ollama has by default, and what is left of a smaller one."""
FIRST_DELAY_S, LONGEST_DELAY_S = 0.25, 5.0
"""First and longest wait between two questions to a server that is still loading, whatever it asks for; each wait is twice as long as
the one before."""
_COME_BACK = (429, 503)
"""Statuses of a server that is busy, or still loads its model."""
_MAX_NAMES = 20
_NOBODY = "which-nobody-serves"
"""Added to the name of a model, it makes one that no server has."""
_BIAS = 100
"""The greatest bias of a token's logit that servers take: it is sampled for certain."""


class ServedModel(NamedTuple):
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


class CheckedServer(NamedTuple):
    """The answers of one server of a deployment about itself."""

    model: ServedModel
    can: Capabilities
    version: str
    """The server's version: of vLLM from its page `/version`, else the `system_fingerprint` of its answers; empty where it does not say."""
    cache: "CacheConfig | None"
    """The size of its cache; None where it does not say."""
    answered_by: str | None
    """The model that answered; None where it does not say."""


class CacheConfig(NamedTuple):
    """The cache of keys and values of a vLLM server, as it states it."""

    block_size: int
    """Tokens in a block."""
    tokens: int
    """Tokens that fit, over all of its engines."""


def _models_in(reply: Reply) -> list[ServedModel] | None:
    """The models that a reply lists; None where it is no list of models. What is odd about one model does not matter to another, and a
    field of a wrong type counts as one that is not there."""
    body = read_json(reply.content) if reply.ok else None
    cards = body.get("data") if isinstance(body, dict) else None
    if not isinstance(cards, list):
        return None
    return [_model_of(card) for card in cards if isinstance(card, dict) and isinstance(card.get("id"), str)]


def _model_of(card: dict[str, Any]) -> ServedModel:
    meta = card["meta"] if isinstance(card.get("meta"), dict) else {}  # of llama.cpp
    owner, parent, root = (card[name] if isinstance(card.get(name), str) else None for name in ("owned_by", "parent", "root"))
    stated = [*(card.get(key) for key in ("max_model_len", "context_length", "context_window", "max_context_length")), meta.get("n_ctx")]
    return ServedModel(
        id=card["id"],
        owned_by=None if owner is None else quoted(owner),
        own_context=next(filter(None, map(_length, stated)), None),
        trained_context=_length(meta.get("n_ctx_train")),
        parent=parent,
        root=root,
    )


def _length(stated: Any) -> int | None:
    """A context length in tokens; some servers state numbers such as -1 or 10^30 for one that they do not know."""
    return stated if isinstance(stated, int) and 16 <= stated < 1 << 31 else None


async def find_model(where: str, server: Server, spec: OpenAISpec) -> ServedModel:
    """The spec's model as the server lists it, or, where the server does not list it and yet answers for it, by its name alone.

    Raises `GraphError` where nothing listens, the key is wrong, or the model or one of its adapters is not served.
    """

    models = await listed_models(where, server, spec.api_key_env, spec.reconnect_s)
    for name, served in spec.adapters.items():
        found = await _served_model(where, server, models, served, spec.extra, f" as the adapter {name!r}")
        if found.parent not in (None, spec.model):
            what = f"{server.url} serves {served!r}, configured as the adapter {name!r} of {spec.model!r},"
            raise GraphError(where, f"{what} as an adapter of {quoted(found.parent)!r}; name another, or correct model")
    return await _served_model(where, server, models, spec.model, spec.extra)


async def listed_models(where: str, server: Server, api_key_env: str | None, max_s: float) -> list[ServedModel] | Reply:
    """The models that the server lists, or its reply where that is no list; raises `GraphError` where nothing listens or the key is
    wrong."""
    try:
        reply = await _send_until_loaded(lambda: server.get("/models"), max_s)
    except NoAnswer as error:
        raise GraphError(where, f"the server at {server.url} {error}; start it, or check base_url") from None
    refuse_closed(where, server.url, api_key_env, reply)
    if reply.status in _COME_BACK:
        raise GraphError(where, f"{server.url}/models returns no list of models ({server_error_of(reply).text}); wait until it has loaded")
    models = _models_in(reply)
    return reply if models is None else models


async def _served_model(
    where: str, server: Server, models: Sequence[ServedModel] | Reply, name: str, extra: Mapping[str, Any], purpose: str = ""
) -> ServedModel:
    """The one of the server's `models` (`listed_models`) that has this name. One that is not listed is served where the server answers a
    small request to it, with these `extra` fields, and rejects a made-up name. Raises `GraphError` for any other."""
    known = [] if isinstance(models, Reply) else models
    model = next((each for each in known if each.id == name), None)
    if model is not None:
        return model

    async def ask(name: str) -> Reply:
        body = {"model": name, "prompt": "0 or 1?", "max_tokens": 1, **extra}
        return await server.post("/completions", body, max_bytes(body))

    try:
        reply = await ask(name)
        if reply.ok and (isinstance(models, Reply) or not (await ask(f"{name}-{_NOBODY}")).ok):
            return ServedModel(name)
    except NoAnswer as error:
        raise GraphError(where, f"the server at {server.url} {error}") from None
    raise GraphError(where, _why_not_served(server, models, name, reply, purpose))


def _why_not_served(server: Server, models: Sequence[ServedModel] | Reply, name: str, reply: Reply, purpose: str) -> str:
    """Why a model that is not listed cannot be used; `reply` is that to a request for it."""
    said = f"rejects a completion with {name!r}{purpose} (status {reply.status}): {server_error_of(reply).text}"
    if isinstance(models, Reply):
        listed = "something else" if models.ok else server_error_of(models).text
        remedy = "; base_url usually ends with /v1" if reply.status == 404 else ""
        return f"{server.url}/models returns no list of models ({listed}), and the server {said}{remedy}"
    names = [quoted(each.id) for each in models]
    near = did_you_mean(name, names) if len(names) <= _MAX_NAMES else f"it serves {len(names)} other models"
    if reply.ok or reply.status in (400, 404, 422):
        return f"{server.url} does not serve {name!r}{purpose}; {near}"
    return f"{server.url} does not list that model, and {said}; {near}"


def context_length(where: str, server: Server, spec: OpenAISpec, model: ServedModel) -> int:
    """Most tokens of a prompt and its output together; raises `GraphError` where neither the spec nor the server says."""
    own, trained = model.own_context, model.trained_context
    if own and spec.max_model_len:
        return min(own, spec.max_model_len)
    length = spec.max_model_len or own or trained
    if length is None:
        raise GraphError(where, f"{server.url} does not report the context length of {spec.model!r}; set max_model_len")
    return length


async def check_server(where: str, server: Server, model: ServedModel, spec: OpenAISpec, tokenizer: Tokenizer) -> CheckedServer:
    """The capabilities of the server: those of its preset for which it answers a small request.

    Raises `GraphError` where it does not answer a prompt, or reads another one than it is sent.
    """
    preset = spec.server if spec.server != "auto" else OWNERS.get(model.owned_by, "generic")
    check = _Check(where, server, spec, tokenizer, preset)
    can = structs.replace(PRESETS[preset], adds_bos=bool(spec.adds_bos) and PRESETS[preset].prompts == "text")
    plain = structs.replace(can, fields=can.fields - {PRIORITY, *EXACT}, top_logprobs=0)
    try:
        answer = await check.ask(plain)
    except NoAnswer as found:
        if not (found.excess == 1 and plain.prompts == "text" and spec.adds_bos is None):
            raise check.refused(found) from None
        can, plain = structs.replace(can, adds_bos=True), structs.replace(plain, adds_bos=True)
        answer = await check.answered(plain)
    stated = {
        "reports_stop": answer.choices[0].reported_stop is not UNSET,
        "counts_prompts": bool(answer.counted.prompt_tokens),
    }
    can = await check.confirmed(structs.replace(can, **stated))
    await check.reading(can, context_length(where, server, spec, model))
    stated_version = (read_json(await _page(server, model, "version"), dict[str, Any]) or {}).get("version")
    said = stated_version if isinstance(stated_version, str) else read_json(answer.system_fingerprint, str)
    cache = cache_config((await _page(server, model, "metrics")).decode(errors="replace"))
    return CheckedServer(model, can, quoted(said or ""), cache, answer.answered_by)


class _Check(NamedTuple):
    """Asks one server, whose answers are about one model."""

    where: str
    server: Server
    spec: OpenAISpec
    tokenizer: Tokenizer
    preset: str

    async def ask(self, can: Capabilities, request: Request | None = None, **fields: object) -> ResponseBody:
        """The server's answer to `request`, with further `fields`; raises `NoAnswer`."""
        request = request or probe_request(self.tokenizer, can)
        [body] = request_bodies(request, can, self.spec.model, self.tokenizer, request.max_tokens)
        body |= {**self.spec.extra, **fields}
        reply = await _send_until_loaded(lambda: self.server.post("/completions", body, max_bytes(body)), self.spec.reconnect_s)
        refuse_closed(self.where, self.server.url, self.spec.api_key_env, reply)
        if reply.status in _COME_BACK:  # what a busy server can do is not known, and each question would wait as long
            busy = f"{quoted(str(refusal_of(reply)))}; it has been busy for reconnect_s={self.spec.reconnect_s:g}"
            raise GraphError(self.where, f"the server at {self.server.url} {busy}")
        answer = decode_reply(reply)
        completion_of(request, [answer], can, self.tokenizer)
        return answer

    async def answered(self, can: Capabilities, request: Request | None = None) -> ResponseBody:
        """The server's answer to `request`; raises `GraphError` where it gives none."""
        try:
            return await self.ask(can, request)
        except NoAnswer as found:
            raise self.refused(found) from None

    async def answers(self, can: Capabilities, request: Request | None = None) -> bool:
        """True if the server answers `request`."""
        with suppress(NoAnswer):
            await self.ask(can, request)
            return True
        return False

    def refused(self, found: NoAnswer) -> GraphError:
        """The error for a server that does not answer a prompt."""
        url, said = self.server.url, quoted(str(found))
        if found.excess is not None:
            return GraphError(self.where, f"{url} {found}")
        if found.verdict == "gone":
            what = f"{url} has no /completions ({said}); a server with only chat completions cannot continue a partial reply"
            return GraphError(self.where, what)
        what = f"{url} does not answer a completion with {self.spec.model!r}, asked as a server of the kind {self.preset!r} (it {said})"
        return GraphError(self.where, what if self.preset == "generic" else f"{what}; `server: generic` asks for less")

    async def confirmed(self, can: Capabilities) -> Capabilities:
        """`can` without what the server does not do when it is asked to."""
        chosen = structs.replace(can, fields=can.fields - {PRIORITY})
        for able in (chosen, structs.replace(chosen, fields=chosen.fields - EXACT), structs.replace(chosen, top_logprobs=0)):
            if not able.top_logprobs or await self.answers(able):
                can = structs.replace(able, fields=able.fields | (can.fields & {PRIORITY}))
                break
        greedy = structs.replace(probe_request(self.tokenizer, can), option_ids=())
        sampled = structs.replace(greedy, temperature=1.0)
        scored = structs.replace(greedy, prompt_ids=greedy.prompt_ids[:-1], scored_ids=tuple(greedy.prompt_ids[-1:]))
        questions = {PRIORITY: greedy, SEED: sampled, MANY: structs.replace(sampled, n=2), SCORING: scored}
        missing = [
            field
            for field, question in questions.items()
            if field in can.fields
            and not await self.answers(structs.replace(can, fields=can.fields - questions.keys() | {field}), question)
        ]
        can = structs.replace(can, fields=can.fields - set(missing))
        return structs.replace(can, hides_marks=await self._hides_marks(can))

    async def reading(self, can: Capabilities, context: int) -> None:
        """Raise `GraphError` where the server makes other tokens of a text than the tokenizer does, or reads less of a long one than is
        sent, as Ollama does beyond 4,096 tokens; servers that take ids refuse too many of them."""
        if not can.counts_prompts:
            return
        length = max(1, min(context - SPARE_TOKENS, LONG_PROMPT))
        question = f"{QUESTION}\n\n" * (1 + length // 16 if can.prompts == "text" else 1)
        request = structs.replace(probe_request(self.tokenizer, can, question), request_id="long probe", option_ids=())
        request = structs.replace(request, prompt_ids=request.prompt_ids[:length])
        try:
            await self.ask(structs.replace(can, prompts="text"), request)
        except NoAnswer as found:
            if found.excess is not None and not (can.prompts == "ids" and found.excess == 1):
                raise self.refused(found) from None

    async def _hides_marks(self, can: Capabilities) -> bool:
        """True if the server's texts lack the closing reasoning tag, though they show a digit that it is made to sample in the same way.
        False if that cannot be determined, and for a chat that begins after a thought, which no tag closes."""
        close = close_mark(self.tokenizer)
        chat = self.tokenizer.render([{"role": "user", "content": "0 or 1?"}])
        if can.returns_ids or close is None or chat.rstrip().endswith(close):
            return False
        return await self._shows(can, self.tokenizer.encode("1")[-1]) is True and (
            await self._shows(can, self.tokenizer.special_ids[close]) is False
        )

    async def _shows(self, can: Capabilities, id_: int) -> bool | None:
        """True if the server shows the text of a token that it samples; None where it cannot be made to sample it."""
        try:
            answer = await self.ask(structs.replace(can, top_logprobs=0), logit_bias={str(id_): _BIAS})
        except NoAnswer:
            return None
        choice, text = answer.choices[0], self.tokenizer.decode([id_])
        if text.strip() in (choice.text or ""):
            return True
        return None if choice.text or choice.finish_reason != "length" else False


async def _page(server: Server, model: ServedModel, page: str) -> bytes:
    """A page next to `/v1` of a vLLM server; empty for other servers, and where there is none."""
    if model.owned_by == "vllm":
        parts = urlsplit(server.url)
        with suppress(NoAnswer):
            reply = await server.get(f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/v1')}/{page}")
            return reply.content if reply.ok else b""
    return b""


def cache_config(metrics: str) -> CacheConfig | None:
    """The cache in `metrics`, in Prometheus' text format: `vllm:cache_config_info` has a line for each engine of a server."""
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


async def _send_until_loaded(send: Callable[[], Awaitable[Reply]], max_s: float) -> Reply:
    """The reply to `send`, which is repeated for up to `max_s` seconds while the server says to come back later (429, 503: still
    loading)."""
    reply: Reply | None = None
    delay = FIRST_DELAY_S
    with anyio.move_on_after(max_s):
        while True:
            reply = await send()
            if reply.status not in _COME_BACK or refusal_of(reply).verdict == "closed":
                return reply
            await anyio.sleep(min(reply.retry_after_s or delay, LONGEST_DELAY_S))
            delay = min(2 * delay, LONGEST_DELAY_S)
    if reply is None:
        raise NoAnswer("failing", f"has not answered for {max_s:g} s")
    return reply
