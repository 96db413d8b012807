"""Throughput over the target alone: the frame and the charts of the pages about it, and the short tables and the picture of the docs."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bench.figures import ROOT, Results, grid, origin, results_of
from pipeline.analysis.simulated import MEDIAN_ERROR, MPS_ERROR, OWN_TEXT_ERROR, stated

Cells = list[dict[str, Any]]
"""The cells of bench/frontier.py: a machine, a length of thoughts and a batch size each."""
Line = Mapping[float, float | None]
"""Ratios by batch size; None at a place between two of them interrupts the line."""
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
AIM = 0.98
"""From this ratio on `auto` counts as no slower than the target alone."""


def page(title: str, results: Results, introduction: str, verdict: Iterable[str], sections: Iterable[str]) -> str:
    """A page: what was measured and how, the verdict, the simulator's error, then the sections."""
    head = [f"# {title}", f"{origin(results['measured'])[:-1]}.", introduction, "\n".join(verdict), stated(())]
    return "\n\n".join([*head, *sections]) + "\n"


def chart(panels: Mapping[str, Mapping[str, Line]], path: Path, dashed: str) -> None:
    """Draw into `path` a panel for each title, in it a line for each system; those whose names contain `dashed` are dotted.

    Kaleido needs Chromium for it.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    from pipeline.report.figures.style import SERIES, axes, layout

    figure = make_subplots(cols=len(panels), subplot_titles=list(panels), shared_yaxes=True, horizontal_spacing=0.03)
    for column, lines in enumerate(panels.values(), 1):
        for place, (name, line) in enumerate(lines.items()):
            look = {"color": SERIES[place // 2], "dash": "dot" if dashed in name else "solid", "width": 2}
            about = {"name": name, "legendgroup": name, "showlegend": column == 1, "mode": "lines+markers", "line": look}
            figure.add_trace(go.Scatter(x=list(line), y=list(line.values()), **about), row=1, col=column)
        figure.add_hline(y=1, line={"color": "#222b36", "width": 2}, row=1, col=column)
    sizes = sorted({size for lines in panels.values() for line in lines.values() for size, ratio in line.items() if ratio is not None})
    axes(figure.update_layout(layout(420)))
    figure.update_layout(margin={"t": 110}, legend={"y": 1.2, "orientation": "h"})
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=list(map(str, sizes)), title="batch size")
    figure.update_yaxes(title="times the target alone", col=1, rangemode="tozero")
    path.parent.mkdir(exist_ok=True)
    figure.write_image(path, width=1100, height=480, scale=1.5)


# Short tables of the front pages, of the figures of frontier.md.


def frontier(root: Path = ROOT) -> Cells:
    """The cells, with `always` and `auto` as ratios to the target alone."""
    cells: Cells = results_of("frontier", root)["cells"]
    return [cell | {mode: cell[mode] and cell[mode] / cell["target"] for mode in ("always", "auto")} for cell in cells]


def _ratio(cells: Cells, machine: str, lengths: str, size: int, mode: str = "always") -> str:
    found = [cell for cell in cells if (cell["machine"], cell["lengths"], cell["batch_size"]) == (machine, lengths, size)]
    return f"{found[0][mode]:.2f}" if found and found[0][mode] else "-"


def _rows(cells: Cells, mode: str) -> Iterator[Sequence[str]]:
    for (machine, lengths), title in ROWS.items():
        yield title, *(_ratio(cells, machine, lengths, size, mode) for size in SIZES)


def under_mps(results: Results) -> str:
    """A remark about simulated speeds under CUDA MPS, by the rule with which they were simulated."""
    return (
        f"Under CUDA MPS a kernel is simulated to wait for {results['kernel_wait']:g} of one of the other model: fitted to PyTorch's "
        f"decoders on one H200 (off by {MPS_ERROR:.0%} there), not to vLLM, whose two runs it does not describe well."
    )


def _error(root: Path) -> str:
    return (
        f"On a GPU only iterations and short runs were measured (`bench/gpu.md`), no such ratio. {under_mps(results_of('frontier', root))} "
        f"Simulated rows: on our measured points the simulator is off by a median of {OWN_TEXT_ERROR:.0%} with text of its own, as here, "
        f"and of {MEDIAN_ERROR:.0%} with recorded text."
    )


def over_target(root: Path) -> str:
    """SpecReason against the target alone, by batch size."""
    columns = ("throughput over the target alone, same hardware", *(f"batch size {size}" for size in SIZES))
    cells = frontier(root)
    simulated = [cell for cell in cells if cell["simulated"]]
    beaten = sum(cell["best"] > cell["always"] * cell["target"] for cell in simulated)
    means = {mode: statistics.geometric_mean(cell[mode] for cell in simulated) for mode in ("always", "auto")}
    said = (
        "SpecReason, every step drafted; above 1, two models are faster (`bench/frontier.md`). That is the default (`speculate=always`): "
        f"over {len(simulated)} simulated settings its geometric mean is {means['always']:.2f}, that of `auto` {means['auto']:.2f}. The "
        f"target alone with EAGLE-3 inside is faster than SpecReason in {beaten} of them."
    )
    return f"{grid(columns, _rows(cells, 'always'))}\n\n{said} {_error(root)}"


def auto(root: Path) -> str:
    """The same with `speculate=auto`, and how often that is no slower."""
    cells = frontier(root)
    table = grid(("`auto` over the target alone", *(f"batch size {size}" for size in SIZES)), _rows(cells, "auto"))
    simulated = [cell for cell in cells if cell["simulated"]]
    least = min(simulated, key=lambda cell: cell["auto"])
    reached = sum(cell["auto"] >= AIM for cell in simulated)
    where = f"{least['machine'].removeprefix('sim-')} with {least['lengths']} lengths at batch size {least['batch_size']}"
    commit = results_of("frontier", root)["measured"]["commit"]
    said = (
        f"In simulation, `auto` as of commit {commit:.7} reached at least {AIM} in {reached} of {len(simulated)} settings, at worst "
        f"{least['auto']:.2f}, {where}."
    )
    return f"{table}\n\n{said} {_error(root)}"


def mps(root: Path) -> str:
    """The gain by CUDA MPS: the ratio in time slices and under MPS."""
    cells, sizes = frontier(root), (1, 8, 64, 256)
    rows = [
        (title, *(" → ".join(_ratio(cells, name, "math", size) for name in (machine, f"{machine}-mps")) for size in sizes))
        for machine, title in MACHINES.items()
        if machine.startswith("sim-")
    ]
    columns = ("over the target alone, time slices → MPS", *(f"batch size {size}" for size in sizes))
    return f"{grid(columns, rows)}\n\nQwQ-32B and R1-Distill-Qwen-1.5B, SpecReason, MATH lengths. {_error(root)}"


VIEWS: dict[str, Callable[[Path], str]] = {"over-target": over_target, "auto": auto, "mps": mps}
"""By the name between the markers."""

# The picture.

LEFT, CELL, ROW, TOP = 300, 62, 26, 56


def picture(root: Path) -> str:
    """All ratios of systems that always draft, as an SVG heat map: green is faster than the target alone."""
    cells = frontier(root)
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
            parts += _cell(LEFT + CELL * sizes.index(cell["batch_size"]), y, cell["always"])
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
    sharing = "MPS" if machine.endswith("-mps") else "time slices"
    return f"simulated: {MACHINES[machine.removesuffix('-mps')]}, {sharing}, {lengths.upper()}"


def _cell(x: float, y: float, ratio: float) -> Iterator[str]:
    strength = min(1.0, abs(math.log2(ratio)))
    tint = (26, 127, 55) if ratio >= 1 else (180, 35, 24)
    colour = "#" + "".join(f"{round(255 + (channel - 255) * strength):02x}" for channel in tint)
    yield f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{ROW - 2}" fill="{colour}"/>'
    yield _text(x + CELL / 2 - 1, y + 17, f"{ratio:.2f}", fill="#ffffff" if strength > 0.6 else "#1c2530")


def _text(x: float, y: float, text: str, anchor: str = "middle", *, fill: str = "#1c2530", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}">{escape(text)}</text>'
