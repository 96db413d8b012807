"""How long does a study of 100,000 chains on simulated accelerators take? A run and its report, whole programs.

    python bench/study.py [--problems 100000] [--graph speccot] [--engines sim-2xh100] [--batch-size 128]

SIMULATED. `pipeline run` solves as many simulated problems on virtual time, with trace and grading on, then `pipeline report`
makes the page of it, each in a process of its own; seconds, CPU seconds and peak memory are the system's account of them.
Prints a table and writes bench/results/study.json.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from memory import PROGRAM, ROOT, write_problems
from recording import begin
from tables import study as table


def measure(*arguments: str) -> tuple[dict[str, float], str]:
    """One command: what it took, and what it printed."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"pipeline {arguments[0]} ended with {process.returncode}")
    spent = {"wall_s": time.monotonic() - started, "cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}
    return spent | {"load": os.getloadavg()[0]}, printed


@click.command()
@click.option("--problems", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--graph", default="speccot", show_default=True, help="Name of one of graphs/.")
@click.option("--engines", default="sim-2xh100", show_default=True, help="Name of one of graphs/engines/.")
@click.option("--batch-size", type=click.IntRange(1), default=128, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "bench/results/study.json")
def main(problems: int, graph: str, engines: str, batch_size: int, output: Path) -> None:
    """Print what a long simulated run and its report take."""
    recording = begin(__file__)
    with tempfile.TemporaryDirectory() as folder:
        data, run = Path(folder) / "problems.parquet", Path(folder) / "run"
        write_problems(data, problems)
        files = [f"graphs/{graph}.yaml", "--engines", f"graphs/engines/{engines}.yaml", "--input", str(data), "--output", str(run)]
        solved, printed = measure("run", *files, "--batch-size", str(batch_size), "--json")
        written = sum(path.stat().st_size for path in run.rglob("*.parquet"))
        reported, _ = measure("report", str(run))
    summary: dict[str, Any] = json.loads(printed)
    calls = sum(stage["calls"] for stage in summary["stages"].values())
    settings = {"problems": problems, "graph": graph, "engines": engines, "batch_size": batch_size}
    found = {"calls": calls, "parquet_bytes": written, "simulated_s": summary["wall_time_s"], "run": solved, "report": reported}
    click.echo(table(recording.write(output, {"bench": "study", **settings, **found})))


if __name__ == "__main__":
    main()
