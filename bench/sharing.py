"""How the simulator's two modes of sharing predict what was measured of two processes on one GPU (bench/results/gpu-*.json).

`bench/calibration.py` writes it on its page.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from msgspec import Struct

from bench.figures import results_of
from pipeline.analysis.tables import Table, markdown_table
from pipeline.engines.sim.sharing import waits
from pipeline.engines.sim.spec import KERNEL_WAIT

LAYERS = {"target": 64, "draft": 28}
"""Of QwQ-32B and R1-Distill-Qwen-1.5B, whose shapes were measured."""
MODES = ("time_slices", "mps")
MEASURED = {"time_slices": "interference", "mps": "mps"}
"""What a mode is compared with: processes without MPS, or under it."""


class Cell(Struct, frozen=True, kw_only=True):
    """Both processes of one measurement: times as long as alone without MPS, by role."""

    title: str
    engine_like: bool
    """Whether each iteration is one CUDA graph, as in an engine."""
    measured: Mapping[str, float]
    simulated: Mapping[str, float]


def simulated(mode: str, kernels_s: Mapping[str, float], kernel_wait: float = KERNEL_WAIT) -> dict[str, float]:
    """Times as long as alone, by role, in a mode of the simulator."""
    if mode == "time_slices":
        return dict.fromkeys(kernels_s, float(len(kernels_s)))
    return dict(zip(kernels_s, waits(list(kernels_s.values()), kernel_wait), strict=True))


def cells(mode: str, kernel_wait: float = KERNEL_WAIT) -> Iterator[Cell]:
    """All measurements that a mode is compared with."""
    plain, found = results_of("gpu-interference"), results_of(f"gpu-{MEASURED[mode]}")
    for alone, row in zip(plain["together"], found["together"], strict=True):
        kernels_s = {role: each["alone"]["mean_s"] / LAYERS[role] for role, each in alone.items()}
        yield Cell(
            title=" / ".join(f"{each['batch']} x {each['tokens']}{'' if each['mode'] == 'graph' else ' eager'}" for each in row.values()),
            engine_like=all(each["mode"] == "graph" for each in row.values()),
            measured={role: each["together"]["mean_s"] / alone[role]["alone"]["mean_s"] for role, each in row.items()},
            simulated=simulated(mode, kernels_s, kernel_wait),
        )


def error(found: Iterable[Cell]) -> float:
    """Mean |ln(simulated / measured)| of the times of both processes."""
    return float(np.mean([abs(math.log(each.simulated[role] / each.measured[role])) for each in found for role in each.measured]))


def errors(mode: str, kernel_wait: float = KERNEL_WAIT) -> tuple[float, float]:
    """The error of a mode where iterations are CUDA graphs, and where the host of one process or of both launches kernels one by one."""
    found = list(cells(mode, kernel_wait))
    return error(each for each in found if each.engine_like), error(each for each in found if not each.engine_like)


def error_table() -> Table:
    """The error of each mode, and of `mps` if no kernel waited."""
    rows = [(f"`{mode}`", *(f"{each:.0%}" for each in errors(mode))) for mode in MODES]
    without = ("`mps` if no kernel waited", *(f"{each:.0%}" for each in errors("mps", 0.0)))
    columns = ("`device.sharing`", "CUDA graphs, as in engines", "launched one by one")
    return Table("Error of each mode (mean |ln| of both processes' times)", columns, (*rows, without))


VIEWS = {"sharing": lambda root: markdown_table(error_table())}
"""Tables for the docs, by the name between the markers."""
HEADING = "## Two processes on one card"
READING = f"""\
Engines compute iterations as CUDA graphs, and without MPS `time_slices` fits those better: it is the default. It leaves out that
changing costs a tenth. Where the host launches kernels one by one, launches overlap with the other process's kernels, and it is wrong.

Under MPS the many short kernels of a small model wait for the long ones of a large one. In `mps` a kernel waits for {KERNEL_WAIT} of a
kernel of the other process, and an iteration has as many kernels as its model has layers. **The share is fitted to these cells**, of
PyTorch's decoders with kernels that are not fused, so that the error above is not one of prediction. Where the host launches one by one the
iterations are long and the kernels are not, and the rule is wrong. vLLM's two runs under MPS ([gpu.md](gpu.md)) it does not describe well:
the draft's calls fit with {KERNEL_WAIT} at batch size 16 and with 0.1 at 64, and verifications took two to three times as long as with any
share. How far simulated gains under MPS are from real ones in whole runs is not measured."""


def section() -> str:
    """The section of the page."""
    by_mode = {mode: list(cells(mode)) for mode in MODES}
    lines = [
        (plain.title, *map(_pair, (plain.measured, plain.simulated, mps.measured, mps.simulated)))
        for plain, mps in zip(*by_mode.values(), strict=True)
    ]
    columns = ("target / draft", "without MPS", "`time_slices`", "under MPS", "`mps`")
    return "\n\n".join(
        [
            HEADING,
            "Times as long as alone, target and draft, on the H200 of [gpu.md](gpu.md), and as the simulator has them with the shares of "
            "the datasheet that its machines reach (a cell is sequences x tokens of each; `eager`: launched one by one).",
            markdown_table(Table("Measured and simulated", columns, tuple(lines))),
            markdown_table(error_table()),
            READING,
        ]
    )


def _pair(times: Mapping[str, float]) -> str:
    return " / ".join(f"{value:.2f}" for value in times.values())
