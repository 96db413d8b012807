"""A replica: one set of open engines and the executor over them, fed by a driver elsewhere. Orders enter, reports leave.

It is the same executor, with the same stages, schedules and rows, as in a run of one process; only where its chains come from and where
its rows go is different. It writes nothing to disk.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import anyio

from pipeline.cluster.messages import Assignment, OpenReplica, Orders, ReplicaFailure, ReplicaReport
from pipeline.engine import EngineStatistics
from pipeline.engines.startup import Listener
from pipeline.errors import PipelineError, UsageError
from pipeline.graph.spec import EngineSpec
from pipeline.reasoning.chain import chain_id
from pipeline.runtime.admission.feed import Arrivals, Start
from pipeline.runtime.clock import Clock
from pipeline.runtime.resume_state import ResumeState
from pipeline.session.chains import Chains, OpenEngines, statistics, suited
from pipeline.session.loop import loop_clock
from pipeline.session.observer import Observer
from pipeline.session.prepare import RunSettings
from pipeline.session.run import opened_engines
from pipeline.store.events import CallRow, ChainRow, StepRow
from pipeline.system.tasks import unwrapped

REPORT_S = 2.0
"""A report is sent after this many seconds even if nothing has happened: the driver hears that the replica is there, and has orders."""
GATHER_S = 0.1
"""How long a report waits for more to say once something has happened."""
MAX_ROWS = 8192
"""No new chain starts while this many rows are not reported."""
MAX_LINES = 1000
"""How many lines that its engines print wait for a report; of more the last ones."""
AHEAD = 8
"""A replica keeps one chain waiting for every `AHEAD` chains of its batch size, at least one, so that a place is filled at once."""


class Outbox:
    """The `RowSink` of a replica: rows that are not reported yet."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed, self._fewer = changed, anyio.Event()
        self.calls: list[CallRow] = []
        self.steps: list[StepRow] = []
        self.chains: list[ChainRow] = []

    def call(self, row: CallRow) -> None:
        self.calls.append(row)
        self._changed()

    def step(self, row: StepRow) -> None:
        self.steps.append(row)
        self._changed()

    def chain(self, row: ChainRow) -> None:
        self.chains.append(row)
        self._changed()

    async def room(self) -> None:
        while len(self.calls) + len(self.steps) >= MAX_ROWS:
            await self._fewer.wait()

    def take(self) -> tuple[list[CallRow], list[StepRow], list[ChainRow]]:
        """What was not reported; it counts as reported from now on."""
        taken = self.calls, self.steps, self.chains
        self.calls, self.steps, self.chains = [], [], []
        self._fewer.set()
        self._fewer = anyio.Event()
        return taken


class ReplicaWorker:
    """Carries out the orders of a driver while `serve` runs, and reports."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._clock: Clock | None = None
        self._dated = False
        """The clock was set to the driver's time, by the first orders that brought chains; before them nothing is dated."""
        self._state = ResumeState()
        self._feed, self._outbox = Arrivals(), Outbox(self._tell)
        self._chains: Chains | None = None
        self._news, self._scope = anyio.Event(), anyio.CancelScope()
        self._phases: list[tuple[str, str]] = []
        self._lines = deque[tuple[str, str]](maxlen=MAX_LINES)
        self._opened: OpenReplica | None = None
        """What is to be reported of the engines, once, when they are open."""
        self._no_more, self._end = False, ""
        self._failure: ReplicaFailure | None = None
        self._statistics: dict[str, EngineStatistics] = {}
        self._over = False

    async def serve(self) -> None:
        """Open the engines and solve what is handed out until the driver ends it. Errors are reported, not raised."""
        try:
            with unwrapped():
                await self._serve()
        except UsageError as error:
            self._failure = ReplicaFailure(what=str(error), usage=True)
        except PipelineError as error:
            self._failure = ReplicaFailure(what=str(error))
        except Exception as error:  # whatever it is, the driver is to hear it
            self._failure = ReplicaFailure(what=f"{type(error).__name__}: {error}")
        finally:
            self._over = True
            self._tell()

    async def _serve(self) -> None:
        with self._scope:
            async with opened_engines(self._settings.plan.engines, Observer(starting=self._starting)) as engines:
                said: list[str] = []
                opened = await suited(self._settings, engines, said.append)
                await self._solve(opened, said)

    async def _solve(self, opened: OpenEngines, said: list[str]) -> None:
        self._clock = clock = Clock(time.time_ns(), loop_clock(self._settings.virtual_time))
        self._chains = chains = Chains(self._settings, opened, self._feed, self._outbox, clock, self._state)
        self._opened = OpenReplica(facts=opened.facts, notices=tuple(said))
        self._tell()
        self._follow()
        try:
            await chains.run()
        finally:
            self._statistics = statistics(opened.engines)

    def order(self, orders: Orders) -> None:
        """Take what is to be done; it may come before the engines are open."""
        if orders.chains and not self._dated and self._clock is not None:
            self._clock.set(orders.unix_ns)
            self._dated = True
        for chain in orders.chains:
            self._hand(chain)
        self._no_more |= orders.no_more
        self._end = orders.end or self._end
        self._follow()

    def _hand(self, chain: Assignment) -> None:
        """Let a chain that was handed out wait, with what is recorded of it."""
        if chain.resumed is not None:
            self._state.chains[chain_id(chain.item.problem_id, chain.sample_index)] = chain.resumed
        self._feed.add(Start(chain.item, chain.sample_index, chain.order))

    def _follow(self) -> None:
        """Let the executor know what was ordered, as soon as there is one."""
        if self._end == "abort" or (self._end and self._chains is None):
            self._scope.cancel()
        if self._chains is None:
            return
        if self._no_more:
            self._chains.executor.no_more()
        if self._end == "drain":
            self._chains.drain()

    async def report(self, wait_s: float = REPORT_S, gather_s: float = GATHER_S) -> ReplicaReport:
        """Wait until something has happened, `wait_s` seconds at most, and say what."""
        if not self._over:
            with anyio.move_on_after(wait_s):
                await self._news.wait()
        if not self._over:
            await anyio.sleep(gather_s)
        self._news = anyio.Event()
        return self._report()

    async def exchange(self, orders: Orders) -> ReplicaReport:
        """Take orders, and report."""
        self.order(orders)
        return await self.report()

    def _report(self) -> ReplicaReport:
        over = self._over
        calls, steps, ended = self._outbox.take()
        chains = self._chains
        opened, self._opened = self._opened, None
        phases, self._phases = self._phases, []
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        return ReplicaReport(
            phases=phases,
            lines=lines,
            opened=opened,
            calls=calls,
            steps=steps,
            chains=ended,
            wants=self._wants(),
            live=0 if chains is None else chains.progress.live,
            statistics=self._statistics if over or chains is None else statistics(chains.engines),
            pauses=None if chains is None else chains.pauses,
            failure=self._failure,
            over=over,
        )

    def _wants(self) -> int:
        if self._chains is None or self._end:
            return 0
        batch = self._settings.options.max_live
        ahead = max(1, batch // AHEAD)
        free = batch - self._chains.progress.live if self._feed.asked else 0
        return max(0, free + ahead - len(self._feed))

    def _tell(self) -> None:
        self._news.set()

    @contextmanager
    def _starting(self, specs: Mapping[str, EngineSpec]) -> Iterator[Listener]:
        yield _Heard(self)

    def hear_phase(self, role: str, phase: str) -> None:
        """An engine that starts has begun with this phase."""
        self._phases.append((role, phase))
        self._tell()

    def hear_line(self, role: str, line: str) -> None:
        """The process of an engine has printed this line."""
        self._lines.append((role, line))
        self._tell()


class _Heard(Listener):
    """Passes on what engines say of themselves."""

    def __init__(self, replica: ReplicaWorker) -> None:
        self._replica = replica

    def phase(self, role: str, phase: str) -> None:
        self._replica.hear_phase(role, phase)

    def output(self, role: str, line: str) -> None:
        self._replica.hear_line(role, line)
