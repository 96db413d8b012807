"""What does one bad replica cost? Whole runs on small servers, one of which is bad in a given way, against runs on the others alone.

    python -m bench.faults.replicas [--replicas 2] [--ways 503,HTML] [--chains 60] [--output FILE]

The servers (`tests/support/small_server.py`) answer a request after a fixed time and a fixed number of them at once, so that their rate is
known, and one turns bad when the first call of a run reaches it. Every run on all replicas follows one on the healthy replicas alone;
`rate` is the throughput of the former over that of the latter. Prints a table and writes bench/results/replicas-2.json.
"""

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from bench.figures import RESULTS, ROOT, Results, begin, grid
from bench.runs import ARITH, say
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from pipeline.store.read import read_batches

sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from drills.servers import FOR_EVER  # noqa: E402

from tests.support.small_server import VLLM, Fault, Handler, Reply, SmallServer, small_server, story  # noqa: E402

CAPACITY = 4
"""Each server answers that many requests at once."""
MAX_STEPS = 3
TOKENIZER = "tiny-target"
GONE = "refuses connections"
WAYS = (*(way for way in FOR_EVER if way != "hang"), GONE)
"""A server that hangs costs what `timeout_s` says."""


def table(results: Results) -> str:
    """A row for each way to be bad."""
    columns = ("bad replica", "of", "failed chains", "attempts without an answer", "wall s", "healthy ones alone", "rate")
    rows = []
    for each in results["runs"]:
        walls = (f"{each[kind]['wall_s']:.1f}" for kind in ("bad", "healthy"))
        unanswered = f"{each['unanswered']} of {each['bad']['attempts']}"
        rows.append((each["way"], str(each["replicas"]), str(each["failed"]), unanswered, *walls, f"{each['rate']:.2f}"))
    return grid(columns, rows)


class Paced:
    """Answers `CAPACITY` requests at once, each after `service_s`; from the first call of a run on it does `fault` instead, if that is
    given."""

    def __init__(self, service_s: float, fault: Fault | None = None) -> None:
        self._service_s, self._fault, self._room, self._bad = service_s, fault, threading.Semaphore(CAPACITY), False

    def __call__(self, handler: Handler, reply: Reply) -> None:
        self._bad = self._bad or (self._fault is not None and handler.body.get("max_tokens", 0) > 16)  # the opening asks for fewer
        if self._bad and self._fault is not None:
            self._fault(handler, reply)
            return
        with self._room:
            time.sleep(self._service_s)
        handler.send(reply)


def solve(servers: Sequence[SmallServer], chains: int) -> dict[str, Any]:
    """A run on these servers: seconds, failed chains and attempts that got no answer."""
    with tempfile.TemporaryDirectory() as folder:
        urls = ", ".join(server.base_url for server in servers)
        engine = f"{{backend: openai, model: tiny, base_url: [{urls}], tokenizer: 'bundled:{TOKENIZER}'}}"
        engines, output = Path(folder) / "engines.yaml", Path(folder) / "run"
        engines.write_text(f"draft: &one {engine}\ntarget: *one\n")
        graph, settings = ROOT / "graphs/speccot.yaml", (f"max_steps={MAX_STEPS}",)
        result = run(RunOptions(graph=graph, input=ARITH, limit=chains, engines=engines, settings=settings, output=output))
        errors = [error for batch in read_batches(output, "calls", ("error_type",)) for error in batch["error_type"].to_pylist()]
        return {
            "wall_s": result.run.sessions[-1].wall_time_s,
            "exit_code": result.exit_code,
            "failed": result.failed,
            "attempts": len(errors),
            "failures": dict(Counter(error for error in errors if error)),
        }


def measure(number: int, way: str, chains: int, service_s: float) -> dict[str, Any]:
    """A run on the healthy replicas alone, then one on all of them, the last of which is bad."""
    tokenizer = HFTokenizer(str(ROOT / "pipeline/models" / TOKENIZER))
    with ExitStack() as stack:
        servers = [stack.enter_context(small_server(VLLM, tokenizer)) for _ in range(number)]
        for server in servers:
            server.script, server.always = story, Paced(service_s)
        bad = servers[-1]
        healthy = solve(servers[:-1], chains)
        bad.always = Paced(service_s, FOR_EVER.get(way) or (lambda handler, reply: bad.stop()))
        found = solve(servers, chains)
    about = {"replicas": number, "way": way, "failed": found["failed"], "unanswered": sum(found["failures"].values())}
    return {**about, "rate": healthy["wall_s"] / found["wall_s"], "healthy": healthy, "bad": found}


@click.command()
@click.option("--replicas", default=2, show_default=True, help="How many there are, one of them bad.")
@click.option("--ways", default=",".join(WAYS), help="How it is bad.")
@click.option("--chains", default=60, help="Chains of a run, for each healthy replica.")
@click.option("--service-s", default=0.2, help="Seconds that a server needs for a request.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / RESULTS / "replicas-2.json")
def main(replicas: int, ways: str, chains: int, service_s: float, output: Path) -> None:
    """Measure every way."""
    recording, found = begin(__file__), []
    for way in ways.split(","):
        found.append(measure(replicas, way, chains * (replicas - 1), service_s))
        say(f"{way}, one of {replicas}: rate {found[-1]['rate']:.2f}")
    facts = {"bench": "replicas", "service_s": service_s, "capacity": CAPACITY, "runs": found}
    click.echo(table(recording.write(output, facts)))


if __name__ == "__main__":
    main()
