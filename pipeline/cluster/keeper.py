"""Keeps the replicas of a run alive: starts them, passes orders and reports on, starts lost ones again, gives hopeless ones up.

What they are ordered to do is a `Handler`'s. How they are started and reached is a `Launcher`'s: actors of a cluster, or tasks of this
event loop.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import anyio
import anyio.lowlevel

from pipeline.cluster.member import STRIKES, Member
from pipeline.cluster.messages import Link, OpenReplica, Orders, Report
from pipeline.errors import ReplicaLost, RunError, UsageError
from pipeline.runtime.backoff import backoff_s
from pipeline.session.observer import Tell
from pipeline.tasks import unwrapped

Launcher = Callable[[int], AbstractAsyncContextManager[Link]]
"""`launch(number)`: starts a replica, which ends with the context; raises `ReplicaLost` where it cannot be started."""
SILENT_S = 60.0
"""A replica that reports nothing for so long hangs, and is lost."""


class Handler(Protocol):
    """Says what replicas are to do, and takes what they did. Never waits."""

    @property
    def ending(self) -> bool:
        """Whether replicas are to end."""

    def orders(self, member: Member) -> Orders:
        """What this replica is to do now."""

    def take(self, member: Member, report: Report) -> None:
        """Take the report of a replica; raises `ReplicaLost` where it cannot be true."""

    def lose(self, member: Member) -> None:
        """A replica is lost."""


class Keeper:
    """The replicas of one session; use it through `kept`."""

    def __init__(self, count: int, launch: Launcher, tell: Tell) -> None:
        self.members: Sequence[Member] = [Member(number) for number in range(count)]
        self.handler: Handler | None = None
        """None until there is work; replicas start meanwhile."""
        self.opened: OpenReplica | None = None
        """What the first replica said whose engines were open."""
        self.failure: Exception | None = None
        """Why no replica is left, or what the handler raised, which then cannot continue."""
        self._launch, self._tell, self._changed = launch, tell, anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it may do so after a `change`."""
        while not condition():
            await self._changed.wait()

    def change(self) -> None:
        """Something has happened that somebody may wait for."""
        self._changed.set()
        self._changed = anyio.Event()

    def wake(self) -> None:
        """There may be something to do for every replica."""
        for member in self.members:
            member.wake()

    async def wait_open(self) -> OpenReplica:
        """Wait until the engines of a replica are open; raises `failure` where those of none will ever be."""
        await self.until(lambda: self.opened is not None or self.failure is not None)
        if self.opened is None:
            assert self.failure is not None
            raise self.failure
        return self.opened

    async def keep(self, member: Member) -> None:
        """Start a replica, again and again if it is lost, until it is dropped or has ended."""
        try:
            while not self._ending:
                if not await self._lost(member) or member.dropped:
                    return
                await anyio.sleep(backoff_s(f"replica {member.number}", len(member.losses) - 1))
        except Exception as error:  # not the replica's: whoever waits for the keeper raises it
            self.failure = self.failure or error
        finally:  # also where all is cancelled at once: nobody is to wait for its last report then
            member.ended = True
            self.change()

    async def _lost(self, member: Member) -> bool:
        """Start a replica and serve it until it has ended; whether it was lost."""
        try:
            async with self._launch(member.number) as link:
                member.start(link)
                await self._serve(member, link)
        except (ReplicaLost, UsageError) as loss:
            self._lose(member, loss)
            return True
        return False

    @property
    def _ending(self) -> bool:
        return self.handler is not None and self.handler.ending

    async def _serve(self, member: Member, link: Link) -> None:
        """Pass orders and reports on until the last report; raises `ReplicaLost` or `UsageError`."""
        with unwrapped(ReplicaLost, UsageError):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send, member, link)
                while not member.ended:
                    with _answered("it reported nothing"):
                        report = await link.report()
                    self._take(member, link, report)
                tasks.cancel_scope.cancel()

    async def _send(self, member: Member, link: Link) -> None:
        while True:
            orders = Orders() if self.handler is None else self.handler.orders(member)
            if orders.empty:
                await member.wait()
                continue
            with _answered("it took no orders"):
                await link.order(orders)

    def _take(self, member: Member, link: Link, report: Report) -> None:
        member.hear(link, report)
        if report.opened is not None:
            self._open(report.opened)
        if self.handler is not None:
            self.handler.take(member, report)
        member.wake()
        self.change()
        if report.failure is not None:
            raise UsageError(report.failure.what) if report.failure.usage else ReplicaLost(report.failure.what)
        if report.over and not self._ending:
            raise ReplicaLost("it ended unexpectedly")
        if member.strikes >= STRIKES:
            raise ReplicaLost(f"{member.strikes} chains in a row failed on it, the last one because {member.last_error}")

    def _open(self, opened: OpenReplica) -> None:
        """The engines of a replica are open; raises `UsageError` where they would not continue what those of another one wrote."""
        if self.opened is None:
            self.opened = opened
            for sentence in opened.notices:
                self._tell(sentence)
        for role, facts in self.opened.facts.items():
            for name in ("max_model_len", "vocab_size"):
                first, here = facts[name], opened.facts[role][name]
                if first != here:
                    raise UsageError(
                        f"engine {role!r}: {name} is {here} on this replica but {first} on the others; use the same model everywhere"
                    )

    def _lose(self, member: Member, loss: ReplicaLost | UsageError) -> None:
        """Record that a replica is lost."""
        member.lose(str(loss), for_good=isinstance(loss, UsageError))
        if self.handler is not None:
            self.handler.lose(member)
        if not self._ending:
            what = "dropped" if member.dropped else "lost, restarting it"
            self._tell(f"replica {member.number}{f' on node {member.node}' if member.node else ''}: {what}: {loss}")
        if all(each.dropped for each in self.members):
            count = len(self.members)
            everything = "the replica was dropped" if count == 1 else f"all {count} replicas were dropped, the last one"
            self.failure = loss if isinstance(loss, UsageError) else RunError(f"{everything}: {loss}")
        self.change()


class _answered:
    """A context whose body may take `SILENT_S`; then it raises `ReplicaLost`, which says `what`."""

    def __init__(self, what: str) -> None:
        self._what, self._scope = what, anyio.CancelScope()

    def __enter__(self) -> None:
        self._scope = anyio.CancelScope(deadline=anyio.current_time() + SILENT_S)
        self._scope.__enter__()

    def __exit__(self, *about: object) -> bool:
        caught = bool(self._scope.__exit__(*about))  # type: ignore[arg-type]
        if self._scope.cancelled_caught:
            raise ReplicaLost(f"{self._what} for {SILENT_S:g} s")
        return caught


@asynccontextmanager
async def kept(count: int, launch: Launcher, tell: Tell) -> AsyncIterator[Keeper]:
    """Start the replicas, which end with the block. Raises `UsageError` or `RunError` where the engines of none can be opened."""
    keeper = Keeper(count, launch, tell)
    error: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            for member in keeper.members:
                tasks.start_soon(keeper.keep, member)
            await keeper.wait_open()
            yield keeper
        except Exception as caught:
            error = caught  # raised outside of the group, which would wrap it
        finally:
            tasks.cancel_scope.cancel()
    if error is not None:
        raise error
