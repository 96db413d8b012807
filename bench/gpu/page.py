"""The tables of bench/gpu.md, of the results files that `bench/gpu_visit.sh` brought home."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.figures import ROOT, Results, grid, percent, results_of

ROLES = ("target", "draft")
PARTS = ("interference", "mps", "runs", "vllm", "map-vllm-time_slices", "map-vllm-mps")
"""The parts of a visit whose results are here."""
PARAMETERS = 3.28e10
"""Of the target, QwQ-32B."""


def sharing(root: Path = ROOT) -> str:
    """Milliseconds of an iteration of two processes on one GPU, alone and at the same time."""
    slices, mps = results_of("gpu-interference", root), results_of("gpu-mps", root)
    rows = list(map(_shared, slices["together"], mps["together"]))
    columns = ("target, draft", "alone, ms", "time slices, ms", "times as long", "speed kept", "MPS, ms", "times as long", "speed kept")
    slower = []
    for role in ROLES:
        more_ms = [1e3 * (under[role]["alone"]["mean_s"] - plain[role]["alone"]["mean_s"]) for plain, under in _graphs(slices, mps)]
        slower.append(f"{role} {_pair((min(more_ms), max(more_ms)))} ms")
    alone = f"Alone under MPS an iteration took longer than alone without it, by (least / most): {', '.join(slower)}."
    return f"{_origin(slices)}\n\n{grid(columns, rows)}\n\n{alone}"


def _graphs(slices: Results, mps: Results) -> Iterator[tuple[Results, Results]]:
    """The rows of both whose iterations are all CUDA graphs."""
    for plain, under in zip(slices["together"], mps["together"], strict=True):
        if all(plain[role]["mode"] == "graph" for role in ROLES):
            yield plain, under


def _shared(slices: Results, mps: Results) -> list[str]:
    alone = {role: slices[role]["alone"]["mean_s"] for role in ROLES}
    cells = [" / ".join(_cell(slices[role]) for role in ROLES), _pair(alone[role] * 1e3 for role in ROLES)]
    for both in (slices, mps):
        together = {role: both[role]["together"]["mean_s"] for role in ROLES}
        stretched = [together[role] / alone[role] for role in ROLES]
        cells += [_pair(together[role] * 1e3 for role in ROLES), _pair(stretched, 2), f"{sum(1 / each for each in stretched):.2f}"]
    return cells


def iterations(root: Path = ROOT) -> str:
    """Milliseconds of an iteration of each model alone, by sequences and by tokens computed of each."""
    alone = results_of("gpu-interference", root)["alone"]
    rows = []
    for role in ROLES:
        found = {(row["batch"], row["tokens"]): row["seconds"]["median_s"] * 1e3 for row in alone[role] if row["mode"] == "graph"}
        sizes = sorted({batch for batch, tokens in found if tokens == 8})
        rows += [[role, str(size), *(f"{found[size, tokens]:.1f}" for tokens in (1, 2, 4, 8))] for size in sizes]
    prompts = next(row for row in alone["target"] if (row["batch"], row["tokens"]) == (4, 512))
    reached = 2 * PARAMETERS * 4 * 512 / prompts["seconds"]["median_s"] / 1e12
    table = grid(("model", "sequences", "1 token", "2", "4", "8"), rows)
    return f"{table}\n\nFour prompts of 512 tokens took the target as long as {reached:.0f} TFLOP/s would."


def accuracy(root: Path = ROOT) -> str:
    """The bundled pair's runs on both engines."""
    torch, vllm = results_of("gpu-runs", root), results_of("gpu-vllm", root)
    done = torch["runs"].items()
    rows = [("torch", graph, percent(row["accuracy"]), str(row["chains"]), f"{row['problems_per_s']:.1f}") for graph, row in done]
    solved = round(vllm["wall_time_s"] * vllm["problems_per_s"])
    rows.append(("vLLM", "speccot", percent(vllm["accuracy"]), str(solved), f"{vllm['problems_per_s']:.1f}"))
    return grid(("engine", "graph", "accuracy", "problems", "problems/s"), rows)


def runs(root: Path = ROOT) -> str:
    """The runs of SpecReason on vLLM: medians of the calls' own times."""
    rows = []
    for name in ("time_slices", "mps"):
        results = results_of(f"gpu-map-vllm-{name}", root)
        speed = {row["batch_size"]: row["problems_per_s"] for row in results["points"]}
        rows += [row for run, calls in results["calls"].items() for row in _run(run, name, calls, speed)]
    columns = ("sharing", "batch size", "problems/s", "draft, ms a token", "target, ms a token")
    return f"{_origin(results)}\n\n{grid((*columns, 'verification: tokens, prefill ms, call ms'), rows)}"


def _run(name: str, sharing: str, calls: list[dict[str, Any]], speed: Mapping[int, float]) -> Iterator[list[str]]:
    size = int(name.split("_b")[1].split("_")[0])
    by_stage = {row["stage"]: row for row in calls}
    verify = by_stage["verify"]
    tokens = [f"{by_stage[stage]['token_s'] * 1e3:.2f}" for stage in ("draft", "answer")]
    said = f"{speed[size]:.1f}" if size in speed else "cut off"
    verified = f"{verify['new_tokens']:.0f}, {verify['prefill_s'] * 1e3:.1f} ms, {verify['call_s'] * 1e3:.1f} ms"
    yield [sharing.replace("_", " "), str(size), said, *tokens, verified]


def _cell(row: Results) -> str:
    each = f"{row['batch']} x {row['tokens']}"
    return each if row["mode"] == "graph" else f"{each}, launched one by one"


def _pair(values: Any, digits: int = 1) -> str:
    return " / ".join(f"{value:.{digits}f}" for value in values)


def _origin(results: Results) -> str:
    vllm = f", vLLM {results['vllm']}" if "vllm" in results else ""
    about = f"driver {results['driver']}, torch {results['torch']}{vllm}"
    return f"`bash bench/gpu_visit.sh` at commit {results['commit'][:7]}, {results['date']}; one {results['device']}, {about}:"


VIEWS: Mapping[str, Callable[[Path], str]] = {
    "gpu-sharing": sharing,
    "gpu-iterations": iterations,
    "gpu-accuracy": accuracy,
    "gpu-speeds": runs,
}
