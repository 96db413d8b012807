"""A replica in a separate thread of another program's process: Ray's workers have their own event loop, policy and signal handlers."""

import asyncio
from concurrent.futures import Future
from contextlib import ExitStack
from threading import Thread

from anyio.from_thread import BlockingPortal

from pipeline.cluster.messages import Orders, ReplicaReport
from pipeline.cluster.replica_worker import ReplicaWorker
from pipeline.session.loop import in_loop, rare_collection
from pipeline.session.prepare import RunSettings


class ReplicaThread:
    """A `ReplicaWorker` that serves in its own event loop until the process ends; its methods may be called from any other thread."""

    def __init__(self, settings: RunSettings) -> None:
        # Ray's policy brings uvloop, whose event loop neither tells when a timer is due nor starts processes from this thread.
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        ExitStack().enter_context(rare_collection())
        started: Future[BlockingPortal] = Future()

        async def serve() -> None:
            async with BlockingPortal() as portal:
                started.set_result(portal)
                await portal.sleep_until_stopped()

        Thread(target=in_loop, args=(serve,), kwargs={"virtual": False}, name="replica", daemon=True).start()
        self._portal = started.result()
        self._replica = self._portal.call(ReplicaWorker, settings)
        self._portal.start_task_soon(self._replica.serve)

    def order(self, orders: Orders) -> None:
        self._portal.call(self._replica.order, orders)

    def report(self) -> ReplicaReport:
        """The calling thread waits."""
        return self._portal.call(self._replica.report)

    def exchange(self, orders: Orders) -> ReplicaReport:
        """The calling thread waits."""
        return self._portal.call(self._replica.exchange, orders)
