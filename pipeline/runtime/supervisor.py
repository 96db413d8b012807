"""Keeps one engine alive: starts it again when it died, ends it when it hangs, and lets its calls wait meanwhile.

Deaths enter; calls go on once the engine is up, or get the last of its deaths. How an engine is started and ended is its
own business (`Restartable`); one without these is never restarted. Sends nothing and records nothing: whoever calls does.
"""

import math
from collections.abc import Callable

import anyio

from pipeline.engine import Engine, Restartable
from pipeline.errors import EngineDead
from pipeline.graph.spec import EngineSpec, RestartableSpec
from pipeline.runtime.backoff import backoff_s
from pipeline.runtime.chain_recorder import Clock

CHECKS = 8
"""In every `timeout_s` so often it is looked whether the engine computes."""
HANG_SHARE = 0.5
"""An engine that has calls and computes nothing for this part of `timeout_s` hangs: found before its calls time out."""


class Supervisor:
    """Starts and ends one engine; `watch` must run while it is used."""

    def __init__(self, engine: Engine, spec: EngineSpec, clock: Clock, oldest_s: Callable[[], float | None]) -> None:
        """`oldest_s` says, by `clock`, since when the oldest call is in flight; None while none is."""
        self.restarts = 0
        """Times that it was started again, or that this was tried."""
        self._role, self._timeout_s, self._clock, self._oldest_s = engine.role, spec.timeout_s, clock, oldest_s
        self._max_restarts = spec.max_restarts if isinstance(spec, RestartableSpec) else 0
        self._engine = engine if isinstance(engine, Restartable) and self._max_restarts else None
        self._died = anyio.Event()
        self._death: EngineDead | None = None
        """Why it is down; None while it is up."""
        self._up_or_gone = anyio.Event()
        self._exit_reason: str | None = None
        """Why it will not come back; None while it may."""

    @property
    def down(self) -> bool:
        """Is the engine being started again, or gone for good?"""
        return self._death is not None

    async def wait_restarted(self, restarts: int, death: EngineDead) -> None:
        """Wait until the engine is up again after a call that was sent when it had been restarted so often got `death`.

        Raises `EngineDead` when it will not come back. Of calls that died together the first one brings the news.
        """
        if self._engine is None:
            raise death
        if restarts == self.restarts and self._death is None:
            self._death, self._up_or_gone = death, anyio.Event()
            self._died.set()
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Wait until the engine can be asked; raises `EngineDead` when it never can again."""
        if self._death is not None:
            await self._up_or_gone.wait()
        if self._exit_reason is not None:
            raise EngineDead(self._role, self._exit_reason)

    async def watch(self) -> None:
        """Start the engine again whenever it died, and end it where it hangs, until cancelled."""
        if self._engine is None:
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_progress, self._engine)
            while True:
                await self._died.wait()
                self._died = anyio.Event()
                await self._restart(self._engine)

    async def _restart(self, engine: Restartable) -> None:
        """Start it until it is up or `max_restarts` is reached."""
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
            await anyio.sleep(self._timeout_s / CHECKS)
            now, before, oldest_s = self._clock.now(), busy_s, self._oldest_s()
            busy_s = engine.statistics().busy_s
            if busy_s != before:
                since = now
            silent_s = 0.0 if oldest_s is None else now - max(since, oldest_s)
            if silent_s >= self._timeout_s * HANG_SHARE and self._death is None:
                engine.kill(f"it computed nothing for {silent_s:.3g} s though it had calls (timeout_s={self._timeout_s:g})")
