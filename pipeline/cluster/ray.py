"""Workers of shards as actors of a Ray cluster: settings enter, a `Launch` leaves. The only module that imports Ray.

An actor is a process on one node with the GPUs that the engines file asks for. Ray never restarts it: a lost one is started again.
"""

import logging
import os
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import ray
from ray.exceptions import RayError

from pipeline.cluster.replicas import Launch, Poll
from pipeline.cluster.worker import CLOSE_S, ShardReport, ShardWorker
from pipeline.errors import ReplicaLost, UsageError, boundary
from pipeline.graph.plan import Plan
from pipeline.options import RunOptions
from pipeline.run.prepare import Prepared


@asynccontextmanager
async def actors(plan: Plan, options: RunOptions) -> AsyncIterator[Launch]:
    """What starts workers as actors of the cluster that the options name. Raises `UsageError` where that cannot be."""
    connects = not ray.is_initialized()
    if connects:
        await anyio.to_thread.run_sync(_connect, str(options.cluster))
    try:
        yield partial(_actor, await anyio.to_thread.run_sync(check_room, plan, options))
    finally:
        if connects:
            ray.shutdown()


def _connect(cluster: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # what a person should know of it, the run says itself
    # Ray raises errors of many kinds. `ray` is the cluster that `RAY_ADDRESS` names, or that runs here.
    with boundary(UsageError, f"--cluster {cluster}: cannot connect", foreign=Exception), warnings.catch_warnings(action="ignore"):
        ray.init(address="auto" if cluster == "ray" else cluster, log_to_driver=False, configure_logging=False)


def check_room(plan: Plan, options: RunOptions) -> int:
    """How many GPUs each replica gets, 0 on a cluster without any. Raises `UsageError` if no node has that many."""
    most = max((int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)
    needed = max((gpu + 1 for spec in plan.engines.values() for gpu in spec.gpus), default=0) if most else 0
    if needed > most:
        what = f"by its engines file each replica needs {needed} GPUs on one node, but no node has more than {most}"
        raise UsageError(f"--cluster {options.cluster}: {what}; set engines.ROLE.device or devices")
    return needed


@asynccontextmanager
async def _actor(gpus_each: int, shard: Prepared, place: int) -> AsyncIterator[Poll]:
    """A worker on whatever node has room for it."""
    remote: Any = ray.remote(num_cpus=1, num_gpus=gpus_each, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")
    actor = remote(ShardWorker).remote(shard)
    placed = False

    async def ask() -> ShardReport:
        nonlocal placed
        try:
            report: ShardReport = await actor.poll.remote()
        except RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise ReplicaLost(lines[-1] if lines else type(error).__name__) from error
        placed = True
        return report

    try:
        yield ask
    finally:
        with anyio.move_on_after(CLOSE_S if placed else 0, shield=True), suppress(RayError):
            await actor.close.remote()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(ray.kill, actor, no_restart=True))
