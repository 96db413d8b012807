"""Simulated engines that fail as their spec says: they die, hang, answer with what is no answer, or never the same twice.

The backends `faulty` and `faulty-now` of an installed package, `tests/support/packages`; their keys are those of `sim` and `faults`.
Which call meets a fault follows from its number or from its request alone, so that the same run meets the same faults.
"""

import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any, ClassVar

import anyio
from msgspec import Struct, structs

from pipeline.engine import Backend, Candidate, Completion, Engine, Request
from pipeline.engines.sim.engine import BACKEND as SIM
from pipeline.engines.sim.engine import open_sim
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.sim.tokenizer import VOCAB_SIZE
from pipeline.errors import EngineDead


class Faults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine fails."""

    dies_after_calls: int | None = None
    """It dies at the call after this many; counted from 0 again after a restart."""
    hangs_after_calls: int | None = None
    """It hangs from the call after this many on; counted from 0 again after a restart."""
    garbage_share: float = 0.0
    """Share of attempts that get an invalid answer, drawn by request, seed and attempt."""
    varies: bool = False
    """It never answers the same twice, as a server with a batch, a seed and a version of its own does."""


class FaultySpec(SimSpec, frozen=True, kw_only=True, tag="faulty"):
    """The keys of `sim`, and faults."""

    faults: Faults = Faults()


class PromptFaultySpec(FaultySpec, frozen=True, kw_only=True, tag="faulty-now"):
    """The same in real time, as engines whose rewards are kept must be."""

    virtual_time: ClassVar[bool] = False


class FaultyEngine:
    """A simulated engine that fails; what is not here is the simulated engine's own."""

    def __init__(self, engine: Any, faults: Faults) -> None:
        self._engine, self._faults = engine, faults
        self._attempts: Counter[str] = Counter()
        self._start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _start(self) -> None:
        self._calls, self._died, self._exit_reason = 0, anyio.Event(), ""
        self._computed: set[anyio.CancelScope] = set()

    async def generate(self, request: Request) -> Completion:
        died = self._died
        if self._faults.varies:
            request = structs.replace(request, seed=int.from_bytes(os.urandom(6)))
        if not died.is_set():
            self._calls += 1
            if _after(self._calls, self._faults.dies_after_calls):
                self.kill(f"as configured by dies_after_calls={self._faults.dies_after_calls}")
        hangs = _after(self._calls, self._faults.hangs_after_calls) and not died.is_set()
        if hangs:
            for each in self._computed:
                each.cancel()
        else:
            with anyio.CancelScope() as scope:
                self._computed.add(scope)
                try:
                    return self._garbled(request, await self._engine.generate(request))
                finally:
                    self._computed.discard(scope)
        await died.wait()
        raise EngineDead(self._engine.role, self._exit_reason)

    def kill(self, exit_reason: str) -> None:
        if not self._died.is_set():
            self._exit_reason = exit_reason
            self._died.set()
        self._engine.kill(exit_reason)

    async def restart(self) -> None:
        await self._engine.restart()
        self._start()

    def _garbled(self, request: Request, completion: Completion) -> Completion:
        """The completion as the engine returns it; a share of them are made invalid, each in one of the ways of `_spoilt`."""
        attempt = self._attempts[request.request_id]
        self._attempts[request.request_id] += 1
        digest = blake2b(f"{request.request_id}\0{request.seed}\0{attempt}".encode(), digest_size=8).digest()
        draw, kind = int.from_bytes(digest[:7]) / (1 << 56), digest[7]
        return _spoilt(completion, kind) if draw < self._faults.garbage_share else completion


def _after(calls: int, limit: int | None) -> bool:
    return limit is not None and calls > limit


def _spoilt(completion: Completion, kind: int) -> Completion:
    """No answer, in one of four ways: nothing at all; ids of no token; what are no numbers; and texts that
    are empty and did not end by themselves."""

    def each(**change: Any) -> tuple[Candidate, ...]:
        return tuple(structs.replace(candidate, **change) for candidate in completion.candidates)

    options = completion.option_logprobs
    changes: list[dict[str, Any]] = [
        {"candidates": (), "option_logprobs": ()},
        {"candidates": each(ids=(VOCAB_SIZE,))},
        {"candidates": each(cumulative_logprob=math.nan), "option_logprobs": (math.nan,) * len(options)},
        {
            "candidates": each(ids=(), text="", finish_reason="length", stop_reason=None),
            "usage": structs.replace(completion.usage, output_tokens=0),
        },
    ]
    return structs.replace(completion, **changes[kind % len(changes)])


@asynccontextmanager
async def open_faulty(specs: Mapping[str, FaultySpec]) -> AsyncIterator[Mapping[str, Engine]]:
    """Open the engines of all roles."""
    async with open_sim(specs) as engines:
        yield {role: FaultyEngine(engine, specs[role].faults) for role, engine in engines.items()}


BACKEND = Backend(spec=FaultySpec, open=open_faulty, tokenizer=SIM.tokenizer, widened=SIM.widened)
IN_REAL_TIME = Backend(spec=PromptFaultySpec, open=open_faulty, tokenizer=SIM.tokenizer, widened=SIM.widened)
