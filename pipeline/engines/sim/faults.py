"""Injected faults of a simulated engine: deaths, hangs and invalid answers, for runs that must survive them. Pure.

Which call meets a fault follows from its number or from its request alone, so that the same run meets the same faults.
"""

import math
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Literal

from msgspec import structs

from pipeline.engine import Completion, Request
from pipeline.engines.sim.spec import SimFaultsSpec
from pipeline.engines.sim.tokenizer import VOCAB_SIZE


class SimFaults:
    """Decides which calls of one engine meet a fault, and garbles completions; the engine itself carries out a death or a hang."""

    def __init__(self, spec: SimFaultsSpec) -> None:
        self._spec = spec
        self._calls = 0
        self._attempts: Counter[str] = Counter()

    def reset(self) -> None:
        """Count calls from 0 again, after the engine was restarted."""
        self._calls = 0

    def next_call(self) -> Literal["dies", "hangs"] | None:
        """Count a call; returns the fault that the engine meets at it, None for none."""
        self._calls += 1
        if self._spec.dies_after_calls is not None and self._calls > self._spec.dies_after_calls:
            return "dies"
        return "hangs" if self._spec.hangs_after_calls is not None and self._calls > self._spec.hangs_after_calls else None

    def garble(self, request: Request, completion: Completion) -> Completion:
        """The completion as the engine returns it; a share of them are made invalid, each in one of the ways of `_GARBAGE`."""
        if not self._spec.garbage_share:
            return completion
        attempt = self._attempts[request.request_id]
        self._attempts[request.request_id] += 1
        digest = blake2b(f"{request.request_id}\0{request.seed}\0{attempt}".encode(), digest_size=8).digest()
        draw, kind = int.from_bytes(digest[:7]) / (1 << 56), digest[7]
        return _GARBAGE[kind % len(_GARBAGE)](completion) if draw < self._spec.garbage_share else completion


def _nothing(completion: Completion) -> Completion:
    return structs.replace(completion, candidates=(), option_logprobs=(), scored_logprobs=())


def _never_asked_for(completion: Completion) -> Completion:
    """Ids that are no options and no tokens of the model, and a log probability too many."""
    candidates = tuple(structs.replace(candidate, ids=(VOCAB_SIZE,)) for candidate in completion.candidates)
    return structs.replace(completion, candidates=candidates, scored_logprobs=(*completion.scored_logprobs, 0.0))


def _not_a_number(completion: Completion) -> Completion:
    return structs.replace(
        completion,
        candidates=tuple(structs.replace(candidate, cumulative_logprob=math.nan) for candidate in completion.candidates),
        option_logprobs=(math.nan,) * len(completion.option_logprobs),
        scored_logprobs=(math.nan,) * len(completion.scored_logprobs),
    )


def _empty(completion: Completion) -> Completion:
    """Candidates without any text that did not end by themselves."""
    empty = {"ids": (), "text": "", "finish_reason": "length", "stop_reason": None}
    candidates = tuple(structs.replace(candidate, **empty) for candidate in completion.candidates)
    usage = structs.replace(completion.usage, output_tokens=0)
    return structs.replace(completion, candidates=candidates, scored_logprobs=completion.scored_logprobs[:-1], usage=usage)


_GARBAGE: tuple[Callable[[Completion], Completion], ...] = (_nothing, _never_asked_for, _not_a_number, _empty)
