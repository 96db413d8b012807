"""Engine `openai`: a server with OpenAI's completions endpoint.

Specs enter, open engines leave: a server is asked for its models and for one small request before anything is run. Then requests become
bodies, and answers completions. While a server answers nobody it is asked again and again, and calls wait; when that takes too long, the
engine dies.
"""

import math
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
import msgspec
from msgspec import Struct, structs

from pipeline.engine import Backend, Completion, EngineStatistics, Fact, Request, Tokenizer
from pipeline.engines.meter import LISTENER, READY, UsageMeter
from pipeline.engines.models import resolve
from pipeline.engines.openai.client import NoAnswer, Server, quoted, read_key
from pipeline.engines.openai.completions import Prompt, Terms, body_in, body_of, completion_of, prompt_of, refusal_of
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import validate_request
from pipeline.errors import BadCompletion, EngineDead, EngineUnavailable, GraphError, RequestRefused, did_you_mean
from pipeline.tasks import gather

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
"""First and longest wait before a server that does not answer is asked again; each is twice the last."""
ASK_S = 30.0
"""How long a server may take for a question or a small request."""
_TIMED_OUT = 0.9
"""A call that is cancelled after this share of `timeout_s`, or of `hang_s`, has timed out."""
PADDING_IDS = 4096
"""Most ids that a model has beyond those of its tokenizer: vocabularies are padded to sizes that suit a processor."""
_CHAT = [{"role": "user", "content": "At the café: is 12.5 = \\frac{25}{2}, or 24? Answer in ones and zeros."}]
"""A question that tokenizers of different models count differently."""
_BEGUN = "0\n1\n" * 4
"""What the answer begins with: a model goes on with it, and `0` and `1` are among its likeliest tokens."""


class ServedModel(Struct, frozen=True):
    """One model in a server's list; `root` and, of an adapter, `parent` are the model's files and its base model, as vLLM states them."""

    id: str
    owned_by: str | None = None
    max_model_len: int | None = None
    parent: str | None = None
    root: str | None = None


class _Models(Struct, frozen=True):
    data: list[ServedModel]


class OpenAIEngine:
    """The `Engine` contract over a server; open it with `open_openai`.

    After a failure the next call first asks whether the server answers a small request; while it does not, all calls wait.
    """

    def __init__(self, role: str, server: Server, terms: Terms, tokens: HFTokenizer, max_model_len: int, facts: Mapping[str, Fact]) -> None:
        self.role, self.max_model_len, self.facts, self.vocab_size = role, max_model_len, facts, tokens.vocab_size + PADDING_IDS
        self.tokenizer: Tokenizer = tokens
        self._server, self._terms, self._spec = server, terms, terms.spec
        self._limit_s = min(self._spec.hang_s, self._spec.timeout_s or self._spec.hang_s)
        self._small, self._meter = small_request(tokens), UsageMeter()
        self._doubted, self._asking = False, anyio.Lock()
        self._dead, self._exit_reason = anyio.Event(), ""

    async def generate(self, request: Request) -> Completion:
        validate_request(request, self.max_model_len, self.vocab_size, self._spec.adapters)
        self._meter.begin()
        try:
            self._check_alive()
            if self._doubted:
                await self._wait_certain()
            completion = await self._sent(request)
        finally:
            self._meter.end()
        self._meter.count(completion.usage)
        return completion

    async def wait_answering(self) -> bool:
        self._doubted = True
        return await self._wait_certain()

    def statistics(self) -> EngineStatistics:
        """Counted on this side of the connection."""
        return self._meter.statistics()

    async def aclose(self) -> None:
        await self._die("it was closed")

    async def _answer(self, request: Request, limit_s: float | None = None) -> Completion:
        """The answer of the server; raises `NoAnswer`."""
        prompt = prompt_of(request, self._terms)
        sent = body_of(request, prompt, self._terms, self.max_model_len - len(request.prompt_ids))
        reply = await self._server.ask(f"{self._server.url}/completions", sent, limit_s)
        return completion_of(request, body_in(reply), prompt, self._terms)

    async def _sent(self, request: Request) -> Completion:
        """The answer of the server; raises the error to raise where there is none."""
        sent = time.monotonic()
        try:
            return await self._answer(request)
        except anyio.get_cancelled_exc_class():
            self._doubted = self._doubted or time.monotonic() - sent >= _TIMED_OUT * self._limit_s
            raise
        except NoAnswer as found:
            failure, words = found, f"at {self._server.url} {quoted(found.words)}"
        self._check_alive()
        self._doubted = self._doubted or failure.verdict != "busy"
        if failure.verdict == "refused" and not await self._wait_certain():  # it answers others
            raise RequestRefused(f"request {request.request_id!r}: engine {self.role!r} {words}")
        if failure.verdict == "malformed":
            raise BadCompletion(self.role, request.request_id, f"its answer {quoted(failure.words)}")
        raise EngineUnavailable(self.role, words, failure.retry_after_s)

    async def _wait_certain(self) -> bool:
        """Ask the server, after pauses that grow, until it answers; whether it did not at first. Ends the engine where that takes too
        long."""
        async with self._asking:
            since, pause_s, away = time.monotonic(), FIRST_PAUSE_S, not self._doubted
            while self._doubted:
                self._check_alive()
                try:
                    await self._answer(self._small, min(ASK_S, self._limit_s, self._spec.reconnect_s))
                    self._doubted = False
                except NoAnswer as failure:
                    away = True
                    await self._pause(failure, since, pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._check_alive()
            return away

    async def _pause(self, failure: NoAnswer, since: float, pause_s: float) -> None:
        """Wait before the server is asked again; ends the engine where it has failed for too long since then."""
        if (left_s := since + self._spec.reconnect_s - time.monotonic()) <= 0:
            words = f"it has given no valid answer for reconnect_s={self._spec.reconnect_s:g}"
            await self._die(f"the server at {self._server.url} {quoted(str(failure))}; {words}")
        with anyio.move_on_after(min(pause_s, max(left_s, 0.0))):
            await self._dead.wait()

    async def _die(self, exit_reason: str) -> None:
        """Make every call raise `EngineDead` from now on, those that wait, and those in flight as their connections close."""
        self._exit_reason = self._exit_reason or exit_reason
        self._dead.set()
        with anyio.CancelScope(shield=True):
            await self._server.aclose()

    def _check_alive(self) -> None:
        if self._exit_reason:
            raise EngineDead(self.role, self._exit_reason)


def small_request(tokenizer: Tokenizer, *, options: bool = True) -> Request:
    """A request whose answer is one token: a choice between two digits or, without `options`, whatever comes next."""
    digits = tuple(dict.fromkeys(tokenizer.encode(digit)[-1] for digit in "01")) if options else ()
    prompt = tokenizer.encode(f"{tokenizer.render(_CHAT)}{_BEGUN}")
    return Request(request_id="small", prompt_ids=prompt, max_tokens=1, option_ids=digits, stop_ids=digits)


@asynccontextmanager
async def open_openai(specs: Mapping[str, OpenAISpec]) -> AsyncIterator[Mapping[str, OpenAIEngine]]:
    """Open an engine for each role, concurrently; they are open while the block runs.

    Raises `GraphError` when a server cannot be reached, refuses the key, does not serve the model or cannot do what is needed.
    """
    async with AsyncExitStack() as stack:
        jobs = []
        for role, spec in specs.items():
            server = Server(f"engine {role!r}", spec.base_url, read_key(f"engine {role!r}", spec.api_key_env))
            stack.push_async_callback(server.aclose)
            jobs.append(partial(_open, role, spec, server))
        engines = {engine.role: engine for engine in await gather(jobs)}
        for engine in engines.values():
            stack.push_async_callback(engine.aclose)
        yield engines


async def _open(role: str, spec: OpenAISpec, server: Server) -> OpenAIEngine:
    where, url, phase = f"engine {role!r}", server.url, partial(LISTENER.get().phase, role)
    phase(f"connecting to {url}")
    models = await listed_models(where, server, spec.api_key_env)
    model = _served(where, url, models, spec.model)
    for name, served in spec.adapters.items():
        _served(where, url, models, served, f" as the adapter {name!r}")
    lengths = [length for length in (model.max_model_len, spec.max_model_len) if length is not None and length > 0]
    if (max_model_len := min(lengths, default=None)) is None:
        raise GraphError(where, f"{url} does not report the context length of {spec.model!r}; set max_model_len")
    phase("loading the tokenizer")
    tokenizer = await anyio.to_thread.run_sync(_load_tokenizer, role, spec, abandon_on_cancel=True)
    phase("asking what the server can do")
    terms = await _terms(where, server, spec, tokenizer, model)
    facts: dict[str, Fact] = {"answers": "model", "servers": (url,), "server": model.owned_by or "unknown", "cannot": terms.cannot}
    facts |= {"prompts": "ids" if terms.ids else "text"} | (await _cache_facts(server) if model.owned_by == "vllm" else {})
    phase(READY)
    return OpenAIEngine(role, server, terms, tokenizer, max_model_len, facts)


async def listed_models(where: str, server: Server, api_key_env: str | None) -> list[ServedModel]:
    """The models that a server lists, which may be none; raises `GraphError` where nothing listens or the key is not accepted."""
    try:
        reply = await server.ask(f"{server.url}/models", limit_s=ASK_S)
        if reply.status not in (200, 404, 405, 501):
            raise refusal_of(reply)
    except NoAnswer as error:
        key = f"check the key in {api_key_env}" if api_key_env else "if it wants a key, set api_key_env to the name of its variable"
        remedy = key if error.verdict == "refused" else "start it, or check base_url"
        raise GraphError(where, f"the server at {server.url} {error}; {remedy}") from None
    try:
        return msgspec.json.decode(reply.content, type=_Models).data
    except (ValueError, RecursionError):
        return []


def _served(where: str, url: str, models: list[ServedModel], name: str, purpose: str = "") -> ServedModel:
    """The one of the server's `models` that has this name; the name alone where it lists none."""
    if (found := next((each for each in models if each.id == name), None)) is None and models:
        raise GraphError(where, f"{url} does not serve {name!r}{purpose}; {did_you_mean(name, [quoted(each.id) for each in models])}")
    return found or ServedModel(name)


def _load_tokenizer(role: str, spec: OpenAISpec) -> HFTokenizer:
    try:
        return HFTokenizer(resolve(role, spec.tokenizer or spec.model), spec.chat_template_kwargs)
    except GraphError as error:
        remedy = "" if spec.tokenizer else f"; name a folder or a hub name: --set engines.{role}.tokenizer=NAME"
        raise GraphError(f"engine {role!r}", f"{error}{remedy}") from error


async def _terms(where: str, server: Server, spec: OpenAISpec, tokenizer: Tokenizer, model: ServedModel) -> Terms:
    """How the server is spoken to, by its answer to a small request."""
    ids = spec.server == "vllm" or (spec.server == "auto" and model.owned_by == "vllm")
    terms, request = Terms(spec=spec, tokenizer=tokenizer, ids=ids), small_request(tokenizer)
    prompt = prompt_of(request, terms)
    # vLLM is sent a text, too: it repeats the ids that its own tokenizer makes of that.
    sent = Prompt(tokenizer.decode(request.prompt_ids), prompt.tokens) if ids else prompt
    try:
        body = body_in(await server.ask(f"{server.url}/completions", body_of(request, sent, terms, room=1), ASK_S))
        if not ids:
            adds_bos = body.count("prompt_tokens") == prompt.tokens + 1
            terms = structs.replace(terms, adds_bos=adds_bos, logprobs=any(choice.logprobs for choice in body.choices))
        answered = request if terms.logprobs else small_request(tokenizer, options=False)
        found = completion_of(answered, body, Prompt(prompt.sent, prompt.tokens + terms.adds_bos), terms)
        if terms.logprobs and max(found.option_logprobs) == -math.inf:
            terms = structs.replace(terms, logprobs=False)
    except NoAnswer as failure:
        kind = "vLLM's own, which `server: generic` would change" if ids else "one of OpenAI's kind"
        what = f"{server.url} does not answer as a server of {spec.model!r} does, {kind}: it {quoted(str(failure))}"
        raise GraphError(where, what) from None
    return terms


async def _cache_facts(server: Server) -> dict[str, Fact]:
    """The size of a vLLM server's cache, over all of its engines, as its page `/metrics` states it; empty where it does not."""
    try:
        page = (await server.ask(f"{server.url.removesuffix('/v1')}/metrics", limit_s=ASK_S)).content.decode(errors="replace")
    except NoAnswer:
        return {}
    rows = [dict(re.findall(r'(\w+)="(\d+)"', labels)) for labels in re.findall(r"^vllm:cache_config_info\{(.*)\}", page, re.MULTILINE)]
    sizes = [int(row.get("effective_attention_block_size") or row.get("block_size", 0)) for row in rows]
    # Where layers have caches of their own kinds, a block is shared out among them: vLLM works out what fits.
    fit = [row.get("kv_cache_size_tokens") or size * int(row.get("num_gpu_blocks", 0)) for row, size in zip(rows, sizes, strict=True)]
    tokens = sum(map(int, fit))
    return {"kv_cache_tokens": tokens, "block_size": sizes[0]} if tokens and len(set(sizes)) == 1 else {}


BACKEND = Backend(spec=OpenAISpec, open=open_openai, tokenizer=_load_tokenizer)
