"""A server in a thread of this process, and what it leaves behind."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import openai
from msgspec import Struct

from pipeline.cli.metrics import served_metrics
from pipeline.options import RunOptions
from pipeline.run.loop import Stop
from pipeline.run.run import Observer, SessionResult
from pipeline.serve.app import Address
from pipeline.serve.desk import ServeLimits
from pipeline.serve.server import serve
from tests.support.patience import HANGS_S

SHORT = "engines.*.text.steps_mean=3"


class Serving(Struct):
    """A server that answers at `url`; `result` is there when it has ended."""

    url: str = ""
    result: SessionResult | None = None
    error: Exception | None = None
    clients: list[openai.OpenAI] = []

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        """A client that asks once."""
        client = openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=HANGS_S, **options)
        self.clients.append(client)
        return client


@contextmanager
def serving(
    folder: Path,
    *settings: str,
    graph: str = "speccot",
    engines: str = "sim-instant",
    key: str | None = None,
    limits: ServeLimits | None = None,
    **options: Any,
) -> Iterator[Serving]:
    """A server of `graph` whose run is in `folder`; it is stopped at the end as by a signal, and the run ends as soon as it can."""
    chosen = RunOptions(
        graph=Path(graph),
        engines=Path(engines),
        input=("requests",),
        output=folder,
        settings=settings or ((SHORT,) if engines.startswith("sim-") else ()),
        served=True,
        fail_on_error=1.0,
        **options,
    )
    found, ready, over = Serving(), threading.Event(), threading.Event()

    async def attend(stop: Stop, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        task_status.started()
        await anyio.to_thread.run_sync(over.wait, abandon_on_cancel=True)
        stop.drain()

    def tell(sentence: str) -> None:
        if sentence.startswith("serving "):
            found.url = sentence.rpartition(" at ")[2]
            ready.set()

    def carry_out() -> None:
        start = partial(serve, attend=attend, metrics=served_metrics)
        try:
            found.result = start(chosen, limits or ServeLimits(), Address("127.0.0.1", 0, key), Observer(tell=tell))
        except Exception as error:
            found.error = error
        finally:
            ready.set()

    thread = threading.Thread(target=carry_out)
    thread.start()
    try:
        assert ready.wait(HANGS_S)
        if found.error is not None:
            raise found.error
        yield found
    finally:
        for client in found.clients:
            client.close()
        over.set()
        thread.join()
    if found.error is not None:
        raise found.error
