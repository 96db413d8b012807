"""How the simulator's three modes of sharing predict what was measured of two processes on one GPU (bench/results/gpu-*.json).

`bench/calibration.py` writes it on its page.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from figures import results_of
from msgspec import Struct
from token_level import H200, QWQ, REACHED_BYTES, REACHED_FLOPS, Weights

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.written import markdown_table
from pipeline.engines.sim.sharing import Use, stretch

SHAPES = {"target": QWQ, "draft": Weights(1.78e9, 28_672)}
"""Of QwQ-32B and R1-Distill-Qwen-1.5B, whose shapes were measured."""
MODES = ("time_slices", "kernels", "mps")
MEASURED = {"time_slices": "interference", "kernels": "interference", "mps": "mps"}
"""What a mode is compared with: processes without MPS, or under it."""


class Cell(Struct, frozen=True, kw_only=True):
    """Both processes of one measurement: times as long as alone without MPS, by role."""

    title: str
    engine_like: bool
    """Whether each iteration is one CUDA graph, as in an engine."""
    measured: Mapping[str, float]
    simulated: Mapping[str, float]


def use_alone(role: str, cell: Mapping[str, Any], context: int) -> Use:
    """What a process takes of the card while it is alone, as the simulator has it: what its roofline leaves is overhead."""
    shape, seconds, sequences = SHAPES[role], cell["alone"]["mean_s"], cell["batch"]
    traffic = (2 * shape.parameters + sequences * context * shape.kv_bytes_per_token) / (H200.bytes_per_s * REACHED_BYTES)
    arithmetic = 2 * shape.parameters * sequences * cell["tokens"] / (H200.flops_per_s * REACHED_FLOPS)
    return Use(min(traffic / seconds, 1.0), min(arithmetic / seconds, 1.0), max(0.0, 1 - max(traffic, arithmetic) / seconds))


def slowdowns(mode: str, uses: Mapping[str, Use]) -> dict[str, float]:
    """Times as long as alone, by role, in a mode of the simulator."""
    if mode == "time_slices":
        return dict.fromkeys(uses, float(len(uses)))
    shared = [use.exclusive() if mode == "kernels" else use for use in uses.values()]
    by = stretch(shared)
    return {role: use.slowdown(by) for role, use in uses.items()}


def cells(mode: str) -> Iterator[Cell]:
    """All measurements that a mode is compared with."""
    plain, found = results_of("gpu-interference"), results_of(f"gpu-{MEASURED[mode]}")
    for alone, row in zip(plain["together"], found["together"], strict=True):
        uses = {role: use_alone(role, each, plain["context"]) for role, each in alone.items()}
        yield Cell(
            title=" / ".join(f"{each['batch']} x {each['tokens']}{'' if each['mode'] == 'graph' else ' eager'}" for each in row.values()),
            engine_like=all(each["mode"] == "graph" for each in row.values()),
            measured={role: each["together"]["mean_s"] / alone[role]["alone"]["mean_s"] for role, each in row.items()},
            simulated=slowdowns(mode, uses),
        )


def error(found: Sequence[Cell]) -> float:
    """Mean |ln(simulated / measured)| of the times of both processes."""
    return float(np.mean([abs(math.log(each.simulated[role] / each.measured[role])) for each in found for role in each.measured]))


HEADING = "## Two processes on one card"


def section() -> str:
    """The section of the page."""
    by_mode = {mode: list(cells(mode)) for mode in MODES}
    rows = []
    for mode, found in by_mode.items():
        graphs = [each for each in found if each.engine_like]
        rows.append((f"`{mode}`", f"{error(graphs):.0%}", f"{error([each for each in found if not each.engine_like]):.0%}"))
    errors = Table("Error of each mode (mean |ln| of both processes' times)", ("mode", "CUDA graphs", "launched one by one"), tuple(rows))
    lines = [
        (plain.title, *map(_pair, (plain.measured, plain.simulated, kernels.simulated, mps.measured, mps.simulated)))
        for plain, kernels, mps in zip(*by_mode.values(), strict=True)
    ]
    columns = ("target / draft", "without MPS", "`time_slices`", "`kernels`", "under MPS", "`mps`")
    return "\n\n".join(
        [
            HEADING,
            "Times as long as alone, target and draft, on the H200 of [gpu.md](gpu.md), and as the simulator has them with the shares of "
            "the datasheet that its machines reach (a cell is sequences x tokens of each; `eager`: launched one by one).",
            markdown_table(Table("Measured and simulated", columns, tuple(lines))),
            markdown_table(errors),
            _reading({mode: error([each for each in found if each.engine_like]) for mode, found in by_mode.items()}),
        ]
    )


def _pair(times: Mapping[str, float]) -> str:
    return " / ".join(f"{value:.2f}" for value in times.values())


def _reading(errors: Mapping[str, float]) -> str:
    better = min(("time_slices", "kernels"), key=errors.__getitem__)
    return (
        f"Engines compute iterations as CUDA graphs, and without MPS `{better}` fits those better: it is the default. It leaves out that "
        "changing costs a tenth. `kernels` takes what a roofline leaves of an iteration for launches; in a graph most of it is kernels "
        "that do not reach the bandwidth, and these exclude the other process as well. Where the host launches one by one it is nearer, "
        "and so it may be for what an engine's host does between two iterations, which is not in these cells. `mps` is right about the "
        "target and gives the draft far too much: its many short kernels wait for the target's long ones, which no mode has. **So "
        "simulated gains under MPS are too high**; by how much in whole runs is not measured."
    )
