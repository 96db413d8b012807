"""How large may a run be for `pipeline report`? Time, memory and file size against the number of calls, and the page in a browser.

    python -m bench.cost.report [--calls 10000,100000,1000000]
    python -m bench.cost.report --chains 100000

Traces are those of one simulated run of SpecCoT, repeated one after the other under new names until there are as many calls.
Every report is the command in a process of its own; peak memory is the system's account of it. Where there is a Chromium, the
page is opened in it, without a GPU: until it has loaded, until the plot of chains is painted, until a chain is open. With
`--chains` a simulated run of that many chains is made by the command, SIMULATED, and its report. Prints a table and writes
bench/results/report.json or study.json.
"""

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from bench.figures import RESULTS, ROOT, Results, begin, grid
from bench.runs import PROGRAM, say, spent, whole, write_problems
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from pipeline.store.parts import Label, Part
from pipeline.store.read import count_rows, read_whole

CHAINS, BATCH_SIZE = 1000, 64
ENGINES = "sim-2xh100"
NAMES, INSTANTS = ("problem_id", "chain_id", "request_id"), ("submit_unix_ns", "start_unix_ns", "end_unix_ns")
DRAWN = "place => place.calcdata && place.calcdata.length > 0"
PAINTED = "async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); }"


def table(results: Results) -> str:
    """A row for each report, or for a run and its report."""
    if results["bench"] == "study":
        return _study(results)
    columns = ("calls", "seconds", "CPU s", "peak MiB", "file MB", "page loaded s", "chains painted s", "a chain opened s")
    timed = ("load_s", "chains_painted_s", "chain_open_s")
    rows = []
    for row in results["results"]:
        took = (f"{row['report_s']:.1f}", f"{row['cpu_s']:.1f}", f"{row['peak_mib']:.0f}", f"{row['file_mb']:.1f}")
        rows.append((f"{row['calls']:,}", *took, *(f"{row[name]:.1f}" if name in row else "-" for name in timed)))
    return grid(columns, rows)


def _study(results: Results) -> str:
    rows = [
        (name, f"{row['wall_s']:,.0f}", f"{row['cpu_s']:,.0f}", f"{row['peak_mib']:.0f}", f"{row['load']:.1f}")
        for name, row in (("run", results["run"]), ("report", results["report"]))
    ]
    work = f"{results['problems']:,} chains of {results['graph']} on {results['engines']}, batch size {results['batch_size']}"
    made = f"{results['calls']:,} calls, {results['simulated_s'] / 3600:.1f} simulated hours, {results['parquet_bytes'] / 2**20:,.0f} MiB"
    cost = f"{1e3 * results['run']['cpu_s'] / results['problems']:.0f} ms of CPU a chain"
    return f"**Simulated**: {work}; {made}; {cost}\n\n" + grid(("", "wall s", "CPU s", "peak MiB", "load"), rows)


def seed_run(folder: Path) -> Path:
    """One simulated run of `CHAINS` chains."""
    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml",
        engines=ROOT / f"graphs/engines/{ENGINES}.yaml",
        input=write_problems(folder / "problems.parquet", CHAINS),
        output=folder / "seed",
        batch_size=BATCH_SIZE,
    )
    return whole(run(options)).folder


def repeated(seed: Path, folder: Path, copies: int) -> int:
    """Write the run `seed` `copies` times, one after the other, as one run; the number of its calls."""
    card = json.loads((seed / "run.json").read_bytes())
    length = card["ended_unix_ns"] - card["started_unix_ns"] + 1
    for name in ("calls", "steps", "chains"):
        rows = pa.Table.from_batches(read_whole(seed, name)).replace_schema_metadata(None)
        (folder / name).mkdir(parents=True)
        for copy in range(copies):
            label = Label(card["folder_id"], name, copy, 0)
            part = Part(folder / name / f"part-{copy:05}.parquet", label.put_on(rows.schema))
            for batch in _copy(rows, copy, length).combine_chunks().to_batches(8192):
                part.add(batch)
            part.finish()
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
    ended = card["started_unix_ns"] + copies * length
    counts = {
        role: {name: value * copies if type(value) is int else value for name, value in each.items()}
        for role, each in card["engine_statistics"].items()
    }
    ends = {"ended_unix_ns": ended, "wall_time_s": copies * length / 1e9, "engine_statistics": counts}
    return card | ends | {"sessions": [card["sessions"][0] | ends]}


def report(folder: Path) -> dict[str, float]:
    """Make the report of `folder`: seconds, MiB of memory, MB of file."""
    took, _ = spent([*PROGRAM, "report", str(folder)])
    size = (folder / "report.html").stat().st_size / 1e6
    return {"report_s": took["wall_s"], "cpu_s": took["cpu_s"], "peak_mib": took["peak_mib"], "file_mb": size}


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


def study(folder: Path, chains: int) -> dict[str, Any]:
    """A simulated run of `chains` chains and its report, whole programs."""
    data, out, batch_size = write_problems(folder / "problems.parquet", chains), folder / "run", 128
    files = ["graphs/speccot.yaml", "--engines", f"graphs/engines/{ENGINES}.yaml", "--input", str(data), "--output", str(out)]
    solved, printed = spent([*PROGRAM, "run", *files, "--batch-size", str(batch_size), "--json"])
    written = sum(path.stat().st_size for path in out.rglob("*.parquet"))
    reported, _ = spent([*PROGRAM, "report", str(out)])
    summary: dict[str, Any] = json.loads(printed)
    settings = {"problems": chains, "graph": "speccot", "engines": ENGINES, "batch_size": batch_size}
    calls = sum(stage["calls"] for stage in summary["stages"].values())
    found = {"calls": calls, "parquet_bytes": written, "simulated_s": summary["wall_time_s"], "run": solved, "report": reported}
    return {"bench": "study", **settings, **found}


@click.command()
@click.option("--calls", default="10000,100000,1000000", show_default=True, help="Calls of each trace, about, separated by commas.")
@click.option("--chains", type=click.IntRange(1), help="Make a simulated run of that many chains instead.")
@click.option("--output", type=click.Path(path_type=Path), help="By default bench/results/report.json or study.json.")
def main(calls: str, chains: int | None, output: Path | None) -> None:
    """Print what a report costs."""
    recording, output = begin(__file__), output or ROOT / RESULTS / f"{'study' if chains else 'report'}.json"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if chains:
            click.echo(table(recording.write(output, study(folder, chains))))
            return
        seed, results = seed_run(folder), []
        each = count_rows(seed, "calls")
        for wanted in map(int, calls.split(",")):
            place = folder / str(wanted)
            row = {"calls": repeated(seed, place, max(1, round(wanted / each))), **report(place)}
            results.append(row | browse(place / "report.html"))
            say(f"{row['calls']:,} calls: {row['report_s']:.1f} s")
            shutil.rmtree(place)
    click.echo(table(recording.write(output, {"bench": "report", "results": results})))


if __name__ == "__main__":
    main()
