"""How much memory does a run take, and does it grow with the input? Whole programs over 10^4, 10^5 and 10^6 problems.

    python -m bench.cost.memory [--rows 10000,100000,1000000] [--graph target] [--graph speccot:100000]

Every run is `pipeline run` in a process of its own on simulated engines that cost no time, trace and grading on. Its
resident memory is looked at while it checks the input, solves, and sums up; peak and CPU time are the system's own
account of the process. Prints a table and writes bench/results/memory.json.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import psutil

from bench.figures import RESULTS, ROOT, Results, begin, grid
from bench.runs import PROGRAM, reaped, say, write_problems

ENGINES = ROOT / "graphs/engines/sim-instant.yaml"
ENGINE = {"text": "{steps_mean: 3, step_tokens_mean: 12, answer_tokens: 12}", "kv_cache_tokens": "200000"}
"""Short thoughts, as making up simulated text would be most of the cost; and a prefix cache that is full after a thousand
problems, as it is kept in this process too."""
PROBLEM = "Tom has {} pens and buys 4 more. How many pens has he now?"
LOOK_EVERY_S = 0.2
PHASES = {"check": "while checking the input", "solve": "while solving", "sum up": "while summing up"}
MIB = 1 << 20


def table(results: Results) -> str:
    """A row for each run."""
    rows = []
    for row in results["results"]:
        sizes = (f"{size:.0f}" for size in (row["peak_mib"], *(row["most_mib"][phase] for phase in PHASES)))
        rows.append((row["graph"], f"{row['rows']:,}", *sizes, f"{row['cpu_us_per_problem']:,.0f}", f"{row['wall_s']:.0f}"))
    return grid(("graph", "problems", "peak MiB", *PHASES.values(), "CPU us a problem", "wall s"), rows)


def phase_of(folder: Path) -> str:
    """The phase of a run at the moment, by its folder."""
    try:
        status = json.loads((folder / "run.json").read_bytes())["status"]
    except (OSError, ValueError):
        return "check"
    return "solve" if status == "running" else "sum up"


def watch(process: "subprocess.Popen[bytes]", folder: Path) -> Iterator[tuple[str, int]]:
    """Phase and resident bytes, until the process has ended."""
    looked = psutil.Process(process.pid)
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        yield phase_of(folder), int(looked.memory_info().rss)
        time.sleep(LOOK_EVERY_S)


def measure(graph: str, problems: Path, rows: int, folder: Path) -> dict[str, Any]:
    """One run: memory in MiB, CPU time in microseconds a problem, wall time in seconds."""
    arguments = ["run", str(ROOT / f"graphs/{graph}.yaml"), "--engines", str(ENGINES), "--input", str(problems), "--output", str(folder)]
    for role in ("draft", "target"):
        arguments += [part for name, value in ENGINE.items() for part in ("--set", f"engines.{role}.{name}={value}")]
    most = dict.fromkeys(PHASES, 0.0)
    with folder.with_suffix(".log").open("wb") as log:
        started = time.monotonic()
        process = subprocess.Popen([*PROGRAM, *arguments, "--json"], cwd=ROOT, stdout=log, stderr=log)
        for phase, size in watch(process, folder):
            most[phase] = max(most[phase], size / MIB)
        took = reaped(process, started)
    cost = {"cpu_us_per_problem": 1e6 * took["cpu_s"] / rows, "wall_s": took["wall_s"]}
    return {"graph": graph, "rows": rows, "peak_mib": took["peak_mib"], "most_mib": most, **cost}


def _sizes(graph: str, rows: str) -> tuple[str, list[int]]:
    name, _, own = graph.partition(":")
    return name, [int(size) for size in (own or rows).split(",")]


@click.command()
@click.option("--rows", default="10000,100000,1000000", show_default=True, help="Problems of each run, separated by commas.")
@click.option("--graph", "graphs", multiple=True, default=("target", "speccot:10000,100000"), show_default=True, metavar="NAME[:ROWS]")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / RESULTS / "memory.json")
def main(rows: str, graphs: tuple[str, ...], output: Path) -> None:
    """Print memory and CPU time against the number of problems."""
    recording, results = begin(__file__), []
    for graph, sizes in (_sizes(graph, rows) for graph in graphs):
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                problems = write_problems(Path(folder) / "problems.parquet", size, PROBLEM)
                row = measure(graph, problems, size, Path(folder) / "run")
            results.append(row)
            say(f"{graph}, {size:,} problems: {row['peak_mib']:.0f} MiB, {row['wall_s']:.0f} s")
    click.echo(table(recording.write(output, {"bench": "memory", "results": results})))


if __name__ == "__main__":
    main()
