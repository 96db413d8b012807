"""A run on replicas: chains are dealt from one queue, their rows come back, what a lost replica had continues elsewhere.

    input -> queue -> replicas 0 .. N-1 -> rows, which are graded and written here

Rows come home as they are made, not at the end in a folder of the replica's: with a node its disk is gone, and then a chain continues from
its last call that is here. So a session on a `Fleet` has the same folder, rows, summary and exit codes as one on engines of this process,
and whoever watches the folder sees all replicas. How replicas are started and reached is a `Launcher`'s: actors of a cluster
(`ray_actors`), processes of this machine or tasks of this event loop (`local`).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import anyio
from msgspec import structs

from pipeline.cluster.chain_queue import ChainQueue
from pipeline.cluster.fleet_member import FleetMember
from pipeline.cluster.messages import OpenReplica, Orders, ReplicaLink, ReplicaReport
from pipeline.engine import Engine, EngineStatistics
from pipeline.engines.startup import Listener
from pipeline.errors import ReplicaLost, RunError, UsageError
from pipeline.graph.spec import EngineSpec
from pipeline.runtime.admission.feed import Feed
from pipeline.runtime.clock import Clock, backoff_s
from pipeline.runtime.lane import Lane
from pipeline.runtime.progress import Progress
from pipeline.runtime.resume_state import NO_STAGE
from pipeline.runtime.rows import RowSink
from pipeline.session.loop import Stop
from pipeline.session.observer import Attend, Observer, ReplicaState, Tell
from pipeline.session.options import check_replicas
from pipeline.session.prepare import Prepared
from pipeline.session.run import SessionResult, attended, begin, execute
from pipeline.store.events import CallRow, ChainRow
from pipeline.store.run_file import Replica
from pipeline.system.tasks import background_tasks, unwrapped

Launcher = Callable[[int], AbstractAsyncContextManager[ReplicaLink]]
"""`launch(number)`: starts a replica, which ends with the context; raises `ReplicaLost` where it cannot be started."""
SILENT_S = 60.0
"""A replica that reports nothing for this time hangs, and is lost."""
READ_AHEAD = 64
"""Number of chains that wait in the queue, if there are that many, in addition to one for each replica."""
MOMENT_S = 1.0
"""Most seconds that orders wait for chains that are being read."""
END_S = 10.0
"""Most seconds that replicas may take to end when all chains are over, or the run is stopped."""
STARTS_SHOWN = 8
"""Of so many replicas the first ones, it is displayed how their engines start."""
ENGINES_OWN = frozenset({"EngineUnavailable", "BadCompletion"})
"""Errors of chains that are those of the engines: the chain is tried once more on another replica."""


async def solve_on_replicas(
    launch: Launcher, ready: Prepared, observer: Observer, stop: Stop | None = None, *, attend: Attend | None = None
) -> SessionResult:
    """Start the replicas by `launch` and solve on them, as `pipeline.session.run.solve` does here. Raises what keeps any chain from
    starting."""
    check_replicas(ready.options)

    async def on_replicas(stop: Stop) -> SessionResult:
        opening = time.monotonic()
        with ready.announced():
            async with background_tasks() as tasks:
                with observer.starting(_starts(ready)) as listener:
                    fleet = Fleet(ready.options.replicas, launch, observer.tell, listener)
                    for member in fleet.members:
                        tasks.start_soon(fleet.keep, member)
                    opened = await fleet.wait_open()
                run = begin(ready, opened.facts, time.monotonic() - opening)
                result = await execute(run, fleet, observer, stop)
                return structs.replace(result, notices=opened.notices)

    return await attended(on_replicas, stop or Stop(), attend)


def _starts(ready: Prepared) -> dict[str, EngineSpec]:
    """The engines of replicas whose start is displayed, by their names there."""
    shown = range(min(ready.options.replicas, STARTS_SHOWN))
    return {_name(role, number): spec for number in shown for role, spec in ready.plan.engines.items()}


def _name(role: str, replica: int) -> str:
    return f"{role} of replica {replica}"


class Fleet:
    """The replicas of one session, its `Site`: starts them, and lost ones again, and exchanges orders for reports."""

    def __init__(self, count: int, launch: Launcher, tell: Tell, listener: Listener) -> None:
        self.members = [FleetMember(number) for number in range(count)]
        self.failure: Exception | None = None
        """Why no replica is left, or what went wrong here."""
        self._launch, self._tell, self._listener, self._changed = launch, tell, listener, anyio.Event()
        self._opened: OpenReplica | None = None
        """What the first replica said whose engines were open."""
        self._work: FleetWork | None = None
        """None until there is work; replicas start meanwhile."""

    def work(self, run: Prepared, feed: Feed, rows: RowSink, clock: Clock) -> "FleetWork":
        self._work = FleetWork(self, run, feed, rows, clock)
        return self._work

    def spent(self) -> dict[str, EngineStatistics]:
        found = [each for member in self.members for each in member.statistics]
        roles = dict.fromkeys(role for each in found for role in each)
        return {role: EngineStatistics.together([each[role] for each in found if role in each]) for role in roles}

    def replicas(self) -> list[Replica]:
        return [member.record for member in self.members]

    def states(self) -> Sequence[ReplicaState]:
        return [member.state for member in self.members]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it may do so after a `change`."""
        while not condition():
            await self._changed.wait()

    def change(self) -> None:
        """Something has happened that somebody may wait for."""
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_open(self) -> OpenReplica:
        """Wait until the engines of a replica are open; raises `failure` where those of none will ever be."""
        await self.until(lambda: self._opened is not None or self.failure is not None)
        if self._opened is None:
            assert self.failure is not None
            raise self.failure
        return self._opened

    async def keep(self, member: FleetMember) -> None:
        """Start a replica, again and again if it is lost, until it is dropped or has ended."""
        try:
            while not (self._ending or member.dropped):
                try:
                    async with self._launch(member.number) as link:
                        member.start(link)
                        await self._serve(member, link)
                    return
                except (ReplicaLost, UsageError) as loss:
                    self._lose(member, loss)
                if not member.dropped:
                    await anyio.sleep(backoff_s(f"replica {member.number}", len(member.losses) - 1))
        except Exception as error:  # not the replica's: whoever waits for the fleet raises it
            self.failure = self.failure or error
        finally:  # also where all is cancelled at once: nobody is to wait for its last report then
            member.serving = False
            self.change()

    @property
    def _ending(self) -> bool:
        return self._work is not None and self._work.ending

    async def _serve(self, member: FleetMember, link: ReplicaLink) -> None:
        """Exchange orders for reports until the last report; raises `ReplicaLost` or `UsageError`."""
        while member.serving:
            if member.opened:
                await self.until(lambda: self._work is not None)
            orders = Orders() if self._work is None else await self._work.orders(member)
            try:
                with anyio.fail_after(SILENT_S):
                    report = await link.exchange(orders)
            except TimeoutError as error:
                raise ReplicaLost(f"it reported nothing for {SILENT_S:g} s") from error
            member.hear(report)
            self._pass_on(member, report)
            if report.opened is not None:
                self._open(report.opened)
            if self._work is not None:
                self._work.take(member, report)
            self.change()
            if report.failure is not None:
                raise UsageError(report.failure.what) if report.failure.usage else ReplicaLost(report.failure.what)
            if report.over and not self._ending:
                raise ReplicaLost("it ended unexpectedly")

    def _pass_on(self, member: FleetMember, report: ReplicaReport) -> None:
        """Let the display of the starts hear what engines say, until some are open, and of what their processes print always."""
        if self._opened is None and member.number < STARTS_SHOWN:
            for role, phase in report.phases:
                self._listener.phase(_name(role, member.number), phase)
        for role, line in report.lines:
            self._listener.output(_name(role, member.number), line)

    def _open(self, opened: OpenReplica) -> None:
        """The engines of a replica are open; raises `UsageError` where they would not continue what those of another one wrote."""
        if self._opened is None:
            self._opened = opened
            for sentence in opened.notices:
                self._tell(sentence)
        for role, facts in self._opened.facts.items():
            for name in ("max_model_len", "vocab_size"):
                first, here = facts[name], opened.facts[role][name]
                if first != here:
                    what = f"{name} is {here} on this replica but {first} on the others; use the same model everywhere"
                    raise UsageError(f"engine {role!r}: {what}")

    def _lose(self, member: FleetMember, loss: ReplicaLost | UsageError) -> None:
        """Record that a replica is lost."""
        member.lose(str(loss), for_good=isinstance(loss, UsageError))
        if self._work is not None:
            self._work.lose(member)
        if not self._ending:
            what = "dropped" if member.dropped else "lost, restarting it"
            where = f" on node {member.node}" if member.node else f" on {member.devices}" if member.devices else ""
            self._tell(f"replica {member.number}{where}: {what}: {loss}")
        if all(each.dropped for each in self.members):
            count = len(self.members)
            everything = "the replica was dropped" if count == 1 else f"all {count} replicas were dropped, the last one"
            self.failure = loss if isinstance(loss, UsageError) else RunError(f"{everything}: {loss}")
        self.change()


class FleetWork:
    """The `Work` of a fleet: its chains, dealt from one queue, and their rows."""

    def __init__(self, fleet: Fleet, run: Prepared, feed: Feed, rows: RowSink, clock: Clock) -> None:
        state = run.resume_state
        self.progress = Progress(run.plan, state)
        self.engines: Mapping[str, Engine] = {}
        self.lanes: dict[str, Lane] = {}
        self.admission = None
        self.ended: float | None = None
        self._feed = feed
        self._queue = ChainQueue(state)
        self._unread = run.chains - len(state.over)
        """Chains of the input that are not in the queue yet."""
        self._fleet, self._rows, self._clock = fleet, rows, clock
        self._draining = self._aborting = self._over = False

    @property
    def exhausted(self) -> bool:
        """On replicas all chains are over then."""
        return self._queue.over

    @property
    def ending(self) -> bool:
        """Replicas are to end."""
        return self._draining or self._over

    @property
    def pauses(self) -> int | None:
        known = [member.pauses for member in self._fleet.members if member.pauses is not None]
        return sum(known) if known else None

    def drain(self) -> None:
        self._draining = True
        self._fleet.change()

    async def run(self) -> None:
        """Raises `RunError` when no replica is left."""
        fleet, queue = self._fleet, self._queue
        try:
            with unwrapped(RunError):
                async with background_tasks() as tasks:
                    tasks.start_soon(self._fill)
                    await fleet.until(lambda: queue.over or fleet.failure is not None or (self._draining and not queue.handed))
            if not queue.over and fleet.failure is not None:
                raise fleet.failure
        except BaseException:
            self._aborting = True
            raise
        finally:
            self.ended, self._over = self._clock.now(), True
            with anyio.move_on_after(END_S, shield=True):
                await fleet.until(lambda: not any(member.serving for member in fleet.members))

    async def _fill(self) -> None:
        """Keep chains of the input waiting in the queue."""
        queue = self._queue
        while True:
            await self._fleet.until(lambda: queue.waiting < self._few and not self._draining)
            while queue.waiting < 2 * self._few:
                await self._rows.room()
                start = await self._feed.next()
                if start is None:
                    queue.exhausted, self._unread = True, 0
                    self._fleet.change()
                    return
                queue.add(start)
                self._unread -= 1
            self._fleet.change()

    @property
    def _few(self) -> int:
        """More chains are read as soon as fewer wait."""
        return READ_AHEAD + len(self._fleet.members)

    async def orders(self, member: FleetMember) -> Orders:
        """What this replica is to do now; waits a moment where it has room and chains of the input are about to come."""
        queue = self._queue
        if member.wants and not queue.waiting:
            with anyio.move_on_after(MOMENT_S):
                await self._fleet.until(lambda: queue.waiting > 0 or queue.exhausted or self.ending)
        if self.ending:
            return Orders(end="abort" if self._aborting else "drain")
        others = any(each.opened for each in self._fleet.members if each is not member)
        chains = queue.take(member.number, min(member.wants, self._share(member)), alone=not others)
        member.wants -= len(chains)
        no_more = queue.exhausted and not queue.waiting
        return Orders(chains=chains, no_more=no_more, unix_ns=self._clock.unix_ns(self._clock.now()))

    def _share(self, member: FleetMember) -> int:
        """How many chains a replica may get until it has an even share of those that are not over: a small input is spread over all."""
        left = len(self._queue) + max(0, self._unread)
        share = math.ceil(left / sum(not each.dropped for each in self._fleet.members))
        return max(0, share - self._queue.counts[member.number])

    def take(self, member: FleetMember, report: ReplicaReport) -> None:
        """Take the rows of a report."""
        for call in report.calls:
            self._call(member, call)
        for step in report.steps:
            self._queue.step(step)
            self.progress.committed(step.stage, step.decision, len(step.step_token_ids))
            self._rows.step(step)
        for chain in report.chains:
            self._chain(member, chain)
        if report.over:
            self._queue.put_back(list(self._queue.names(member.number)))  # it has not begun them
        self._count_live()

    def lose(self, member: FleetMember) -> None:
        """Let the chains of a lost replica continue elsewhere."""
        self._queue.put_back(list(self._queue.names(member.number)))
        self._count_live()

    def _count_live(self) -> None:
        """Count the chains in flight, without those that replicas keep waiting."""
        self.progress.live = sum(member.live for member in self._fleet.members)

    def _call(self, member: FleetMember, row: CallRow) -> None:
        self._queue.call(row)
        self.progress.sampled(row.engine, row.stage, row.output_tokens)
        if row.response_model is not None and row.adapter is None:
            self.progress.answered(row.engine, row.request_model, row.response_model)
        member.output_tokens[row.engine] = member.output_tokens.get(row.engine, 0) + row.output_tokens
        self._rows.call(structs.replace(row, replica=member.number, node=member.node))

    def _chain(self, member: FleetMember, row: ChainRow) -> None:
        """A chain has ended on a replica: it is over, or continues elsewhere."""
        name, engines_own = row.chain_id, row.error_type in ENGINES_OWN
        if row.stop_reason == "cancelled" and not self._aborting:
            self._queue.put_back([name])  # the replica ends, and the run continues
            return
        if not engines_own:
            member.chain_over()
        elif any(each.opened for each in self._fleet.members if each is not member) and self._queue.try_elsewhere(name):
            return
        member.chains += 1
        self._queue.end(name)
        progress = self.progress
        if row.stop_reason == "cancelled":
            progress.cancelled += 1
        elif row.stop_reason == "error":
            progress.failed += 1
            progress.errors[row.error_type or "", row.error_stage or NO_STAGE] += 1
        else:
            progress.done += 1
        self._rows.chain(structs.replace(row, replica=member.number, node=member.node))  # which may end the run
