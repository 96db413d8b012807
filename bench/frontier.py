"""Is a run with `speculate: auto` ever slower than the target alone, or than the faster of `always` and `never`?

    python -m bench.frontier [--as-is]

The map is SIMULATED: machines x lengths of thoughts x batch sizes, each cell the target alone, SpecReason with `always`, and `auto`, with
more than one seed where thoughts are short and a run ends with the longest of them. The other setups are measured: the bundled pair and an
inflated target on the torch engine, and vLLM's CPU engine, one system after the other in each repeat, so many chains that the target alone
takes about a minute. Then `auto` once more with what its first run has learnt. Each sweep and run is kept in build/frontier/NAME and
continued when it is started again, so that nothing finished is run twice. Writes bench/results/frontier.json, and from that
bench/frontier.md and its charts (they need Chromium, which kaleido drives).
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, structs

from bench import over_target
from bench.figures import RESULTS, ROOT, Results, go_on, grid, results_of
from bench.runs import ARITH, make, say, swept, write_problems
from pipeline.analysis.points import Point, point_of_run
from pipeline.engines.sim.spec import KERNEL_WAIT
from pipeline.sweep.plan import PlannedPoint, SweepOptions, planned_points
from pipeline.sweep.points import run_options
from pipeline.sweep.systems import read_systems

BUILD = ROOT / "build/frontier"
GRAPH = "specreason"
MACHINES = ("sim-2xh100", "sim-2xh100-mps", "sim-1xh200", "sim-1xh200-mps", "sim-2xa6000", "sim-2xa6000-mps")
MPS = "-mps"
LENGTHS = ("gsm8k", "math", "aime")
SIZES = {16: (1, 2, 4), 64: (8, 16, 32), 384: (64, 128, 256)}
"""Batch sizes by the number of problems that they are measured with."""
ROOMY = ("token_budget=30720", "max_steps=1000")
"""Settings under which hardly any thought of the three lengths is cut."""
PATIENT = tuple(f"engines.{role}.timeout_s=1000000" for role in ("draft", "target"))
"""A direct request writes a whole thought, and may wait at the engine before: on slow machines that takes hours of simulated time."""
SEEDS = {"gsm8k": 3, "math": 1, "aime": 1}
MEASURED = {
    "torch": {1: (180, 1), 32: (500, 4)},
    "torch-inflated": {1: (16, 1), 32: (128, 1)},
    "vllm": {1: (165, 1), 32: (500, 4)},
}
"""Problems and samples by machine and batch size: so many that the target alone takes a minute."""

PICTURES = Path(__file__).parent / "frontier"
AIM_OVER_TARGET, AIM_OVER_BOTH = 0.98, 0.95
AIM_CELLS = {AIM_OVER_TARGET: {"auto": 162, "second": 162}, AIM_OVER_BOTH: {"auto": 150, "second": 155}}
"""In how many simulated cells `auto`, and the second run with it, are to reach that."""
MEASURED_AIM = 0.97
ABOUT = {
    "sim-2xh100": "two H100 in time slices (simulated)",
    "sim-2xh100-mps": "two H100 under CUDA MPS (simulated)",
    "sim-1xh200": "one H200 in time slices (simulated)",
    "sim-1xh200-mps": "one H200 under CUDA MPS (simulated)",
    "sim-2xa6000": "two A6000 in time slices (simulated)",
    "sim-2xa6000-mps": "two A6000 under CUDA MPS (simulated)",
    "torch": "the toy pair on PyTorch, two CPU cores (measured)",
    "torch-inflated": "the same with a target of 100 M parameters (measured)",
    "vllm": "the toy pair on vLLM's CPU build (measured)",
}
NAMES = {"gsm8k": "GSM8K", "math": "MATH", "aime": "AIME", "arith": "arith"}
INTRODUCTION = """\
SpecReason with `speculate: always` and with `speculate: auto`, pipelined and admitted by cache. Each figure is throughput (problems per
second until the last one ends) over that of the *target-only baseline*: the target alone at the same batch size, on the same problems and
hardware, on simulated machines and vLLM with the draft's memory added to its cache. Above 1 is faster. *Of the better one*: `auto` over
the faster of `always` and the target alone. *Second run*: it begins with what the first has learnt (`--speculate-from`).

Simulated thoughts have the lengths of GSM8K, MATH or AIME (`pipeline/engines/sim/lengths.py`). **Batch sizes are run with different
numbers of problems**, so that a row is several curves, not one: with few problems one very long thought can be most of a run, and the
target alone may solve fewer problems per second at a larger batch size. [scaling.md](scaling.md) has two of these machines with short
thoughts, 384 problems at every batch size, and there speculation stops paying at smaller batch sizes."""

BEST = """\
*Best baseline*: the fastest of the target alone and the target with token-level speculation in its engine (`variants` of the engines file),
named, with its ratio to the target alone. How far simulated speed-ups by token-level speculation are from printed ones:
[calibration.md](calibration.md)."""

MEASURED_SO = """\
On measured machines, where the target alone takes {low:.0f} to {high:.0f} s, the systems run in turns, and ratios are taken within a
turn. The target alone had at least {repeats} turns, second runs at least {seconds}; `always`, token-level baselines and the first `auto`
had one."""


class Setup(Struct, frozen=True, kw_only=True):
    """One sweep: problems of one kind on one machine."""

    name: str
    machine: str
    lengths: str
    batch_sizes: tuple[int, ...]
    problems: int
    simulated: bool
    samples: int = 1
    seed: int = 0
    engines: Path | None = None
    settings: tuple[str, ...] = ()


class Cell(Struct, frozen=True, kw_only=True):
    """One batch size of one machine; all rates in problems per second. Simulated: all seeds together. Measured: of the target alone the
    median of its repeats, of others that times the median of their ratios to the target alone in the same repeat."""

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
    """Of a run that begins with no knowledge."""
    second: float
    """Of `auto` in runs that begin with what the run before has learnt."""
    best: float
    """Of the best baseline: the target alone, or with token-level speculation in its engine."""
    best_name: str


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
    """The setups that this machine computes itself."""
    wide = tuple(f"engines.{role}.{name}=128" for role in ("draft", "target") for name in ("max_in_flight", "max_num_seqs"))
    for name, engines, settings in (
        ("torch", ROOT / "graphs/engines/tiny.yaml", wide),
        ("torch-inflated", ROOT / "build/inflated.yaml", wide),
        ("vllm", ROOT / "graphs/engines/tiny-vllm.yaml", ()),
    ):
        for size, (problems, samples) in MEASURED[name].items():
            yield Setup(
                name=f"{name}-{size}",
                machine=name,
                lengths="arith",
                batch_sizes=(size,),
                problems=problems,
                samples=samples,
                engines=engines,
                settings=settings,
                simulated=False,
            )


def missing(setup: Setup) -> str | None:
    """The reason why a setup cannot be run here; None if it can."""
    if setup.engines is not None and not setup.engines.exists():
        return f"there is no {setup.engines.relative_to(ROOT)}; `make build/inflated.yaml` makes it"
    if setup.machine == "vllm" and find_spec("vllm") is None:
        return "vLLM is not installed"
    return None


def options_of(setup: Setup) -> SweepOptions:
    """The sweep of one setup."""
    return SweepOptions(
        graphs=(ROOT / f"graphs/{GRAPH}.yaml",),
        input=write_problems(BUILD / f"problems-{setup.problems}.parquet", setup.problems) if setup.simulated else ARITH,
        batch_sizes=setup.batch_sizes,
        vary={"speculate": ("always", "auto")},
        variants=() if setup.machine.endswith(MPS) else None,  # alone on a device, an engine is as fast as in time slices
        engines=() if setup.engines is None else (setup.engines,),
        settings=setup.settings,
        limit=setup.problems,
        samples=setup.samples,
        seed=setup.seed,
        output=BUILD / setup.name,
        resume=True,
    )


def simulated_points(setup: Setup) -> list[Point]:
    """A sweep, and for each point with `auto` a second run, of repeat 1, that begins with what the first has learnt."""
    options = options_of(setup)
    points = swept(options, setup.name)
    systems = read_systems(options)
    for planned in planned_points(systems, options, 1):
        if planned.coordinates.params.get("speculate") == "auto":
            first = BUILD / setup.name / "runs" / planned.name
            points.append(_run(setup, options, planned, 1, first))
    return points


def measured_points(setup: Setup, repeats: int) -> list[Point]:
    """In every repeat each system that has not been measured, once, and the target alone and `auto`; repeats of the latter begin with what
    the one before has learnt."""
    options, points = options_of(setup), []
    before: Path | None = None
    for repeat in range(repeats):
        for planned in planned_points(read_systems(options), options, 1):
            decides = planned.coordinates.params.get("speculate") == "auto"
            if repeat and not decides and (planned.system.variant or not planned.coordinates.baseline):
                continue
            points.append(_run(setup, options, planned, repeat, before if decides else None))
            if decides:
                before = _folder(setup, planned, repeat)
    return points


def _run(setup: Setup, options: SweepOptions, planned: PlannedPoint, repeat: int, known: Path | None) -> Point:
    """The point of a run that is made unless it is there; `known`: the run whose knowledge it begins with."""
    folder = _folder(setup, planned, repeat)
    given = {"speculate_from": str(known)} if known else {}
    make(run_options(options, planned.system, folder, **planned.options, **given), f"{setup.name} {folder.name}")
    coordinates = structs.replace(planned.coordinates, repeat=repeat)
    return point_of_run(folder, coordinates, simulated=setup.simulated, cpu_s=None, cache_kept=False)


def _folder(setup: Setup, planned: PlannedPoint, repeat: int) -> Path:
    return BUILD / setup.name / "repeats" / f"{planned.name}-{repeat}"


def cells(setup: Setup, points: Sequence[Point]) -> Iterator[Cell]:
    """The cells of one setup, which may have `points` of several seeds."""
    for size in setup.batch_sizes:
        here = [point for point in points if point.batch_size == size]
        found: dict[str, list[tuple[int, Any]]] = {}
        for point in here:
            mode = str(point.params.get("speculate", point.variant or "target"))
            found.setdefault("second" if mode == "auto" and point.repeat else mode, []).append((point.repeat, point.problems_per_s))
        rates = _all_seeds(found) if setup.simulated else _in_turns(found)
        best = max(rates.keys() - {"always", "auto", "second"}, key=rates.__getitem__)
        yield Cell(
            machine=setup.machine,
            lengths=setup.lengths,
            batch_size=size,
            problems=setup.problems * setup.samples,
            seeds=SEEDS.get(setup.lengths, 1),
            simulated=setup.simulated,
            target=rates["target"],
            always=rates["always"],
            auto=rates["auto"],
            second=rates["second"],
            best=rates[best],
            best_name=best,
        )


def _all_seeds(found: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, float]:
    return {name: statistics.harmonic_mean(rate for _, rate in rates) for name, rates in found.items()}


def _in_turns(found: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, float]:
    alone = dict(found["target"])
    ratios = {name: statistics.median(rate / alone[repeat] for repeat, rate in rates) for name, rates in found.items()}
    return {name: statistics.median(alone.values()) * ratio for name, ratio in ratios.items()}


def measure(repeats: int, only: tuple[str, ...]) -> list[Cell]:
    """Run what is missing of the sweeps whose names begin so."""
    found: dict[object, tuple[Setup, list[Point]]] = {}
    for setup in (setup for setup in (*simulated_setups(), *measured_setups()) if setup.name.startswith(only or "")):
        if lack := missing(setup):
            say(f"{setup.name}: left out, {lack}")
            continue
        points = simulated_points(setup) if setup.simulated else measured_points(setup, repeats)
        found.setdefault((setup.machine, setup.lengths, setup.batch_sizes), (setup, []))[1].extend(points)
    return [cell for setup, points in found.values() for cell in cells(setup, [*points, *_variants_in_time_slices(setup, found)])]


def _variants_in_time_slices(setup: Setup, found: Mapping[object, tuple[Setup, list[Point]]]) -> list[Point]:
    """Under MPS: the baselines with token-level speculation that were run in time slices."""
    if not setup.machine.endswith(MPS):
        return []
    _, points = found.get((setup.machine.removesuffix(MPS), setup.lengths, setup.batch_sizes), (setup, []))
    return [point for point in points if point.variant]


# The page.


def over_alone(cell: Results, mode: str = "auto") -> float:
    """`auto`, or `second`, over the target alone."""
    return float(cell[mode] / cell["target"])


def over_both(cell: Results, mode: str = "auto") -> float:
    """`auto`, or `second`, over the faster of `always` and the target alone."""
    return float(cell[mode] / max(cell["always"], cell["target"]))


RUNS = {"auto": "`auto`", "second": "the second run with `auto`"}


def verdict(cells: Sequence[Results]) -> Iterator[str]:
    """A line for each aim: where it is met, and where not."""
    simulated = [cell for cell in cells if cell["simulated"]]
    for mode in ("always", "auto"):
        over = [cell[mode] / cell["target"] for cell in simulated]
        won = sum(cell[mode] >= cell["best"] for cell in simulated)
        mean = f"geometric mean {statistics.geometric_mean(over):.2f}, minimum {min(over):.2f}"
        yield (
            f"- Simulated: `{mode}` over the target alone has a {mean}. It is at least as fast as the best baseline, token-level ones "
            f"included, in {won} of {len(simulated)} cells."
        )
    for name, aim, ratio in (
        ("the target alone", AIM_OVER_TARGET, over_alone),
        ("the faster of `always` and the target alone", AIM_OVER_BOTH, over_both),
    ):
        for mode, which in RUNS.items():
            lowest = min(simulated, key=lambda cell: ratio(cell, mode))
            reached = sum(ratio(cell, mode) >= aim for cell in simulated)
            where = f"{NAMES[lowest['lengths']]}, {lowest['machine']}, batch size {lowest['batch_size']}"
            share = f"{reached} of {len(simulated)} cells (aim: {AIM_CELLS[aim][mode]})"
            yield f"- Simulated: {which} reaches {aim} of {name} in {share}; minimum {ratio(lowest, mode):.2f} ({where})."
    for machine in dict.fromkeys(cell["machine"] for cell in cells if not cell["simulated"]):
        here = [cell for cell in cells if cell["machine"] == machine]
        for mode, which in RUNS.items():
            ratios = ", ".join(f"{over_alone(cell, mode):.2f} at {cell['batch_size']}" for cell in here)
            yield f"- Measured, {machine}: {which} over the target alone {ratios}{f' (aim: {MEASURED_AIM})' if mode == 'second' else ''}."


def rows(cells: Sequence[Results]) -> Iterator[tuple[str, ...]]:
    """The rows of one machine and one length of text."""
    name = NAMES[cells[0]["lengths"]]
    yield (f"*{name}: target alone, problems/s*", *(f"*{cell['target']:.3g}*" for cell in cells))
    yield (f"{name}: always", *(f"{cell['always'] / cell['target']:.2f}" for cell in cells))
    for mode, named in (("auto", "auto"), ("second", "auto, second run")):
        yield (f"{name}: {named}", *(f"{over_alone(cell, mode):.2f}" for cell in cells))
        yield (f"{name}: {named}, of the better one", *(f"{over_both(cell, mode):.2f}" for cell in cells))
    yield (f"{name}: best baseline", *(f"{cell['best_name']} {cell['best'] / cell['target']:.2f}" for cell in cells))
    yield (f"{name}: always, of the best baseline", *(f"{cell['always'] / cell['best']:.2f}" for cell in cells))
    yield (f"{name}: auto, of the best baseline", *(f"{cell['auto'] / cell['best']:.2f}" for cell in cells))


def ratios(cells: Sequence[Results]) -> str:
    """A column for each batch size, a group of rows for each length of text."""
    groups = [[cell for cell in cells if cell["lengths"] == kind] for kind in dict.fromkeys(cell["lengths"] for cell in cells)]
    seeds = [f"{NAMES[group[0]['lengths']]}: {group[0]['seeds']} times as many" for group in groups if group[0]["seeds"] > 1]
    counts = (" ".join(["problems", *(f"({each})" for each in seeds)]), *(str(cell["problems"]) for cell in groups[0]))
    head = ("batch size", *(str(cell["batch_size"]) for cell in groups[0]))
    return grid(head, [counts, *(row for group in groups for row in rows(group))])


def page_of(results: Results) -> str:
    """The whole page."""
    cells = results["cells"]
    parts: list[str] = []
    for machine in dict.fromkeys(cell["machine"] for cell in cells):
        here = [cell for cell in cells if cell["machine"] == machine]
        lengths = ", ".join(NAMES[kind] for kind in dict.fromkeys(cell["lengths"] for cell in here))
        parts += [
            f"## {machine}: {ABOUT[machine]}, lengths of {lengths}",
            f"![{machine}: throughput over the target alone](frontier/{machine}.png)",
        ]
        parts.append(ratios(here))
    sharing = f"{over_target.under_mps(results)} How far that is from what was measured: [calibration.md](calibration.md)."
    seconds = [cell["problems"] / cell["target"] for cell in cells if not cell["simulated"]]
    low, high = min(seconds, default=0), max(seconds, default=0)
    turns = MEASURED_SO.format(low=low, high=high, repeats=results["repeats"], seconds=results["repeats"] - 1)
    introduction = "\n\n".join([INTRODUCTION, sharing, BEST, turns, *results.get("remarks", ())])
    return over_target.page("Where `speculate: auto` is faster than the target alone", results, introduction, verdict(cells), parts)


LINES = {"auto": "auto", "always": "always", "best baseline": "best"}
"""Of the charts, and what of a cell they show."""


def draw(results: Results) -> None:
    """The chart of each machine, a panel for each length of text; a line is interrupted where the number of problems changes."""
    for machine in dict.fromkeys(cell["machine"] for cell in results["cells"]):
        panels: dict[str, dict[str, dict[float, float | None]]] = {}
        before: Results = {}
        for cell in (cell for cell in results["cells"] if cell["machine"] == machine):
            lines = panels.setdefault(NAMES[cell["lengths"]], {name: {} for name in LINES})
            for name, line in lines.items():
                if line and cell["simulated"] and cell["problems"] != before["problems"]:
                    line[(before["batch_size"] * cell["batch_size"]) ** 0.5] = None
                line[cell["batch_size"]] = cell[LINES[name]] / cell["target"]
            before = cell
        over_target.chart(panels, PICTURES / f"{machine}.png", dashed="always")


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
        cells = [structs.asdict(cell) for cell in found]
        about = {"bench": "frontier", "kernel_wait": KERNEL_WAIT, "repeats": repeats}
        results = recording.write(ROOT / RESULTS / "frontier.json", about | {"cells": cells})
    (ROOT / "bench/frontier.md").write_text(page_of(results))
    draw(results)


if __name__ == "__main__":
    main()
