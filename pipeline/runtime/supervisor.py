"""Keeps one engine alive: who waits while it is started again, how often it is, and when it counts as hanging.

Deaths enter; calls go on once the engine is back, or get the last of its deaths. Mechanism is the engine's
(`Restartable`); an engine without it is never restarted. Sends nothing and records nothing: the dispatcher does.
"""

import math
from collections.abc import Callable

import anyio

from pipeline.engine import Engine, Restartable
from pipeline.errors import EngineDead
from pipeline.graph.spec import EngineSpec, RestartableSpec
from pipeline.runtime.backoff import backoff_s
from pipeline.runtime.chain_recorder import Clock

LOOKS = 8
"""In every `timeout_s` the engine's pulse is felt this often."""
SILENCE = 0.5
"""An engine that has calls and computes nothing for this part of `timeout_s` hangs: found before its calls time out."""


class Supervisor:
    """The lives of `engine`; `watch` must run while it is used. `oldest` says since when the oldest call is in flight."""

    def __init__(self, engine: Engine, spec: EngineSpec, clock: Clock, oldest: Callable[[], float | None]) -> None:
        self.life = 0
        """Number of the engine's present life, from 0."""
        self._role, self._timeout_s, self._clock, self._oldest = engine.role, spec.timeout_s, clock, oldest
        self._most = spec.max_restarts if isinstance(spec, RestartableSpec) else 0
        self._engine = engine if isinstance(engine, Restartable) and self._most else None
        self._died = anyio.Event()
        self._death: EngineDead | None = None
        """The death that the engine has not come back from."""
        self._back = anyio.Event()
        self._end: str | None = None
        """Its last words, once it will not come back."""

    @property
    def away(self) -> bool:
        """Is the engine being started again, or gone for good?"""
        return self._death is not None

    async def wait_restarted(self, life: int, death: EngineDead) -> None:
        """Wait until the engine has come back from a `life` that ended in `death`; raises `EngineDead` when it will not."""
        if self._engine is None:
            raise death
        if life == self.life and self._death is None:
            self._death, self._back = death, anyio.Event()
            self._died.set()
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Wait until the engine can be asked; raises `EngineDead` when it never can again."""
        if self._death is not None:
            await self._back.wait()
        if self._end is not None:
            raise EngineDead(self._role, self._end)

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
        """Another life, or the end."""
        while self._death is not None and self.life < self._most:
            await anyio.sleep(backoff_s(self._role, self.life))
            self.life += 1
            try:
                await engine.restart()
                self._death = None
            except EngineDead as death:
                self._death = death
        if self._death is not None:
            times = "once" if self.life == 1 else f"{self.life} times"
            self._end = f"{self._death.exit_reason}; it was restarted {times}, and max_restarts={self._most} allows no more"
        self._back.set()

    async def _watch_progress(self, engine: Restartable) -> None:
        """Kill an engine that has calls and computes nothing."""
        busy_s, since = math.nan, self._clock.now()
        while True:
            await anyio.sleep(self._timeout_s / LOOKS)
            now, before, oldest = self._clock.now(), busy_s, self._oldest()
            busy_s = engine.statistics().busy_s
            if busy_s != before:
                since = now
            silent_s = 0.0 if oldest is None else now - max(since, oldest)
            if silent_s >= self._timeout_s * SILENCE and self._death is None:
                engine.kill(f"it computed nothing for {silent_s:.3g} s though it had calls (timeout_s={self._timeout_s:g})")
