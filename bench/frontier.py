"""Is a run with `speculate: auto` ever slower than the target alone, or than the faster of `always` and `never`?

    python bench/frontier.py [--as-is]

The map is SIMULATED: machines x lengths of thoughts x batch sizes, each cell the target alone, SpecReason with `always`, and `auto`, with
more than one seed where thoughts are short and a run ends with the longest of them. The other setups are measured: the bundled pair and an
inflated target on the torch engine, and vLLM's CPU engine, repeats interleaved, so many problems that a run takes some seconds. Each
sweep is kept in build/frontier/NAME and continued when it is started again, so that finished points are not run twice. Writes
bench/results/frontier.json, and from that bench/frontier.md and its charts (they need Chromium, which kaleido drives).
"""

import statistics
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import click
import frontier_page
import pyarrow as pa
import pyarrow.parquet as pq
from kept_runs import whole
from msgspec import Struct, structs
from recording import go_on, results_of

from pipeline.analysis.points import Point
from pipeline.engines.sim.text import sim_answer
from pipeline.session.observer import Observer
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.sweep import sweep

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build/frontier"
GRAPH = "specreason"
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


class Setup(Struct, frozen=True, kw_only=True):
    """One sweep: problems of one kind on one machine."""

    name: str
    machine: str
    lengths: str
    batch_sizes: tuple[int, ...]
    problems: int
    simulated: bool
    seed: int = 0
    engines: Path | None = None
    settings: tuple[str, ...] = ()


class Cell(Struct, frozen=True, kw_only=True):
    """One batch size of one machine; all rates in problems per second: medians over the repeats, or all seeds together."""

    machine: str
    lengths: str
    batch_size: int
    problems: int
    """Of each run."""
    seeds: int
    simulated: bool
    target: float
    always: float
    auto: float
    low: float
    """Of `auto` over the target alone: the minimum over all pairs of repeats."""


def simulated_setups() -> Iterator[Setup]:
    for machine, lengths, (problems, sizes), seed in product(MACHINES, LENGTHS, SIZES.items(), range(max(SEEDS.values()))):
        if seed >= SEEDS[lengths]:
            continue
        yield Setup(
            name=f"{machine}-{lengths}-{problems}-{seed}",
            machine=machine,
            lengths=lengths,
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
        return f"there is no {setup.engines.relative_to(ROOT)}; `make build/inflated.yaml` makes it"
    if setup.machine == "vllm" and find_spec("vllm") is None:
        return "vLLM is not installed"
    return None


def run_sweep(setup: Setup, repeats: int) -> list[Point]:
    """All points of one setup, those of earlier starts included."""
    options = SweepOptions(
        graphs=(ROOT / f"graphs/{GRAPH}.yaml",),
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


def _say(line: str) -> None:
    click.echo(line, err=True)


def cells(setup: Setup, points: Sequence[Point]) -> Iterator[Cell]:
    """The cells of one setup, which may have `points` of several seeds."""
    together = statistics.harmonic_mean if setup.simulated else statistics.median
    for size in setup.batch_sizes:
        here = [point for point in points if point.batch_size == size]
        alone = [point.problems_per_s for point in here if point.baseline]
        always, auto = ([each.problems_per_s for each in here if each.params.get("speculate") == mode] for mode in ("always", "auto"))
        yield Cell(
            machine=setup.machine,
            lengths=setup.lengths,
            batch_size=size,
            problems=setup.problems,
            seeds=SEEDS.get(setup.lengths, 1),
            simulated=setup.simulated,
            target=together(alone),
            always=together(always),
            auto=together(auto),
            low=min(auto) / max(alone),
        )


def measure(repeats: int, only: tuple[str, ...]) -> list[Cell]:
    """Run what is missing of the sweeps whose names begin so."""
    found: dict[object, tuple[Setup, list[Point]]] = {}
    for setup in (setup for setup in (*simulated_setups(), *measured_setups()) if setup.name.startswith(only or "")):
        if lack := missing(setup):
            _say(f"{setup.name}: left out, {lack}")
            continue
        points = run_sweep(setup, 1 if setup.simulated else repeats)
        found.setdefault((setup.machine, setup.lengths, setup.batch_sizes), (setup, []))[1].extend(points)
    return [cell for setup, points in found.values() for cell in cells(setup, points)]


@click.command()
@click.option("--repeats", default=3, show_default=True, help="Of the measured sweeps.")
@click.option("--as-is", is_flag=True, help="Run nothing; write page and charts from bench/results/frontier.json.")
@click.option("--only", multiple=True, help="Run only sweeps whose names begin so, and write nothing.")
def main(repeats: int, as_is: bool, only: tuple[str, ...]) -> None:
    """Run what is missing, then write results, page and charts."""
    if as_is:
        results = results_of("frontier")
    else:
        recording = go_on(__file__, BUILD)
        found = measure(repeats, only)
        if only:
            return
        results = recording.write(
            ROOT / "bench/results/frontier.json", {"bench": "frontier", "cells": [structs.asdict(cell) for cell in found]}
        )
    (ROOT / "bench/frontier.md").write_text(frontier_page.page(results))
    frontier_page.draw(results)


if __name__ == "__main__":
    main()
