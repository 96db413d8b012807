"""The papers' numbers, beside what their systems do on simulated machines and with the bundled pair of models.

    python -m bench.papers            simulates: some minutes, on a busy machine too, as simulated times are the same on any
    python -m bench.papers measured   measures: about an hour on two quiet cores; `make build/inflated.yaml` first

The runs are those of the studies bench/simulated.yaml and bench/papers.yaml; measured ones are kept in build/papers and continued when this
is started again. A trial makes them in their small form. bench/printed.yaml has the papers' numbers. Writes bench/results/papers.json and
bench/papers.md.
"""

import math
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from msgspec import structs
from scipy.stats import t

from bench.figures import ROOT, TRIAL, Recording, Results, going_on, grid, origin, results_of
from bench.runs import say, whole, write_problems
from pipeline.analysis.compare import Comparison, Run, compare, read_runs
from pipeline.analysis.facts import EngineFacts, stated
from pipeline.analysis.tables import plain
from pipeline.errors import InputError
from pipeline.options import RunOptions
from pipeline.run.run import Observer
from pipeline.store.query import Query
from pipeline.study.points import Point, Study
from pipeline.study.run import SweepResult, carry_out
from pipeline.study.study_file import read_study

STUDY, SIMULATED, PRINTED = (ROOT / "bench" / name for name in ("papers.yaml", "simulated.yaml", "printed.yaml"))
STAGES = """
SELECT stage, sum(e2e_latency_s) / chains AS seconds, count(*) / chains AS calls
FROM calls, (SELECT count(*) AS chains FROM chains) GROUP BY stage, chains
"""
COLUMNS = ("system", "accuracy", "tokens", "s a problem", "wall s", "speed-up", "= tokens", "x rate", "steps that fall back")
INTRODUCTION = """\
**None of the papers' own models was run.** Each of their numbers stands beside ours with the ratio of the two. There is no verdict.

- *predicted*: simulated from nothing that this paper prints: published lengths of texts, datasheets, rates calibrated on another paper.
- *assumed*: simulated from assumptions of which at least one was chosen with the printed figure in view. A figure near it shows little.
- *fitted*: simulated, with lengths, accuracies or rates set by what this paper prints. A fitted figure near the printed one shows nothing;
  one far from it shows that the fit fails. *In part*: not all of it is.
- *measured*: with toy models on a CPU, `tiny`, the bundled pair, and `inflated`, the same with a target of 100 million parameters.
- *not possible here*: it needs the papers' models, or text of theirs that nobody published.

*r* is the target's time over the system's; *SpecDecode* is the target with token-level speculation, *+Decode* a system with that target.

Left out: simulated accuracies, which mean nothing, what abstracts repeat, and values that figures show without a number. Beside a range
there is no ratio. R1-1.5B and R1-32B are DeepSeek-R1-Distill-Qwen-1.5B and 32B. Settings, and what each paper leaves open:
[The papers](../docs/pages/reproduce/papers.md)."""
RUNS = """\
Brackets are 95 % intervals over problems. A speed-up is over the target alone in the same table, and a product: shorter text x tokens a
second. Repeated runs stand with their mean times; *noise* is the factor within which 95 % of the ratios of such times of the same work
lie. Do not compare the times of the kind `quality`: other work may have run beside them."""


def planned(study: Path, folder: Path, *, small: bool) -> Study:
    """The runs of a study; writes the problems of the simulated ones."""
    write_problems(ROOT / "build/simulated-problems.parquet", 128)
    return read_study(study, RunOptions(graph=study, input=(), output=folder, resume=folder.exists()), small=small)


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
        "site": name,
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


def figures_of(study: Study, result: SweepResult) -> dict[str, dict[str, dict[str, float]]]:
    """By part of a simulated study and system the figures of its runs, those of several seeds as one: all but accuracies."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for part, systems in families(study).items():
        for system, points in systems.items():
            [run] = read_runs([result.folder / "runs" / point.folder for point in points], pooled=True)
            found.setdefault(part, {})[system] = {name: float(f"{value:.4g}") for name, value in _simulated(run)}
    return found


def _simulated(run: Run) -> Iterator[tuple[str, float]]:
    """Figures of a run, means over its problems; of each stage the seconds and the number of its calls."""
    yield from ((name, each.value) for name, each in run.figures.items() if each.value is not None and name != "accuracy")
    latency = run.figures["latency_s"]
    yield "problems", run.problems
    yield "interval", (latency.high or math.nan) / (latency.value or math.nan) - 1
    yield "wall_time_s", run.wall_time_s or math.nan
    yield "tokens_per_s", run.kept_tokens_per_s or math.nan
    with Query(*run.folders) as db:
        for stage, seconds, calls in zip(*db.columns(STAGES).values(), strict=True):
            yield from ((f"{stage}_stage_s", seconds), (f"{stage}_calls", calls))


def measured_figures(sites: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """The same of measured parts: values of the cells of their tables, without intervals, by the names of `COLUMNS`."""
    rows = {f"{site['site']} {site['kind']}": [row.split(" | ") for row in site["rows"]] for site in sites}
    return {
        part: {name: {column: _value(cell) for column, cell in zip(COLUMNS[1:], cells, strict=True)} for name, *cells in systems}
        for part, systems in rows.items()
    }


def _value(cell: str) -> float | None:
    return None if cell == "-" else float(cell.split(" ")[0].replace(",", "").rstrip("%"))


def beside(results: Results) -> Iterator[str]:
    """The tables of bench/printed.yaml, with our figures and the ratios."""
    parts = results["simulated"] | measured_figures(results["sites"])
    with Query() as db:
        for group in yaml.safe_load(PRINTED.read_bytes()):
            rows = [_beside(db, parts, {"how": "", "why": "", **group, **row}) for row in group["rows"]]
            if "above" in group:
                yield textwrap.fill(group["above"], 140)
            yield f"**{group['title']}**: {' / '.join(map(str, group['of']))}"
            yield grid(("what", "printed", "ours", "ours / printed", "how", "why they differ"), rows)


def _beside(db: Query, parts: dict[str, Any], row: Mapping[str, Any]) -> tuple[str, ...]:
    """One row; `row` has the keys of its group, too."""
    of, printed = row["of"], row["printed"]
    at, said = (each if isinstance(each, list) else [each] * len(of) for each in (row.get("at"), row.get("ours")))
    ours: list[float | None] = []
    for column, part, sql in zip(of, at, said, strict=True):
        ours.append(None)
        if part and sql:
            db.register("ours", **{name: pa.array([of_it]) for name, of_it in (parts | parts.get(part, {})).items()})
            with suppress(InputError):  # not run: a trial has other systems, and some need vLLM; tests check the results that are kept
                ours[-1] = db.scalar(f"SELECT {sql.replace('{}', str(column))} FROM ours")
    ratios = [f"{a / b:.2f}" if a is not None and isinstance(b, int | float) and b else "-" for a, b in zip(ours, printed, strict=True)]
    how = row["how"] if any(each is not None for each in ours) else "not possible here"
    cells = [" / ".join(cell) for cell in (["-" if b is None else str(b) for b in printed], map(plain, ours), ratios)]
    cells = [cell if cell.strip("-/ ") else "-" for cell in cells]
    return (row["what"], *cells, how, row["why"])


def page_of(results: Results) -> str:
    """The page, from the results and the papers' numbers."""
    every = [figures for systems in results["simulated"].values() for figures in systems.values()]
    problems = sorted({f"{figures['problems']:.0f}" for figures in every}, key=int)
    widest = max(figures["interval"] for figures in every)
    means = f"Means over {' or '.join(problems)} problems; the widest 95 % interval of a time extends {100 * widest:.0f} % above its mean."
    made = f"{origin(results['simulated_by'])[:-1]}. {means}"
    parts = ["# The papers' numbers", INTRODUCTION, stated([EngineFacts(token_level=True)]), "## Printed and ours", made, *beside(results)]
    parts += ["## What was measured", f"{origin(results['measured'])[:-1]}.", RUNS]
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
    """Make the runs that are missing; simulated ones in this process."""
    return whole(carry_out(possible(study), Observer(tell=say), lambda at, of, point, run: say(f"{at}/{of} {point.folder}"), workers=1))


def simulate() -> None:
    """Make the simulated runs and write the page; what was measured stays as it is."""
    recording, kept = Recording("papers"), results_of("papers")
    with TemporaryDirectory(prefix="papers-") as name:
        plan = planned(SIMULATED, Path(name) / "study", small=TRIAL)
        found = figures_of(plan, made(plan))
    by, recording.measured = recording.measured, kept.pop("measured")
    recording.write("papers", kept | {"simulated": found, "simulated_by": by})


def measure() -> None:
    """Make the measured runs that are missing and write the page; what was simulated stays as it is."""
    with going_on(__file__, ROOT / "build/papers") as (recording, folder):
        plan = planned(STUDY, folder / "study", small=TRIAL)
        sites = read_sites(plan, made(plan))
    recording.write("papers", results_of("papers") | {"sites": sites})


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measured"] else simulate()
