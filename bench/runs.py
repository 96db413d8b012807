"""Runs and commands that the scripts of this folder measure: problems for simulated models, runs that are made once, processes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import click
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from bench.figures import ROOT
from pipeline.analysis.points import Point
from pipeline.engines.sim.text import sim_answer
from pipeline.session.observer import Observer
from pipeline.session.options import RunOptions
from pipeline.session.prepare import load_plan
from pipeline.session.run import SessionResult, run
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.sweep import SweepResult, sweep

R = TypeVar("R", SessionResult, SweepResult)
PROGRAM = (sys.executable, "-c", "from pipeline.cli.main import main; main()")
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


def make(options: RunOptions, name: str) -> None:
    """Make the run of `options`, called `name`, unless it is in its folder, whole; what else is there is removed."""
    if is_finished(options):
        return
    assert options.output is not None
    shutil.rmtree(options.output, ignore_errors=True)
    say(name)
    whole(run(options), name)


def swept(options: SweepOptions, name: str) -> list[Point]:
    """All points of the sweep of `options`, called `name`, those of earlier starts included."""

    def done(number: int, planned: int, point: Point) -> None:
        say(f"{name} {number}/{planned}: {point.curve}, batch size {point.batch_size}, {point.wall_s:.1f} s")

    return whole(sweep(options, Observer(tell=say), done), name).points


def is_finished(options: RunOptions) -> bool:
    """True if this very run is in its folder, whole."""
    assert options.output is not None
    try:
        card = msgspec.json.decode((options.output / "run.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    decided = {"batch_size": options.batch_size, "samples": options.samples, "seed": options.seed, "status": "finished"}
    same_graph = card["graph_digest"] == load_plan(options.graph, options.engines, options.settings).digest
    return same_graph and card["input"]["limit"] == options.limit and all(card[name] == value for name, value in decided.items())


def spent(command: Sequence[str], **environment: str) -> tuple[dict[str, float], str]:
    """Run a command that must succeed: its seconds, CPU seconds, peak memory and the load at its end, and what it printed."""
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | environment)
    assert process.stdout is not None
    printed = process.stdout.read().decode()
    return reaped(process, started), printed


def reaped(process: "subprocess.Popen[bytes]", started: float) -> dict[str, float]:
    """Wait for a process that must succeed; what it took by the system's account of it."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{' '.join(map(str, process.args))[:200]} ended with {process.returncode}")  # type: ignore[arg-type]
    took = {"wall_s": time.monotonic() - started, "cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}
    return took | {"load": os.getloadavg()[0]}


def say(line: str) -> None:
    """Tell how far a measurement is."""
    click.echo(f"  {line}", err=True)
