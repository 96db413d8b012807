"""What the papers' systems do with the bundled pair of models and on simulated machines, beside what the papers print.

    python -m bench.papers            about an hour on two quiet cores; `make build/inflated.yaml` first

The runs are those of the study bench/papers.yaml, kept in build/papers and continued when this is started again; a trial makes them in
their small form. Writes bench/results/papers.json and bench/papers.md.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from scipy.stats import t

from bench.figures import ROOT, TRIAL, Results, going_on, grid, origin, results_of
from bench.runs import say, whole, write_problems
from pipeline.analysis.compare import Comparison, Run, compare, read_runs
from pipeline.analysis.facts import stated
from pipeline.analysis.tables import plain
from pipeline.options import RunOptions
from pipeline.run.run import Observer
from pipeline.study.points import Point, Study
from pipeline.study.run import SweepResult, carry_out
from pipeline.study.study_file import read_study

STUDY = ROOT / "bench/papers.yaml"
COLUMNS = ("system", "accuracy", "tokens", "s a problem", "wall s", "speed-up", "= tokens", "x rate", "steps that fall back")
INTRODUCTION = """\
None of the papers' own models was run. What stands here was measured with toy models on a CPU (`tiny`, the bundled pair, and `inflated`,
the same with a target of 100 million parameters) or was simulated (sim MACHINE/TEXTS). It says nothing about other models. Settings, and
what each paper leaves open: [The papers](../docs/pages/reproduce/papers.md)."""
PRINTED = """\
**The simulated figures are of the simulator's text before it was mended and its `repair` and `judge_auc` went; accuracies of simulated
answers mean nothing.**

Simulated on 2026-11-26, one problem at a time, 48 problems, seed 0, each with `--batch-size 1 --set 'engines.*.timeout_s=100000'`,
SpecCoT and SpecReason with `max_steps=1000`. Fitted are tokens and accuracies of SpecCoT and SCoT, SCoT's time of a token, and the rates
of the A100s; not shares of time, other times of whole problems, and how many steps fall back. SpecReason prints no token counts for its
pairs; its rows assume `engines.target.text.verbosity=1.8`. The papers describe neither the loop around their engines nor its settings, and
here calls are free and whatever is ready is sent at once: simulated figures of large batches say what such engines could do, not what
the papers' programs did."""
RUNS = """\
Brackets are 95 % intervals over problems. A speed-up is over the target alone in the same table, and a product: shorter text x tokens a
second. Repeated runs stand with their mean times; *noise* is the factor within which 95 % of the ratios of such times of the same work
lie. Do not compare the times of the kind `quality`: other work may have run beside them."""


def planned(folder: Path, *, small: bool) -> Study:
    """The runs; writes the problems of the simulated ones."""
    write_problems(ROOT / "build/simulated-problems.parquet", 128)
    return read_study(STUDY, RunOptions(graph=STUDY, input=(), output=folder, resume=folder.exists()), small=small)


def families(study: Study) -> dict[str, dict[str, list[Point]]]:
    """By `SITE KIND` the points of each system, several where it is run again: the graph with what was varied, its batch size where that
    is one of several, and its engines where it is on several."""
    members: dict[str, dict[str, Point]] = {}
    for heading, points in study.groups.items():
        members.setdefault(heading.partition(", ")[0].partition(":")[0], {}).update({point.folder: point for point in points})
    found: dict[str, dict[str, list[Point]]] = {}
    for family, same in members.items():
        labels = [point.label for point in same.values()]
        sizes, places = {each.batch_size for each in labels}, {(each.system, each.engines) for each in labels}
        for point in same.values():
            system, size, engines = point.label.system, point.label.batch_size, point.label.engines
            several = sum(name == system for name, _ in places) > 1
            key = system + (f" b{size}" if len(sizes) > 1 else "") + (f" on {engines}" if several else "")
            found.setdefault(family, {}).setdefault(key, []).append(point)
    return found


def read_sites(study: Study, result: SweepResult) -> list[dict[str, Any]]:
    """All sites with the runs of `study` that were made, as the results file has them."""
    made = {point.folder: result.folder / "runs" / point.folder for point in result.points}
    tables = dict(zip(made, read_runs(list(made.values())), strict=True)) if made else {}
    return [site for family, systems in families(study).items() if (site := _site(family, systems, tables))]


def _site(family: str, systems: Mapping[str, Sequence[Point]], tables: Mapping[str, Run]) -> dict[str, Any] | None:
    name, _, kind = family.rpartition(" ")
    runs = {
        system: [tables[each.folder] for each in points]
        for system, points in systems.items()
        if all(each.folder in tables for each in points)
    }
    if not runs:
        return None
    means = [structs.replace(mean_of(same), name=system) for system, same in runs.items()]
    simulated, noise = any(run.file.virtual_time for run in means), noise_of(list(runs.values()))
    found = compare(means)
    sizes = sorted({run.file.options.batch_size for run in means})
    size = " to ".join(str(each) for each in dict.fromkeys((sizes[0], sizes[-1])))
    where = "simulated" if simulated else max(run.resources for run in means).label
    return {
        "site": f"sim {name}" if simulated else name,
        "kind": kind,
        "point": f"batch size {size}, {max(len(run.sums['problem']) for run in means)} problems, {where}",
        "noise": None if noise is None else plain(noise),
        "rows": [" | ".join(_row(run, found)) for run in means],
    }


def _row(run: Run, found: Comparison) -> Iterator[str]:
    of, over = run.figures, found.over_baseline(run)
    yield from (run.name, of["accuracy"].shown("percent"), of["tokens"].shown(), of["latency_s"].shown(), plain(run.wall_time_s))
    yield from ("-",) * 3 if over["over"] == run.name else (over[name].shown() for name in ("speed_up", "token_factor", "rate_factor"))
    yield of["fallback_rate"].shown("percent")


def mean_of(runs: Sequence[Run]) -> Run:
    """One run with the mean times of repeated ones; all else is that of the first."""
    latency, wall = np.mean([run.sums["latency_s"] for run in runs], axis=0), float(np.mean([run.mean_wall_time_s for run in runs]))
    return runs[0] if len(runs) == 1 else structs.replace(runs[0], sums=runs[0].sums | {"latency_s": latency}, mean_wall_time_s=wall)


def noise_of(repeats: Sequence[Sequence[Run]]) -> float | None:
    """The factor within which 95 % of the ratios between two such means of runs of the same work lie; None without repeated runs.

    Wall times are taken as log-normal with one variance for all systems, pooled over `repeats`, the runs of each.
    """
    logs = [np.log([run.mean_wall_time_s for run in same]) for same in repeats if len(same) > 1]
    freedom = sum(len(each) - 1 for each in logs)
    if not freedom:
        return None
    variance = sum(float(((each - each.mean()) ** 2).sum()) for each in logs) / freedom
    return math.exp(float(t.ppf(0.975, freedom)) * math.sqrt(2 * variance / min(map(len, logs))))


def page_of(results: Results) -> str:
    """The page, from the results."""
    parts = ["# The papers' systems", f"{origin(results['measured'])[:-1]}.", INTRODUCTION, stated(())]
    parts += ["## Printed and simulated", PRINTED, grid(("what", "printed", "simulated", "how"), results["printed"])]
    parts += ["## What was run", RUNS]
    for site in results["sites"]:
        noise = f", noise {site['noise']}" if site["noise"] else ""
        parts += [f"**{site['site']}, {site['kind']}**: {site['point']}{noise}", grid(COLUMNS, (row.split(" | ") for row in site["rows"]))]
    return "\n\n".join(parts) + "\n"


def possible(study: Study) -> Study:
    """What can be run here: nothing with vLLM where that is not installed."""

    def here(point: Point) -> bool:
        return find_spec("vllm") is not None or not any(spec.backend == "vllm" for spec in point.plan.engines.values())

    return structs.replace(study, groups={heading: tuple(filter(here, points)) for heading, points in study.groups.items()})


def made(study: Study) -> SweepResult:
    """Make the runs that are missing."""
    return whole(carry_out(possible(study), Observer(tell=say), lambda at, of, point, run: say(f"{at}/{of} {point.folder}")))


def main() -> None:
    """Make the runs that are missing and write the page."""
    with going_on(__file__, ROOT / "build/papers") as (recording, folder):
        plan = planned(folder / "study", small=TRIAL)
        sites = read_sites(plan, made(plan))
    recording.write("papers", {"bench": "papers", "sites": sites, "printed": results_of("papers")["printed"]})


if __name__ == "__main__":
    main()
