"""How long does it take to study a long trace, and in how much memory? On two cores.

    python -m bench.cost.analysis [--calls 10000000] [--repeats 3] [--trace FOLDER]

A simulated run is repeated until there are about that many calls (`report.py`; making the trace is not timed). `analyse` then works out
all of its figures, each time in a process of its own. `seconds` are those of that, CPU and memory those of the process. Prints a table
and writes bench/results/analysis.json.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from bench.cost.report import repeated, seed_run
from bench.figures import RESULTS, ROOT, Results, begin, grid
from bench.runs import say, spent
from pipeline.store.read import count_rows

CORES = 2


def table(results: Results) -> str:
    """One row."""
    rows = [(row["system"], f"{row['work_s']:.1f}", f"{row['cpu_s']:.1f}", f"{row['peak_mib']:,.0f}") for row in results["results"]]
    runs = [each for row in results["results"] for each in row["runs"]]
    loads = [each["load"] for each in runs]
    return (
        f"{results['calls']:,} calls, {results['bytes'] / 2**20:,.0f} MiB; medians of {len(runs)} processes, "
        f"load {min(loads):.1f} to {max(loads):.1f}, their own included.\n\n" + grid(("", "seconds", "CPU s", "peak MiB"), rows)
    )


def make_trace(folder: Path, calls: int) -> None:
    """A run of about `calls` calls, for a process of its own: a child's peak memory begins with its parent's."""
    with tempfile.TemporaryDirectory() as seed:
        run = seed_run(Path(seed))
        repeated(run, folder, max(1, round(calls / count_rows(run, "calls"))))


def measure(run: Path) -> dict[str, Any]:
    """One process: seconds, CPU seconds, MiB."""
    took, printed = spent([sys.executable, __file__, "--only", str(run)])
    return {"work_s": float(printed), **took}


def work(run: Path) -> None:
    """The work of one measured process: prints its seconds."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    from pipeline.analysis.study import analyse

    started = time.perf_counter()
    analyse(run)
    print(json.dumps(time.perf_counter() - started))


@click.command()
@click.option("--calls", default=10_000_000, show_default=True, help="The number of calls, about.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--trace", type=click.Path(path_type=Path), help="Make the trace here, or use the one that is here, and keep it.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / RESULTS / "analysis.json")
@click.option("--only", type=click.Path(path_type=Path), help="Be one of the processes that are measured, of this run.")
def main(calls: int, repeats: int, trace: Path | None, output: Path, only: Path | None) -> None:
    """Print seconds and memory."""
    if only:
        work(only)
        return
    recording = begin(__file__)
    with tempfile.TemporaryDirectory() as folder:
        run = trace or Path(folder) / "run"
        if not run.exists():
            with ProcessPoolExecutor(1, get_context("spawn")) as writer:
                writer.submit(make_trace, run, calls).result()
        written, size = count_rows(run, "calls"), sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
        say(f"{written:,} calls, {size / (1 << 20):.0f} MiB")
        _, *found = [measure(run) for _ in range(repeats + 1)]  # the first one reads the files from disk
    row = {key: statistics.median(each[key] for each in found) for key in ("work_s", "cpu_s", "peak_mib")}
    facts = {"calls": written, "bytes": size, "cores": CORES}
    click.echo(table(recording.write(output, {"bench": "analysis", **facts, "results": [{"system": "pipeline", **row, "runs": found}]})))


if __name__ == "__main__":
    main()
