"""How much slower than a run is a server? The same requests, all at once to `pipeline serve`, and as the input of a run, in turns.

    python -m bench.serving [--requests 1000] [--rounds 3]

Simulated engines, once such that take time, and once such that take none, where all time is this program's. The server is a process of its
own on real time, and is asked over as many connections as there are requests; its throughput is by its client's clock, from the first
connection to the last answer. The run is on the clock of simulated engines, which counts no time of this program, or for engines that take
none on real time. Every request has a seed: both sample the same tokens, or there is no figure. Prints a table and writes
bench/results/serving.json.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
from msgspec import Struct

from bench.figures import RESULTS, ROOT, Results, begin, grid
from bench.runs import PROGRAM, say, whole
from pipeline.analysis.summary import summarize
from pipeline.serve.server import allow_files
from pipeline.session.loop import in_loop, rare_collection
from pipeline.session.observer import Observer
from pipeline.session.options import RunOptions
from pipeline.session.prepare import load_plan, prepared
from pipeline.session.run import solve
from pipeline.store.run_file import RunFile

GRAPH, TEXTS = "speccot", "engines.*.text.steps_mean=3"
BATCH_SIZE = 128
HOST = "127.0.0.1"


class Workload(Struct, frozen=True):
    """Engines, and the clock of a run on them."""

    engines: str
    virtual: bool

    @property
    def clock(self) -> str:
        return "simulated" if self.virtual else "real"


WORKLOADS = (Workload("sim-2xh100", True), Workload("sim-instant", False))


def table(results: Results) -> str:
    """A row for each workload."""
    rows = []
    for each in results["results"]:
        rates = (f"{median(each[kind]):.1f}" for kind in ("run", "served"))
        ratios = [served / run for run, served in zip(each["run"], each["served"], strict=True)]
        rounds = " ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append((each["engines"], each["clock"], *rates, f"{rounds}, median **{median(ratios):.2f}**", f"{each['load']:.1f}"))
    head = f"**Simulated**: {results['requests']:,} requests at once, {GRAPH}, batch size {BATCH_SIZE}, thoughts of some three steps"
    columns = ("engines", "clock of the run", "run, problems/s", "served, problems/s", "served over run, by round", "load after it")
    return f"{head}\n\n{grid(columns, rows)}"


def write_requests(path: Path, count: int) -> list[bytes]:
    """A file of requests for the run; their bodies, for the server."""
    bodies = [
        {"model": GRAPH, "messages": [{"role": "user", "content": f"Simulated problem {number}."}], "seed": number}
        for number in range(count)
    ]
    lines = [{"custom_id": str(body["seed"]), "method": "POST", "url": "/v1/chat/completions", "body": body} for body in bodies]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [json.dumps(body).encode() for body in bodies]


def solved(workload: Workload, requests: Path, folder: Path) -> tuple[float, int]:
    """Seconds of a run, and the tokens that it sampled."""
    options = RunOptions(
        graph=Path(GRAPH), engines=Path(workload.engines), input=requests, settings=(TEXTS,), batch_size=BATCH_SIZE, output=folder
    )
    plan = load_plan(options.graph, options.engines, options.settings)
    with prepared(options, plan, virtual=workload.virtual) as run, rare_collection():
        result = whole(in_loop(partial(solve, run, Observer()), virtual=workload.virtual))
    return summarize(folder).wall_time_s or 0.0, sum(result.run.totals.output_tokens.values())


def served(workload: Workload, bodies: Sequence[bytes], folder: Path) -> tuple[float, int]:
    """Seconds in which a server answers all requests, and the tokens that it sampled."""
    with server(workload, folder) as port:
        started = time.monotonic()
        asyncio.run(ask_all(port, bodies))
        seconds = time.monotonic() - started
    totals = RunFile.read(folder).totals
    if totals.chains_done != len(bodies):
        raise click.ClickException(f"{folder}: {totals.chains_done} of {len(bodies)} chains are done; no figure is made of such a run")
    return seconds, sum(totals.output_tokens.values())


@contextmanager
def server(workload: Workload, folder: Path) -> Iterator[int]:
    """The port of a server that takes requests; at the end it is stopped, and has written its run."""
    options = ("--engines", workload.engines, "--set", TEXTS, "--batch-size", str(BATCH_SIZE), "--port", "0", "--output", str(folder))
    process = subprocess.Popen([*PROGRAM, "serve", GRAPH, *options], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = next((line for line in process.stderr if line.startswith("serving ")), None)
        if said is None:
            raise click.ClickException(f"the server of {workload.engines} did not start")
        yield int(said.rpartition(":")[2].partition("/")[0])
    finally:
        process.terminate()
        process.communicate()


async def ask_all(port: int, bodies: Sequence[bytes]) -> None:
    """Ask for all at once."""
    async with asyncio.TaskGroup() as tasks:
        for body in bodies:
            tasks.create_task(ask(port, body))


async def ask(port: int, body: bytes) -> None:
    """Ask over a connection of its own; raises `click.ClickException` where the answer is no completion."""
    reader, writer = await asyncio.open_connection(HOST, port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    status, _, answer = (await reader.read()).partition(b"\r\n")
    writer.close()
    if b" 200 " not in status:
        raise click.ClickException(f"the server answered {status.decode()}: {answer.decode()[-500:]}")


def measured(workload: Workload, bodies: Sequence[bytes], requests: Path, rounds: int) -> dict[str, Any]:
    """Problems a second of runs and of servers, in turns."""
    rates: dict[str, list[float]] = {"run": [], "served": []}
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            ways = {
                "run": partial(solved, workload, requests, Path(folder) / "run"),
                "served": partial(served, workload, bodies, Path(folder) / "served"),
            }
            tokens = {}
            for name in [*ways][:: -1 if number % 2 else 1]:
                seconds, tokens[name] = ways[name]()
                rates[name].append(len(bodies) / seconds)
                say(f"{workload.engines}, round {number + 1}, {name}: {seconds:.1f} s")
        if tokens["run"] != tokens["served"]:
            raise click.ClickException(f"{workload.engines}: the run sampled {tokens['run']:,} tokens, the server {tokens['served']:,}")
    return {"engines": workload.engines, "clock": workload.clock, **rates, "load": os.getloadavg()[0]}


@click.command()
@click.option("--requests", "count", type=click.IntRange(1, 1024), default=1000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / RESULTS / "serving.json")
def main(count: int, rounds: int, output: Path) -> None:
    """Print the throughput of a server against that of a run."""
    recording = begin(__file__)
    allow_files()
    with tempfile.TemporaryDirectory() as folder:
        bodies = write_requests(requests := Path(folder) / "requests.jsonl", count)
        results = [measured(workload, bodies, requests, rounds) for workload in WORKLOADS]
    click.echo(table(recording.write(output, {"bench": "serving", "requests": count, "results": results})))


if __name__ == "__main__":
    main()
