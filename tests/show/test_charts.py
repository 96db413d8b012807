"""What charts hold: every number that enters, axes with units, names in plain words."""

from typing import Any

import numpy as np
import pytest

from pipeline.analysis import ledger
from pipeline.analysis.steps import Scores
from pipeline.analysis.time import occupancy
from pipeline.analysis.time.latency import QUANTITIES, Latency
from pipeline.reasoning.chain import Scale
from pipeline.show import charts
from pipeline.show.gantt import ALIVE, WAITING, Gantt, KindSpans, draw_chains
from pipeline.show.page import prose
from pipeline.show.plot import Chart, Mark


def named(chart: Chart) -> dict[str, Mark]:
    return {mark.name: mark for panel in chart.panels for mark in panel.marks if mark.name}


def time_of(busy: float) -> dict[str, Any]:
    idle = {"tail": np.array([1 - busy, 1.0]), "barrier": np.zeros(2)}
    sums = {cause: float(each.sum()) for cause, each in idle.items()}
    return {"busy_s": np.array([busy, 0.0]), "idle_s": idle, "total_busy_s": busy, "total_idle_s": sums}


@pytest.fixture
def two_seconds() -> occupancy.Occupancy:
    flight = {"in_flight": np.array([3.0, 0.0]), "waiting": np.array([1.0, 0.0])}
    return occupancy.Occupancy(
        span_s=2.0,
        edges_s=np.array([0.0, 1.0, 2.0]),
        live=np.array([4.0, 1.0]),
        engines={role: occupancy.EngineOccupancy(**flight, **time_of(busy)) for role, busy in (("draft", 0.5), ("target", 0.75))},
        devices={
            "gpu": occupancy.DeviceOccupancy(roles=("draft", "target"), **time_of(1.0)),
            "alone": occupancy.DeviceOccupancy(roles=("draft",), **time_of(0.5)),
        },
        overlap=np.array([0.25, 0.0]),
        overlap_s=0.25,
        overlap_share=0.125,
        tail_s=0.0,
    )


def test_every_cause_and_every_outcome_has_words() -> None:
    assert charts.CAUSES.keys() == set(occupancy.CAUSES)
    assert charts.TOKENS.keys() == set(ledger.OUTCOMES)
    assert charts.TIMES.keys() == set(QUANTITIES)


def test_requests_over_time(two_seconds: occupancy.Occupancy) -> None:
    chart = charts.requests(two_seconds)
    assert [[list(mark.y) for mark in panel.marks] for panel in chart.panels] == [[[3, 0], [4, 0]], [[3, 0], [4, 0]], [[4, 4, 1, 1]]]
    assert (chart.x.title, chart.x.high) == ("seconds since the start", 2.0)
    assert chart.legend == {"running": "blue", "client queue": "orange"}


def test_busy_and_idle_are_shares_of_each_slice(two_seconds: occupancy.Occupancy) -> None:
    chart = charts.causes(two_seconds)
    assert [panel.y.title for panel in chart.panels] == ["draft", "target", "device gpu", "two or more engines"]
    assert [list(panel.marks[-1].y) for panel in chart.panels] == [[1, 1], [1, 1], [1, 1], [0.25, 0]], "the last part ends at all"
    assert "barrier (lockstep)" not in chart.legend, "what never was has no place in the legend"
    table = charts.causes_table(two_seconds)
    assert table.columns == ("", "draft", "target", "device gpu")
    assert table.rows == (
        ("busy", "0.5 s (25.0%)", "0.75 s (37.5%)", "1 s (50.0%)"),
        ("idle: tail (too few chains left)", "1.5 s (75.0%)", "1.25 s (62.5%)", "1 s (50.0%)"),
    )
    assert table.note == "Of 2 s. 0.25 s (12.5%) two or more engines busy."


def book(**output: int) -> ledger.EngineLedger:
    counts, why = dict.fromkeys(ledger.OUTCOMES, 0) | output, "an attempt was lost" if "unrecorded" in output else ""
    return ledger.EngineLedger(output=counts, input={"computed": 30, "cached": 10, "unrecorded": 0}, why_unrecorded=why)


def test_tokens_add_up_and_what_is_not_traced_has_a_reason() -> None:
    books = ledger.Ledger(engines={"draft": book(committed=60, rejected=40), "target": book(written=9, unrecorded=1)})
    output, prompts = charts.tokens(books)
    assert [sum(row.values()) for row in output.rows.values()] == [100, 10]
    assert list(output.legend) == ["accepted draft", "written", "draft, rejected", "not traced"]
    assert prompts.rows["draft"] == {"computed": 30, "prefix cache hit": 10, "not traced": 0}
    assert output.note == "Of all output tokens 62.7% useful, 0.0% verification, 37.3% wasted. Not traced: an attempt was lost."


def test_times_of_stages_in_the_order_of_the_graph() -> None:
    times = {"count": 1000, "mean": 0.2, "p50": 0.1, "p90": 0.3, "p99": 0.5, "max": 2.0}
    parts = [("another", "e2e"), ("draft", "e2e"), ("verify", "e2e"), ("verify", "wait")]
    rows = charts.latency_table([Latency(stage=stage, quantity=part, **times) for stage, part in parts], ["draft", "verify"]).rows
    assert rows[0] == ("draft", "end to end", "1,000", "200", "100", "300", "500", "2,000")
    assert [row[:2] for row in rows[1:]] == [("verify", "client queue"), ("verify", "end to end"), ("another", "end to end")]


def test_lengths_are_shares_of_their_kind_in_whole_bins() -> None:
    chart = charts.lengths({"accepted": np.bincount([10, 10, 30, 240]), "rejected": np.bincount([239]), "guidance": np.bincount([9])})
    accepted, rejected = named(chart)["accepted: 4, mean 72.5"], named(chart)["rejected candidate: 1, mean 239.0"]
    assert sum(accepted.y) / 2 == sum(rejected.y) / 2 == pytest.approx(1)
    assert max(accepted.y) == 0.5
    assert chart.x.title == "tokens, in bins of 4"
    assert len(named(chart)) == 2, "guidance is as long as a setting says"


def test_acceptance_skips_numbers_that_no_step_has() -> None:
    band, line, _ = charts.acceptance(np.array([0, 10, 0, 4]), np.array([0, 9, 0, 0])).panels[0].marks
    assert list(zip(line.x, line.y, strict=True)) == [(1, 0.9), (3, 0.0)]
    assert (band.low[0], band.y[0]) == (pytest.approx(0.5958, abs=1e-4), pytest.approx(0.9821, abs=1e-4)), "Wilson, 9 of 10"


def test_acceptance_by_score() -> None:
    scores = Scores(
        scale=Scale("score", 0.0, 1.0),
        edges=np.array([0.0, 0.5, 1.0]),
        accepted=np.array([0, 8]),
        rejected=np.array([2, 0]),
        threshold=0.5,
    )
    chart = charts.by_score("choose", scores)
    assert list(chart.panels[0].marks[1].y) == [0.0, 1.0]
    assert list(named(chart)["rejected"].y) == [2, 8]
    assert chart.note == "The threshold is 0.5."


@pytest.mark.parametrize(
    ("scale", "title"),
    [
        (Scale("probability of the chosen option", 0.0, 1.0), "probability of the chosen option"),
        (Scale("score", 0.0, 9.0, integers=True), "score, 0 to 9"),
    ],
)
def test_axes_are_named_after_the_scale(scale: Scale, title: str) -> None:
    assert charts.axis_title(scale) == title


def test_each_chain_is_a_row_from_the_top() -> None:
    spans = {
        ALIVE: KindSpans(np.array([0, 1]), np.array([0.0, 1.0]), np.array([2.0, 6.0])),
        "draft": KindSpans(np.array([0, 1]), np.array([0.0, 2.0]), np.array([1.0, 5.0])),
        WAITING: KindSpans(np.array([1]), np.array([1.5]), np.array([2.0])),
    }
    chart = draw_chains(Gantt(["a<b>", "b"], spans, ended=2), ["draft", "verify"])
    [panel] = chart.panels
    assert (chart.title, chart.x.high, panel.rows) == ("All 2 chains that ended", 6.0, ["a<b>", "b"])
    assert list(chart.legend) == [ALIVE, "draft", WAITING]
    assert list(named(chart)["draft"].y) == [1, 0]


def test_backticks_are_code_and_nothing_else_is_markup() -> None:
    assert prose("a `b<i>` <b>\u202e") == "a <code>b&lt;i&gt;</code> &lt;b&gt;\\u202e"
