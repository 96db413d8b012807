"""Problems per second of whole runs over one server, against a plain aiohttp loop that sends the same bodies: what does our way cost?

    python -m bench.servers

Both take turns on each server: one that answers at once, in a process of its own, and vLLM's CPU build with a bundled model, whose prefix
cache is emptied before each turn. A run of SpecReason comes first, which warms up and whose bodies are kept; the loop sends those of one
problem after the other, of as many problems at a time as are live in a run. Writes bench/results/servers.json and its table in
bench/README.md.
"""

import asyncio
import inspect
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from urllib.request import urlopen

import msgspec

from bench.figures import ROOT, TRIAL, Results, begin, grid
from bench.runs import ARITH, say, spent, whole
from pipeline.engines.openai.client import Reply, Server
from pipeline.options import RunOptions
from pipeline.run.run import run
from tests.support.servers import free_port, vllm_server

MODEL = ROOT / "pipeline/models/tiny-target"
PROBLEMS, REPEATS, FEW = (8, 1, 8) if TRIAL else (500, 5, 32)
ENGINE = "{{backend: openai, model: target, base_url: '{url}', tokenizer: 'bundled:tiny-target', max_in_flight: 256}}\n"
INSTANT = "import sys; from bench.servers import instant; instant(sys.argv[1])"


def table(results: Results) -> str:
    """Ratios by server and batch size, and the seconds of whole commands."""
    rows = []
    for cell in results["cells"]:
        rate, ratios, cpu_ms = (cell[name] for name in ("problems_per_s", "ratios", "cpu_ms_a_call"))
        spread = f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append((cell["server"], str(cell["batch_size"]), f"{statistics.median(rate):.1f}", spread, f"{statistics.median(cpu_ms):.2f}"))
    took = ", ".join(f"{name} {ours:.1f} s and {plain:.1f} s" for name, (ours, plain) in results["commands"].items())
    told = f"Whole commands for {FEW} problems at batch size {FEW}, ours and a plain program that sends the same bodies: {took}."
    return f"{grid(('server', 'batch size', 'problems/s', 'of the plain loop (range)', 'CPU ms a call'), rows)}\n\n{told}"


def instant(port: str) -> None:
    """Be a server like vLLM's that answers at once: a step, now and then the end of the thought, an answer, or the last option."""
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode
    step, answer = (encode(text, add_special_tokens=False).ids for text in ("So 4 + 3 = 7.\n\n", "The answer is 7.<|end|>"))
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def choice(body: dict[str, Any]) -> dict[str, Any]:
        close, options, ids, stop = body["stop_token_ids"], body.get("allowed_token_ids"), answer, None
        if "\n\n" in body.get("stop", ()):
            ends = (len(bytes(body["prompt"])) + body.get("seed", 0)) % 7 == 0
            ids, stop = (close, close[0]) if ends else (step, "\n\n")
        tops = {f"token_id:{option}": -0.1 - place for place, option in enumerate(reversed(options or ()))}
        logprobs = {"top_logprobs": [tops], "token_logprobs": [-0.1]} if options else None
        how = {"token_ids": options[-1:], "finish_reason": "length"} if options else {"token_ids": ids, "finish_reason": "stop"}
        return {"index": 0, "text": "", "stop_reason": stop, "logprobs": logprobs, "prompt_token_ids": body["prompt"], **how}

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport, self.read = transport, b""

        def data_received(self, data: bytes) -> None:
            self.read += data
            while (end := self.read.find(b"\r\n\r\n") + 4) >= 4:
                size = int(self.read[:end].lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                if len(self.read) < end + size:
                    return
                body, self.read = self.read[end : end + size], self.read[end + size :]
                said: Any = {"data": [{"id": "target", "owned_by": "vllm", "max_model_len": 512}]}
                if body:
                    asked = {name: raw if name == "prompt" else msgspec.json.decode(raw) for name, raw in fields.decode(body).items()}
                    if not bytes(asked["prompt"]).startswith(b"["):  # the probe's text
                        asked["prompt"] = encode(msgspec.json.decode(asked["prompt"]), add_special_tokens=False).ids
                    said = {"choices": [choice(asked)], "model": "target"}
                content = msgspec.json.encode(said)
                self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))

    async def serve() -> None:
        await (await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", int(port))).serve_forever()

    asyncio.run(serve())


async def loop(url: str, chains: list[list[bytes]], at_once: int) -> None:
    """Ask by a gather loop, without the engine."""
    import aiohttp

    left = iter(chains)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def work() -> None:
            for bodies in left:
                for body in bodies:
                    async with session.post(f"{url}/completions", data=body, headers={"Content-Type": "application/json"}) as response:
                        assert response.status == 200
                        await response.json(content_type=None)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(work())


PLAIN = f"""import asyncio, sys
{inspect.getsource(loop)}
asyncio.run(loop(sys.argv[1], [each.splitlines() for each in open(sys.argv[2], "rb").read().split(b"\\n\\n")], {FEW}))
"""
"""The plain program: nothing but the loop, over bodies that are made already."""


def kept_bodies(options: RunOptions) -> list[list[bytes]]:
    """The bodies that a run sends for each problem, each solved by a task."""
    bodies: dict[object, list[bytes]] = {}
    ask = Server.ask

    async def kept(self: Server, url: str, body: bytes | None = None, limit_s: float | None = None) -> Reply:
        bodies.setdefault(asyncio.current_task(), []).extend([] if body is None else [body])
        return await ask(self, url, body, limit_s)

    with patch.object(Server, "ask", kept):
        assert options.limit == whole(run(options)).done
    return list(bodies.values())[-options.limit :]


@contextmanager
def serving(name: str) -> Iterator[str]:
    """The base URL of a server."""
    if name == "vllm":
        with patch.dict(os.environ, {"VLLM_SERVER_DEV_MODE": "1"}), vllm_server(MODEL, "target", 1) as running:
            yield running.base_url
        return
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", INSTANT, str(port)], cwd=ROOT)
    try:
        while True:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/v1/models"):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def measured(name: str, url: str, folder: Path, size: int) -> dict[str, Any]:
    """One cell of the table."""
    options = RunOptions(graph=Path("specreason"), engines=folder / "engines.yaml", input=(str(ARITH),), limit=PROBLEMS, batch_size=size)
    cell: dict[str, Any] = {"server": name, "batch_size": size, "problems_per_s": [], "ratios": [], "cpu_ms_a_call": []}
    chains = kept_bodies(msgspec.structs.replace(options, output=folder / f"{name}-{size}-first"))
    for number in range(REPEATS):
        took: dict[str, float] = {}
        for way in ("ours", "plain") if number % 2 else ("plain", "ours"):
            if name == "vllm":
                urlopen(url.removesuffix("/v1") + "/reset_prefix_cache", data=b"").close()
            if way == "ours":
                session = whole(run(msgspec.structs.replace(options, output=folder / f"{name}-{size}-{number}"))).run.sessions[-1]
                took[way] = session.wall_time_s or 0.0
                cell["cpu_ms_a_call"].append(1000 * (session.orchestrator_cpu_s or 0.0) / sum(map(len, chains)))
            else:
                started = time.perf_counter()
                asyncio.run(loop(url, chains, size))
                took[way] = time.perf_counter() - started
        cell["problems_per_s"].append(PROBLEMS / took["ours"])
        cell["ratios"].append(took["plain"] / took["ours"])
        say(f"{name}, batch size {size}: {PROBLEMS / took['ours']:.1f} problems/s, {cell['ratios'][-1]:.2f} of the plain loop")
    return cell


def commands(url: str, folder: Path) -> list[float]:
    """Median seconds of whole commands for a few problems, ours and the plain program."""
    few = RunOptions(graph=Path("specreason"), engines=folder / "engines.yaml", input=(str(ARITH),), limit=FEW, batch_size=FEW)
    kept = kept_bodies(msgspec.structs.replace(few, output=folder / "few"))
    (folder / "bodies").write_bytes(b"\n\n".join(map(b"\n".join, kept)))
    given = ["--engines", str(few.engines), "--input", str(ARITH), "--limit", str(FEW), "--batch-size", str(FEW), "-q"]
    ours = [str(Path(sys.executable).with_name("pipeline")), "run", "specreason", *given, "--output"]
    bare = [sys.executable, "-c", PLAIN, url, f"{folder}/bodies"]
    took = [(spent([*ours, f"{folder}/{i}"])[0]["wall_s"], spent(bare)[0]["wall_s"]) for i in range(3)]
    return [statistics.median(side) for side in zip(*took, strict=True)]


def main() -> None:
    """Measure on both servers, on vLLM where it is installed."""
    recording, cells, whole_commands = begin(__file__), [], {}
    for name in ("instant", "vllm") if find_spec("vllm") else ("instant",):
        with TemporaryDirectory() as made, serving(name) as url:
            folder = Path(made)
            (folder / "engines.yaml").write_text("".join(f"{role}: {ENGINE.format(url=url)}" for role in ("draft", "target")))
            cells += [measured(name, url, folder, size) for size in (8, 32, 64)]
            whole_commands[name] = commands(url, folder)
    recording.write("servers", {"bench": "servers", "problems": PROBLEMS, "cells": cells, "commands": whole_commands})


if __name__ == "__main__":
    main()
