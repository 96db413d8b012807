"""The server of `pipeline view`: a folder enters, pages are served on this machine until the process is interrupted."""

import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from pipeline.errors import Interrupted, UsageError
from pipeline.system.local_web import listening
from pipeline.view.app import view_app
from pipeline.view.shelf import Shelf

HOST = "127.0.0.1"


class _Server(uvicorn.Server):
    """A server that does not wait for the queries of its pages when it is to end."""

    def __init__(self, config: uvicorn.Config, shelf: Shelf) -> None:
        super().__init__(config)
        self._shelf = shelf

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._shelf.interrupt()
        await super().shutdown(sockets)


def serve_view(folder: Path, port: int, opened: Callable[[str], None]) -> None:
    """Serve the runs in `folder` on a port of 127.0.0.1, 0 for a free one; `opened` is told the URL when it can be asked for.

    Raises `UsageError` where `folder` holds no runs, or the port cannot be listened on, and `Interrupted` at Ctrl-C.
    """
    shelf = Shelf(folder)
    if not folder.is_dir():
        what = "not a directory" if folder.exists() else "no such directory"
        raise UsageError(f"{folder}: {what}; name the one that contains your run folders")
    if not shelf.folders():
        raise UsageError(f"{folder}: contains no runs; name the folder that contains your run folders")
    with listening(HOST, port) as listener:
        config = uvicorn.Config(view_app(shelf), log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        opened(f"http://{HOST}:{listener.getsockname()[1]}/")
        try:
            _Server(config, shelf).run(sockets=[listener])
        except KeyboardInterrupt:  # raised again by uvicorn once it has ended in order
            raise Interrupted from None
        finally:
            shelf.close()
