"""How well does `pipeline plan` predict, from a pilot, what a full run takes, and does it choose the fastest?

    python -m bench.plan [--limit 100] [--pilot 40] [--batch-sizes 4,16,48] [--repeats 2] [--engines tiny]

The pilot first, then every configuration in full, on the same engines, as often as `--repeats` says: how far these runs are apart is the
error that no plan can be below. Only a machine without other work says something of the plan: the script ends where the load is above 1
before it begins. Prints, and writes bench/results/plan.json.
"""

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from bench.figures import RESULTS, ROOT, Results, begin, grid, percent
from bench.runs import ARITH, whole
from pipeline.planning.plan import PlanFile, PlanOptions, make_plan
from pipeline.session.observer import Observer
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.sweep import sweep

GRAPHS = ("speccot", "specreason")
VARY: dict[str, tuple[str, ...]] = {"candidates": ("2", "5")}
QUIET = 1.0
"""Highest load average at which it is measured."""


def table(results: Results) -> str:
    """Predicted and recorded seconds of each configuration, and how far they are apart."""
    rows = [
        (
            row["system"],
            str(row["batch_size"]),
            f"{row['predicted_s']:.1f}{' or more' if row['bounded'] else ''}",
            " and ".join(f"{each:.1f}" for each in row["runs_s"]),
            "" if row["bounded"] else percent(row["error"]),
        )
        for row in results["results"]
    ]
    found = grid(("system", "batch size", "predicted, s", "recorded, s", "error"), rows)
    bounded = [row for row in rows if not row[4]]
    said = (
        f"Median error {percent(results['median_error'])} over those that are simulated, {len(rows) - len(bounded)} of {len(rows)}. Bounds "
        f"above what was recorded: {results['wrong_bounds']} of {len(bounded)}. Place of the fastest in the prediction: "
        f"{results['rank_of_fastest']}. The fitted times of calls are off by {percent(results['fit_error'])}; the {results['repeats']} "
        f"runs of a configuration differ by {percent(results['spread'])} in the median. "
        f"The load was {results['load'][0]} before the pilot, {results['load'][1]} after the last run. "
        f"Planned in {results['plan_s']:.0f} s."
    )
    return f"{found}\n\n{said}"


@click.command()
@click.option("--limit", default=100, show_default=True, help="Problems of the full runs.")
@click.option("--pilot", default=40, show_default=True, help="Problems of the pilot.")
@click.option("--batch-sizes", default="4,16,48", show_default=True)
@click.option("--repeats", default=2, show_default=True, help="Full runs of each configuration.")
@click.option("--engines", default="tiny", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "build/plan", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / RESULTS / "plan.json", show_default=True)
def main(limit: int, pilot: int, batch_sizes: str, repeats: int, engines: str, folder: Path, output: Path) -> None:
    """Plan, run all, compare."""
    recording = begin(__file__)
    if (load := recording.measured["load"]) > QUIET:
        raise click.ClickException(f"the load is {load}; repeat this on a machine without other work, where it is {QUIET:g} at most")
    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} has an earlier pilot, of which it is not known under what load it ran: remove it")
    sizes = tuple(int(each) for each in batch_sizes.split(","))
    graphs = tuple(ROOT / f"graphs/{name}.yaml" for name in GRAPHS)
    given = SweepOptions(
        graphs=graphs,
        input=ARITH,
        engines=(Path(engines),),
        batch_sizes=sizes,
        vary=VARY,
        limit=limit,
        repeats=repeats,
        warm_up=8,
        variants=(),
    )
    observer = Observer(tell=click.echo)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    plan = make_plan(PlanOptions(sweep=given, folder=folder, pilot=pilot), observer)
    plan_s = time.perf_counter() - began
    full = folder / "full"
    recorded: dict[tuple[str, int], list[float]] = {}
    for point in whole(sweep(structs.replace(given, output=full), observer)).points:
        recorded.setdefault((point.system, point.batch_size), []).append(point.wall_s)
    rows = list(_rows(plan, recorded))
    fastest = min(rows, key=lambda row: row["recorded_s"])
    found = {
        "bench": "plan",
        "engines": engines,
        "problems": limit,
        "repeats": repeats,
        "load": [load, round(os.getloadavg()[0], 1)],
        "pilot": pilot,
        "results": rows,
        "median_error": statistics.median(row["error"] for row in rows if not row["bounded"]),
        "wrong_bounds": sum(row["bounded"] and row["predicted_s"] > row["recorded_s"] for row in rows),
        "spread": statistics.median(max(row["runs_s"]) / min(row["runs_s"]) - 1 for row in rows),
        "fit_error": max(plan.fit_errors.values(), default=None),
        "rank_of_fastest": 1 + rows.index(fastest),
        "plan_s": plan_s,
        "corrections": plan.corrections,
    }
    click.echo(table(recording.write(output, found)))


def _rows(plan: PlanFile, recorded: Mapping[tuple[str, int], Sequence[float]]) -> Iterator[dict[str, Any]]:
    """The configurations in the plan's order; `recorded` are their seconds in each run, of which the median counts."""
    for each in plan.configurations:
        seconds, runs_s = each.at_least_s if each.estimate is None else each.estimate.seconds, recorded[each.system, each.batch_size]
        wall_s = statistics.median(runs_s)
        row = {"system": each.system, "batch_size": each.batch_size, "predicted_s": seconds, "recorded_s": wall_s, "runs_s": runs_s}
        yield row | {"bounded": each.estimate is None, "error": abs(seconds / wall_s - 1)}


if __name__ == "__main__":
    main()
