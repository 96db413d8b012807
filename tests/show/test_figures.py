"""What figures hold: every number that enters, axes with units, names in plain words."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from pipeline.analysis import ledger
from pipeline.analysis.quality.step_counts import Scores
from pipeline.analysis.study import QUANTITIES, Percentiles
from pipeline.analysis.time import occupancy
from pipeline.reasoning.chain import Scale
from pipeline.show.figures import engines as figures_time
from pipeline.show.figures import steps as figures_steps
from pipeline.show.figures import tokens as figures_tokens
from pipeline.show.figures.style import DECISIONS, WORDS, colours, drawn
from pipeline.show.gantt import ALIVE, WAITING, Gantt, KindSpans, draw_chains, line_width


def named(figure: go.Figure) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.name}


def titles(figure: go.Figure) -> list[str]:
    axes = [figure.layout[name] for name in figure.layout if name.startswith(("xaxis", "yaxis"))]
    return [axis.title.text for axis in axes if axis.title.text]


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
    )


def test_every_cause_has_words_and_every_purpose_too() -> None:
    assert figures_time.CAUSES.keys() == set(occupancy.CAUSES)
    assert figures_tokens.TOKENS.keys() == set(ledger.OUTCOMES)
    assert figures_tokens.TIMES.keys() == set(QUANTITIES)
    assert DECISIONS.keys() == WORDS.keys()


def test_requests_over_time(two_seconds: occupancy.Occupancy) -> None:
    figure = figures_time.requests(two_seconds)
    assert [list(trace.y) for trace in figure.data] == [[3, 0], [1, 0], [3, 0], [1, 0], [4, 1]]
    assert "time since start (s)" in titles(figure)
    assert {trace.name for trace in figure.data if trace.showlegend is not False} == {"running", "client queue", "chains in flight"}


def test_busy_and_idle_are_shares_of_each_slice(two_seconds: occupancy.Occupancy) -> None:
    figure = figures_time.causes(two_seconds)
    rows: dict[str, list[float]] = {}
    for trace in figure.data:
        rows[trace.yaxis] = [a + b for a, b in zip(rows.get(trace.yaxis, [0, 0]), trace.y, strict=True)]
    assert list(rows.values()) == [[1, 1], [1, 1], [1, 1], [0.25, 0]], "draft, target and the shared device add up; then the overlap"
    assert "held back for the rest of the round" not in named(figure), "what never was has no place in the legend"


def test_the_table_of_causes(two_seconds: occupancy.Occupancy) -> None:
    table = figures_time.causes_table(two_seconds)
    assert table.columns == ("", "draft", "target", "device gpu")
    assert table.rows == (
        ("busy", "0.5 s (25.0%)", "0.75 s (37.5%)", "1 s (50.0%)"),
        ("idle: tail (too few chains left)", "1.5 s (75.0%)", "1.25 s (62.5%)", "1 s (50.0%)"),
    )
    assert table.note == "Of 2 s. 0.25 s (12.5%) two or more engines busy."


def book(**output: int) -> ledger.EngineLedger:
    counts = dict.fromkeys(ledger.OUTCOMES, 0) | output
    return ledger.EngineLedger(
        output=counts,
        input={"computed": 30, "cached": 10, "unrecorded": 0},
        counted_output=sum(output.values()),
        why_unrecorded=("an attempt was lost",) if "unrecorded" in output else (),
    )


def test_tokens_add_up_in_the_figure_and_in_the_table() -> None:
    books = ledger.Ledger(engines={"draft": book(committed=60, rejected=40), "target": book(fallback=9, unrecorded=1)})
    figure = figures_tokens.tokens(books)
    sums = [[sum(trace[what][place] for trace in figure.data) for place in range(2)] for what in ("customdata", "x")]
    assert sums == [[100, 10], [1, 1]]
    assert figure.data[0].y == ("draft<br>100", "target<br>10")
    table = figures_tokens.tokens_table(books)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["accepted draft"] == ("60 (60.0%)", "0 (0.0%)")
    assert rows["total"] == rows["reported by the engine"] == ("100", "10")
    assert rows["prefix cache hit rate"] == ("25.0%", "25.0%")
    assert "answer" not in rows
    assert table.note.endswith("Not traced: an attempt was lost.")


def test_times_of_stages_in_the_order_of_the_graph() -> None:
    p = Percentiles(count=1000, mean=0.2, p50=0.1, p90=0.3, p99=0.5, max=2.0)
    latencies = {"verify": {"e2e": p, "wait": p}, "draft": {"e2e": p}}
    figure = figures_tokens.stage_times(latencies, ["draft", "verify"])
    assert {trace.name: list(trace.x) for trace in figure.data}["max"] == [2.0, 2.0]
    assert list(figure.data[0].y) == ["draft", "verify"]
    rows = figures_tokens.latency_table(latencies, ["draft", "verify"]).rows
    assert rows[0] == ("draft", "end to end", "1,000", "200", "100", "300", "500", "2,000")
    assert [row[:2] for row in rows[1:]] == [("verify", "client queue"), ("verify", "end to end")]


def test_lengths_are_shares_of_their_kind_in_whole_bins() -> None:
    counts = {"accepted": np.bincount([10, 10, 30, 240]), "rejected": np.bincount([239])}
    figure = figures_steps.lengths(counts)
    by_name = named(figure)
    accepted = by_name["accepted step: 4, mean 72.5"]
    assert sum(accepted.y) == pytest.approx(1)
    assert max(accepted.customdata) == 2
    assert sum(by_name["rejected candidate: 1, mean 239.0"].customdata) == 1
    assert figure.layout.xaxis.title.text.startswith("tokens, in bins of 4")


def test_acceptance_skips_numbers_that_no_step_has() -> None:
    figure = figures_steps.acceptance(np.array([0, 10, 0, 4]), np.array([0, 9, 0, 0]))
    line = named(figure)["acceptance rate, 95% interval"]
    assert list(zip(line.x, line.y, strict=True)) == [(1, 0.9), (3, 0.0)]
    low, high = (next(iter(figure.data[place].y)) for place in (0, 1))
    assert low == pytest.approx(0.5958, abs=1e-4), "Wilson, 9 of 10"
    assert high == pytest.approx(0.9821, abs=1e-4)


@pytest.fixture
def scores() -> Scores:
    return Scores(
        scale=Scale("score", 0.0, 1.0),
        edges=np.array([0.0, 0.5, 1.0]),
        accepted=np.array([0, 8]),
        rejected=np.array([2, 0]),
        threshold=0.5,
    )


def test_acceptance_by_score(scores: Scores) -> None:
    figure = figures_steps.by_score(scores)
    assert list(named(figure)["acceptance rate, 95% interval"].y) == [0.0, 1.0]
    assert list(named(figure)["rejected"].y) == [2, 0]
    assert figure.layout.annotations[0].text == "threshold 0.5"


@pytest.mark.parametrize(
    ("scale", "title"),
    [
        (Scale("probability of the chosen option", 0.0, 1.0), "probability of the chosen option"),
        (Scale("score", 0.0, 9.0, integers=True), "score, 0 to 9"),
        (Scale("log probability", high=0.0, unit="nats per token"), "log probability, nats per token"),
        (Scale("<b>margin"), "&lt;b&gt;margin"),
    ],
)
def test_axes_are_named_after_the_scale(scale: Scale, title: str) -> None:
    assert figures_steps.axis_title(scale) == title


def test_a_gantt_row_is_a_line_with_gaps() -> None:
    spans = {
        ALIVE: KindSpans(np.array([0, 1]), np.array([0.0, 1.0]), np.array([2.0, 6.0])),
        "draft": KindSpans(np.array([0, 1]), np.array([0.0, 2.0]), np.array([1.0, 5.0])),
        WAITING: KindSpans(np.array([1]), np.array([1.5]), np.array([2.0])),
    }
    figure = draw_chains(Gantt(["a<b>", "b"], spans), ["draft", "verify"])
    line = named(figure)["draft"]
    assert list(line.y) == [0, 0, 0, 1, 1, 1]
    assert list(line.x[:2]) == [0, 1]
    assert np.isnan(line.x[2])
    assert set(named(figure)) == {ALIVE, "draft", WAITING}
    assert figure.layout.yaxis.labelalias == {"0": "a&lt;b&gt;", "1": "b"}


def test_lines_are_as_wide_as_there_is_room() -> None:
    assert line_width(1) == 16
    assert line_width(10_000) == 1


def test_colours_and_words() -> None:
    assert len(set(colours([str(i) for i in range(8)]).values())) == 8
    assert drawn("<a href='x'>\u202e\n</a>") == "&lt;a href='x'&gt;\\u202e\\n&lt;/a&gt;"
