"""A run on replicas: chains are handed out as replicas have room, their rows come back, what a lost replica had continues elsewhere.

    input -> pool -> replicas 0 .. N-1 -> rows, which are graded and written here

A session on a `Fleet` has the same folder, rows, summary and exit codes as one on engines of this process.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import anyio
from msgspec import structs

from pipeline.cluster.balance import Move, moves
from pipeline.cluster.keeper import Keeper
from pipeline.cluster.member import Member
from pipeline.cluster.messages import Orders, Report
from pipeline.cluster.pool import Pool
from pipeline.engine import Engine, EngineStatistics
from pipeline.errors import ReplicaLost, RunError
from pipeline.runtime.admission.feed import InputFeed
from pipeline.runtime.chain_recorder import Clock, Progress
from pipeline.runtime.lane import Lane
from pipeline.runtime.resume_state import NO_STAGE
from pipeline.runtime.rows import RowSink
from pipeline.session.checks.order import start_order
from pipeline.session.execute import Begun
from pipeline.session.observer import ReplicaState
from pipeline.store.events import CallRow, ChainRow, StepRow
from pipeline.store.run_file import ModeChange, Replica
from pipeline.tasks import background_tasks, unwrapped

READ_AHEAD = 64
"""Number of chains that wait in the pool, if there are that many, in addition to one for each replica."""
BALANCE_S = 5.0
"""How often it is decided whether chains should move, once none waits."""
END_S = 10.0
"""Most seconds that replicas may take to end when all chains are over, or the run is stopped."""
MOVES = 2
"""How often one chain may be moved."""
ENGINES_OWN = frozenset({"EngineUnavailable", "BadCompletion"})
"""Errors of chains that are those of the engines: the chain is tried once more on another replica."""


class Fleet:
    """The `Site` of a run whose chains are solved by the replicas of `keeper`."""

    def __init__(self, keeper: Keeper, *, balanced: bool = True) -> None:
        """`balanced`: chains may move between replicas at the end of the run."""
        self._keeper, self._balanced = keeper, balanced

    def work(self, run: Begun, rows: RowSink, clock: Clock) -> "FleetWork":
        self._keeper.handler = work = FleetWork(self._keeper, run, rows, clock, balanced=self._balanced)
        self._keeper.wake()
        return work

    def spent(self) -> dict[str, EngineStatistics]:
        found = [each for member in self._keeper.members for each in member.statistics]
        roles = dict.fromkeys(role for each in found for role in each)
        return {role: EngineStatistics.together([each[role] for each in found if role in each]) for role in roles}

    def replicas(self) -> list[Replica]:
        return [member.record for member in self._keeper.members]

    def states(self) -> Sequence[ReplicaState]:
        return [member.state for member in self._keeper.members]


class FleetWork:
    """The `Work` of a fleet, and the `Handler` of its replicas."""

    def __init__(self, keeper: Keeper, run: Begun, rows: RowSink, clock: Clock, *, balanced: bool = True) -> None:
        checked, state = run.ready.checked, run.ready.resume_state
        self.progress = Progress(checked.plan, state)
        self.engines: Mapping[str, Engine] = {}
        self.lanes: dict[str, Lane] = {}
        self.admission = None
        self.ended: float | None = None
        self.mode_changes: tuple[ModeChange, ...] = ()
        order = start_order(checked.options.order, checked.options.samples, state.is_over, checked.earlier_thoughts)
        self._feed = InputFeed(checked.problems.unchanged(), order, threads=not checked.virtual_time)
        self._pool = Pool(state)
        self._keeper, self._rows, self._clock, self._balanced = keeper, rows, clock, balanced
        self._batch_size = checked.options.most_live
        self._draining = self._aborting = self._over = False
        self._releases: dict[int, list[str]] = defaultdict(list)
        """Chains that replicas are to give back and have not been told to."""

    @property
    def exhausted(self) -> bool:
        """On replicas all chains are over then."""
        return self._pool.over

    @property
    def ending(self) -> bool:
        return self._draining or self._over

    @property
    def pauses(self) -> int | None:
        members = [member for member in self._keeper.members if member.counts_pauses]
        return sum(member.pauses for member in members) if members else None

    def drain(self) -> None:
        self._draining = True
        self._keeper.wake()
        self._keeper.change()

    async def run(self) -> None:
        """Raises `RunError` when no replica is left."""
        keeper, pool = self._keeper, self._pool
        try:
            with unwrapped(RunError):
                async with background_tasks() as tasks:
                    tasks.start_soon(self._fill)
                    if self._balanced and len(keeper.members) > 1:
                        tasks.start_soon(self._balance)
                    await keeper.until(lambda: pool.over or keeper.failure is not None or (self._draining and not pool.handed))
            if not pool.over and keeper.failure is not None:
                raise keeper.failure
        except BaseException:
            self._aborting = True
            raise
        finally:
            self.ended = self._clock.now()
            await self._end()

    async def _fill(self) -> None:
        """Keep chains of the input waiting in the pool."""
        pool, few = self._pool, READ_AHEAD + len(self._keeper.members)
        while True:
            await self._keeper.until(lambda: pool.waiting < few and not self._draining)
            while pool.waiting < 2 * few:
                await self._rows.room()
                start = await self._feed.next()
                if start is None:
                    pool.exhausted = True
                    self._keeper.wake()
                    self._keeper.change()
                    return
                pool.add(start)
            self._wake_wanting()

    def _wake_wanting(self) -> None:
        for member in self._keeper.members:
            if member.wants:
                member.wake()

    async def _balance(self) -> None:
        """Decide again and again, once no chain waits, which ones should move."""
        while True:
            await anyio.sleep(BALANCE_S)
            if self._pool.exhausted and not self._pool.waiting and not self._draining:
                loads = [
                    member.load(self._pool.counts[member.number], self._batch_size) for member in self._keeper.members if member.opened
                ]
                for move in moves(loads):
                    self._order_move(move)

    def _order_move(self, move: Move) -> None:
        """Let a replica give chains back: those that wait there, then those of which the least would have to be computed again."""
        pool, live = self._pool, self._keeper.members[move.replica].live
        names = list(pool.names(move.replica))
        begun = sorted(names[:live], key=lambda name: sum(map(len, pool.held(name).resumed.steps)))
        movable = [*reversed(names[live:]), *(name for name in begun if move.slow or self._just_answered(name))]
        for name in [name for name in movable if move.slow or pool.held(name).moves < MOVES][: move.count]:
            held = pool.held(name)
            held.moves += 1
            if move.slow:
                held.avoid |= {move.replica}
            self._releases[move.replica].append(name)
        self._keeper.members[move.replica].wake()

    def _just_answered(self, name: str) -> bool:
        """Whether a chain that moves would lose little: what its present call has written since its last one ended."""
        now, ended = self._clock.unix_ns(self._clock.now()), self._pool.held(name).resumed.ended_unix_ns
        return ended is not None and now - ended < BALANCE_S * 1e9

    def orders(self, member: Member) -> Orders:
        if self.ending:
            told, member.told_end = member.told_end, True
            return Orders() if told else Orders(end="abort" if self._aborting else "drain")
        chains = self._pool.take(member.number, self._most(member), lambda: self._others(member))
        member.sent += len(chains)
        if chains:
            self._keeper.change()  # the pool may be filled again
        release = tuple(self._releases.pop(member.number, ()))
        no_more = self._pool.exhausted and not self._pool.waiting and not member.told_no_more and member.opened
        member.told_no_more |= no_more
        return Orders(chains=chains, release=release, no_more=no_more, unix_ns=self._clock.unix_ns(self._clock.now()))

    def _most(self, member: Member) -> int:
        """How many chains this replica gets: as many as it has room for, but of the last ones an even share while others lack theirs."""
        pool, wants = self._pool, self._dealt(member)
        if not (wants and pool.exhausted and pool.waiting):
            return wants
        solving = [each for each in self._keeper.members if each.opened]
        share = math.ceil((pool.handed + pool.waiting) / len(solving))
        lacking = any(each.wants and pool.counts[each.number] < share for each in solving if each is not member)
        return min(wants, max(0, share - pool.counts[member.number])) if lacking else wants

    def _dealt(self, member: Member) -> int:
        """How many chains a replica has room for. Its first ones are dealt out 1, 1, 2, 4 and so on at a time, so that each replica gets
        some of the longest, which may come first."""
        if member.sent >= self._batch_size or len(self._keeper.members) == 1:
            return member.wants
        return 0 if member.sent > member.received else min(member.wants, max(1, member.sent))

    def _others(self, member: Member) -> frozenset[int]:
        """The other replicas that solve."""
        return frozenset(each.number for each in self._keeper.members if each.opened and each is not member)

    def take(self, member: Member, report: Report) -> None:
        self._check(member, report)
        for call in report.calls:
            self._call(member, call)
        for step in report.steps:
            self._step(step)
        member.measure(self._clock.now())
        for chain in report.chains:
            self._chain(member, chain)
        names = self._pool.names(member.number) if report.over else report.released  # at its end it has begun none that it still has
        self._put_back([name for name in names if self._pool.has(member.number, name)])
        self.mode_changes = tuple(sorted((*self.mode_changes, *report.mode_changes), key=lambda change: change.unix_ns))
        self.progress.live = self._pool.handed

    def _check(self, member: Member, report: Report) -> None:
        """Raise `ReplicaLost` where a report cannot be true, before anything of it is taken in."""
        rows: list[CallRow | StepRow | ChainRow] = [*report.calls, *report.steps, *report.chains]
        for row in rows:
            if not self._pool.has(member.number, row.chain_id):
                raise ReplicaLost(f"it reported a row of chain {row.chain_id!r}, which it does not have")
        if len({row.chain_id for row in report.chains}) < len(report.chains):
            raise ReplicaLost("it reported that a chain has ended twice")
        for call in report.calls:
            if call.engine not in self.progress.output_tokens:
                raise ReplicaLost(f"it reported a call of engine {call.engine!r}, which the graph does not have")

    def lose(self, member: Member) -> None:
        self._releases.pop(member.number, None)
        self._put_back(list(self._pool.names(member.number)))

    def _put_back(self, names: Sequence[str], avoid: frozenset[int] = frozenset()) -> None:
        if names:
            self._pool.put_back(names, avoid)
            self._wake_wanting()

    def _call(self, member: Member, row: CallRow) -> None:
        self._pool.call(row)
        self.progress.sampled(row.engine, row.stage, row.output_tokens)
        if row.response_model is not None and row.adapter is None:
            self.progress.answered(row.engine, row.request_model, row.response_model)
        member.output_tokens[row.engine] = member.output_tokens.get(row.engine, 0) + row.output_tokens
        self._rows.call(structs.replace(row, replica=member.number, node=member.node))

    def _step(self, row: StepRow) -> None:
        self._pool.step(row)
        self.progress.committed(row.stage, row.decision, len(row.step_token_ids))
        self._rows.step(row)

    def _chain(self, member: Member, row: ChainRow) -> None:
        """A chain has ended on a replica: it is over, or continues elsewhere."""
        name, engines_own = row.chain_id, row.error_type in ENGINES_OWN
        if row.stop_reason == "cancelled" and not self._aborting:
            self._put_back([name])  # the replica ends, and the run continues
            return
        member.chain_over(row.error_message if engines_own else None)
        if engines_own and not self._pool.held(name).avoid and self._others(member):
            self._put_back([name], frozenset({member.number}))
            return
        member.chains += 1
        self._rows.chain(structs.replace(row, replica=member.number, node=member.node))
        start, progress = self._pool.end(name), self.progress
        if row.stop_reason == "cancelled":
            progress.cancelled += 1
        elif row.stop_reason == "error":
            progress.failed += 1
            progress.errors[row.error_type or "", row.error_stage or NO_STAGE] += 1
        else:
            progress.done += 1
            self._feed.ended(start, row.thought_tokens)

    async def _end(self) -> None:
        """Let all replicas end, and take their last reports."""
        self._over = True
        for member in self._keeper.members:
            member.told_end = False
        self._keeper.wake()
        with anyio.move_on_after(END_S, shield=True):
            await self._keeper.until(lambda: not any(member.reachable for member in self._keeper.members))
