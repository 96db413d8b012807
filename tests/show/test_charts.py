"""Charts: where marks lie, what axes say, every number that enters, names in plain words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis import ledger
from pipeline.analysis.time import occupancy
from pipeline.analysis.time.latency import QUANTITIES, Latency
from pipeline.analysis.time.work import read_work
from pipeline.show import charts
from pipeline.show.plot import SIDE, ChartAxis, Mark, path, up_to
from pipeline.store.query import Query
from tests.support.traces import call, card, chain, write

FEW = st.floats(-1e9, 1e9, allow_nan=False)


@pytest.mark.parametrize(
    ("fields", "outline"),
    [
        ({"kind": "line", "x": [0, 5], "y": [0, 4]}, "M0 10000L5000 0"),
        ({"kind": "line", "x": [0, 5, 11], "y": [0, float("nan"), 1]}, "M0 10000"),
        ({"kind": "bars", "x": [0, 5], "until": [5, 10], "y": [1, 0], "low": [0, 0]}, "M0 10000V7500H5000V10000"),
        ({"kind": "dots", "x": [5], "y": [2]}, "M5000 5000h0"),
        ({"kind": "bounds", "x": [5], "y": [3], "low": [1]}, "M5000 7500V2500"),
        ({"kind": "spans", "x": [0, 2, 0], "until": [1, 4, 5], "y": [1, 1, 3]}, "M0 7500H1000m1000 0H4000M0 2500H5000"),
        ({"kind": "line", "x": [], "y": []}, ""),
    ],
)
def test_a_mark_is_an_outline(fields: dict[str, Any], outline: str) -> None:
    assert path(Mark(hue="blue", **fields), ChartAxis(high=10), ChartAxis(high=4)) == outline


@given(FEW, FEW)
def test_ticks_are_few_and_between_the_ends(one: float, other: float) -> None:
    low, high = sorted((one, other))
    ticks = ChartAxis(low=low, high=high).ticks
    assert len(ticks) <= 9
    assert all(0 <= place <= 100 for place, _ in ticks)


def test_logarithmic_axes_have_powers_or_what_was_run() -> None:
    axis = ChartAxis(low=1, high=100, log=True)
    assert [label for _, label in axis.ticks] == ["1", "2", "5", "10", "20", "50", "100"]
    assert axis.place([0, 10, 1e9]).tolist() == [0, SIDE / 2, SIDE]
    assert [label for _, label in ChartAxis(low=0.9, high=70, log=True, at=(1.0, 8.0, 64.0)).ticks] == ["1", "8", "64"]
    assert (up_to([]).high, up_to([2.0, float("nan")]).high) == (1.0, pytest.approx(2.1))


def test_every_cause_and_every_outcome_has_words() -> None:
    assert charts.CAUSES.keys() == set(occupancy.CAUSES)
    assert charts.TOKENS.keys() == set(ledger.OUTCOMES)
    assert charts.TIMES.keys() == set(QUANTITIES)


def test_busy_and_idle_are_shares_of_each_slice(tmp_path: Path) -> None:
    """Two engines on one device, in four slices of 2 s: `a` drafts until 2 and is verified until 6, `b` drafts after it."""
    calls = [call("a", "d", 0, 0, 2), call("b", "d", 0, 2, 4), call("a", "t", 2, 2, 6)]
    told = card(0, 8, engines={role: {"backend": "sim", "device": {"name": "gpu"}} for role in ("d", "t")})
    with Query(write(tmp_path, calls=calls, chains=[chain("a", 0, 6), chain("b", 0, 4)], card=told)) as db:
        found = occupancy.occupancy(read_work(db), 4)
    in_flight = [[list(mark.y) for mark in panel.marks] for panel in charts.requests(found).panels]
    assert in_flight == [[[1, 1, 0, 0], [2, 1, 0, 0]], [[0, 1, 1, 0]], [[2, 2, 2, 2, 1, 1, 0, 0]]], "those that wait lie on top"
    chart = charts.causes(found)
    assert [panel.y.title for panel in chart.panels] == [
        "d: busy 4 s (50.0%), no chain in flight 2 s (25.0%), tail (too few chains left) 2 s (25.0%)",
        "t: busy 4 s (50.0%), no chain in flight 2 s (25.0%), all chains at the other engine 2 s (25.0%)",
        "device gpu: busy 6 s (75.0%), no chain in flight 2 s (25.0%)",
        "engines at the same time: two or more engines busy 2 s (25.0%)",
    ]
    assert [list(panel.marks[-1].y) for panel in chart.panels] == [[1] * 4, [1] * 4, [1] * 4, [0, 1, 0, 0]], "the last part ends at all"
    assert "barrier (lockstep)" not in chart.legend, "what never was has no place in the legend"


def book(**output: int) -> ledger.EngineLedger:
    counts, why = dict.fromkeys(ledger.OUTCOMES, 0) | output, "an attempt was lost" if "unrecorded" in output else ""
    return ledger.EngineLedger(output=counts, input={"computed": 30, "cached": 10, "unrecorded": 0}, why_unrecorded=why)


def test_tokens_add_up_and_what_is_not_traced_has_a_reason() -> None:
    books = ledger.Ledger(engines={"draft": book(committed=60, rejected=40), "target": book(written=9, unrecorded=1)})
    output, prompts = charts.tokens(books)
    assert output.panels[0].y.title == "draft: accepted draft 60 (60.0%); draft, rejected 40 (40.0%)"
    assert [(mark.x, mark.until) for mark in output.panels[0].marks] == [([0.0], [0.6]), ([0.6], [1.0])]
    assert list(output.legend) == ["accepted draft", "draft, rejected", "written", "not traced"]
    assert prompts.panels[0].y.title == "draft: computed 30 (75.0%); prefix cache hit 10 (25.0%)"
    assert output.note == "Of all output tokens 62.7% useful, 0.0% verification, 37.3% wasted. Not traced: an attempt was lost."


def test_times_of_stages_in_the_order_of_the_graph() -> None:
    times = {"count": 1000, "mean": 0.2, "p50": 0.1, "p90": 0.3, "p99": 0.5, "max": 2.0}
    parts = [("another", "e2e"), ("draft", "e2e"), ("verify", "e2e"), ("verify", "wait")]
    rows = charts.latency_table([Latency(stage=stage, quantity=part, **times) for stage, part in parts], ["draft", "verify"]).rows
    assert rows[0] == ("draft", "end to end", "1,000", "200", "100", "300", "500", "2,000")
    assert [row[:2] for row in rows[1:]] == [("verify", "client queue"), ("verify", "end to end"), ("another", "end to end")]


def test_lengths_are_shares_in_whole_bins_and_acceptance_skips_numbers_that_no_step_has() -> None:
    chart = charts.lengths({"accepted": np.bincount([10, 10, 30, 240]), "rejected": np.bincount([239]), "guidance": np.bincount([9])})
    named = {mark.name: mark for panel in chart.panels for mark in panel.marks if mark.name}
    assert list(named) == ["accepted: 4, mean 72.5", "rejected candidate: 1, mean 239.0"], "guidance is as long as a setting says"
    assert [sum(mark.y) / 2 for mark in named.values()] == pytest.approx([1, 1])
    assert chart.x.title == "tokens, in bins of 4"
    accepted, rejected = np.array([0, 9, 0, 0]), np.array([0, 1, 0, 4])
    bounds, line, _ = charts.acceptance("step", "", np.arange(5) - 0.5, accepted, rejected).panels[0].marks
    assert list(zip(line.x, line.y, strict=True)) == [(1, 0.9), (3, 0.0)]
    assert (bounds.low[0], bounds.y[0]) == (pytest.approx(0.5958, abs=1e-4), pytest.approx(0.9821, abs=1e-4)), "Wilson, 9 of 10"
