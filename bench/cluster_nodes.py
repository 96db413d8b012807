"""Simulated nodes of a cluster, each with one replica: they take time to start, die, come back, and may be slow. For bench/cluster_sim.py.

A node that dies takes with it what its replica had not reported; that is noticed some seconds later, and a new node starts.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import anyio
from anyio import CancelScope
from msgspec import Struct, structs

from pipeline.cluster.fleet import Launcher
from pipeline.cluster.messages import Orders, ReplicaLink, ReplicaReport
from pipeline.cluster.replica_worker import ReplicaWorker
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import ReplicaLost
from pipeline.session.prepare import RunSettings
from pipeline.system.tasks import background_tasks

START_S = 60.0
"""A new node loads its weights for so long, assumed."""
NOTICED_S = 15.0
"""So long after a node died its replica is known to be lost, assumed."""
SLOW = 10.0
"""A slow node has so many times less bandwidth and multiplications a second, and overhead."""


class Nodes(Struct, frozen=True, kw_only=True):
    """What the nodes of a cluster do."""

    failure_s: float | None = None
    """Mean time between failures of one node, exponential, counted from when its engines are open; None: none dies."""
    slow: int = 0
    """The first so many nodes are slow, whenever they are started."""
    seed: int = 0


class Spent:
    """What the engines of all nodes computed, those that died included."""

    def __init__(self) -> None:
        self.deaths = 0
        self.requests = Counter[str]()
        self.tokens = Counter[str]()
        """Both by role."""

    def add(self, report: ReplicaReport) -> None:
        """Add the last totals of a node."""
        for role, each in report.statistics.items():
            self.requests[role] += each.requests
            self.tokens[role] += each.written_tokens or 0


class Node:
    """The `ReplicaLink` to the replica of a node that may die."""

    address = ""

    def __init__(self, number: int, replica: ReplicaWorker, lives_s: float) -> None:
        self.node, self.serving, self.dead = f"node-{number}", False, False
        self._replica, self._lives_s, self._reporting = replica, lives_s, CancelScope()

    async def live(self) -> None:
        """Start, and serve until it dies."""
        await anyio.sleep(START_S)
        self.serving = True
        with anyio.move_on_after(self._lives_s) as life:
            await self._replica.serve()
        if life.cancelled_caught:
            self.dead = True
            self._reporting.cancel()

    async def exchange(self, orders: Orders) -> ReplicaReport:
        """A dead node is noticed after a while."""
        with CancelScope() as self._reporting:
            if not self.dead:
                return await self._replica.exchange(orders)
        await anyio.sleep(NOTICED_S)
        raise ReplicaLost("its node died")


def launcher(settings: RunSettings, nodes: Nodes, spent: Spent) -> Launcher:
    """Starts replicas of this event loop on such nodes."""
    draws = Random(nodes.seed)

    @asynccontextmanager
    async def launch(number: int) -> AsyncIterator[ReplicaLink]:
        lives_s = float("inf") if nodes.failure_s is None else draws.expovariate(1 / nodes.failure_s)
        replica = ReplicaWorker(_slowed(settings) if number < nodes.slow else settings)
        node = Node(number, replica, lives_s)
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(node.live)
                yield node
        finally:
            spent.deaths += node.dead
            if node.serving:
                spent.add(await replica.report(0.0, 0.0))

    return launch


def _slowed(settings: RunSettings) -> RunSettings:
    """The settings of a run whose engines are slow."""
    engines = {role: _slow_engine(spec) for role, spec in settings.plan.engines.items() if isinstance(spec, SimSpec)}
    return structs.replace(settings, plan=structs.replace(settings.plan, engines=engines))


def _slow_engine(spec: SimSpec) -> SimSpec:
    device = spec.device
    rates = {"flops_per_s": device.flops_per_s / SLOW, "bytes_per_s": device.bytes_per_s / SLOW, "overhead_s": device.overhead_s * SLOW}
    return structs.replace(spec, device=structs.replace(device, **rates))
