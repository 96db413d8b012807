"""Keeps one engine alive: starts it again when it has died, kills it when it hangs, and lets its calls wait meanwhile.

The `EngineDead` of a call enters; the call goes on once the engine is up again, or gets an `EngineDead` when it never will be.
Only a `Restartable` engine is ever restarted or killed. Sends no requests and records nothing.
"""

import math
from collections.abc import Callable

import anyio

from pipeline.engine import Engine, Restartable
from pipeline.errors import EngineDead
from pipeline.graph.spec import EngineSpec, RestartableSpec
from pipeline.runtime.backoff import backoff_s
from pipeline.runtime.chain_recorder import Clock
from pipeline.runtime.suspension import sleep_noticing

CHECKS = 8
"""How many times in every `timeout_s` it is checked whether the engine computes."""
HANG_SHARE = 0.5
"""An engine hangs if it has calls and computes nothing for this share of `timeout_s`, so that this is found before calls time out."""


class Supervisor:
    """Restarts one engine when it dies and kills it when it hangs; `watch` must run while it is used."""

    def __init__(self, engine: Engine, spec: EngineSpec, clock: Clock, oldest_s: Callable[[], float | None]) -> None:
        """`oldest_s` returns when the oldest call in flight was sent, in seconds of `clock`; None while none is in flight."""
        self.restarts = 0
        """How many times the engine was restarted, failed attempts included."""
        self._role, self._timeout_s, self._clock, self._oldest_s = engine.role, spec.timeout_s, clock, oldest_s
        self._max_restarts = spec.max_restarts if isinstance(spec, RestartableSpec) else 0
        self._engine = engine if isinstance(engine, Restartable) and self._max_restarts else None
        self._died = anyio.Event()
        self._death: EngineDead | None = None
        """Why the engine is down; None while it is up."""
        self._up_or_gone = anyio.Event()
        """Set when a restart has succeeded or will not be tried any more."""
        self._exit_reason: str | None = None
        """Why the engine will never be up again; None while it may be."""

    @property
    def down(self) -> bool:
        """Whether the engine is being restarted or will never be up again."""
        return self._death is not None

    async def wait_restarted(self, restarts: int, death: EngineDead) -> None:
        """Wait until the engine is up again after a call failed with `death`; `restarts` is what that was when the call was sent.

        Raises `EngineDead` when the engine will not come back. Of calls that failed together the first one starts the restart.
        """
        if self._engine is None:
            raise death
        if restarts == self.restarts and self._death is None:
            self._death, self._up_or_gone = death, anyio.Event()
            self._died.set()
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Wait until the engine is up; raises `EngineDead` when it never will be again."""
        if self._death is not None:
            await self._up_or_gone.wait()
        if self._exit_reason is not None:
            raise EngineDead(self._role, self._exit_reason)

    async def watch(self) -> None:
        """Restart the engine whenever it dies, and kill it when it hangs; runs until it is cancelled."""
        if self._engine is None:
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_progress, self._engine)
            while True:
                await self._died.wait()
                self._died = anyio.Event()
                await self._restart(self._engine)

    async def _restart(self, engine: Restartable) -> None:
        """Restart the engine until it is up or `max_restarts` is reached."""
        while self._death is not None and self.restarts < self._max_restarts:
            await anyio.sleep(backoff_s(self._role, self.restarts))
            self.restarts += 1
            try:
                await engine.restart()
                self._death = None
            except EngineDead as death:
                self._death = death
        if self._death is not None:
            times = "once" if self.restarts == 1 else f"{self.restarts} times"
            allowed = f"max_restarts={self._max_restarts} allows no more"
            self._exit_reason = f"{self._death.exit_reason}; it was restarted {times}, and {allowed}"
        self._up_or_gone.set()

    async def _watch_progress(self, engine: Restartable) -> None:
        """Kill an engine that has calls and computes nothing."""
        busy_s, since = math.nan, self._clock.now()
        while True:
            since += await sleep_noticing(self._timeout_s / CHECKS, self._clock)
            now, before, oldest_s = self._clock.now(), busy_s, self._oldest_s()
            busy_s = engine.statistics().busy_s
            if busy_s != before:
                since = now
            silent_s = 0.0 if oldest_s is None else now - max(since, oldest_s)
            if silent_s >= self._timeout_s * HANG_SHARE and self._death is None:
                engine.kill(f"it computed nothing for {silent_s:.3g} s though it had calls (timeout_s={self._timeout_s:g})")
