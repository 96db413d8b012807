"""The engine contract: what a stage may ask a served model for, and what it returns.

Prompts enter and candidates leave as token ids. Everything here is data or a protocol; no backend is imported.
One test suite, `tests/engines/test_contract.py`, holds every backend to it.
"""

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from pipeline.confidence import Confidence
from pipeline.graph.spec import EngineSpec

FinishReason = Literal["stop", "length"]
Fact = str | int | float | bool | tuple[str, ...]
"""One entry of `Engine.facts`; all of them can be written as JSON."""
_NO_ID = (1 << 32) - 1
"""Separates two lists of ids in a digest; no token has this id."""


class Content(Struct, frozen=True):
    """What a prompt is about, for a simulated engine, which does not read it."""

    problem: str
    judged: tuple[tuple[int, int], ...] = ()
    """For each option of a choice, start and end in the prompt of the candidate that it names, (0, 0) if it names none; a single place if
    all options rate one candidate."""


class Request(Struct, frozen=True, kw_only=True):
    """One call to an engine."""

    request_id: str
    prompt_ids: Sequence[int]
    """A run passes an `array` of unsigned integers, which is compact and hashed without conversion."""
    max_tokens: int
    """Maximum number of tokens of one candidate; the engine lowers it to what its context leaves."""
    n: int = 1
    """How many candidates to sample from the same prompt; if the engine cannot compute them all together, the others start as places become
    free."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """Sample among this many of the likeliest tokens; 0: all."""
    min_p: float = 0.0
    """Sample only tokens with at least this share of the likeliest one's probability."""
    seed: int = 0
    """Candidate j draws from (seed, j) alone: the same request gives the same text, whatever else is in the batch, provided that its log
    probabilities are the same, which only some engines promise (`batch_invariant` of `Engine.facts`)."""
    stop: tuple[str, ...] = ()
    """A candidate ends after the token that completes one of these; that token is kept."""
    stop_ids: tuple[int, ...] = ()
    """A candidate ends after one of these ids; the id is kept. An end-of-sequence id also ends it and is not kept,
    unless it is one of these."""
    option_ids: tuple[int, ...] = ()
    """Not empty: choose one token among these (`max_tokens` is 1) and return all their log probabilities."""
    logprobs: bool = False
    """Return the cumulative log probability and the `Confidence` of every candidate, which takes notably longer on some engines."""
    priority: int = 0
    """Lower goes first, in engines that order their own queues."""
    adapter: str | None = None
    """The engine's adapter (LoRA) that this request is computed with, by the name that its spec has for it; None: the model as it is. An
    engine rejects a name that it does not have. Keys and values of one adapter are never those of another, or of none."""
    affinity: str = ""
    """The chain: requests of one chain share a prefix and belong on one replica."""
    content: "Content | None" = None
    """What the prompt holds, for engines that simulate an answer; those that compute one do not need it."""

    def digest(self) -> int:
        """64 bits of what an answer depends on and calls have no columns for: the prompt, `stop_ids`, and where they are set
        `top_k`, `min_p` and the adapter."""
        state = blake2b(packed(self.prompt_ids), digest_size=8)
        if self.adapter is not None:
            state.update(f"adapter={self.adapter!r} ".encode())
        if self.top_k or self.min_p:
            state.update(f"top_k={self.top_k} min_p={self.min_p!r}".encode())
        if self.stop_ids:
            state.update(array("I", (_NO_ID, *self.stop_ids, _NO_ID)))
        return int.from_bytes(state.digest(), "little", signed=True)


def packed(ids: Sequence[int]) -> "array[int]":
    """`ids` as an array of unsigned integers, which most prompts are already; raises `OverflowError` and `TypeError` for what are none."""
    return ids if isinstance(ids, array) and ids.typecode == "I" else array("I", ids)


class Candidate(Struct, frozen=True, kw_only=True):
    """One sampled continuation."""

    ids: tuple[int, ...]
    text: str
    cumulative_logprob: float | None
    """Sum over the sampled tokens, natural log, under the model's own distribution at temperature 1. None if it was not requested and the
    engine does not compute it anyway, or cannot."""
    finish_reason: FinishReason
    """`length`: cut at `max_tokens` or at the end of the context."""
    stop_reason: str | int | None = None
    """The stop string or stop id that ended it; None for an end-of-sequence token or `length`."""
    confidence: Confidence | None = None
    """How sure the model was of it, where the request asks for `logprobs`; None of a candidate without tokens, and where it was not
    requested or the engine cannot."""

    @property
    def ended(self) -> bool:
        """Whether it stopped with an end-of-sequence token, which is not among its `ids`."""
        return self.finish_reason == "stop" and self.stop_reason is None


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens of one call. The prompt counts once, however many candidates share it."""

    input_tokens: int
    cached_input_tokens: int | None = None
    """Prompt tokens whose keys and values were already in the engine's prefix cache; None if the engine does not report it, or did not
    look."""
    output_tokens: int = 0
    """Sampled tokens over all candidates, end-of-sequence tokens included."""


class Timing(Struct, frozen=True, kw_only=True):
    """Seconds by the engine's own clock; None if unknown."""

    queue_time_s: float | None = None
    """Arrival until first scheduled."""
    prefill_time_s: float | None = None
    """First scheduled until the first token."""
    decode_time_s: float | None = None
    """First token until the last."""
    time_to_first_token_s: float | None = None
    """Arrival until the first token."""

    @classmethod
    def of(cls, arrived: float, scheduled: float, first: float, last: float) -> "Timing":
        """The durations between these moments of a request, in seconds of one clock."""
        return cls(
            queue_time_s=scheduled - arrived,
            prefill_time_s=first - scheduled,
            decode_time_s=last - first,
            time_to_first_token_s=first - arrived,
        )


class Completion(Struct, frozen=True, kw_only=True):
    """The answer to one request."""

    candidates: tuple[Candidate, ...]
    """`n` of them; one for a choice."""
    option_logprobs: tuple[float, ...] = ()
    """Log probability of each of `option_ids`, in that order, before any masking: their exponentials sum to the mass on valid options."""
    usage: Usage
    timing: Timing = Timing()
    model: str | None = None
    """The model that answered, by the server's name for it; None if not reported."""


class Speculation(Struct, frozen=True, kw_only=True):
    """Totals of token-level speculation inside an engine since it opened."""

    drafts: int
    """Times that tokens were proposed for a sequence."""
    draft_tokens: int
    """Tokens that were proposed."""
    accepted_tokens: int
    """Proposed tokens that the model accepted."""
    accepted_by_position: tuple[int, ...]
    """For each position in a proposal, from the first: how often the token there was accepted."""


class EngineStatistics(Struct, frozen=True, kw_only=True):
    """The totals of an engine since it opened."""

    requests: int = 0
    input_tokens: int = 0
    cached_input_tokens: int | None = None
    """Of the requests for which the engine reported it; null if it did so for none of those that it answered."""
    output_tokens: int = 0
    busy_s: float = 0.0
    """Seconds in which the engine computed."""
    written_tokens: int | None = None
    """Tokens sampled since it opened, those of running requests included; null if unknown."""
    speculation: Speculation | None = None
    """Null if the engine does not speculate."""
    restarts: int = 0
    """Times that it was restarted after it died; the totals continue."""

    def plus(self, other: "EngineStatistics", sign: int = 1) -> "EngineStatistics":
        """The totals of both engines, or of both times that this one was open; with `sign` -1 what was counted since `other`, earlier
        statistics of this engine."""
        total: EngineStatistics = added(self, other, sign)
        return total


def added(one: Any, other: Any, sign: int = 1) -> Any:
    """`one + sign * other` of numbers, and of those in tuples by place, in mappings by key and in structs by field; null is not added."""
    if one is None or other is None:
        return other if one is None and sign > 0 else one
    if isinstance(one, tuple):
        return tuple(added(*pair, sign) for pair in zip_longest(one, other, fillvalue=0))
    if isinstance(one, dict):
        return {key: added(one.get(key), other.get(key), sign) for key in one | other}
    if isinstance(one, Struct):
        return type(one)(**{name: added(getattr(one, name), getattr(other, name), sign) for name in one.__struct_fields__})
    return one + sign * other


class Tokenizer(Protocol):
    """Text to token ids and back, and the model's own chat template."""

    special_ids: dict[str, int]
    """Special and added tokens by their text, `<think>` and `</think>` among them where the model has them."""
    eos_ids: frozenset[int]
    """Ids of the end-of-sequence tokens."""

    @property
    def control_ids(self) -> frozenset[int]:
        """Those of `special_ids` that mean more than their text, such as the beginning of a turn or of a thought."""

    @property
    def vocabulary(self) -> str:
        """Fingerprint of the ordinary (not special) tokens: where two agree, their ids can be shared."""

    def encode(self, text: str) -> list[int]:
        """Ids of `text` with nothing added; the text of special tokens becomes their ids. Only for text from a template or this program:
        see `encode_parts`."""

    def encode_parts(self, parts: Sequence[str]) -> list[int]:
        """Ids of all `parts` as one text, with nothing added. The first, third, ... are a template's, as `encode` takes it; the second,
        fourth, ... were written by others, and none of their characters becomes part of a token of `control_ids`.

        Where they hold no text of such a token the ids are those of `encode` for the joined parts; if the first part is empty, those that
        they have after other text.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """The chat template over `messages` of `role` and `content`, ending where the assistant starts to write."""


class Engine(Protocol):
    """A served model. `generate` may be called from any number of tasks at once."""

    role: str
    """The engine's name in its graph, such as `draft` or `target`."""
    tokenizer: Tokenizer
    max_model_len: int
    """The context length: maximum number of tokens of a prompt and its output together."""
    vocab_size: int
    """Every token id of a request and of a candidate is below this number."""

    @property
    def facts(self) -> Mapping[str, Fact]:
        """What the engine found out about itself when it opened; a run keeps it as `engine_facts` in `run.json`.

        Analyses and reports ask these facts, never the name of a backend. An engine leaves out what it does not know, and may add its own
        entries (versions, capabilities). All sizes are of this engine alone. No number is infinite: JSON has no such number. No entry holds
        a key or a password.

        answers: what its completions come from: `model`, `simulated` or `recorded`. A replay of simulated answers says
            `simulated`. Left out: `model`.
        devices: names of the devices it computes on, as they are shown: `GPU 0`, `CPU core 3`, `CPU cores 0-1`, the
            name of a simulated device. Engines of a run that name the same device share it. Left out: the engine is a separate device.
        device_model: what those devices are, where they are accelerators: `NVIDIA H200`, the name of a simulated device.
        accelerators: how many of `devices` are real accelerators (GPUs).
        cores: how many CPU cores it computes on, where it computes on CPU cores.
        flops_per_s: the matrix rate of a simulated device, FLOP/s. Left out of a simulated engine: without a bound.
        servers: addresses of the servers that compute for it, in place of `devices`.
        replay: the folder of the recorded run that it answers from.
        cannot: what it cannot do of all that stages may need (`StageSpec.needs`). `continues`: continue a partial reply;
            `options`: give log probabilities of `option_ids`; `logprobs`: of what it writes, and of the
            likeliest tokens in its place; `top_p`, `top_k`, `min_p`, `seeds`: honour these. Left out: it can do all of it.
        batch_invariant: whether it promises that a request gets the same answer whatever else is in the batch. Left out: it does not.
        kv_cache_tokens: tokens whose keys and values fit into its cache, over all replicas.
        kv_cache_sequences: sequences that fit into its cache, where each takes a place of one size, however short it is.
        block_size: tokens of a sequence that its cache keeps or evicts together.
        """

    async def generate(self, request: Request) -> Completion:
        """Answer `request`; cancelling the caller aborts it.

        Raises `ContextOverflow` when the prompt leaves no room for one token, `RequestRefused` for any other
        request that cannot be run, `EngineUnavailable` when the same request may be sent again, `EngineDead` when the
        engine is gone (then and ever after, or until it is restarted).
        """

    def statistics(self) -> EngineStatistics:
        """Its totals since it opened."""

    async def aclose(self) -> None:
        """Free everything; waiting requests raise `EngineDead`. A second call does nothing."""


@runtime_checkable
class Restartable(Engine, Protocol):
    """An engine that can be started again. `pipeline.runtime.supervisor` decides whether and when."""

    def kill(self, exit_reason: str) -> None:
        """End it at once; waiting requests, and all others until it is restarted, raise `EngineDead` with `exit_reason`."""

    async def restart(self) -> None:
        """Start a dead engine again, alone and in the same place: same cores, same devices.

        Raises `EngineDead` when the start fails, or once it was closed.
        """


@runtime_checkable
class Remote(Engine, Protocol):
    """An engine whose server may be unreachable for a while and is not restarted from here."""

    async def wait_answering(self) -> bool:
        """Ask the server now. False: it still answers. True: it did not, but does again now. Raises `EngineDead` if it will not."""


@runtime_checkable
class PrefixCacheReset(Engine, Protocol):
    """An engine whose prefix cache can be cleared, so that a measurement does not profit from the prompts of an earlier one."""

    async def reset_prefix_cache(self) -> None:
        """Empty the prefix cache. Call it only while no request is in flight; raises `EngineDead`, and `EngineUnavailable` if the engine
        did not clear it."""


class Backend(Struct, frozen=True, kw_only=True):
    """How to open the engines of one kind; an entry point of the group `pipeline.engines` names one of these."""

    spec: type[EngineSpec]
    """The keys that an engines file may hold for such an engine; its tag is the backend's name."""
    open: Callable[[Mapping[str, Any]], AbstractAsyncContextManager[Mapping[str, Engine]]]
    """Opens all roles of this backend together (role to spec), because they may share a device, and closes them on exit.

    Raises `UsageError` before anything is started when a spec cannot work here, `EngineDead` when a start fails.
    """
    tokenizer: Callable[[str, Any], Tokenizer] | None = None
    """The tokenizer of an engine that is not open, from its role and its spec, for `graph prompt` and transcripts. Raises `GraphError`.
    None: only an open engine has one."""
    widened: Callable[[Mapping[str, Any], Collection[str]], Mapping[str, Mapping[str, Any]]] | None = None
    """The memory that a sweep gives the target alone: takes the specs by role and the roles that are opened, and returns by role the
    settings with which these use the memory of the others on their devices. None: its engines take no more memory than they need."""
