"""Replicas as tasks of the driver's own event loop: for simulations of clusters, where all share one virtual clock.

Nothing is serialized, so that a thousand replicas are simulated in one process.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pipeline.cluster.keeper import Launcher
from pipeline.cluster.messages import Link, Orders, Report
from pipeline.cluster.replica import Replica
from pipeline.session.preflight import RunSettings
from pipeline.tasks import background_tasks


class LocalLink:
    """The `Link` to a replica of this event loop."""

    address = ""

    def __init__(self, replica: Replica, node: str) -> None:
        self.node, self._replica = node, replica

    async def order(self, orders: Orders) -> None:
        self._replica.order(orders)

    async def report(self) -> Report:
        return await self._replica.report()


def local_launcher(settings: RunSettings) -> Launcher:
    """Starts replicas of this event loop, each on a node of its own name."""

    @asynccontextmanager
    async def launch(number: int) -> AsyncIterator[Link]:
        async with background_tasks() as tasks:
            replica = Replica(settings)
            tasks.start_soon(replica.serve)
            yield LocalLink(replica, f"node-{number}")

    return launch
