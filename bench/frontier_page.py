"""bench/frontier.md from its results file: for each machine one chart and one table of throughput over the target-only baseline."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from grids import Results, grid, over_target_page

PICTURES = Path(__file__).parent / "frontier"
AIM_OVER_TARGET, AIM_OVER_BOTH = 0.98, 0.95
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
LENGTHS = {"gsm8k": "GSM8K", "math": "MATH", "aime": "AIME", "arith": "arith"}
INTRODUCTION = """\
SpecReason with `speculate: always` and with `speculate: auto`, pipelined and admitted by cache. Each figure is throughput (problems per
second until the last one ends) over that of the *target-only baseline*: the target alone at the same batch size, on the same problems and
hardware, on simulated machines and vLLM with the draft's memory added to its cache. Above 1 is faster. *Of the better one*: `auto` over
the faster of `always` and the target alone.

Simulated thoughts have the lengths of GSM8K, MATH or AIME (`pipeline/engines/sim/lengths.py`). **Batch sizes are run with different
numbers of problems**, so that a row is several curves, not one: with few problems one very long thought can be most of a run, and the
target alone may solve fewer problems per second at a larger batch size. [scaling.md](scaling.md) has two of these machines with short
thoughts, 384 problems at every batch size, and there speculation stops paying at smaller batch sizes."""


def over_target(cell: Results) -> float:
    """`auto` over the target alone."""
    return float(cell["auto"] / cell["target"])


def over_both(cell: Results) -> float:
    """`auto` over the faster of `always` and the target alone."""
    return float(cell["auto"] / max(cell["always"], cell["target"]))


def verdict(cells: Sequence[Results]) -> Iterator[str]:
    """Whether the aims are met, and where not."""
    simulated = [cell for cell in cells if cell["simulated"]]
    for name, aim, ratio in (
        ("the target alone", AIM_OVER_TARGET, over_target),
        ("the faster of `always` and the target alone", AIM_OVER_BOTH, over_both),
    ):
        if simulated:
            lowest = min(simulated, key=ratio)
            reached = sum(ratio(cell) >= aim for cell in simulated)
            where = f"{LENGTHS[lowest['lengths']]}, {lowest['machine']}, batch size {lowest['batch_size']}"
            share = f"{reached} of {len(simulated)} cells"
            yield f"- Simulated: `auto` reaches {aim} of {name} in {share}; minimum {ratio(lowest):.2f} ({where})."
    for machine in dict.fromkeys(cell["machine"] for cell in cells if not cell["simulated"]):
        ratios = ", ".join(f"{over_target(cell):.2f} at {cell['batch_size']}" for cell in cells if cell["machine"] == machine)
        yield f"- Measured, {machine}: `auto` over the target alone {ratios} (aim: {MEASURED_AIM})."


def rows(cells: Sequence[Results]) -> Iterator[tuple[str, ...]]:
    """The rows of one machine and one length of text."""
    name = LENGTHS[cells[0]["lengths"]]
    yield (f"*{name}: target alone, problems/s*", *(f"*{cell['target']:.3g}*" for cell in cells))
    yield (f"{name}: always", *(f"{cell['always'] / cell['target']:.2f}" for cell in cells))
    yield (f"{name}: auto", *(f"{over_target(cell):.2f}" for cell in cells))
    yield (f"{name}: auto, of the better one", *(f"{over_both(cell):.2f}" for cell in cells))


def table(cells: Sequence[Results]) -> str:
    """A column for each batch size, four rows for each length of text."""
    groups = [[cell for cell in cells if cell["lengths"] == kind] for kind in dict.fromkeys(cell["lengths"] for cell in cells)]
    seeds = [f"{LENGTHS[group[0]['lengths']]}: {group[0]['seeds']} times as many" for group in groups if group[0]["seeds"] > 1]
    counts = (" ".join(["problems", *(f"({each})" for each in seeds)]), *(str(cell["problems"]) for cell in groups[0]))
    head = ("batch size", *(str(cell["batch_size"]) for cell in groups[0]))
    return grid(head, [counts, *(row for group in groups for row in rows(group))])


def page(results: Results) -> str:
    """The whole page."""
    cells = results["cells"]
    parts: list[str] = []
    for machine in dict.fromkeys(cell["machine"] for cell in cells):
        here = [cell for cell in cells if cell["machine"] == machine]
        lengths = ", ".join(LENGTHS[kind] for kind in dict.fromkeys(cell["lengths"] for cell in here))
        parts += [
            f"## {machine}: {ABOUT[machine]}, lengths of {lengths}",
            f"![{machine}: throughput over the target alone](frontier/{machine}.png)",
        ]
        parts.append(table(here))
    return over_target_page("Where `speculate: auto` is faster than the target alone", results, INTRODUCTION, verdict(cells), parts)


def draw(results: Results) -> None:
    """The chart of each machine, a panel for each length of text; a line is interrupted where the number of problems changes."""
    from charts import chart

    for machine in dict.fromkeys(cell["machine"] for cell in results["cells"]):
        panels: dict[str, dict[str, dict[float, float | None]]] = {}
        before: Results = {}
        for cell in (cell for cell in results["cells"] if cell["machine"] == machine):
            lines = panels.setdefault(LENGTHS[cell["lengths"]], {"auto": {}, "always": {}})
            for mode, line in lines.items():
                if line and cell["simulated"] and cell["problems"] != before["problems"]:
                    line[(before["batch_size"] * cell["batch_size"]) ** 0.5] = None
                line[cell["batch_size"]] = cell[mode] / cell["target"]
            before = cell
        chart(panels, PICTURES / f"{machine}.png", dashed="always")
