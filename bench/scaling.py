"""Where does speculation stop paying? Throughput by batch size: the target alone, SpecCoT, SpecReason; pipelined and in lockstep.

    python -m bench.scaling

Three sweeps: the bundled pair on the torch engine (measured; `--problems`, `--repeats`), two H100 and one H200 (simulated). Each is kept in
build/scaling/NAME and continued when it is started again, so that finished points are not run twice. Writes bench/results/scaling.json,
and from that bench/scaling.md and its charts (they need Chromium, which kaleido drives).
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import click
from msgspec import Struct, convert, to_builtins

from bench.figures import RESULTS, ROOT, Results, go_on, grid, origin, percent, results_of
from bench.runs import ARITH, swept, write_problems
from pipeline.analysis.curves import Measured
from pipeline.analysis.facts import stated
from pipeline.options import RunOptions
from pipeline.study.systems import Matrix

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
"""The system set next to SpecCoT's table 6."""
PICTURES = Path(__file__).parent / "scaling"
COLOURS = ("#3573b9", "#1b998b", "#8157b5", "#e08a1e", "#cf5f9b", "#8c6239")


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


def run_sweep(name: str, setup: Setup, problems: int, repeats: int) -> list[Measured]:
    """All points of one setup, those of earlier starts included."""
    shared = RunOptions(
        graph=ROOT / "graphs/speccot.yaml",
        input=(str(write_problems(BUILD / "problems.parquet", SIMULATED_PROBLEMS) if setup.simulated else ARITH),),
        engines=setup.engines,
        settings=setup.settings,
        limit=None if setup.simulated else problems,
        output=BUILD / name,
        resume=True,
    )
    matrix = Matrix(
        shared=shared,
        graphs=(shared.graph, ROOT / "graphs/specreason.yaml"),
        batch_sizes=BATCH_SIZES,
        schedules=("pipelined", "lockstep"),
        vary={"candidates": ("1", "5")},
        repeats=repeats,
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
    """One system by batch size, as the results file has it; repeats in ascending order, medians of the rest."""

    name: str
    cores: int
    acceptance_rate: float | None
    """At the smallest batch size, like the accuracy."""
    accuracy: float
    problems_per_s: dict[int, list[float]]
    wall_s: dict[int, float]
    kept_tokens_per_s: dict[int, float]


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
    def medians(value: Callable[[Measured], float | None]) -> dict[int, float]:
        return {size: statistics.median(value(point) or 0.0 for point in points) for size, points in sorted(sizes.items())}

    first = sizes[min(sizes)][0].run
    fallbacks = first.figures["fallback_rate"].value
    return Curve(
        name=name,
        cores=first.resources.cores,
        acceptance_rate=None if fallbacks is None else 1 - fallbacks,
        accuracy=first.figures["accuracy"].value or 0.0,
        problems_per_s={size: sorted(point.run.problems_per_s or 0 for point in points) for size, points in sorted(sizes.items())},
        wall_s=medians(lambda point: point.run.wall_time_s),
        kept_tokens_per_s=medians(lambda point: point.run.kept_tokens_per_s),
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
    """One machine: what it is, its chart, its table."""
    setup, curves = SETUPS[name], swept.curves
    runs = "simulated, so one run a point" if setup.simulated else f"{swept.repeats} runs a point, in turns"
    yield f"## {setup.title}"
    yield f"{setup.about} {swept.problems} problems at every batch size, {runs}.{_cores(curves)}"
    yield f"![{setup.title}: throughput over the target alone](scaling/{name}.png)"
    yield ratios(curves, simulated=setup.simulated)


def form_of_table_6(curves: Sequence[Curve]) -> str:
    """SpecCoT's own scaling next to the simulation of it."""
    found = {curve.name: curve for curve in curves}
    ours, alone = found[FORM], found["target alone"]
    first_paper, rows = TABLE_6[1][0], []
    for size, (wall, rate) in TABLE_6.items():
        over = _cell(ratio(ours, alone, size))
        simulated = (f"{ours.kept_tokens_per_s[size]:,.0f}", f"{ours.wall_s[1] / ours.wall_s[size]:.2f}", over)
        rows.append((str(size), f"{rate:.1f}", f"{first_paper / wall:.2f}", "not printed", *simulated))
    paper = ("kept tokens/s, paper", "speed-up over batch size 1, paper", "over the target alone, paper")
    here = ("kept tokens/s, simulated", "speed-up over batch size 1, simulated", "over the target alone, simulated")
    return grid(("batch size", *paper, *here), rows)


def page_of(results: Results) -> str:
    """The page, from the results."""
    parts = [
        "# Where does speculation stop paying?",
        f"{origin(results['measured'])[:-1]}.",
        INTRODUCTION,
        table(results),
        *(part for name in SETUPS for part in section(name, machine(results, name))),
        "## SpecCoT's table 6",
        f"The paper's wall times on two H100, next to `{FORM}` on the two simulated ones. It prints none for the target alone at the same "
        "batch size. How far the two are apart, and why, is in [calibration.md](calibration.md).",
        form_of_table_6(machine(results, "sim-2xh100").curves),
    ]
    return "\n\n".join(parts) + "\n"


def draw(results: Results) -> None:
    """The chart of each machine, a line for each system, dotted in lockstep. Kaleido needs Chromium for it."""
    import plotly.graph_objects as go

    PICTURES.mkdir(exist_ok=True)
    for name in SETUPS:
        alone, *others = machine(results, name).curves
        sizes = sorted(alone.problems_per_s)
        figure = go.Figure(layout={"template": "plotly_white", "height": 420, "font": {"size": 13}})
        for place, curve in enumerate(others):
            line = {"color": COLOURS[place // 2], "dash": "dot" if "lockstep" in curve.name else "solid", "width": 2}
            over = [ratio(curve, alone, size)[0] for size in sizes]
            figure.add_trace(go.Scatter(x=sizes, y=over, name=curve.name, mode="lines+markers", line=line))
        figure.add_hline(y=1, line={"color": "#222b36", "width": 2})
        figure.update_layout(margin={"t": 110}, legend={"y": 1.2, "orientation": "h"})
        figure.update_xaxes(type="log", tickvals=sizes, ticktext=list(map(str, sizes)), title="batch size")
        figure.update_yaxes(title="times the target alone", rangemode="tozero")
        figure.write_image(PICTURES / f"{name}.png", width=1100, height=480, scale=1.5)


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
        machines = {name: to_builtins(swept_of(points), str_keys=True) for name, points in sweeps.items()}
        results = recording.write(ROOT / RESULTS / "scaling.json", {"bench": "scaling", "machines": machines})
    (ROOT / "bench/scaling.md").write_text(page_of(results))
    draw(results)


if __name__ == "__main__":
    main()
