"""Engine `openai`: a server with OpenAI's completions endpoint.

Specs enter, open engines leave: a server is asked for its models and for one small request before anything is run. Then requests become
bodies, and answers completions. While a server answers nobody it is asked again and again, and calls wait; when that takes too long, the
engine dies.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct, structs

from pipeline.engine import Asks, Backend, Completion, EngineStatistics, Fact, Request, Tokenizer
from pipeline.engines.meter import UsageMeter
from pipeline.engines.models import resolve
from pipeline.engines.openai.client import NoAnswer, Server, quoted, read_key
from pipeline.engines.openai.replies import Body, body_in, completion_of, named_logprobs, refusal_of
from pipeline.engines.openai.request import CLOSE, Prompt, Terms, body_of, prompt_of
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.startup import READY, tell_phase
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import validate_request
from pipeline.errors import BadCompletion, EngineDead, EngineUnavailable, GraphError, RequestRefused, did_you_mean
from pipeline.system.tasks import background_tasks, gather

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
"""First and longest wait before a server that does not answer, or still loads its model, is asked again; each is twice the last."""
REFUSED_S, ASK_S, _MOMENT_S = 5.0, 30.0, 1.0
"""For how long a server may refuse everything, or answer nonsense, until the engine dies; may take for a small request; may fail to answer
the first questions."""
_TIMED_OUT = 0.9
"""A call that is cancelled after this share of `timeout_s`, or of `hang_s`, has timed out."""
PADDING_IDS = 4096
"""Most ids that a model has beyond those of its tokenizer: vocabularies are padded to sizes that suit a processor."""
_CHAT = [{"role": "user", "content": "At the café: is 12.5 = \\frac{25}{2}, or 24? Answer in ones and zeros."}]
"""A question that tokenizers of different models count differently."""
_BEGUN = "0\n1\n"
"""What the answer begins with, again and again: a model goes on with it, and `0` and `1` are among its likeliest tokens."""


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

    def __init__(
        self, role: str, server: Server, terms: Terms, tokens: HFTokenizer, max_model_len: int, facts: Mapping[str, Fact], tasks: TaskGroup
    ) -> None:
        """`tasks` must live as long as the engine."""
        self.role, self.max_model_len, self.facts, self.vocab_size = role, max_model_len, facts, tokens.vocab_size + PADDING_IDS
        self.tokenizer: Tokenizer = tokens
        self._server, self._terms, self._spec, self._tasks = server, terms, terms.spec, tasks
        self._limit_s = min(self._spec.hang_s, self._spec.timeout_s or self._spec.hang_s)
        self._small, self._meter = small_request(tokens), UsageMeter()
        self._doubted, self._asking = False, anyio.Lock()
        self._dead, self._exit_reason = anyio.Event(), ""

    async def generate(self, request: Request) -> Completion:
        validate_request(request, self.max_model_len, self.vocab_size, self._spec.adapters)
        if (request.scored_ids and "scoring" in self._terms.cannot) or (request.option_ids and not self._terms.logprobs):
            raise RequestRefused(f"request {request.request_id!r}: the server of {self.role!r} returns no such log probabilities")
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

    async def rehearse(self, asks: Asks) -> None:
        max_tokens = min(asks.max_tokens, self.max_model_len - len(self._small.prompt_ids))
        # A server that does not state its context may have less than the file says.
        length = 0 if self._spec.max_model_len is None else min(asks.context or self.max_model_len, self.max_model_len) - max_tokens
        self._small = small = small_request(self.tokenizer, max_tokens, length, options=asks.options, candidates=asks.candidates)
        try:
            with anyio.move_on_after(ASK_S):  # what is refused is refused at once
                body, _ = await self._answer(small)
                named = named_logprobs(body.choices[0]) if small.option_ids else {}
                if small.option_ids and named.keys().isdisjoint([*small.option_ids, "0", "1"]):
                    said = quoted(", ".join(map(repr, named)))
                    raise NoAnswer("malformed", f"names neither '0' nor '1' in its log probabilities, so no option can be read: {said}")
        except NoAnswer as found:
            if found.verdict not in ("busy", "failing"):  # which passes, or ends the run
                asked = f"{max_tokens:,} tokens after a prompt of {len(small.prompt_ids):,}, as the run may ask"
                raise GraphError(f"engine {self.role!r}", f"{self._server.url}, asked for {asked}, {quoted(str(found))}") from None

    async def wait_answering(self) -> bool:
        self._doubted = True
        return await self._wait_certain()

    def statistics(self) -> EngineStatistics:
        """Counted on this side of the connection: requests wait while it is not certain that the server answers."""
        calls = self._meter.open_calls
        return self._meter.statistics(waiting=calls) if self._doubted else self._meter.statistics(running=calls)

    async def aclose(self) -> None:
        self._die("it was closed")
        with anyio.CancelScope(shield=True):
            await self._server.aclose()

    async def _answer(self, request: Request) -> tuple[Body, Completion]:
        """The answer of the server; raises `NoAnswer`."""
        max_tokens = min(request.max_tokens, self.max_model_len - len(request.prompt_ids))
        body, prompt = await exchange(self._server, request, self._terms, self.tokenizer, max_tokens)
        return body, completion_of(request, body, prompt, self._terms, self.tokenizer)

    async def _sent(self, request: Request) -> Completion:
        """The answer of the server; raises the error to raise where there is none."""
        sent = anyio.current_time()
        try:
            return (await self._answer(request))[1]
        except anyio.get_cancelled_exc_class():
            self._doubted = self._doubted or anyio.current_time() - sent >= _TIMED_OUT * self._limit_s
            raise
        except NoAnswer as found:
            failure, words = found, f"at {self._server.url} {quoted(found.words)}"
        self._check_alive()
        self._doubted = self._doubted or failure.verdict in ("failing", "malformed", "refused")
        if failure.verdict == "refused" and not await self._wait_certain():  # it answers others
            raise RequestRefused(f"request {request.request_id!r}: engine {self.role!r} {words}")
        if failure.verdict in ("malformed", "cut"):
            raise BadCompletion(self.role, request.request_id, f"its answer {quoted(failure.words)}")
        raise EngineUnavailable(self.role, words, failure.retry_after_s)

    async def _wait_certain(self) -> bool:
        """Ask the server, after pauses that grow, until it answers; whether it did not at first. Ends the engine where that takes too
        long."""
        async with self._asking:
            since, pause_s, away = anyio.current_time(), FIRST_PAUSE_S, False
            while self._doubted:
                self._check_alive()
                if (failure := await self._failure()) is None:
                    self._doubted = False
                    return away
                away, limit_s, suffix = True, self._spec.reconnect_s, f"it has not answered for reconnect_s={self._spec.reconnect_s:g}"
                if failure.verdict in ("refused", "malformed") and limit_s > REFUSED_S:
                    limit_s, suffix = REFUSED_S, f"it has given no valid answer for {REFUSED_S:g} s"
                if (left_s := since + limit_s - anyio.current_time()) <= 0:
                    self._die(f"the server at {self._server.url} {quoted(str(failure))}; {suffix}")
                with anyio.move_on_after(min(pause_s, max(left_s, 0.0))):
                    await self._dead.wait()
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._check_alive()
            return True

    async def _failure(self) -> NoAnswer | None:
        """Why the server does not answer a small request; None where it does."""
        limit_s = min(ASK_S, self._limit_s, self._spec.reconnect_s)
        with anyio.move_on_after(limit_s):
            try:
                await self._answer(self._small)
            except NoAnswer as found:
                return None if found.verdict == "cut" else found  # one that cuts its answers short does answer
            return None
        return NoAnswer("failing", f"has not answered a small request for {limit_s:g} s")

    def _die(self, exit_reason: str) -> None:
        """Make every call raise `EngineDead` from now on, those that wait, and those in flight as their connections close."""
        self._exit_reason = self._exit_reason or exit_reason
        self._dead.set()
        self._tasks.start_soon(self._server.aclose)

    def _check_alive(self) -> None:
        if self._exit_reason:
            raise EngineDead(self.role, self._exit_reason)


async def exchange(
    server: Server, request: Request, terms: Terms, tokenizer: Tokenizer, max_tokens: int, prompt: Prompt | None = None
) -> tuple[Body, Prompt]:
    """The body of the server's answer to `request`, and the prompt that it was sent; raises `NoAnswer`."""
    prompt = prompt or prompt_of(request, terms, tokenizer)
    reply = await server.ask(f"{server.url}/completions", body_of(request, prompt, terms, tokenizer, max_tokens))
    return body_in(reply), prompt


def small_request(tokenizer: Tokenizer, max_tokens: int = 1, length: int = 0, *, options: bool = True, candidates: int = 1) -> Request:
    """A request whose answers are a token or two, whatever its limits are, after a prompt of at least `length` tokens."""
    start, more = tokenizer.encode(f"{tokenizer.render(_CHAT)}{_BEGUN * 4}"), tokenizer.encode(_BEGUN)
    prompt = start + more * max(0, -(-(length - len(start)) // len(more)))
    if options:
        digits = tuple(dict.fromkeys(tokenizer.encode(digit)[-1] for digit in "01"))
        return Request(request_id="small", prompt_ids=prompt, max_tokens=max_tokens, option_ids=digits, stop_ids=digits, priority=1)
    return Request(request_id="small", prompt_ids=prompt, max_tokens=max_tokens, n=candidates, temperature=1.0, stop=("\n",), priority=1)


@asynccontextmanager
async def open_openai(specs: Mapping[str, OpenAISpec]) -> AsyncIterator[Mapping[str, OpenAIEngine]]:
    """Open an engine for each role, concurrently; they are open while the block runs.

    Raises `GraphError` when a server cannot be reached, refuses the key, does not serve the model or cannot do what is needed.
    """
    one = anyio.CapacityLimiter(1)  # transformers cannot be imported by two threads at once
    async with AsyncExitStack() as stack, background_tasks() as tasks:
        jobs = []
        for role, spec in specs.items():
            server = Server(f"engine {role!r}", spec.base_url, read_key(f"engine {role!r}", spec.api_key_env))
            stack.push_async_callback(server.aclose)
            jobs.append(partial(_open, role, spec, server, tasks, one))
        engines = {engine.role: engine for engine in await gather(jobs)}
        try:
            yield engines
        finally:
            for engine in engines.values():
                await engine.aclose()


async def _open(role: str, spec: OpenAISpec, server: Server, tasks: TaskGroup, one: anyio.CapacityLimiter) -> OpenAIEngine:
    where, url = f"engine {role!r}", server.url
    with anyio.move_on_after(spec.startup_timeout_s):
        tell_phase(role, f"connecting to {url}")
        models = await listed_models(where, server, spec.api_key_env, spec.reconnect_s)
        model = _served(where, url, models, spec.model)
        for name, served in spec.adapters.items():
            if (parent := _served(where, url, models, served, f" as the adapter {name!r}").parent) not in (None, spec.model):
                what = f"serves {served!r}, configured as the adapter {name!r} of {spec.model!r}, as an adapter of {quoted(str(parent))!r}"
                raise GraphError(where, f"{url} {what}; name another, or correct model")
        lengths = [length for length in (model.max_model_len, spec.max_model_len) if length is not None and length > 0]
        if (max_model_len := min(lengths, default=None)) is None:
            raise GraphError(where, f"{url} does not report the context length of {spec.model!r}; set max_model_len")
        tell_phase(role, "loading the tokenizer")
        tokenizer = await anyio.to_thread.run_sync(_load_tokenizer, role, spec, abandon_on_cancel=True, limiter=one)
        tell_phase(role, "asking what the server can do")
        terms, counts = await _terms(where, server, spec, tokenizer, model)
        facts: dict[str, Fact] = {"answers": "model", "servers": (url,), "server": model.owned_by or "unknown", "cannot": terms.cannot}
        facts |= {"prompts": "ids" if terms.ids else "text", "priorities": terms.priorities}
        doubts = [] if counts else ["does not report how many tokens it read: whether it truncates prompts, or adds a token, is not known"]
        if not terms.ids:
            hidden = "a special token of its model: no thought ends unless the server shows those (llama-server: --special)"
            closing = [text for text, id_ in tokenizer.special_ids.items() if CLOSE.fullmatch(text) and tokenizer.hides(id_)]
            doubts += [f"returns text, and {text} is {hidden}" for text in closing]
        facts |= {"doubts": tuple(f"its server {each}" for each in doubts)} if doubts else {}
        facts |= await _cache_facts(server) if model.owned_by == "vllm" else {}
        tell_phase(role, READY)
        return OpenAIEngine(role, server, terms, tokenizer, max_model_len, facts, tasks)
    what = f"{url} did not say what it can do within startup_timeout_s={spec.startup_timeout_s:g}; increase it if it needs more"
    raise GraphError(where, what)


async def listed_models(where: str, server: Server, api_key_env: str | None, max_s: float) -> list[ServedModel]:
    """The models that a server lists, which may be none; raises `GraphError` where nothing listens or the key is not accepted."""

    async def ask() -> list[ServedModel]:
        reply = await server.ask(f"{server.url}/models")
        if reply.status not in (200, 404, 405, 501):
            raise refusal_of(reply)
        try:
            return msgspec.json.decode(reply.content, type=_Models).data
        except (ValueError, RecursionError):
            return []

    try:
        return await _until_loaded(ask, max_s)
    except NoAnswer as error:
        key = f"check the key in {api_key_env}" if api_key_env else "if it wants a key, set api_key_env to the name of its variable"
        remedy = key if error.verdict == "refused" else "start it, or check base_url"
        raise GraphError(where, f"the server at {server.url} {error}; {remedy}") from None


def _served(where: str, url: str, models: list[ServedModel], name: str, purpose: str = "") -> ServedModel:
    """The one of the server's `models` that has this name; the name alone where it lists none."""
    if (found := next((each for each in models if each.id == name), None)) is None and models:
        raise GraphError(where, f"{url} does not serve {name!r}{purpose}; {did_you_mean(name, [quoted(each.id) for each in models])}")
    return found or ServedModel(name)


def _load_tokenizer(role: str, spec: OpenAISpec) -> HFTokenizer:
    try:
        return HFTokenizer(resolve(role, spec.tokenizer or spec.model), template_arguments=spec.chat_template_kwargs)
    except GraphError as error:
        remedy = "" if spec.tokenizer else f"; name a folder or a hub name: --set engines.{role}.tokenizer=NAME"
        raise GraphError(f"engine {role!r}", f"{error}{remedy}") from error


async def _terms(where: str, server: Server, spec: OpenAISpec, tokenizer: Tokenizer, model: ServedModel) -> tuple[Terms, bool]:
    """How the server is spoken to, by its answer to a small request, and whether it says how many tokens it read."""
    ids = spec.server == "vllm" or (spec.server == "auto" and model.owned_by == "vllm")
    full = Terms(spec=spec, ids=ids, priorities=ids, adds_bos=bool(spec.adds_bos) and not ids)
    tries = [full, structs.replace(full, priorities=False) if ids else structs.replace(full, logprobs=False)]
    tries += [] if ids or spec.adds_bos is not None else [structs.replace(each, adds_bos=True) for each in tries]
    failures: list[NoAnswer] = []
    for terms in tries:
        request = small_request(tokenizer, options=terms.logprobs)
        # To vLLM as a text, too: it repeats the ids that its own tokenizer makes of that.
        text = Prompt(tokenizer.decode(request.prompt_ids), len(request.prompt_ids)) if ids else None
        try:
            body, _ = await _until_loaded(partial(exchange, server, request, terms, tokenizer, 1, text), spec.reconnect_s)
            completion_of(request, body, prompt_of(request, terms, tokenizer), terms, tokenizer)
        except NoAnswer as found:
            failures.append(found)
            if found.verdict not in ("refused", "malformed"):  # that says nothing of what it can do
                break
        else:
            return terms, body.count("prompt_tokens") is not None
    asked = "vLLM's own, which `server: generic` would change" if ids else "one of OpenAI's kind"
    raise GraphError(where, f"{server.url} does not answer as a server of {spec.model!r} does, {asked}: it {quoted(str(failures[0]))}")


async def _until_loaded(ask: Callable[[], Awaitable[T]], max_s: float) -> T:
    """The result of `ask`, which is repeated for up to `max_s` seconds while the server is busy, as it is while it loads its model, and for
    a moment while it fails."""
    since, pause_s = anyio.current_time(), FIRST_PAUSE_S
    while True:
        try:
            return await ask()
        except NoAnswer as found:
            left_s = since + {"busy": max_s, "failing": min(max_s, _MOMENT_S)}.get(found.verdict, 0.0) - anyio.current_time()
            if left_s <= 0:
                raise
            await anyio.sleep(min(found.retry_after_s or pause_s, LONGEST_PAUSE_S, left_s))
        pause_s *= 2


async def _cache_facts(server: Server) -> dict[str, Fact]:
    """The size of a vLLM server's cache, over all of its engines, as its page `/metrics` states it; empty where it does not."""
    try:
        page = (await server.ask(f"{server.url.removesuffix('/v1')}/metrics")).content.decode(errors="replace")
    except NoAnswer:
        return {}
    tokens, sizes = 0, set[int]()
    for labels in re.findall(r"^vllm:cache_config_info\{(.*)\}", page, re.MULTILINE):
        found = {name: int(value) for name, value in re.findall(r'(\w+)="(\d{1,12})"', labels)}
        sizes.add(size := found.get("effective_attention_block_size") or found.get("block_size", 0))
        # Where layers have caches of their own kinds, a block is shared out among them: vLLM works out what fits.
        tokens += found.get("kv_cache_size_tokens") or size * found.get("num_gpu_blocks", 0)
    return {"kv_cache_tokens": tokens, "block_size": sizes.pop()} if tokens and len(sizes) == 1 else {}


BACKEND = Backend(spec=OpenAISpec, open=open_openai, tokenizer=_load_tokenizer)
