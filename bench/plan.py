"""How well does `pipeline plan` predict, from a pilot, what a full run takes, and does it choose the fastest?

    python bench/plan.py [--limit 100] [--pilot 40] [--batch-sizes 4,16,48] [--engines tiny]

The pilot first, then every configuration in full, on the same engines; prints, and writes bench/results/plan.json.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import click
from figures import RESULTS, ROOT, Results, begin, grid, percent
from runs import ARITH, whole

from pipeline.planning.plan import PlanOptions, make_plan
from pipeline.session.observer import Observer
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.sweep import sweep

GRAPHS = ("speccot", "specreason")
VARY = {"candidates": ("2", "5")}
FIRST = 2
"""The fastest should be among this many that are predicted to be fastest."""


def table(results: Results) -> str:
    """Predicted and recorded seconds of each configuration, and how far they are apart."""
    rows = [
        (row["system"], str(row["batch_size"]), f"{row['predicted_s']:.1f}", f"{row['recorded_s']:.1f}", percent(row["error"]))
        for row in results["results"]
    ]
    found = grid(("system", "batch size", "predicted, s", "recorded, s", "error"), rows)
    inside = f"the fastest is predicted to be number {results['rank_of_fastest']}"
    said = f"Median error {percent(results['median_error'])} over {len(results['results'])} configurations; {inside}."
    return f"{found}\n\n{said} Planned in {results['plan_s']:.0f} s."


@click.command()
@click.option("--limit", default=100, show_default=True, help="Problems of the full runs.")
@click.option("--pilot", default=40, show_default=True, help="Problems of the pilot.")
@click.option("--batch-sizes", default="4,16,48", show_default=True)
@click.option("--engines", default="tiny", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "build/plan", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / RESULTS / "plan.json", show_default=True)
def main(limit: int, pilot: int, batch_sizes: str, engines: str, folder: Path, output: Path) -> None:
    """Plan, run all, compare."""
    recording = begin(__file__)
    sizes = tuple(int(each) for each in batch_sizes.split(","))
    graphs = tuple(ROOT / f"graphs/{name}.yaml" for name in GRAPHS)
    given = SweepOptions(
        graphs=graphs, input=ARITH, engines=(Path(engines),), batch_sizes=sizes, vary=VARY, limit=limit, repeats=1, warm_up=8, variants=()
    )
    observer = Observer(tell=click.echo)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    plan = make_plan(PlanOptions(sweep=given, folder=folder, pilot=pilot), observer)
    plan_s = time.perf_counter() - began
    full = folder / "full"
    points = whole(
        sweep(SweepOptions(**{name: getattr(given, name) for name in given.__struct_fields__} | {"output": full}), observer)
    ).points
    recorded = {(point.system, point.batch_size): point.wall_s for point in points}
    rows: list[dict[str, Any]] = []
    for each in plan.configurations:
        seconds = each.at_least_s if each.estimate is None else each.estimate.seconds
        wall_s = recorded[each.system, each.batch_size]
        row = {"system": each.system, "batch_size": each.batch_size, "predicted_s": seconds, "recorded_s": wall_s}
        rows.append(row | {"bounded": each.estimate is None, "error": abs(seconds / wall_s - 1)})
    fastest = min(rows, key=lambda row: row["recorded_s"])
    found = {
        "bench": "plan",
        "engines": engines,
        "problems": limit,
        "pilot": pilot,
        "results": rows,
        "median_error": statistics.median(row["error"] for row in rows if not row["bounded"]),
        "rank_of_fastest": 1 + rows.index(fastest),
        "plan_s": plan_s,
        "corrections": plan.corrections,
    }
    click.echo(table(recording.write(output, found)))


if __name__ == "__main__":
    main()
