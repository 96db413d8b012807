"""Where does speculation stop paying? Throughput by batch size: the target alone, SpecCoT, SpecReason; pipelined and in lockstep.

    python -m bench.scaling

Three sweeps: the bundled pair on the torch engine (measured; `--problems`, `--repeats`), two H100 and one H200 (simulated). Each is kept in
build/scaling/NAME and continued when it is started again, so that finished points are not run twice. Writes bench/results/scaling.json,
and from that bench/scaling.md and its charts (they need Chromium, which kaleido drives).
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
from msgspec import Struct, structs

from bench import over_target
from bench.figures import RESULTS, ROOT, Results, go_on, grid, percent, results_of
from bench.runs import ARITH, swept, write_problems
from pipeline.analysis.points import Point
from pipeline.analysis.simulated import stated
from pipeline.sweep.plan import SweepOptions

BUILD = ROOT / "build/scaling"
BATCH_SIZES = (1, 8, 32, 64, 128)
SIMULATED_PROBLEMS = 384
WIDE = ("max_in_flight", "max_num_seqs")
"""Of the torch engines: as many as chains may live at once, so that the batch size is what is varied."""


DEFAULT_TEXT = "thoughts of about 12 steps of 40 tokens"
"""The text of engines `sim` without a preset: pipeline/engines/sim/spec.py."""
TABLE_6 = {1: (416.47, 65.42), 8: (276.67, 88.37), 32: (324.10, 96.97), 64: (254.64, 130.18), 128: (170.16, 154.02)}
"""Wall seconds and tokens/s by batch size: SpecCoT on two H100, GSM8K, number of problems not given."""
TABLE_6_PROBLEMS = 128
"""At least the largest batch; 128 of table 2's 239.1 tokens (target RQwen-32B) are 30,605, its wall times times its rates
24,450 to 33,149."""
FORM = "speccot candidates=5, pipelined"
"""The system that is set next to SpecCoT's table 6."""
PICTURES = Path(__file__).parent / "scaling"


class Setup(Struct, frozen=True, kw_only=True):
    """One sweep, and its section of the page."""

    title: str
    about: str
    engines: Path | None = None
    settings: tuple[str, ...] = ()

    @property
    def simulated(self) -> bool:
        return self.engines is not None


SETUPS = {
    "torch": Setup(
        title="PyTorch on two CPU cores (measured; short arithmetic)",
        about="The toy pair `tiny` (0.12 and 1.6 million parameters), one core for each model.",
        settings=tuple(f"engines.{role}.{name}=128" for role in ("draft", "target") for name in WIDE),
    ),
    "sim-2xh100": Setup(
        title=f"Two H100 in time slices (simulated; {DEFAULT_TEXT})",
        about="QwQ-32B and R1-Distill-Qwen-1.5B, both over both cards (`graphs/engines/sim-2xh100.yaml`).",
        engines=ROOT / "graphs/engines/sim-2xh100.yaml",
    ),
    "sim-1xh200": Setup(
        title=f"One H200 in time slices (simulated; {DEFAULT_TEXT})",
        about="The same pair on one card (`graphs/engines/sim-1xh200.yaml`).",
        engines=ROOT / "graphs/engines/sim-1xh200.yaml",
    ),
}


def run_sweep(name: str, setup: Setup, problems: int, repeats: int) -> list[Point]:
    """All points of one setup, those of earlier starts included."""
    options = SweepOptions(
        variants=(),
        graphs=(ROOT / "graphs/speccot.yaml", ROOT / "graphs/specreason.yaml"),
        input=write_problems(BUILD / "problems.parquet", SIMULATED_PROBLEMS) if setup.simulated else ARITH,
        batch_sizes=BATCH_SIZES,
        schedules=("pipelined", "lockstep"),
        vary={"candidates": ("1", "5")},
        repeats=repeats,
        engines=() if setup.engines is None else (setup.engines,),
        settings=setup.settings,
        limit=None if setup.simulated else problems,
        output=BUILD / name,
        resume=True,
    )
    return swept(options, name)


# The page.

INTRODUCTION = """\
Each figure is throughput (problems per second until the last one ends) over that of the *target-only baseline*: the target alone at the
same batch size, on the same problems and hardware, on simulated machines with the draft's memory added to its cache. Above 1 is faster.
Brackets: minimum and maximum over all pairs of repeats.

[frontier.md](frontier.md) has the same machines with text of other lengths and `speculate: auto`. It differs from this page, and both are
right: its simulated runs are of GSM8K's, MATH's and AIME's lengths, where one very long thought is most of a run, and rounds shorten that
tail."""


class Curve(Struct, frozen=True):
    """One system: its points by batch size."""

    name: str
    baseline: bool
    points: dict[int, list[Results]]

    def rates(self, size: int) -> list[float]:
        """Problems per second, in order; empty where chains failed or nothing was run."""
        return sorted(point["problems_per_s"] for point in self.points.get(size, ()) if point["problems_per_s"] is not None)

    def median(self, size: int, name: str) -> float:
        """The median of a figure over the repeats."""
        return statistics.median(point[name] for point in self.points[size])


def curves(points: Iterable[Results]) -> list[Curve]:
    """The systems of one machine, the target alone first."""
    found: dict[str, Curve] = {}
    for point in sorted(points, key=lambda point: not point["baseline"]):
        name = "target alone" if point["baseline"] else f"{point['system']}, {point['schedule']}"
        curve = found.setdefault(name, Curve(name, point["baseline"], {}))
        curve.points.setdefault(point["batch_size"], []).append(point)
    return list(found.values())


def ratio(curve: Curve, alone: Curve, size: int) -> tuple[float, float, float] | None:
    """Throughput over the baseline: of the medians, and the minimum and maximum over all pairs of repeats."""
    ours, theirs = curve.rates(size), alone.rates(size)
    if not ours or not theirs:
        return None
    return statistics.median(ours) / statistics.median(theirs), ours[0] / theirs[-1], ours[-1] / theirs[0]


def _cell(found: tuple[float, float, float] | None) -> str:
    if found is None:
        return "-"
    value, low, high = (f"{each:.2f}" for each in found)
    return value if low == high else f"{value} [{low}, {high}]"


def ratios(found: Sequence[Curve]) -> str:
    """A row for each system, a column for each batch size."""
    alone, *others = found
    sizes = sorted(alone.points)
    simulated = alone.points[sizes[0]][0]["simulated"]
    rows = [("*target alone, problems/s*", *(f"*{statistics.median(alone.rates(size)):.3g}*" for size in sizes), "", _accuracy(alone))]
    for curve in others:
        accepted = percent(curve.median(sizes[0], "acceptance_rate"))
        rows.append((curve.name, *(_cell(ratio(curve, alone, size)) for size in sizes), accepted, _accuracy(curve)))
    accuracy = "accuracy of simulated answers" if simulated else "accuracy"
    return grid(("batch size", *map(str, sizes), "steps accepted", accuracy), rows)


def _accuracy(curve: Curve) -> str:
    return percent(curve.median(min(curve.points), "accuracy"))


def best(points: Iterable[Results]) -> dict[int, tuple[float, str]]:
    """By batch size the highest ratio to the baseline, and the system that reached it."""
    alone, *others = curves(points)
    found = {size: [(over[0], curve.name) for curve in others if (over := ratio(curve, alone, size))] for size in sorted(alone.points)}
    return {size: max(each) for size, each in found.items() if each}


def verdict(results: Results) -> Iterator[str]:
    """One line a machine."""
    for name, machine in SETUPS.items():
        parts = [f"{value:.2f} at batch size {size} ({system})" for size, (value, system) in best(results["points"][name]).items()]
        yield f"- {machine.title}: the fastest system reaches {', '.join(parts)}."


def table(results: Results) -> str:
    """The verdict, for other documents."""
    return "\n".join([*verdict(results), "", stated(())])


def _cores(found: Sequence[Curve]) -> str:
    """A sentence where the target alone had fewer cores, if engines state them."""
    alone, other = (sum(facts["cores"] or 0 for facts in next(iter(curve.points.values()))[0]["facts"].values()) for curve in found[:2])
    return f" The target alone used {alone} core, the other systems {other}." if alone < other else ""


def section(name: str, points: Sequence[Results]) -> Iterator[str]:
    """One machine: what it is, its chart, its table."""
    machine, found = SETUPS[name], curves(points)
    repeats = 1 + max(point["repeat"] for point in points)
    runs = "simulated, so one run a point" if points[0]["simulated"] else f"{repeats} runs a point, in turns"
    yield f"## {machine.title}"
    yield f"{machine.about} {points[0]['problems']} problems at every batch size, {runs}.{_cores(found)}"
    yield f"![{machine.title}: throughput over the target alone](scaling/{name}.png)"
    yield ratios(found)


def form_of_table_6(points: Sequence[Results]) -> str:
    """SpecCoT's own scaling next to the simulation of it."""
    found = {curve.name: curve for curve in curves(points)}
    ours, alone = found[FORM], found["target alone"]
    first_paper, first = TABLE_6[1][0], ours.median(1, "wall_s")
    rows = []
    for size, (wall, rate) in TABLE_6.items():
        here = ours.median(size, "wall_s")
        simulated = (f"{ours.median(size, 'committed_tokens_per_s'):,.0f}", f"{first / here:.2f}", _cell(ratio(ours, alone, size)))
        rows.append((str(size), f"{rate:.1f}", f"{first_paper / wall:.2f}", "not printed", *simulated))
    paper = ("kept tokens/s, paper", "speed-up over batch size 1, paper", "over the target alone, paper")
    here = ("kept tokens/s, simulated", "speed-up over batch size 1, simulated", "over the target alone, simulated")
    return grid(("batch size", *paper, *here), rows)


def page_of(results: Results) -> str:
    """The whole page."""
    points = results["points"]
    parts = [
        *(part for name in SETUPS for part in section(name, points[name])),
        "## SpecCoT's table 6",
        f"The paper's wall times on two H100, next to `{FORM}` on the two simulated ones. It prints none for the target alone at the same "
        "batch size. How far the two are apart, and why, is in [calibration.md](calibration.md).",
        form_of_table_6(points["sim-2xh100"]),
    ]
    return over_target.page("Where does speculation stop paying?", results, INTRODUCTION, verdict(results), parts)


def draw(results: Results) -> None:
    """The chart of each machine."""
    for name in SETUPS:
        alone, *others = curves(results["points"][name])
        over = {curve.name: {size: found[0] for size in sorted(curve.points) if (found := ratio(curve, alone, size))} for curve in others}
        over_target.chart({"": over}, PICTURES / f"{name}.png", dashed="lockstep")


@click.command()
@click.option("--problems", default=160, show_default=True, help="Of the measured sweep.")
@click.option("--repeats", default=2, show_default=True, help="Of the measured sweep.")
@click.option("--as-is", is_flag=True, help="Run nothing; write page and charts from bench/results/scaling.json.")
@click.option("--only", type=click.Choice(list(SETUPS)), help="Run this sweep and write nothing.")
def main(problems: int, repeats: int, as_is: bool, only: str | None) -> None:
    """Run what is missing, then write results, page and charts."""
    if as_is:
        results = results_of("scaling")
    else:
        recording = go_on(__file__, BUILD)
        sweeps = {name: run_sweep(name, setup, problems, repeats) for name, setup in SETUPS.items() if only in (None, name)}
        if only is not None:
            return
        points = {name: [structs.asdict(point) for point in found] for name, found in sweeps.items()}
        results = recording.write(ROOT / RESULTS / "scaling.json", {"bench": "scaling", "points": points})
    (ROOT / "bench/scaling.md").write_text(page_of(results))
    draw(results)


if __name__ == "__main__":
    main()
