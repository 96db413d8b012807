"""Throughput of SpecReason over the target alone: the runs, and the tables and the picture of the docs.

    python -m bench.over_target [--output PATH]

Most of it is SIMULATED: machines x lengths of thoughts x batch sizes, with more than one seed where thoughts are short and a run ends with
the longest of them. The other setups are measured: the bundled pair and an inflated target on the torch engine, and vLLM's CPU engine, with
so many chains that the target alone takes about a minute. Each sweep is kept in build/over-target/NAME and continued when it is started
again, so that nothing finished is run twice.

Batch sizes are run with different numbers of problems: with few problems one very long thought can be most of a run, and the target alone
may solve fewer problems per second at a larger batch size.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, structs

from bench.figures import RESULTS, ROOT, Results, go_on, grid, results_of
from bench.runs import ARITH, say, swept, write_problems
from pipeline.analysis.points import Point
from pipeline.analysis.simulated import MEDIAN_ERROR, MPS_ERROR, OWN_TEXT_ERROR
from pipeline.engines.sim.spec import KERNEL_WAIT
from pipeline.graph.loader import variants_of
from pipeline.sweep.plan import SweepOptions

BUILD = ROOT / "build/over-target"
SIMULATED = ("sim-2xh100", "sim-2xh100-mps", "sim-1xh200", "sim-1xh200-mps", "sim-2xa6000", "sim-2xa6000-mps")
MPS, SHARED = "-mps", ("engines.*.device.sharing=mps",)
PROBLEMS = {16: (1, 2, 4), 64: (8, 16, 32), 384: (64, 128, 256)}
"""Batch sizes by the number of problems that they are measured with."""
ROOMY = ("token_budget=30720", "max_steps=1000")
"""Settings under which hardly any thought of the three lengths is cut."""
PATIENT = tuple(f"engines.{role}.timeout_s=1000000" for role in ("draft", "target"))
"""The target alone writes a whole thought in one request, which may wait at the engine before: on slow machines that takes hours of
simulated time."""
SEEDS = {"gsm8k": 3, "math": 1, "aime": 1}
"""Lengths of thoughts, and the number of runs with each."""
MEASURED = {
    "torch": {1: (180, 1), 32: (500, 4)},
    "torch-inflated": {1: (16, 1), 32: (128, 1)},
    "vllm": {1: (165, 1), 32: (500, 4)},
}
"""Problems and samples by machine and batch size."""
Cells = list[dict[str, Any]]
"""The cells of the map: see `Cell`."""
PICTURE = Path("docs/pages/concepts/over-target.svg")
SIZES = (1, 32, 128)
"""Batch sizes of the short tables."""
ROWS = {
    ("torch", "arith"): "toy pair, PyTorch on two CPU cores, measured",
    ("torch-inflated", "arith"): "toy draft, target of 100 million parameters, the same machine, measured",
    ("vllm", "arith"): "toy pair, vLLM's CPU build, the same machine, measured",
    ("sim-2xh100", "math"): "QwQ-32B and R1-Distill-Qwen-1.5B, two H100 in time slices, MATH lengths, **simulated**",
    ("sim-2xh100-mps", "math"): "the same under CUDA MPS, **simulated**",
}
MACHINES = {
    "torch": "toy pair, PyTorch",
    "torch-inflated": "toy draft, 100 M target",
    "vllm": "toy pair, vLLM on CPU",
    "sim-2xh100": "two H100",
    "sim-1xh200": "one H200",
    "sim-2xa6000": "two A6000",
}


class Setup(Struct, frozen=True, kw_only=True):
    """One sweep: problems of one kind on one machine."""

    name: str
    machine: str
    lengths: str
    batch_sizes: tuple[int, ...]
    problems: int
    simulated: bool
    engines: Path
    settings: tuple[str, ...]
    samples: int = 1
    seed: int = 0


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
    """Of SpecReason, with every step drafted."""
    best: float
    """Of the best baseline: the target alone, or with token-level speculation in its engine."""
    best_name: str


def setups() -> Iterator[Setup]:
    """The simulated setups, then those that this machine computes itself."""
    for machine, lengths, (problems, sizes) in product(SIMULATED, SEEDS, PROBLEMS.items()):
        for seed in range(SEEDS[lengths]):
            yield Setup(
                name=f"{machine}-{lengths}-{problems}-{seed}",
                machine=machine,
                lengths=lengths,
                batch_sizes=sizes,
                problems=problems,
                seed=seed,
                engines=ROOT / f"graphs/engines/{machine.removesuffix(MPS)}.yaml",
                settings=(*ROOMY, *PATIENT, f"engines.*.text.preset={lengths}", *(SHARED if machine.endswith(MPS) else ())),
                simulated=True,
            )
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
    if not setup.engines.exists():
        return f"there is no {setup.engines.relative_to(ROOT)}; `make build/inflated.yaml` makes it"
    return "vLLM is not installed" if setup.machine == "vllm" and find_spec("vllm") is None else None


def options_of(setup: Setup, repeats: int) -> SweepOptions:
    """The sweep of one setup."""
    return SweepOptions(
        graphs=(ROOT / "graphs/specreason.yaml",),
        input=write_problems(BUILD / f"problems-{setup.problems}.parquet", setup.problems) if setup.simulated else ARITH,
        batch_sizes=setup.batch_sizes,
        repeats=1 if setup.simulated else repeats,
        variants=() if setup.machine.endswith(MPS) else tuple(variants_of(Path("target"), setup.engines)),
        engines=(setup.engines,),
        settings=setup.settings,
        limit=setup.problems,
        samples=setup.samples,
        seed=setup.seed,
        output=BUILD / setup.name,
        resume=True,
    )


def cells(setup: Setup, points: Sequence[Point]) -> Iterator[Cell]:
    """The cells of one setup, which may have `points` of several seeds."""
    for size in setup.batch_sizes:
        found: dict[str, list[tuple[int, Any]]] = {}
        for point in points:
            if point.batch_size == size:
                name = (point.variant or "target") if point.baseline else "always"
                found.setdefault(name, []).append((point.repeat, point.problems_per_s))
        rates = _all_seeds(found) if setup.simulated else _in_turns(found)
        best = max(rates.keys() - {"always"}, key=rates.__getitem__)
        yield Cell(
            machine=setup.machine,
            lengths=setup.lengths,
            batch_size=size,
            problems=setup.problems * setup.samples,
            seeds=SEEDS.get(setup.lengths, 1),
            simulated=setup.simulated,
            target=rates["target"],
            always=rates["always"],
            best=rates[best],
            best_name=best,
        )


def _all_seeds(found: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, float]:
    return {name: statistics.harmonic_mean(rate for _, rate in rates) for name, rates in found.items()}


def _in_turns(found: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, float]:
    alone = dict(found["target"])
    ratios = {name: statistics.median(rate / alone[repeat] for repeat, rate in rates) for name, rates in found.items()}
    return {name: statistics.median(alone.values()) * ratio for name, ratio in ratios.items()}


def measure(repeats: int) -> list[Cell]:
    """Run what is missing of the sweeps."""
    found: dict[object, tuple[Setup, list[Point]]] = {}
    for setup in setups():
        if lack := missing(setup):
            say(f"{setup.name}: left out, {lack}")
            continue
        points = swept(options_of(setup, repeats), setup.name)
        found.setdefault((setup.machine, setup.lengths, setup.batch_sizes), (setup, []))[1].extend(points)
    return [cell for setup, points in found.values() for cell in cells(setup, [*points, *_variants_in_time_slices(setup, found)])]


def _variants_in_time_slices(setup: Setup, found: Mapping[object, tuple[Setup, list[Point]]]) -> list[Point]:
    """Under MPS: the baselines with token-level speculation that were run in time slices."""
    if not setup.machine.endswith(MPS):
        return []
    _, points = found[setup.machine.removesuffix(MPS), setup.lengths, setup.batch_sizes]
    return [point for point in points if point.variant]


# The tables.


def _ratios(cells: Cells, machine: str, lengths: str, sizes: Sequence[int]) -> Iterator[str]:
    """SpecReason over the target alone at these batch sizes."""
    found = {cell["batch_size"]: over(cell) for cell in cells if (cell["machine"], cell["lengths"]) == (machine, lengths)}
    return (f"{found[size]:.2f}" if size in found else "-" for size in sizes)


def over(cell: Results) -> float:
    """SpecReason over the target alone."""
    return float(cell["always"] / cell["target"])


def _error(results: Results) -> str:
    return (
        "On a GPU only iterations and short runs were measured (`bench/gpu.md`), no such ratio. Under CUDA MPS a kernel is simulated to "
        f"wait for {results['kernel_wait']:g} of one of the other model: fitted to PyTorch's decoders on one H200 (off by {MPS_ERROR:.0%} "
        "there), not to vLLM, whose two runs it does not describe well. Simulated rows: on our measured points the simulator is off by a "
        f"median of {OWN_TEXT_ERROR:.0%} with text of its own, as here, and of {MEDIAN_ERROR:.0%} with recorded text."
    )


def over_target(root: Path) -> str:
    """SpecReason against the target alone, by batch size."""
    columns = ("throughput over the target alone, same hardware", *(f"batch size {size}" for size in SIZES))
    results = results_of("over-target", root)
    rows = [(title, *_ratios(results["cells"], *where, SIZES)) for where, title in ROWS.items()]
    simulated = [cell for cell in results["cells"] if cell["simulated"]]
    beaten = sum(cell["best"] > cell["always"] for cell in simulated)
    said = (
        f"SpecReason, every step drafted; above 1, two models are faster. Over {len(simulated)} simulated settings the geometric mean is "
        f"{statistics.geometric_mean(map(over, simulated)):.2f}. The target alone with EAGLE-3 inside is faster than SpecReason in "
        f"{beaten} of them."
    )
    return f"{grid(columns, rows)}\n\n{said} {_error(results)}"


def mps(root: Path) -> str:
    """The gain by CUDA MPS: the ratio in time slices and under MPS."""
    results, sizes = results_of("over-target", root), (1, 8, 64, 256)
    rows = []
    for machine in (each for each in SIMULATED if not each.endswith(MPS)):
        slices, mps = (_ratios(results["cells"], name, "math", sizes) for name in (machine, f"{machine}{MPS}"))
        rows.append((MACHINES[machine], *map(" → ".join, zip(slices, mps, strict=True))))
    columns = ("over the target alone, time slices → MPS", *(f"batch size {size}" for size in sizes))
    return f"{grid(columns, rows)}\n\nQwQ-32B and R1-Distill-Qwen-1.5B, SpecReason, MATH lengths. {_error(results)}"


VIEWS: dict[str, Callable[[Path], str]] = {"over-target": over_target, "mps": mps}
"""By the name between the markers."""

# The picture.

LEFT, CELL, ROW, TOP = 300, 62, 26, 56


def picture(root: Path) -> str:
    """All ratios of systems that always draft, as an SVG heat map: green is faster than the target alone."""
    cells: Cells = results_of("over-target", root)["cells"]
    sizes = sorted({cell["batch_size"] for cell in cells})
    rows = sorted(dict.fromkeys((cell["simulated"], cell["machine"], cell["lengths"]) for cell in cells), key=lambda row: row[0])
    width, height = LEFT + CELL * len(sizes) + 10, TOP + ROW * len(rows) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(10, 22, "Throughput over the target alone, SpecReason, by batch size", "start", weight="bold"),
        *(_text(LEFT + CELL * (place + 0.5), TOP - 10, str(size)) for place, size in enumerate(sizes)),
    ]
    for place, (simulated, machine, lengths) in enumerate(rows):
        y = TOP + ROW * place
        parts.append(_text(10, y + 18, _label(simulated, machine, lengths), "start"))
        here = [cell for cell in cells if (cell["simulated"], cell["machine"], cell["lengths"]) == (simulated, machine, lengths)]
        for cell in here:
            parts += _cell(LEFT + CELL * sizes.index(cell["batch_size"]), y, over(cell))
    parts.append(
        _text(
            10,
            height - 10,
            "GSM8K, MATH, AIME: how long the reasoning is. Compare within batch sizes 1 to 4, 8 to 32 and 64 to 256: more problems each.",
            "start",
        )
    )
    return "\n".join([*parts, "</svg>", ""])


def _label(simulated: bool, machine: str, lengths: str) -> str:
    if not simulated:
        return f"measured: {MACHINES[machine]}"
    sharing = "MPS" if machine.endswith(MPS) else "time slices"
    return f"simulated: {MACHINES[machine.removesuffix(MPS)]}, {sharing}, {lengths.upper()}"


def _cell(x: float, y: float, ratio: float) -> Iterator[str]:
    strength = min(1.0, abs(math.log2(ratio)))
    tint = (26, 127, 55) if ratio >= 1 else (180, 35, 24)
    colour = "#" + "".join(f"{round(255 + (channel - 255) * strength):02x}" for channel in tint)
    yield f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{ROW - 2}" fill="{colour}"/>'
    yield _text(x + CELL / 2 - 1, y + 17, f"{ratio:.2f}", fill="#ffffff" if strength > 0.6 else "#1c2530")


def _text(x: float, y: float, text: str, anchor: str = "middle", *, fill: str = "#1c2530", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}">{escape(text)}</text>'


@click.command()
@click.option("--repeats", default=3, show_default=True, help="Of the measured sweeps.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / RESULTS / "over-target.json")
def main(repeats: int, output: Path) -> None:
    """Run what is missing, then write the results."""
    recording = go_on(__file__, BUILD)
    about = {"bench": "over-target", "kernel_wait": KERNEL_WAIT, "repeats": repeats}
    recording.write(output, about | {"cells": [structs.asdict(cell) for cell in measure(repeats)]})


if __name__ == "__main__":
    main()
