"""The program of a replica in a process of its own on this machine: settings and orders enter by a socket, reports leave.

Started by `pipeline.cluster.local` as `python -m pipeline.cluster.replica_process FD CORES`. It ends when the main process closes the
socket or is gone, and its engines with it.
"""

import asyncio
import os
import pickle
import socket
import sys
from contextlib import suppress

from pipeline.engines.process.worker import SHUTDOWN_S, end_with_main_process
from pipeline.system.worker_process import leave_signals, without_collections

HEADER_BYTES = 8
"""Length of the number before each message that says how many bytes it has."""
_RECEIVE_BYTES = 1 << 20


async def send(connection: socket.socket, message: bytes) -> None:
    """Send a message; raises `OSError` where the other side is gone."""
    await asyncio.get_running_loop().sock_sendall(connection, len(message).to_bytes(HEADER_BYTES, "big") + message)


async def receive(connection: socket.socket) -> bytes:
    """Wait for the next message; raises `EOFError` or `OSError` where none will come."""
    return await _exactly(connection, int.from_bytes(await _exactly(connection, HEADER_BYTES), "big"))


async def _exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        more = await asyncio.get_running_loop().sock_recv(connection, min(_RECEIVE_BYTES, count - len(received)))
        if not more:
            raise EOFError
        received += more
    return bytes(received)


def main() -> None:
    """Be a replica. The numbers of the cores are separated by commas; none: any core."""
    leave_signals()
    connection = socket.socket(fileno=int(sys.argv[1]))
    end_with_main_process(connection.fileno(), SHUTDOWN_S)
    connection.setblocking(False)
    if sys.argv[2] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, map(int, sys.argv[2].split(",")))  # before libraries count the cores
    _run(connection)


def _run(connection: socket.socket) -> None:
    """Carry out orders until the main process sends no more."""
    with without_collections():
        from pipeline.cluster.messages import encoded
        from pipeline.cluster.replica_worker import ReplicaWorker
        from pipeline.session.loop import in_loop, rare_collection
        from pipeline.system.tasks import background_tasks

    async def serve() -> None:
        replica = ReplicaWorker(pickle.loads(await receive(connection)))

        async def answer() -> None:
            with suppress(OSError):
                await send(connection, encoded(await replica.report()))

        async with background_tasks() as tasks:
            tasks.start_soon(replica.serve)
            with suppress(EOFError, OSError):
                while True:  # the next orders come after the report
                    replica.order(pickle.loads(await receive(connection)))
                    tasks.start_soon(answer)

    with rare_collection():
        in_loop(serve, virtual=False)


if __name__ == "__main__":
    main()
