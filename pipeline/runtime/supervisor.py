"""Keeps one engine alive: starts it again when it has died, and lets its calls wait meanwhile.

The `EngineDead` of a call enters; the call continues once the engine is up again, or gets an `EngineDead` when it never will be.
Only a `Restartable` engine is ever restarted or killed. Sends no requests and records nothing.
"""

import anyio

from pipeline.engine import Engine, Restartable
from pipeline.errors import EngineDead
from pipeline.graph.spec import EngineSpec, RestartableSpec
from pipeline.runtime.clock import backoff_s


class Supervisor:
    """Restarts one engine when it dies or hangs; `watch` must run while it is used."""

    def __init__(self, engine: Engine, spec: EngineSpec) -> None:
        self.restarts = 0
        """The number of restarts, failed attempts included."""
        self._role = engine.role
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
        """True if the engine is being restarted or will never be up again."""
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

    def kill(self, exit_reason: str) -> bool:
        """Kill an engine that hangs, so that it is restarted; False: it is none of those that are."""
        if self._engine is None:
            return False
        if self._death is None:
            self._engine.kill(exit_reason)
        return True

    async def watch(self) -> None:
        """Restart the engine whenever it dies; runs until it is cancelled."""
        while self._engine is not None:
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
