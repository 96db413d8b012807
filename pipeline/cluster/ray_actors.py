"""Replicas as actors of a Ray cluster: settings enter, a `Launcher` leaves. The only module that imports Ray.

An actor is a process on one node with the GPUs that the engines file asks for. It is never restarted by Ray: a lost replica is started
again, so that nothing of a broken process lives on.
"""

import asyncio
import logging
import os
import re
import socket
import warnings
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio.to_thread
import ray
from anyio.from_thread import BlockingPortal
from ray.exceptions import ActorUnavailableError, RayError

from pipeline.cluster.fleet import Launcher, solve_on_replicas
from pipeline.cluster.messages import Orders, ReplicaLink, ReplicaReport, decoded, encoded
from pipeline.cluster.replica_worker import ReplicaWorker
from pipeline.errors import ReplicaLost, UsageError, reason
from pipeline.graph.plan import Plan
from pipeline.session.loop import in_loop, rare_collection
from pipeline.session.observer import Attend, Observer, Tell
from pipeline.session.options import RunOptions
from pipeline.session.prepare import Prepared, RunSettings
from pipeline.session.run import SessionResult
from pipeline.system.machine import core_count

T = TypeVar("T")
HERE = "ray"
"""The cluster that `RAY_ADDRESS` names, or that runs on this machine; where there is none one is started for the run."""
TOKENS = "RAY_AUTH_MODE"
"""The environment variable that Ray's client, unlike its driver, needs to show the token of its user; Ray reads it when it is imported."""
CONNECT_S = 10.0
"""Most seconds to wait for an address to answer."""
NODE_ID = 12
"""Characters of Ray's id of a node that are recorded."""


async def solve_on_ray(ready: Prepared, observer: Observer, *, attend: Attend | None = None) -> SessionResult:
    """Solve on the cluster that the options name, as `pipeline.session.run.solve` does here. Raises `UsageError` where that cannot be."""
    settings = ready.settings
    with ExitStack() as stack:
        await anyio.to_thread.run_sync(stack.enter_context, connected(str(settings.options.cluster), settings.options.replicas))
        needed = await anyio.to_thread.run_sync(check_room, settings.plan, settings.options, observer.tell)
        return await solve_on_replicas(ray_launcher(settings, needed), ready, observer, attend=attend)


@contextmanager
def connected(cluster: str, replicas: int) -> Iterator[None]:
    """Connect this process to a cluster, `ray` or `ray://HOST:PORT`, until the block ends, unless it is connected already.

    Raises `UsageError` where the address is none or does not answer.
    """
    address = None if cluster == HERE else _answering(cluster)
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # what a person should know of it, the run says itself
    try:
        with warnings.catch_warnings(action="ignore"):
            _init(address, quiet, replicas)
    except Exception as error:  # Ray raises errors of many kinds
        hint = "" if address is None or TOKENS in os.environ else f"; if the cluster asks for a token, set {TOKENS}=token"
        raise UsageError(f"--cluster {cluster}: cannot connect: {reason(error)}{hint}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _init(address: str | None, quiet: dict[str, Any], replicas: int) -> None:
    if address is not None or os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, **quiet)
        return
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:  # none runs on this machine
        ray.init(address="local", num_cpus=max(replicas, core_count()), include_dashboard=False, **quiet)


def _answering(cluster: str) -> str:
    """The address in `ray://HOST:PORT`; raises `UsageError` unless something listens there."""
    try:
        parts = urlsplit(cluster)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not cluster.startswith("ray://") or not host or not port:
        raise UsageError(f"--cluster {cluster}: expected ray, or ray://HOST:PORT with the port of Ray's client server, such as 10001")
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        raise UsageError(f"--cluster {cluster}: does not answer: {reason(error)}") from error
    return cluster


def check_room(plan: Plan, options: RunOptions, tell: Tell) -> int:
    """How many GPUs each replica gets, 0 on a cluster without any. Raises `UsageError` if no node has that many; `tell` gets a notice
    where not all replicas have room at the moment."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    there = [int(node.get("GPU", 0)) for node in nodes]
    needed = max((gpu + 1 for spec in plan.engines.values() for gpu in spec.gpus), default=0) if any(there) else 0
    if needed > max(there, default=0):
        raise UsageError(
            f"--cluster {options.cluster}: by its engines file each replica needs {needed} GPUs on one node, "
            f"but no node has more than {max(there)}; set engines.ROLE.device or devices"
        )
    places = [int(node.get("CPU", 0)) if not needed else min(int(node.get("CPU", 0)), int(node.get("GPU", 0)) // needed) for node in nodes]
    room, what = sum(places), f"{needed} GPUs" if needed > 1 else "a GPU" if needed else "a CPU"
    if not room:
        raise UsageError(f"--cluster {options.cluster}: no node has {what} for a replica")
    if room < options.replicas:
        tell(f"warning: --replicas {options.replicas}: the cluster has {what} for {room} of them; the others wait for nodes that join")
    return needed


def ray_launcher(settings: RunSettings, gpus_each: int) -> Launcher:
    """Starts replicas as actors with `gpus_each` GPUs each."""
    actors: Any = ray.remote(ReplicaActor)
    options = {"num_cpus": 1, "num_gpus": gpus_each, "max_restarts": 0, "max_task_retries": 0}
    kind = actors.options(**options, scheduling_strategy="SPREAD")
    shared = ray.put(settings)

    @asynccontextmanager
    async def launch(number: int) -> AsyncIterator[ReplicaLink]:
        actor = kind.remote(shared)
        try:
            node, address = await _answer(actor.where.remote())
            yield ActorLink(actor, node, address)
        finally:
            await anyio.to_thread.run_sync(partial(ray.kill, actor, no_restart=True))

    return launch


class ReplicaActor:
    """The process of a replica on its node: a `ReplicaWorker` serves in a thread with another event loop until the process ends."""

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

    def where(self) -> tuple[str, str]:
        """The cluster's id of the node, and its network address."""
        return ray.get_runtime_context().get_node_id()[:NODE_ID], ray.util.get_node_ip_address()

    def exchange(self, orders: Orders) -> bytes:
        """The report as MessagePack."""
        return encoded(self._portal.call(self._replica.exchange, orders))


class ActorLink:
    """The `ReplicaLink` to an actor."""

    devices = ""

    def __init__(self, actor: Any, node: str, address: str) -> None:
        self._actor, self.node, self.address = actor, node, address

    async def exchange(self, orders: Orders) -> ReplicaReport:
        return decoded(await _answer(self._actor.exchange.remote(orders)))


async def _answer(pending: Awaitable[Any]) -> Any:
    """The answer of an actor; raises `ReplicaLost` where none comes."""
    try:
        return await pending
    except RayError as error:
        raise ReplicaLost(_last_words(error)) from error


def _last_words(error: RayError) -> str:
    """Why an actor is gone, in one clause."""
    text = str(error)
    if isinstance(error, ActorUnavailableError):
        return "it cannot be reached"
    if "node" in text.partition("\n")[0]:
        return "its node died"
    if pid := re.search(r"pid: (\d+)", text):
        return f"its process {pid[1]} ended unexpectedly"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
