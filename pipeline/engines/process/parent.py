"""A worker's end of the socket to the main process."""

import os
import select
import socket
from collections.abc import Iterator

from pipeline.engines.process.wire import FromWorker, Unframer, frame

_RECEIVE_BYTES = 1 << 20


class Line:
    """The worker's end of the socket. When the main process has closed its own, or is gone, this process ends at once,
    unless it has a `farewell` to say: then only `closed` is set."""

    def __init__(self, sock: socket.socket, *, farewell: bool = False) -> None:
        self.socket, self._unframer, self._farewell = sock, Unframer("worker"), farewell
        self.closed = False

    def receive(self, *, wait: bool) -> Iterator[object]:
        """What has arrived; with `wait`, at least something."""
        if not wait and not select.select([self.socket], [], [], 0)[0]:
            return iter(())
        try:
            received = self.socket.recv(_RECEIVE_BYTES)
        except ConnectionError:
            received = b""
        if not received:
            self._close()
        return self._unframer.feed(received)

    def first(self) -> object:
        """The first message; the other side sends no second one before it has an answer."""
        messages: list[object] = []
        while not messages and not self.closed:
            messages += self.receive(wait=True)
        return messages[0] if messages else None

    def send(self, message: FromWorker) -> None:
        try:
            self.socket.sendall(frame(message))
        except OSError:
            self._close()

    def _close(self) -> None:
        if not self._farewell:
            os._exit(0)
        self.closed = True
