"""Points of sweeps that were never made."""

from pathlib import Path
from typing import Any

from pipeline.analysis.points import Point, write_points


def point(problems_per_s: float, batch_size: int = 8, *, system: str = "speccot", repeat: int = 0, **fields: Any) -> Point:
    known: dict[str, Any] = {
        "graph": system.partition(" ")[0],
        "schedule": "pipelined",
        "simulated": False,
        "chains": 10,
        "failed": 0,
        "problems": 10,
        "wall_s": 10 / problems_per_s,
        "tail_s": 1.0,
        "steady_problems_per_s": None,
        "output_tokens_per_s": 100.0,
        "kept_tokens_per_s": 50.0,
        **dict.fromkeys(("chain_p50_s", "chain_p90_s", "accuracy")),
        "acceptance_rate": None,
        "busy_share": {"target": 1.0},
        "cache_kept": False,
    }
    place = {"system": system, "batch_size": batch_size, "repeat": repeat, "baseline": system == "target"}
    return Point(problems_per_s=problems_per_s, **(known | place | fields))


def alone(*figures: tuple[int, float]) -> list[Point]:
    return [point(rate, size, system="target") for size, rate in figures]


POINTS = [
    point(2.0, 1, chain_p50_s=0.5, chain_p90_s=0.75),
    point(6.0, 8, repeat=0, accuracy=0.9, acceptance_rate=0.5, busy_share={"draft": 0.5, "target": 0.75}),
    point(10.0, 8, repeat=1, accuracy=0.9, acceptance_rate=0.5, busy_share={"draft": 0.5, "target": 0.75}),
    *alone((1, 1.0), (8, 16.0)),
]


def sweep_folder(folder: Path, points: list[Point]) -> Path:
    folder.mkdir()
    (folder / "sweep.json").write_text("{}")
    write_points(folder / "points.parquet", points)
    return folder
