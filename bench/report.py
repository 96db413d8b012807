"""How large may a run be for `pipeline report`? Time, memory and file size against the number of calls, and the page in a browser.

    python bench/report.py [--calls 10000,100000,1000000]

Traces are those of one simulated run of SpecCoT, repeated one after the other under new names until there are as many calls.
Every report is the command in a process of its own; peak memory is the system's account of it. Where there is a Chromium, the
page is opened in it, without a GPU: until it has loaded, until the plot of chains is painted, until a chain is open. Prints a table
and writes bench/results/report.json.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from recording import begin
from tables import report as table

from pipeline.session.options import RunOptions
from pipeline.session.run import run

ROOT = Path(__file__).parent.parent
PROGRAM = "from pipeline.cli.main import main; main()"
CHAINS, BATCH_SIZE = 1000, 64
NAMES, INSTANTS = ("problem_id", "chain_id", "request_id"), ("submit_unix_ns", "start_unix_ns", "end_unix_ns")
DRAWN = "place => place.calcdata && place.calcdata.length > 0"
PAINTED = "async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); }"


def seed_run(folder: Path) -> Path:
    """One simulated run of `CHAINS` chains."""
    lines = (json.dumps({"problem": f"Tom has {i} pens and buys 4. How many has he?", "answer": str(i + 4)}) for i in range(CHAINS))
    (folder / "problems.jsonl").write_text("\n".join(lines))
    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml",
        engines=ROOT / "graphs/engines/sim-2xh100.yaml",
        input=folder / "problems.jsonl",
        output=folder / "seed",
        batch_size=BATCH_SIZE,
    )
    if run(options).exit_code:
        raise click.ClickException("the simulated run failed")
    return folder / "seed"


def repeated(seed: Path, folder: Path, copies: int) -> int:
    """Write the run `seed` `copies` times, one after the other, as one run; how many calls that are."""
    card = json.loads((seed / "run.json").read_bytes())
    length = card["ended_unix_ns"] - card["started_unix_ns"] + 1
    calls = 0
    for name in ("calls", "steps", "chains"):
        table = pq.read_table(seed / name).replace_schema_metadata(None)  # which says of every part that it is the first
        (folder / name).mkdir(parents=True)
        for copy in range(copies):
            pq.write_table(_copy(table, copy, length), folder / name / f"part-{copy:05}.parquet", compression="zstd")
        calls = calls or table.num_rows * copies
    (folder / "run.json").write_text(json.dumps(_longer(card, copies, length)))
    return calls


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
    ended = card["started_unix_ns"] + copies * length
    counts = {
        role: {name: value * copies if type(value) is int else value for name, value in each.items()}
        for role, each in card["engine_statistics"].items()
    }
    ends = {"ended_unix_ns": ended, "wall_time_s": copies * length / 1e9, "engine_statistics": counts}
    return card | ends | {"sessions": [card["sessions"][0] | ends]}


def report(folder: Path) -> dict[str, float]:
    """Make the report of `folder`: seconds, MiB of memory, MB of file."""
    started = time.monotonic()
    command = [sys.executable, "-c", PROGRAM, "report", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or said:  # a notice says what it left out
        raise click.ClickException(f"the report ended with exit code {process.returncode} and said: {said.strip()}")
    return {
        "report_s": time.monotonic() - started,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024,
        "file_mb": (folder / "report.html").stat().st_size / 1e6,
    }


def browse(page_file: Path) -> dict[str, float]:
    """Seconds until the page has loaded, until its plot of chains is painted, and until a chain is open; nothing without Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return {}
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        software = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        browser = play.chromium.launch(executable_path=chromium, args=software)
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        started = time.monotonic()
        page.goto(page_file.as_uri())
        loaded = time.monotonic()
        place = page.query_selector("figure:has(figcaption:text('row each')) .plot")
        place.scroll_into_view_if_needed()
        page.wait_for_function(DRAWN, arg=place, timeout=120_000)
        page.evaluate(PAINTED)
        drawn = time.monotonic()
        page.click(".transcript > summary")
        page.wait_for_selector(".told")
        opened = time.monotonic()
        browser.close()
    return {"load_s": loaded - started, "chains_painted_s": drawn - loaded, "chain_open_s": opened - drawn}


@click.command()
@click.option("--calls", default="10000,100000,1000000", show_default=True, help="Calls of each trace, about, separated by commas.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "bench/results/report.json")
def main(calls: str, output: Path) -> None:
    """Print what a report costs."""
    recording, results = begin(__file__), []
    with tempfile.TemporaryDirectory() as folder:
        seed = seed_run(Path(folder))
        each = sum(pq.read_metadata(part).num_rows for part in (seed / "calls").glob("*.parquet"))
        for wanted in map(int, calls.split(",")):
            place = Path(folder) / str(wanted)
            row = {"calls": repeated(seed, place, max(1, round(wanted / each))), **report(place)}
            row |= browse(place / "report.html")
            results.append(row)
            click.echo(f"  {row['calls']:,} calls: {row['report_s']:.1f} s", err=True)
            shutil.rmtree(place)
    click.echo(table(recording.write(output, {"bench": "report", "results": results})))


if __name__ == "__main__":
    main()
