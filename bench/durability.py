"""What does it cost that rows are durable within two seconds? The trace with its write-ahead files against one without.

    python bench/durability.py [--rows 200000] [--at-once 1024,64] [--limit 200] [--rounds 4]

First whole runs, with and without at the same time on the same cores, so that whatever else the machine does slows both; then
the rows of such a run again and again, straight into a store, with and without in turns. "Without" is the same store over
write-ahead files that take nothing. Prints tables and writes bench/results/durability.json.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pyarrow as pa
from msgspec import Struct
from recording import begin
from tables import durability as table

from pipeline.session.options import RunOptions
from pipeline.session.run import run
from pipeline.trace.store import TraceStore
from pipeline.trace.wal import Wal

ROOT = Path(__file__).parent.parent


class NoWal:
    """A write-ahead file that takes nothing."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path

    def append(self, batch: pa.RecordBatch) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...

    def remove(self) -> None: ...


class CountingWal(Wal):
    """A write-ahead file that says how much it took."""

    taken = syncs = 0

    def sync(self) -> None:
        super().sync()
        CountingWal.syncs += 1

    def remove(self) -> None:
        CountingWal.taken += self.path.stat().st_size
        super().remove()


class Kept(TraceStore):
    """A store that keeps its rows."""

    rows: dict[str, list[Struct]]

    def append(self, table: str, rows: Sequence[Struct]) -> None:
        super().append(table, rows)
        self.rows.setdefault(table, []).extend(rows)


def written_by(kind: str) -> AbstractContextManager[Any]:
    """The program with or without write-ahead files."""
    return patch("pipeline.trace.store.Wal", {"with": CountingWal, "without": NoWal}[kind])


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder on the disk of the repository: `/tmp` may be memory."""
    place = ROOT / "build"
    place.mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="durability-", dir=place)


def solve(kind: str, limit: int) -> dict[str, float]:
    """One run of the bundled pair, in a folder on this disk."""
    graph, problems = ROOT / "graphs/speccot.yaml", ROOT / "datasets/arith/test.parquet"
    with scratch() as folder, written_by(kind):
        result = run(RunOptions(graph=graph, input=problems, limit=limit, output=Path(folder) / "run"))
    assert result.exit_code == 0, result.error
    assert result.run.wall_time_s
    assert result.run.orchestrator_cpu_s
    return {"problems_per_s": result.done / result.run.wall_time_s, "cpu_s": result.run.orchestrator_cpu_s}


def rounds(limit: int, count: int) -> Iterator[dict[str, Any]]:
    """Throughput of both, side by side; who is started first alternates."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for number in range(count):
            kinds = ("with", "without")[:: 1 if number % 2 else -1]
            row: dict[str, Any] = dict(zip(kinds, pool.map(solve, kinds, [limit, limit]), strict=True))
            yield row | {"ratio": row["with"]["problems_per_s"] / row["without"]["problems_per_s"]}


def kept_rows(limit: int) -> dict[str, list[Struct]]:
    """The rows of one run."""
    Kept.rows = {}
    with patch("pipeline.session.execute.TraceStore", Kept):
        solve("with", limit)
    return Kept.rows


def refill(table: str, rows: Sequence[Struct], at_once: int, kind: str) -> dict[str, float]:
    """Seconds, CPU seconds and bytes of `rows` into a new folder, so many with each `append`."""
    CountingWal.taken = CountingWal.syncs = 0
    with scratch() as folder, written_by(kind):
        wall, cpu = time.perf_counter(), time.process_time()
        store = TraceStore(Path(folder))
        slowest = 0.0
        for start in range(0, len(rows), at_once):
            began = time.perf_counter()
            store.append(table, rows[start : start + at_once])
            slowest = max(slowest, time.perf_counter() - began)
        store.close()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        parts = sum(part.stat().st_size for part in (Path(folder) / table).iterdir())
    each = 1e6 / len(rows)
    return {
        "us": wall * each,
        "cpu_us": cpu * each,
        "wal_bytes": CountingWal.taken / len(rows),
        "part_bytes": parts / len(rows),
        "syncs": CountingWal.syncs,
        "slowest_append_s": slowest,
    }


def refills(rows: dict[str, list[Struct]], count: int, sizes: Sequence[int], repeats: int) -> Iterator[dict[str, Any]]:
    """Medians for each table and size of an append, with and without in turns."""
    for name in ("calls", "steps", "chains"):
        many = list(islice(cycle(rows[name]), count))
        for at_once in sizes:
            found: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
            for _ in range(repeats):
                for kind, results in found.items():
                    results.append(refill(name, many, at_once, kind))
            plain = refill(name, rows[name], at_once, "without")["part_bytes"]  # repeated rows would make smaller parts
            medians = {kind: {key: statistics.median(r[key] for r in results) for key in results[0]} for kind, results in found.items()}
            yield {"table": name, "rows": count, "at_once": at_once, "part_bytes": plain} | medians


@click.command()
@click.option("--rows", default=200_000, show_default=True)
@click.option("--at-once", default="1024,64", show_default=True, help="Rows of one append, separated by commas.")
@click.option("--limit", default=200, show_default=True, help="Problems of a run.")
@click.option("--rounds", "count", type=click.IntRange(1), default=4, show_default=True, help="Pairs of runs.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "bench/results/durability.json")
def main(rows: int, at_once: str, limit: int, count: int, repeats: int, output: Path) -> None:
    """Print throughput and cost per row."""
    recording = begin(__file__)
    kept = kept_rows(limit)
    runs = []
    for row in rounds(limit, count):
        runs.append(row)
        click.echo(f"  with over without: {row['ratio']:.3f}", err=True)
    refilled = list(refills(kept, rows, [int(size) for size in at_once.split(",")], repeats))
    click.echo(table(recording.write(output, {"bench": "durability", "runs": runs, "rows": refilled})))


if __name__ == "__main__":
    main()
