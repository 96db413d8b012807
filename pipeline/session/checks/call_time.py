"""Calls that may exceed the time limits of their engine: a plan enters, warnings leave, before any request is sent.

How fast a simulated engine writes is known before it starts; of any other it is said how fast it would have to be.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pipeline.engines.chat.spec import ChatSpec
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.sim.roofline import Roofline
from pipeline.engines.sim.spec import SimSpec
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EngineSpec, StageSpec

SURE_TOKENS_PER_S = 5.0
"""Tokens a second of one sequence that no engine is expected to miss: a limit that needs no more is not worth a word."""


class _Limit(NamedTuple):
    """How long a call may take, and the key that says so."""

    name: str
    seconds: float


def time_notices(plan: Plan) -> list[str]:
    """A warning for each stage whose longest call will, or may, exceed the time limit of its engine."""
    return list(_notices(plan))


def _notices(plan: Plan) -> Iterator[str]:
    for node in plan.stages():
        engine, tokens = plan.engines.get(str(node.spec.role)), getattr(node.spec, "max_tokens", None)
        limit = None if engine is None else _limit(engine)
        if engine is None or limit is None or not isinstance(tokens, int):
            continue
        if isinstance(engine, SimSpec):
            what = _too_slow(engine, node.spec, tokens, limit)
        else:
            rate = tokens / limit.seconds
            what = f"within {limit.seconds:g} s that needs {rate:.0f} tokens a second" if rate > SURE_TOKENS_PER_S else None
        if what is not None:
            said = f"a call of the stage `{node.name}` may generate {tokens:,} tokens; {what}"
            yield f"warning: engine {node.spec.role!r}: {said}; set {limit.name} higher or max_tokens lower, or the call may time out"


def _limit(engine: EngineSpec) -> _Limit | None:
    """What ends a call of the engine though that works; None: nothing does. Of a server nothing is heard before an answer is whole."""
    limits = [] if engine.timeout_s is None else [_Limit("timeout_s", engine.timeout_s)]
    if isinstance(engine, OpenAISpec | ChatSpec):
        limits.append(_Limit("hang_s", engine.hang_s))
    return min(limits, key=lambda limit: limit.seconds, default=None)


def _too_slow(engine: SimSpec, stage: StageSpec, tokens: int, limit: _Limit) -> str | None:
    """What is wrong where a simulated engine is too slow for `tokens` with as many sequences as it computes together."""
    texts = max(1, stage.drafted)
    together = max(1, min(engine.max_num_seqs, engine.max_in_flight * texts, engine.kv_cache_tokens // tokens))
    alone_s, full_s = (_seconds(engine, tokens, size) for size in (1, together))
    if full_s <= limit.seconds:
        return None
    full = "" if together == 1 else f", {full_s:,.0f} s in a batch of {together:,}"
    return f"that takes {alone_s:,.0f} s alone{full}, and {limit.name} is {limit.seconds:g}"


def _seconds(engine: SimSpec, tokens: int, size: int) -> float:
    """Seconds that a simulated engine needs to write `tokens` tokens for each of `size` sequences at once, with the device to itself."""
    iterations = tokens if engine.speculative is None else -(-tokens // (1 + engine.speculative.num_speculative_tokens))
    growth = size * tokens / iterations
    return Roofline(engine).iteration(size, size, growth).duration(iterations)
