"""Is a run with `speculate: auto` ever slower than the target alone, or than the better of `always` and `never`?

    python bench/frontier.py [--only sim] [--as-is]

The map is SIMULATED: machines x lengths of thoughts x batch sizes, each cell the target alone, SpecReason with `always`, and `auto`, with
more than one seed where thoughts are short and a run ends with the longest of them. The other setups are measured: the bundled pair and an
inflated target on the torch engine, and vLLM's CPU engine, repeats interleaved, so many problems that a run takes some seconds. Each
sweep goes to build/frontier/NAME and goes on there when it is started again, so that points that are finished are not run twice. Writes
bench/frontier.md and its pictures (they need Chromium, which kaleido drives), and bench/results/frontier.json.
"""

import statistics
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import click
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.parquet as pq
from kept_runs import whole
from msgspec import Struct, structs
from plotly.subplots import make_subplots
from recording import Recording, go_on
from tables import grid, origin

from pipeline.analysis.points import Point, read_points
from pipeline.engines.sim.text import sim_answer
from pipeline.report.figures.style import SERIES, axes, layout
from pipeline.session.observer import Observer
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.sweep import sweep

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build/frontier"
MACHINES = ("sim-2xh100", "sim-2xh100-mps", "sim-1xh200", "sim-1xh200-mps", "sim-2xa6000", "sim-2xa6000-mps")
LENGTHS = ("gsm8k", "math", "aime")
SIZES = {16: (1, 2, 4), 64: (8, 16, 32), 384: (64, 128, 256)}
"""Batch sizes by the number of problems that they are measured with."""
ROOMY = ("token_budget=30720", "max_steps=1000")
"""Settings under which hardly any thought of the three lengths is cut."""
PATIENT = tuple(f"engines.{role}.timeout_s=1000000" for role in ("draft", "target"))
"""A direct request writes a whole thought, and may wait at the engine before: on slow machines that takes hours of simulated time."""
SEEDS = {"gsm8k": 3, "math": 1, "aime": 1}
MEASURED_PROBLEMS = {
    "torch": {1: 64, 8: 250, 32: 500, 128: 500},
    "torch-inflated": {1: 12, 8: 48, 32: 128, 128: 256},
    "vllm": {1: 64, 8: 250, 32: 500, 128: 500},
}
"""By machine and batch size."""
AIM_OVER_TARGET, AIM_OVER_STATIC = 0.98, 0.95
MEASURED_AIM = 0.97


class Setup(Struct, frozen=True, kw_only=True):
    """One sweep: problems of one kind on one machine."""

    name: str
    machine: str
    lengths: str
    graphs: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    problems: int
    simulated: bool
    seed: int = 0
    engines: Path | None = None
    settings: tuple[str, ...] = ()


class Cell(Struct, frozen=True, kw_only=True):
    """The systems at one batch size of one machine; all rates in problems per second: medians over the repeats, or all seeds together."""

    machine: str
    lengths: str
    batch_size: int
    simulated: bool
    target: float
    static: dict[str, float]
    """By system: those that speculate always."""
    auto: dict[str, float]
    """By graph."""
    low: float
    """Of the first graph's `auto` over the target alone: the least of all pairs of repeats."""

    @property
    def best_static(self) -> tuple[float, str]:
        """The fastest static system, the target alone among them, and its name."""
        return max([(self.target, "target"), *((rate, name) for name, rate in self.static.items())])

    @property
    def over_target(self) -> float:
        """`auto` of the first graph over the target alone."""
        return next(iter(self.auto.values())) / self.target

    @property
    def over_own(self) -> float:
        """`auto` of the first graph over the better of `always` with the same graph and the target alone."""
        graph, rate = next(iter(self.auto.items()))
        return rate / max([self.target, *(static for name, static in self.static.items() if name == graph)])

    @property
    def over_static(self) -> float:
        """The best `auto` over the best static system."""
        return max(self.auto.values()) / self.best_static[0]


def simulated_setups() -> Iterator[Setup]:
    for machine, lengths, (problems, sizes), seed in product(MACHINES, LENGTHS, SIZES.items(), range(max(SEEDS.values()))):
        if seed >= SEEDS[lengths]:
            continue
        yield Setup(
            name=f"{machine}-{lengths}-{problems}-{seed}",
            machine=machine,
            lengths=lengths,
            graphs=("specreason",),
            batch_sizes=sizes,
            problems=problems,
            seed=seed,
            engines=ROOT / f"graphs/engines/{machine}.yaml",
            settings=(*ROOMY, *PATIENT, f"engines.draft.text.preset={lengths}", f"engines.target.text.preset={lengths}"),
            simulated=True,
        )


def measured_setups() -> Iterator[Setup]:
    """What this machine computes itself."""
    wide = tuple(f"engines.{role}.{name}=128" for role in ("draft", "target") for name in ("max_in_flight", "max_num_seqs"))
    for name, engines, settings in (
        ("torch", ROOT / "graphs/engines/tiny.yaml", wide),
        ("torch-inflated", ROOT / "build/inflated.yaml", wide),
        ("vllm", ROOT / "graphs/engines/tiny-vllm.yaml", ()),
    ):
        for size, problems in MEASURED_PROBLEMS[name].items():
            yield Setup(
                name=f"{name}-{size}",
                machine=name,
                lengths="arith",
                graphs=("specreason",),
                batch_sizes=(size,),
                problems=problems,
                engines=engines,
                settings=settings,
                simulated=False,
            )


def problems_file(setup: Setup) -> Path:
    """Problems of which simulated models know the answers, or the bundled ones."""
    if not setup.simulated:
        return ROOT / "datasets/arith/test.parquet"
    texts = [f"Simulated problem {i}." for i in range(setup.problems)]
    path = BUILD / f"problems-{setup.problems}.parquet"
    if not path.exists():
        pq.write_table(pa.table({"problem": texts, "answer": [sim_answer(text) for text in texts]}), path)
    return path


def missing(setup: Setup) -> str | None:
    """What keeps a setup from being run here; None: nothing."""
    if setup.engines is not None and not setup.engines.exists():
        return f"there is no {setup.engines.relative_to(ROOT)}; `python tools/inflate.py` makes it"
    if setup.machine == "vllm" and find_spec("vllm") is None:
        return "vLLM is not installed"
    return None


def run_sweep(setup: Setup, repeats: int) -> list[Point]:
    """All points of one setup, those of earlier starts included."""
    options = SweepOptions(
        graphs=tuple(ROOT / f"graphs/{graph}.yaml" for graph in setup.graphs),
        input=problems_file(setup),
        batch_sizes=setup.batch_sizes,
        vary={"speculate": ("always", "auto")},
        repeats=repeats,
        engines=() if setup.engines is None else (setup.engines,),
        settings=setup.settings,
        limit=setup.problems,
        seed=setup.seed,
        output=BUILD / setup.name,
        resume=True,
    )
    found = whole(sweep(options, Observer(tell=_say), lambda number, planned, point: _say(f"{setup.name} {number}/{planned}")), setup.name)
    return found.points


def _say(sentence: str) -> None:
    click.echo(sentence, err=True)


def cells(setup: Setup, points: Sequence[Point]) -> Iterator[Cell]:
    """The cells of one setup, which may have `points` of several seeds."""
    together = statistics.harmonic_mean if setup.simulated else statistics.median
    for size in setup.batch_sizes:
        here = [point for point in points if point.batch_size == size]
        alone = [point.problems_per_s for point in here if point.baseline]
        rates = {mode: _rates(here, mode) for mode in ("always", "auto")}
        first = rates["auto"][setup.graphs[0]]
        yield Cell(
            machine=setup.machine,
            lengths=setup.lengths,
            batch_size=size,
            simulated=setup.simulated,
            target=together(alone),
            static={graph: together(each) for graph, each in rates["always"].items()},
            auto={graph: together(each) for graph, each in rates["auto"].items()},
            low=min(first) / max(alone),
        )


def _rates(points: Sequence[Point], mode: str) -> dict[str, list[float]]:
    """The rates of the systems that speculate in this `mode`, by graph."""
    found: dict[str, list[float]] = {}
    for point in points:
        if point.params.get("speculate") == mode:
            found.setdefault(point.graph, []).append(point.problems_per_s)
    return found


def verdict(found: Sequence[Cell]) -> Iterator[str]:
    """Whether the aims are met, and where not."""
    simulated = [cell for cell in found if cell.simulated]
    for name, aim, ratio in (
        ("the target alone", AIM_OVER_TARGET, lambda cell: cell.over_target),
        ("the best static system", AIM_OVER_STATIC, lambda cell: cell.over_static),
    ):
        if not simulated:
            continue
        least = min(simulated, key=ratio)
        reached = sum(ratio(cell) >= aim for cell in simulated)
        yield (
            f"- Simulated, `auto` over {name}: at least {aim} in {reached} of {len(simulated)} cells; least {ratio(least):.3f} "
            f"({least.lengths}, {least.machine}, batch size {least.batch_size})."
        )
    for machine, sizes, aim in (("sim-2xh100", (64, 128), 1.5), ("sim-2xh100-mps", (64, 128), 2.2), ("sim-2xh100", (1,), 1.9)):
        for cell in simulated:
            if (cell.machine, cell.lengths) == (machine, "math") and cell.batch_size in sizes:
                most = max(cell.auto.values()) / cell.target
                yield f"- math, {machine}, batch size {cell.batch_size}: {most:.2f} times the target alone (aim {aim})."
    for machine in dict.fromkeys(cell.machine for cell in found if not cell.simulated):
        ratios = ", ".join(f"{cell.over_target:.2f} at {cell.batch_size}" for cell in found if cell.machine == machine)
        yield f"- Measured, {machine}: `auto` over the target alone {ratios} (aim {MEASURED_AIM})."


def section(cells_of: Sequence[Cell], title: str) -> str:
    """One machine's table."""
    rows = []
    for cell in cells_of:
        rate, best = cell.best_static
        always = ", ".join(f"{value / cell.target:.2f}" for value in cell.static.values())
        auto = ", ".join(f"{value / cell.target:.2f}" for value in cell.auto.values())
        rows.append(
            (
                cell.lengths,
                str(cell.batch_size),
                f"{cell.target:.3g}",
                always,
                f"{best} {rate / cell.target:.2f}",
                auto,
                f"{cell.over_own:.2f}",
                f"{cell.over_static:.2f}",
            )
        )
    graphs = ", ".join(cells_of[0].auto)
    columns = (
        "thoughts",
        "batch size",
        "target alone, problems/s",
        f"always ({graphs})",
        "best static",
        f"auto ({graphs})",
        f"auto over its own best ({next(iter(cells_of[0].auto))})",
        "best auto over best static",
    )
    return f"## {title}\n\n{grid(columns, rows)}"


def picture(cells_of: Sequence[Cell], name: str) -> str:
    """Draw the ratios to the target alone, one panel for each length of thoughts; the line that shows them."""
    kinds = list(dict.fromkeys(cell.lengths for cell in cells_of))
    figure = make_subplots(cols=len(kinds), subplot_titles=kinds, shared_yaxes=True, horizontal_spacing=0.03)
    lines = [(graph, mode) for graph in cells_of[0].auto for mode in ("always", "auto")]
    for column, kind in enumerate(kinds, 1):
        here = [cell for cell in cells_of if cell.lengths == kind]
        for place, (graph, mode) in enumerate(lines):
            rates = [(cell.static if mode == "always" else cell.auto)[graph] / cell.target for cell in here]
            line = {"color": SERIES[place // 2], "dash": "dot" if mode == "always" else "solid", "width": 2}
            sizes = [cell.batch_size for cell in here]
            label = f"{graph}, {mode}"
            figure.add_trace(
                go.Scatter(x=sizes, y=rates, name=label, legendgroup=label, showlegend=column == 1, mode="lines+markers", line=line),
                row=1,
                col=column,
            )
        figure.add_hline(y=1, line={"color": "#222b36", "width": 2}, row=1, col=column)
    sizes = sorted({cell.batch_size for cell in cells_of})
    axes(figure.update_layout(layout(420)))
    figure.update_layout(margin={"t": 90}, legend={"y": 1.25, "orientation": "h"})
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=list(map(str, sizes)), title="batch size")
    figure.update_yaxes(title="times the target alone", col=1, rangemode="tozero")
    path = ROOT / f"bench/frontier/{name}.png"
    path.parent.mkdir(exist_ok=True)
    figure.write_image(path, width=1100, height=460, scale=1.5)
    return f"![{name}: throughput over the target alone](frontier/{path.name})"


def write(found: Sequence[Cell], recording: Recording) -> None:
    """bench/frontier.md and the cells as JSON."""
    parts = [
        "# Where speculation pays, and whether `auto` knows",
        f"{origin(recording.measured)[:-1]}. Throughput is problems per second, the tail included. The opponent is the target alone at the "
        "same batch size, with the memory that the draft leaves it. `always` and `auto` are pipelined, admitted by cache. "
        + "Simulated: "
        + "; ".join(f"batch sizes {', '.join(map(str, sizes))}: {problems} problems" for problems, sizes in SIZES.items())
        + f"; {', '.join(f'{count} seeds of {lengths}' for lengths, count in SEEDS.items() if count > 1)}, together. "
        "Rates of different numbers of problems are not comparable, and with few of them one long thought can be most of a run.",
        "\n".join(verdict(found)),
    ]
    for machine in dict.fromkeys(cell.machine for cell in found):
        here = [cell for cell in found if cell.machine == machine]
        kind = "simulated" if here[0].simulated else "measured"
        parts += [section(here, f"{machine}: {kind}"), picture(here, machine)]
    results = {"bench": "frontier", "verdict": list(verdict(found)), "cells": [structs.asdict(cell) for cell in found]}
    recording.write(ROOT / "bench/results/frontier.json", results, "\n\n".join(parts) + "\n")


@click.command()
@click.option("--repeats", default=3, show_default=True, help="Of the measured sweeps.")
@click.option("--as-is", is_flag=True, help="Run nothing; write what is there.")
@click.option("--only", multiple=True, help="Run only sweeps whose names begin so, and write nothing.")
def main(repeats: int, as_is: bool, only: tuple[str, ...]) -> None:
    """Run what is missing, then write the page."""
    recording = go_on(__file__, BUILD)
    setups = [setup for setup in (*simulated_setups(), *measured_setups()) if setup.name.startswith(only or "")]
    found: dict[object, tuple[Setup, list[Point]]] = {}
    for setup in setups:
        path = BUILD / setup.name / "points.parquet"
        if lack := "it has not been run" if as_is and not path.exists() else None if as_is else missing(setup):
            _say(f"{setup.name}: left out, {lack}")
            continue
        points = read_points(path) if as_is else run_sweep(setup, 1 if setup.simulated else repeats)
        found.setdefault((setup.machine, setup.lengths, setup.batch_sizes), (setup, []))[1].extend(points)
    if not only:
        write([cell for setup, points in found.values() for cell in cells(setup, points)], recording)


if __name__ == "__main__":
    main()
