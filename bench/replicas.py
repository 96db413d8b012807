"""What does one bad replica cost? Whole runs on small servers, one of which is bad in a given way, against runs on the others alone.

    python bench/replicas.py [--replicas 2,4] [--ways 503,html] [--chains 60] [--output FILE]

The servers run in a process of their own on 127.0.0.1. Each answers a request after a fixed time and a fixed number of them at once, so
that its rate is known, and turns bad when the first call of a run reaches it. Every run on all replicas follows one on the healthy
replicas alone; `rate` is the throughput of the former over that of the latter. Prints a table and writes bench/results/replicas-2.json.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import click
from figures import RESULTS, ROOT, Results, begin, grid
from runs import ARITH, say

from pipeline.session.options import RunOptions
from pipeline.session.run import run
from pipeline.store.read import read_batches

CAPACITY = 4
"""Each server answers that many requests at once."""
MAX_STEPS = 3
STATUSES = ("500", "503", "429", "400", "401", "403", "404")
WAYS = (*STATUSES, "html", "cut", "refuses connections")
LENGTH = 4096
"""Context length of the servers, in tokens."""


def table(results: Results) -> str:
    """A row for each way to be bad."""
    columns = ("bad replica", "of", "failed chains", "attempts without an answer", "wall s", "healthy ones alone", "rate")
    rows = []
    for each in results["runs"]:
        walls = (f"{each[kind]['wall_s']:.1f}" for kind in ("bad", "healthy"))
        unanswered = f"{each['unanswered']} of {each['bad']['attempts']}"
        rows.append((each["way"], str(each["replicas"]), str(each["failed"]), unanswered, *walls, f"{each['rate']:.2f}"))
    return grid(columns, rows)


# The servers.


class Replica:
    """One server; `way` says how it is bad, from the first request for more than one token on."""

    def __init__(self, service_s: float) -> None:
        """`service_s`: seconds that it takes for a request."""
        self.service_s = service_s
        self.way: str | None = None
        self.bad = False
        self.port = 0
        self._free = asyncio.Semaphore(CAPACITY)
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self.port, backlog=512)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def become(self, way: str | None) -> None:
        """Be well until the next run has begun, then bad in this way."""
        self.way, self.bad = way, False
        for writer in self._writers:
            writer.close()
        if self._listener is None:
            await self.start()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._answer(reader, writer):
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if head.startswith("get"):
            writer.write(response(200, {"data": [{"id": "small", "max_model_len": LENGTH}]}))
            return True
        [length] = [line.partition(":")[2] for line in head.splitlines() if line.startswith("content-length:")]
        body = json.loads(await reader.readexactly(int(length)))
        self.bad = self.bad or (self.way is not None and body["max_tokens"] > 1)
        way = self.way if self.bad else None
        if way in STATUSES:
            writer.write(response(int(way), {"error": {"message": "not here"}}))
            return True
        if way == "refuses connections":
            self._close()
            return False
        async with self._free:
            await asyncio.sleep(self.service_s)
        reply = response(200, b"<html>Bad gateway</html>" if way == "html" else completion(body))
        writer.write(reply[: len(reply) - 20] if way == "cut" else reply)
        return way != "cut"

    def _close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self._listener = None
        for writer in self._writers:
            writer.close()


def response(status: int, content: Any) -> bytes:
    """An HTTP response with this JSON, or these bytes."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """What a server with OpenAI's own fields writes: a step that follows from prompt and seed, or a digit with its alternatives."""
    ended = "stop" if "\n\n" in body.get("stop", ()) else "length"
    choices = [{"index": index, "finish_reason": ended, **written(body, index)} for index in range(body.get("n", 1))]
    return {"choices": choices, "usage": {"prompt_tokens": len(body["prompt"]) // 4 + 1, "completion_tokens": 12 * len(choices)}}


def written(body: dict[str, Any], index: int) -> dict[str, Any]:
    """The text of one choice, and its log probabilities where they were asked for."""
    number = int.from_bytes(blake2b(f"{body['prompt']}{body.get('seed', 0) + index}".encode(), digest_size=2).digest())
    text = str(1 + number % 9) if body["max_tokens"] == 1 else f"So {number % 97} pens.\n\n"
    if body.get("logprobs") is None:
        return {"text": text}
    top = {digit: -1.0 - abs(int(digit) - int(text) if text.isdigit() else 5) for digit in "123456789"[: body["logprobs"]]}
    return {"text": text, "logprobs": {"tokens": [text], "token_logprobs": [-1.0], "top_logprobs": [top | {text: -0.5}]}}


async def serve(count: int, service_s: float) -> None:
    """Run `count` servers; a line of stdin, `INDEX WAY`, makes one of them bad or, without a way, well."""
    replicas = [Replica(service_s) for _ in range(count)]
    for replica in replicas:
        await replica.start()
    print(*(replica.port for replica in replicas), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        index, _, way = line.strip().partition(" ")
        await replicas[int(index)].become(way or None)
        print("done", flush=True)


# The runs.


class Servers:
    """The servers' process, seen from the bench."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.process = process
        self.ports = process.stdout.readline().split()

    def become(self, index: int, way: str) -> None:
        """Make a server bad in this way from its next run on."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{index} {way}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()


@contextmanager
def servers(count: int, service_s: float) -> Iterator[Servers]:
    """`count` servers, until the block is left."""
    command = [sys.executable, __file__, "--serve", str(count), "--service-s", str(service_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Servers(process)
        finally:
            process.kill()


def solve(ports: list[str], chains: int) -> dict[str, Any]:
    """A run on the servers with these ports: seconds, failed chains and attempts that got no answer."""
    with tempfile.TemporaryDirectory() as folder:
        urls = ", ".join(f"http://127.0.0.1:{port}/v1" for port in ports)
        engine = f"{{backend: openai, model: small, base_url: [{urls}], tokenizer: 'bundled:tiny-target'}}"
        engines, output = Path(folder) / "engines.yaml", Path(folder) / "run"
        engines.write_text(f"draft: &one {engine}\ntarget: *one\n")
        graph, settings = ROOT / "graphs/speccot.yaml", (f"max_steps={MAX_STEPS}",)
        result = run(RunOptions(graph=graph, input=ARITH, limit=chains, engines=engines, settings=settings, output=output))
        errors = [error for batch in read_batches(output, "calls", ("error_type",)) for error in batch["error_type"].to_pylist()]
        return {
            "wall_s": result.run.sessions[-1].wall_time_s,
            "exit_code": result.exit_code,
            "done": result.done,
            "failed": result.failed,
            "attempts": len(errors),
            "failures": dict(Counter(error for error in errors if error)),
        }


def measure(found: Servers, way: str, chains: int) -> dict[str, Any]:
    """A run on the healthy replicas alone, then one on all of them, the last of which is bad."""
    healthy = solve(found.ports[:-1], chains)
    found.become(len(found.ports) - 1, way)
    bad = solve(found.ports, chains)
    found.become(len(found.ports) - 1, "")
    return {
        "replicas": len(found.ports),
        "way": way,
        "failed": bad["failed"],
        "unanswered": sum(bad["failures"].values()),
        "rate": healthy["wall_s"] / bad["wall_s"],
        "healthy": healthy,
        "bad": bad,
    }


@click.command()
@click.option("--replicas", default="2", show_default=True, help="How many there are, one of them bad.")
@click.option("--ways", default=",".join(WAYS), help="How it is bad.")
@click.option("--chains", default=60, help="Chains of a run, for each healthy replica.")
@click.option("--service-s", default=0.2, help="Seconds that a server needs for a request.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / RESULTS / "replicas-2.json")
@click.option("--serve", "count", type=int, hidden=True)
def main(replicas: str, ways: str, chains: int, service_s: float, output: Path, count: int | None) -> None:
    """Measure every way, with each number of replicas."""
    if count is not None:
        asyncio.run(serve(count, service_s))
        return
    recording, found = begin(__file__), []
    for number in map(int, replicas.split(",")):
        with servers(number, service_s) as started:
            for way in ways.split(","):
                found.append(measure(started, way, chains * (number - 1)))
                say(f"{way}, one of {number}: rate {found[-1]['rate']:.2f}")
    facts = {"bench": "replicas", "service_s": service_s, "capacity": CAPACITY, "runs": found}
    click.echo(table(recording.write(output, facts)))


if __name__ == "__main__":
    main()
