"""How long does it take to study a long trace, and in how much memory? On two cores.

    python -m bench.cost.analysis

A simulated run of SpecCoT is repeated, one after the other under new names, until there are about a million calls (making the trace is not
timed). Then it is summarized, each time in another process. `seconds` times the summary; CPU and memory are of the process. Writes
bench/results/analysis.json.
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

import pyarrow as pa
import pyarrow.compute as pc

from bench.figures import ROOT, TRIAL, Results, begin, grid
from bench.runs import say, spent, whole, write_problems
from pipeline.analysis.summary import summarize
from pipeline.options import RunOptions
from pipeline.run.run import run
from pipeline.store.store import count_rows, labelled, read_batches, write_part

CALLS, REPEATS = (10_000, 1) if TRIAL else (1_000_000, 3)
CORES = 2
CHAINS = 100 if TRIAL else 1000
NAMES, INSTANTS = ("problem_id", "chain_id", "request_id"), ("submit_unix_ns", "start_unix_ns", "end_unix_ns")


def table(results: Results) -> str:
    """The result as a row of the page."""
    rows = [(row["system"], f"{row['work_s']:.1f}", f"{row['cpu_s']:.1f}", f"{row['peak_mib']:,.0f}") for row in results["results"]]
    runs = [each for row in results["results"] for each in row["runs"]]
    loads = [each["load"] for each in runs]
    return (
        f"{results['calls']:,} calls, {results['bytes'] / 2**20:,.0f} MiB; medians of {len(runs)} processes, "
        f"load {min(loads):.1f} to {max(loads):.1f}, their own included.\n\n" + grid(("", "seconds", "CPU s", "peak MiB"), rows)
    )


def seed_run(folder: Path) -> Path:
    """One simulated run of `CHAINS` chains."""
    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml",
        engines=ROOT / "graphs/engines/sim-2xh100.yaml",
        input=(str(write_problems(folder / "problems.parquet", CHAINS)),),
        output=folder / "seed",
        batch_size=64,
    )
    return whole(run(options)).folder


def repeated(seed: Path, folder: Path, copies: int) -> int:
    """Write the run `seed` `copies` times, one after the other, as one run; the number of its calls."""
    card = json.loads((seed / "run.json").read_bytes())
    length = card["sessions"][0]["ended_unix_ns"] - card["sessions"][0]["started_unix_ns"] + 1
    for name in ("calls", "steps", "chains"):
        rows = pa.Table.from_batches(read_batches(seed, name)).replace_schema_metadata(None)
        (folder / name).mkdir(parents=True)
        for copy in range(copies):
            copied = _copy(rows, copy, length).cast(labelled(rows.schema, card["folder_id"]))
            write_part(folder / name / f"part-{copy:05}.parquet", copied.combine_chunks())
    (folder / "run.json").write_text(json.dumps(_longer(card, copies, length)))
    return count_rows(folder, "calls")


def _copy(table: pa.Table, copy: int, length: int) -> pa.Table:
    for name in {*NAMES, *INSTANTS, "input_row"} & set(table.column_names):
        column = table[name]
        if name in NAMES:
            column = pc.binary_join_element_wise(str(copy), column, "-")
        else:
            column = pc.add(column, copy * (CHAINS if name == "input_row" else length))
        table = table.set_column(table.column_names.index(name), table.schema.field(name), column)
    return table


def _longer(card: dict[str, Any], copies: int, length: int) -> dict[str, Any]:
    [session] = card["sessions"]
    counts = {
        role: {name: value * copies if type(value) is int else value for name, value in each.items()}
        for role, each in session["engine_statistics"].items()
    }
    ended = session["started_unix_ns"] + copies * length
    return card | {"sessions": [session | {"ended_unix_ns": ended, "engine_statistics": counts}]}


def make_trace(folder: Path) -> None:
    """A run of about `CALLS` calls, for a process of its own: a child's peak memory begins with its parent's."""
    with tempfile.TemporaryDirectory() as seed:
        first = seed_run(Path(seed))
        repeated(first, folder, max(1, round(CALLS / count_rows(first, "calls"))))


def work(run: Path) -> None:
    """The work of one measured process: prints its seconds."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    started = time.perf_counter()
    summarize(run)
    print(json.dumps(time.perf_counter() - started))


def measure(run: Path) -> dict[str, Any]:
    """One process: seconds, CPU seconds, MiB."""
    took, printed = spent([sys.executable, "-m", "bench.cost.analysis", str(run)])
    return {"work_s": float(printed), **took}


def main() -> None:
    """Measure; with the path of a run as argument be one of the processes that are measured."""
    if sys.argv[1:]:
        work(Path(sys.argv[1]))
        return
    recording = begin(__file__)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with ProcessPoolExecutor(1, get_context("spawn")) as writer:
            writer.submit(make_trace, run).result()
        written, size = count_rows(run, "calls"), sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
        say(f"{written:,} calls, {size / (1 << 20):.0f} MiB")
        _, *found = [measure(run) for _ in range(REPEATS + 1)]  # the first one reads the files from disk
    row = {key: statistics.median(each[key] for each in found) for key in ("work_s", "cpu_s", "peak_mib")}
    facts = {"calls": written, "bytes": size, "cores": CORES}
    recording.write("analysis", {"bench": "analysis", **facts, "results": [{"system": "pipeline", **row, "runs": found}]})


if __name__ == "__main__":
    main()
