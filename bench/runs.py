"""Runs and commands that the scripts of this folder measure: problems for simulated models, runs that are made once, processes."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import click
import pyarrow as pa
import pyarrow.parquet as pq

from bench.figures import ROOT
from pipeline.analysis.curves import Measured, read_points
from pipeline.engines.sim.text import sim_answer
from pipeline.run.run import Observer, SessionResult
from pipeline.store.run_file import RunFile
from pipeline.study.points import Point, plan_sweep
from pipeline.study.run import SweepResult, carry_out
from pipeline.study.systems import Matrix

R = TypeVar("R", SessionResult, SweepResult)
ARITH = ROOT / "datasets/arith/test.parquet"


def write_problems(path: Path, rows: int, text: str = "Simulated problem {}.") -> Path:
    """A Parquet file of problems of which simulated models know the answers, in row groups of a usual size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, pa.schema({"problem": pa.string(), "answer": pa.string()})) as writer:
        for start in range(0, rows, 50_000):
            texts = [text.format(i) for i in range(start, min(rows, start + 50_000))]
            writer.write_table(pa.table({"problem": texts, "answer": [sim_answer(each) for each in texts]}))
    return path


def whole(result: R, name: str = "") -> R:
    """`result`, where every chain of the run or sweep is done. Raises `click.ClickException` where chains failed: the time of dead chains
    is no speed, and their answers are no accuracy; and the error that ended it early."""
    if result.error is not None:
        raise result.error
    if result.failed:
        raise click.ClickException(f"{name or result.folder}: {result.failed} chains failed; no figure is made of such a run")
    return result


def swept(matrix: Matrix, name: str) -> list[Measured]:
    """All points of a sweep, called `name`, also from earlier starts."""

    def done(number: int, planned: int, point: Point, run: RunFile) -> None:
        say(f"{name} {number}/{planned}: {point.label.curve}, batch size {point.label.batch_size}, {run.wall_time_s:.1f} s")

    return read_points(whole(carry_out(plan_sweep(matrix), Observer(tell=say), done), name).folder)[""]


def spent(command: Sequence[str]) -> tuple[dict[str, float], str]:
    """Run a command that must succeed: its seconds, CPU seconds, peak memory and the load at its end, and what it printed."""
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)[:200]} ended with {process.returncode}")
    took = {"wall_s": time.monotonic() - started, "cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}
    return took | {"load": os.getloadavg()[0]}, printed


def say(line: str) -> None:
    """Tell how far a measurement is."""
    click.echo(f"  {line}", err=True)
