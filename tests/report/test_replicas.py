"""Figures of replicas: every number that enters, also of so many that not all have room."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pipeline.analysis.time.occupancy import CAUSES, Occupancy, ReplicaEngine, ReplicaFigures
from pipeline.report.figures import engines as figures


def replica(number: int, **fields: Any) -> ReplicaFigures:
    """One that wrote as many tokens as its number says, three of four by the draft; busy for half of 10 s and in the tail for the rest."""
    idle = dict.fromkeys(CAUSES, 0.0)
    engines = {
        role: ReplicaEngine(output_tokens=10, output_tokens_per_s=share * number, busy_share=0.5, idle_s=idle | {"tail": 5.0})
        for role, share in (("draft", 0.75), ("target", 0.25))
    }
    known: dict[str, Any] = {
        "nodes": ("n",),
        "chains": 1200,
        "done": 1200,
        "problems_per_s": 0.25,
        "idle_share": idle | {"tail": 0.5},
        "busy_share": 0.5,
        "tail_s": 1.5,
        "starts": 1,
        "losses": (),
        "dropped": False,
    }
    return ReplicaFigures(replica=number, engines=engines, **known | fields)


FEW = [replica(number) for number in range(3)]
MANY = [replica(number) for number in (*range(50, 90), *range(50))]


def occupancy(live: dict[int, list[float]]) -> Occupancy:
    """Of replicas with these chains in flight in slices of 1 s."""
    slices = len(next(iter(live.values())))
    nothing = np.zeros(slices)
    common: dict[str, Any] = {"engines": {}, "devices": {}, "overlap": nothing, "overlap_s": 0.0, "overlap_share": 0.0}
    alone = Occupancy(span_s=float(slices), edges_s=np.arange(slices + 1.0), live=nothing, **common)
    return replace(alone, replicas={number: replace(alone, live=np.array(each)) for number, each in live.items()})


def test_the_table_has_a_row_for_each_and_columns_for_what_was() -> None:
    lost = replica(3, nodes=("a" * 56, "b"), losses=("gone", "gone", "late"), starts=4, dropped=True)
    table = figures.replicas_table([*FEW, lost])
    assert table.columns == (
        "replica",
        "place",
        "chains",
        "problems/s",
        "generated tokens/s",
        "busy",
        "idle: tail",
        "own tail",
        "starts",
        "losses",
    )
    assert table.rows[2] == ("2", "n", "1,200", "0.25", "2", "50.0%", "50.0%", "1.5 s", "1", "0")
    assert table.rows[3][1] == "a" * 15 + "\u2026, b"
    losses = figures.losses_table([*FEW, lost])
    assert losses is not None
    assert losses.rows == (("3", "gone (2 times); late", "dropped"),)
    assert figures.losses_table(FEW) is None


def test_of_many_the_slowest_and_the_fastest_are_shown() -> None:
    numbers = [*range(10), *range(80, 90)]
    assert [each.replica for each in figures.shown(MANY)] == numbers
    assert [row[0] for row in figures.replicas_table(MANY).rows] == [str(number) for number in numbers]
    assert figures.replicas_table(MANY).note.startswith("Of 90 replicas the 10 slowest and the 10 fastest")
    figure = figures.throughput(MANY)
    assert list(figure.data[0].y) == [f"replica {number}" for number in numbers]
    assert figure.layout.height < 700
    assert (figures.shown(FEW), figures.which(FEW)) == (FEW, "")


def test_throughput_is_by_role() -> None:
    bars = {trace.name: list(trace.x) for trace in figures.throughput(FEW).data}
    assert bars == {"draft": [0, 0.75, 1.5], "target": [0, 0.25, 0.5]}


def test_chains_in_flight_have_a_row_for_each_replica_and_a_line_where_the_tail_begins() -> None:
    figure = figures.chains_in_flight(occupancy({0: [4, 4, 1, 0], 5: [4, 4, 4, 2]}), 1.5, 3.75)
    [cells] = figure.data
    assert (list(cells.y), cells.z.tolist(), list(cells.x)) == ([0, 5], [[4, 4, 1, 0], [4, 4, 4, 2]], [0, 1, 2, 3, 4])
    assert figure.layout.shapes[0].x0 == figure.layout.shapes[0].x1 == 2.25
    assert not figures.chains_in_flight(occupancy({0: [1], 1: [1]}), None, 1.0).layout.shapes


def test_slices_of_very_many_replicas_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MAX_CELLS", 5)
    [cells] = figures.chains_in_flight(occupancy({0: [4, 2, 1], 5: [0, 0, 2]}), None, 3.0).data
    assert (cells.z.tolist(), list(cells.x)) == ([[3, 1], [0, 2]], [0, 2, 3])
    assert figures.CAUSES.keys() == set(CAUSES)
