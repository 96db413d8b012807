"""`pipeline serve GRAPH`: options enter; an endpoint of the OpenAI API over one run, and its run folder, leave."""

import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pipeline.cli import live, terminal
from pipeline.cli.options import HeadedCommand, Located, bound, graph_options, headed, notice_options, run_options, written_run
from pipeline.cli.show import print_summary
from pipeline.errors import Interrupted, require
from pipeline.options import RunOptions
from pipeline.run.loop import rare_collection
from pipeline.run.run import Observer

KEY = "PIPELINE_API_KEY"
"""The variable of the environment that holds the API key."""
LOCAL = ("127.0.0.1", "::1", "localhost")
"""Hosts that only this machine reaches."""
HOST_HELP = "Address to listen on; another one than this machine's own is open to its network."
PORT_HELP = "Port to listen on; 0: any free one."
QUEUE_HELP = "Maximum number of waiting requests; further ones are refused with status 429."
TIMEOUT_HELP = "Maximum time of a request in seconds."
server_option = headed("Server")


@click.command(cls=HeadedCommand)
@click.argument("graph", type=click.Path(path_type=Path))
@server_option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help=HOST_HELP)
@server_option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, metavar="PORT", help=PORT_HELP)
@server_option("--max-queue", type=click.IntRange(1), default=1024, show_default=True, metavar="N", help=QUEUE_HELP)
@server_option("--timeout", type=click.FloatRange(0, min_open=True), default=3600, show_default=True, metavar="S", help=TIMEOUT_HELP)
@graph_options
@run_options("seed", "batch_size", "output")
@notice_options
def serve(graph: Path, host: str, port: int, max_queue: int, timeout: float, output: str | None, **options: Any) -> int:
    """Serve GRAPH at an endpoint of the OpenAI API: chat completions, streamed with their reasoning.

    Every request is a chain of one run, whose folder is written as by `pipeline run`. Clients need a key only where the environment
    variable PIPELINE_API_KEY holds one. Stop with Ctrl-C.
    """
    require("pipeline serve", "serve", "starlette", "uvicorn", "prometheus_client")
    server = import_module("pipeline.serve.server")
    key = os.environ.get(KEY) or None
    if key is None and host not in LOCAL:
        terminal.print_notice(f"--host {host}: whoever reaches this address may use the models; set a key with {KEY}=...")
    folder = None if output is None else written_run(output, new=True)
    path, chosen = None if folder is None else folder.path, bound([graph], options, options["batch_size"])
    run = RunOptions(graph=graph, input=("requests",), output=path, fail_on_error=1.0, served=True, **chosen)
    address, limits = server.Address(host, port, key), server.ServeLimits(max_queue=max_queue, timeout_s=timeout)
    observer = Observer(starting=live.Starts, tell=terminal.print_notice)
    metrics = import_module("pipeline.cli.metrics").served_metrics
    with live.restored_handlers(), rare_collection():
        try:
            result = server.serve(run, limits, address, observer, attend=live.stop_on_signal, metrics=metrics, command=sys.argv)
        except Interrupted:
            terminal.print_notice("interrupted before any request was taken")
            raise
    out, served = terminal.output(), folder or Located(result.folder)
    if result.done + result.failed and not out.prints("the summary", partial(print_summary, served)):
        return 1
    if result.error is not None and result.run.status == "failed":
        out.error(str(result.error))
    return int(result.exit_code)
