"""How long does it take to study a long trace, and in how much memory? This package against pandas and DuckDB, on two cores.

    python bench/analysis.py [--calls 10000000] [--live 12] [--repeats 3] [--trace FOLDER]

A trace of that many calls is made in a temporary folder (about 70 bytes a call; making it is not timed). Then each of the three
works out the figures of bench/analysis_rivals.py, in turns, each time in a process of its own that may use two cores; that the
figures agree is checked. `work` is the time of that, `process` that of the process with its imports, `load` the system's at its
end, its own share included. Ours is run once more with numba's cache empty: what CPU time that takes more is compiling. Prints
a table and writes bench/results/analysis.json.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
from analysis_rivals import Figures, in_duckdb, in_pandas, ours
from analysis_trace import write_trace
from recording import begin
from tables import analysis as table

from pipeline.store.read import count_rows

ROOT = Path(__file__).parent.parent
SYSTEMS: dict[str, Callable[[Path], Figures]] = {"pipeline": ours, "pandas": in_pandas, "duckdb": in_duckdb}
IMPORTS = {"pipeline": "pipeline.analysis.study", "pandas": "pandas", "duckdb": "duckdb"}
CORES = 2
PERCENTILE, OTHER = 1 / 100, 1e-6
"""Relative differences up to which figures agree: definitions of a percentile differ by one rank."""


def measure(system: str, run: Path, cache: Path) -> dict[str, Any]:
    """One process: seconds, CPU seconds, MiB, and its figures."""
    started = time.monotonic()
    command = [sys.executable, __file__, "--only", system, str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"NUMBA_CACHE_DIR": str(cache)})
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{system} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(printed)
    spent = {"process_s": time.monotonic() - started, "cpu_s": used.ru_utime + used.ru_stime, "load": os.getloadavg()[0]}
    return found | spent | {"peak_mib": used.ru_maxrss / 1024}


def work(system: str, run: Path) -> None:
    """What such a process does."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    import_module(IMPORTS[system])
    started = time.perf_counter()
    figures = SYSTEMS[system](run)
    print(json.dumps({"work_s": time.perf_counter() - started, "figures": figures}))


def differences(one: Figures, other: Figures) -> list[str]:
    """Figures in which two systems do not agree; a figure that is not there is 0."""
    found = []
    for name in sorted(one.keys() | other.keys()):
        here, there = one.get(name, 0.0), other.get(name, 0.0)
        allowed = PERCENTILE if name[:2] in ("p5", "p9") else OTHER
        if abs(here - there) > allowed * max(abs(here), abs(there)) + 1e-4:
            found.append(f"{name}: {here} and {there}")
    return found


def rows_of(run: Path, repeats: int, cache: Path) -> tuple[list[dict[str, Any]], float]:
    """A row for each system, medians of runs in turns, and the CPU seconds that compiling took ours."""
    cold = measure("pipeline", run, cache)
    runs: dict[str, list[dict[str, Any]]] = {system: [] for system in SYSTEMS}
    for _ in range(repeats):
        for system, found in runs.items():
            found.append(measure(system, run, cache))
            if flaws := differences(cold["figures"], found[-1].pop("figures")):
                raise click.ClickException(f"{system} differs: {'; '.join(flaws[:5])}")
    keys = ("work_s", "process_s", "cpu_s", "peak_mib")
    rows = [
        {"system": system, **{key: statistics.median(each[key] for each in found) for key in keys}, "runs": found}
        for system, found in runs.items()
    ]
    return rows, cold["cpu_s"] - rows[0]["cpu_s"]


@click.command()
@click.option("--calls", default=10_000_000, show_default=True, help="About so many.")
@click.option("--live", default=12, show_default=True, help="Chains that live at once.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--trace", type=click.Path(path_type=Path), help="Make the trace here, or use the one that is here, and keep it.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "bench/results/analysis.json")
@click.option("--only", nargs=2, metavar="SYSTEM FOLDER", help="Be one of the processes that are measured.")
def main(calls: int, live: int, repeats: int, trace: Path | None, output: Path, only: tuple[str, str] | None) -> None:
    """Print seconds and memory of each."""
    if only:
        work(only[0], Path(only[1]))
        return
    recording = begin(__file__)
    with tempfile.TemporaryDirectory() as folder:
        run = trace or Path(folder) / "run"
        if not run.exists():  # in a process of its own: a child's peak memory begins with its parent's
            with ProcessPoolExecutor(1, get_context("spawn")) as writer:
                writer.submit(write_trace, run, calls, live).result()
        written = count_rows(run, "calls")
        size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
        click.echo(f"{written:,} calls, {size / (1 << 20):.0f} MiB, load {os.getloadavg()[0]:.1f}")
        rows, compile_s = rows_of(run, repeats, Path(folder) / "cache")
    facts = {"calls": written, "bytes": size, "live": live, "cores": CORES, "compile_cpu_s": compile_s}
    click.echo(table(recording.write(output, {"bench": "analysis", **facts, "results": rows})))


if __name__ == "__main__":
    main()
