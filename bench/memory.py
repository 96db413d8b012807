"""How much memory does a run take, and does it grow with the input? Whole programs over 10^4, 10^5 and 10^6 problems.

    python bench/memory.py [--rows 10000,100000,1000000] [--graph target] [--graph speccot:100000]

Every run is `pipeline run` in a process of its own on simulated engines that cost no time, trace and grading on. Its
resident memory is looked at while it checks the input, solves, and sums up; peak and CPU time are the system's own
account of the process. Prints a table and writes bench/results/memory.json.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from recording import begin
from tables import memory as table

from pipeline.engines.sim.text import sim_answer

ROOT = Path(__file__).parent.parent
ENGINES = ROOT / "graphs/engines/sim-instant.yaml"
ENGINE = {"text": "{steps_mean: 3, step_tokens_mean: 12, answer_tokens: 12}", "kv_cache_tokens": "200000"}
"""Short thoughts, as making up simulated text would be most of the cost; and a prefix cache that is full after a thousand
problems, as it is kept in this process too."""
PROGRAM = "from pipeline.cli.main import main; main()"
LOOK_EVERY_S = 0.2
MOST_POINTS = 40
"""Of each run's curve, in the results."""
PHASES = ("check", "solve", "sum up")
MIB = 1 << 20


def write_problems(path: Path, rows: int) -> None:
    """A Parquet file of short problems, in row groups of a usual size."""
    schema = pa.schema({"problem_id": pa.string(), "problem": pa.string(), "answer": pa.string()})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 50_000):
            texts = [f"Tom has {i} pens and buys 4 more. How many pens has he now?" for i in range(start, min(rows, start + 50_000))]
            columns = [[f"p{start + i}" for i in range(len(texts))], texts, [sim_answer(text) for text in texts]]
            writer.write_table(pa.table(columns, schema))


def phase_of(folder: Path) -> str:
    """What a run does at the moment, by what its folder says."""
    try:
        status = json.loads((folder / "run.json").read_bytes())["status"]
    except (OSError, ValueError):
        return "check"
    return "solve" if status == "running" else "sum up"


def watch(process: "subprocess.Popen[bytes]", folder: Path) -> Iterator[tuple[str, float, int]]:
    """Phase, seconds since the start and resident bytes, until the process has ended."""
    looked, started = psutil.Process(process.pid), time.monotonic()
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        yield phase_of(folder), time.monotonic() - started, int(looked.memory_info().rss)
        time.sleep(LOOK_EVERY_S)


def measure(graph: str, problems: Path, rows: int, folder: Path) -> dict[str, Any]:
    """One run: memory in MiB, CPU time in microseconds a problem, wall time in seconds."""
    arguments = ["run", str(ROOT / f"graphs/{graph}.yaml"), "--engines", str(ENGINES), "--input", str(problems), "--output", str(folder)]
    for role in ("draft", "target"):
        arguments += [part for name, value in ENGINE.items() for part in ("--set", f"engines.{role}.{name}={value}")]
    log = folder.with_suffix(".log").open("wb")
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments, "--json"], cwd=ROOT, stdout=log, stderr=log)
    curve = list(watch(process, folder))
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(folder.with_suffix(".log").read_text()[-2000:])
    most = {phase: max((size for at, _, size in curve if at == phase), default=0) / MIB for phase in PHASES}
    return {
        "graph": graph,
        "rows": rows,
        "peak_mib": used.ru_maxrss / 1024,
        "most_mib": most,
        "cpu_us_per_problem": 1e6 * (used.ru_utime + used.ru_stime) / rows,
        "wall_s": wall_s,
        "curve": _thinned([(round(second, 1), round(size / MIB, 1)) for _, second, size in curve]),
    }


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return points[:: max(1, len(points) // MOST_POINTS)]


def _sizes(graph: str, rows: str) -> tuple[str, list[int]]:
    name, _, own = graph.partition(":")
    return name, [int(size) for size in (own or rows).split(",")]


@click.command()
@click.option("--rows", default="10000,100000,1000000", show_default=True, help="Problems of each run, separated by commas.")
@click.option("--graph", "graphs", multiple=True, default=("target", "speccot:10000,100000"), show_default=True, metavar="NAME[:ROWS]")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "bench/results/memory.json")
def main(rows: str, graphs: tuple[str, ...], output: Path) -> None:
    """Print memory and CPU time against the number of problems."""
    recording, results = begin(__file__), []
    for graph, sizes in (_sizes(graph, rows) for graph in graphs):
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                write_problems(Path(folder) / "problems.parquet", size)
                row = measure(graph, Path(folder) / "problems.parquet", size, Path(folder) / "run")
            results.append(row)
            click.echo(f"  {graph}, {size:,} problems: {row['peak_mib']:.0f} MiB, {row['wall_s']:.0f} s", err=True)
    click.echo(table(recording.write(output, {"bench": "memory", "results": results})))


if __name__ == "__main__":
    main()
