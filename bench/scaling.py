"""Where does speculation stop paying? Throughput by batch size: the target alone, SpecCoT, SpecReason; pipelined and in lockstep.

    python -m bench.scaling

Three sweeps: the bundled pair on the torch engine (measured), two H100 and one H200 (simulated). Each is kept in
build/scaling/NAME and continued when it is started again, so that finished points are not run twice. Writes bench/results/scaling.json and
bench/scaling.md.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, convert, to_builtins

from bench.figures import ROOT, TRIAL, Results, going_on, grid, origin, percent
from bench.runs import ARITH, swept, write_problems
from pipeline.analysis.curves import Measured
from pipeline.analysis.facts import stated
from pipeline.options import RunOptions
from pipeline.study.systems import Matrix, SystemEntry, varied

BUILD = ROOT / "build/scaling"
BATCH_SIZES = (1, 8) if TRIAL else (1, 8, 32, 64, 128)
PROBLEMS, SIMULATED_PROBLEMS, REPEATS = (8, 8, 1) if TRIAL else (160, 384, 2)
WIDE = ("max_in_flight", "max_num_seqs")
"""Of the torch engines: as many as chains may live at once, so that the batch size is what is varied."""
GRAPHS = (ROOT / "graphs/speccot.yaml", ROOT / "graphs/specreason.yaml")
VARIED = {"candidates": (1, 5)}
DEFAULT_TEXT = "thoughts of about 12 steps of 40 tokens"
"""The text of engines `sim` without a preset: pipeline/engines/sim/spec.py."""


class Setup(Struct, frozen=True, kw_only=True):
    """One sweep, and its section of the page."""

    title: str
    about: str
    engines: Path | None = None
    settings: tuple[str, ...] = ()
    problems: int = SIMULATED_PROBLEMS

    @property
    def simulated(self) -> bool:
        return self.engines is not None


SETUPS = {
    "torch": Setup(
        title="PyTorch on two CPU cores (measured; short arithmetic)",
        about="The toy pair `tiny` (0.12 and 1.6 million parameters), one core for each model.",
        settings=tuple(f"engines.{role}.{name}=128" for role in ("draft", "target") for name in WIDE),
        problems=PROBLEMS,
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


def run_sweep(name: str, setup: Setup, folder: Path) -> list[Measured]:
    """All points of one setup, those of earlier starts included."""
    problems = write_problems(folder / "problems.parquet", setup.problems) if setup.simulated else ARITH
    shared = RunOptions(
        graph=GRAPHS[0],
        input=(str(problems),),
        engines=setup.engines,
        settings=setup.settings,
        limit=setup.problems,
        output=folder / name,
        resume=True,
    )
    matrix = Matrix(
        shared=shared,
        systems=varied([SystemEntry(graph=str(graph)) for graph in GRAPHS], VARIED),
        batch_sizes=BATCH_SIZES,
        schedules=("pipelined", "lockstep"),
        repeats=1 if setup.simulated else REPEATS,
    )
    return swept(matrix, name)


# The page.

INTRODUCTION = """\
Each figure is throughput (problems per second until the last one ends) over that of the *target-only baseline*: the target alone at the
same batch size, on the same problems and hardware, on simulated machines with the draft's memory added to its cache. Above 1 is faster.
Brackets: minimum and maximum over all pairs of repeats."""
EARLIER = "The simulated figures here are of its text before that was mended: judges' questions and the longest drafts were too long."
"""Goes with the next measurement."""


class Curve(Struct, frozen=True, kw_only=True):
    """One system by batch size, as the results file has it; repeats in ascending order."""

    name: str
    cores: int
    acceptance_rate: float | None
    """At the smallest batch size, like the accuracy."""
    accuracy: float
    problems_per_s: dict[int, list[float]]


class Swept(Struct, frozen=True, kw_only=True):
    """One machine; of its curves the first is the target alone."""

    problems: int
    repeats: int
    curves: list[Curve]


def swept_of(points: Sequence[Measured]) -> Swept:
    """What the page shows of the points of one sweep."""
    by_system: dict[str, dict[int, list[Measured]]] = {}
    for point in sorted(points, key=lambda point: not point.label.baseline):
        name = "target alone" if point.label.baseline else f"{point.label.system}, {point.label.schedule}"
        by_system.setdefault(name, {}).setdefault(point.label.batch_size, []).append(point)
    repeats = 1 + max(point.label.repeat for point in points)
    return Swept(problems=points[0].run.problems, repeats=repeats, curves=[_curve(name, found) for name, found in by_system.items()])


def _curve(name: str, sizes: Mapping[int, Sequence[Measured]]) -> Curve:
    first = sizes[min(sizes)][0].run
    fallbacks = first.figures["fallback_rate"].value
    return Curve(
        name=name,
        cores=first.resources.cores,
        acceptance_rate=None if fallbacks is None else 1 - fallbacks,
        accuracy=first.figures["accuracy"].value or 0.0,
        problems_per_s={size: sorted(point.run.problems_per_s or 0 for point in points) for size, points in sorted(sizes.items())},
    )


def machine(results: Results, name: str) -> Swept:
    """One machine of the results file."""
    return convert(results["machines"][name], Swept, strict=False)


def ratio(curve: Curve, alone: Curve, size: int) -> tuple[float, float, float]:
    """Throughput over the baseline: of the medians, and the minimum and maximum over all pairs of repeats."""
    ours, theirs = curve.problems_per_s[size], alone.problems_per_s[size]
    return statistics.median(ours) / statistics.median(theirs), ours[0] / theirs[-1], ours[-1] / theirs[0]


def _cell(found: tuple[float, float, float]) -> str:
    value, low, high = (f"{each:.2f}" for each in found)
    return value if low == high else f"{value} [{low}, {high}]"


def ratios(found: Sequence[Curve], *, simulated: bool) -> str:
    """A row for each system, a column for each batch size."""
    alone, *others = found
    sizes = list(alone.problems_per_s)
    rates = (f"*{statistics.median(alone.problems_per_s[size]):.3g}*" for size in sizes)
    rows = [("*target alone, problems/s*", *rates, "", percent(alone.accuracy))]
    for curve in others:
        cells = (_cell(ratio(curve, alone, size)) for size in sizes)
        rows.append((curve.name, *cells, percent(curve.acceptance_rate), percent(curve.accuracy)))
    accuracy = "accuracy of simulated answers" if simulated else "accuracy"
    return grid(("batch size", *map(str, sizes), "steps accepted", accuracy), rows)


def best(curves: Sequence[Curve]) -> dict[int, tuple[float, str]]:
    """By batch size the highest ratio to the baseline, and the system that reached it."""
    alone, *others = curves
    return {size: max((ratio(curve, alone, size)[0], curve.name) for curve in others) for size in alone.problems_per_s}


def verdict(results: Results) -> Iterator[str]:
    """One line a machine."""
    for name, setup in SETUPS.items():
        found = best(machine(results, name).curves)
        parts = [f"{value:.2f} at batch size {size} ({system})" for size, (value, system) in found.items()]
        yield f"- {setup.title}: the fastest system reaches {', '.join(parts)}."


def table(results: Results) -> str:
    """The verdict, for other documents."""
    return "\n".join([*verdict(results), "", f"{stated(())} {EARLIER}"])


def _cores(found: Sequence[Curve]) -> str:
    """A sentence where the target alone had fewer cores, if engines state them."""
    alone, other = (curve.cores for curve in found[:2])
    return f" The target alone used {alone} core, the other systems {other}." if alone < other else ""


def section(name: str, swept: Swept) -> Iterator[str]:
    """One machine: what it is, and its table."""
    setup, curves = SETUPS[name], swept.curves
    runs = "simulated, so one run a point" if setup.simulated else f"{swept.repeats} runs a point, in turns"
    yield f"## {setup.title}"
    yield f"{setup.about} {swept.problems} problems at every batch size, {runs}.{_cores(curves)}"
    yield ratios(curves, simulated=setup.simulated)


def page_of(results: Results) -> str:
    """The page, from the results."""
    parts = [
        "# Where does speculation stop paying?",
        f"{origin(results['measured'])[:-1]}.",
        INTRODUCTION,
        table(results),
        *(part for name in SETUPS for part in section(name, machine(results, name))),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run what is missing, then write results and page."""
    with going_on(__file__, BUILD) as (recording, folder):
        machines = {name: to_builtins(swept_of(run_sweep(name, setup, folder)), str_keys=True) for name, setup in SETUPS.items()}
    recording.write("scaling", {"bench": "scaling", "machines": machines})


if __name__ == "__main__":
    main()
