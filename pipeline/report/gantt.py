"""A Gantt chart of chains: the calls of a sample of chains enter, streamed; their spans of time and a plotly figure leave.

Each chain has a row, and all spans of one kind are one plotly trace: lines with gaps, drawn by WebGL, so that tens of thousands of
them can be zoomed.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.arrays import Array, Names
from pipeline.analysis.time.work import Axis
from pipeline.report.chain_list import ChainList, evenly
from pipeline.report.figures.style import GREY, LIGHT, RED, axes, colours, drawn, layout
from pipeline.store.read import read_batches

COLUMNS = ("chain_id", "stage", "submit_unix_ns", "end_unix_ns", "client_wait_s", "queue_time_s", "error_type")
MOST_CHAINS = 4_000
MOST_CALLS = 40_000
"""Limits of one chart: a browser without a GPU draws these within seconds, and they are about 4 MB of the page."""
SHORTEST = 1e-3
"""Waiting of less than this share of the median chain's time is not drawn: it could not be seen, and every call has some."""
WAITING, QUEUED, FAILED = "client queue", "engine queue", "failed attempt"
HEIGHT = 680
ROOM = HEIGHT - 130
"""Height of all rows together, in pixels."""


class Spans(Struct, frozen=True):
    """Spans of time of one kind, as columns of equal length; times are seconds of work, see `work.Axis`."""

    row: Array
    """Index of the drawn chain."""
    start: Array
    end: Array


class Gantt(Struct, frozen=True):
    """The chains that are drawn, in the order of their starts."""

    names: Sequence[str]
    """Names of the chains."""
    spans: dict[str, Spans]
    """Spans of their calls, by kind: the stage while its request was computed, or one of `WAITING`, `QUEUED`, `FAILED`."""
    alive: Spans
    """Spans from admission to the end."""


def read_gantt(run: Path, chains: ChainList, places: Array, axis: Axis) -> Gantt:
    """The spans of the chains with the indices `places`; for a chain that was resumed also those of earlier calls.

    Raises `InputError` where the calls of the run folder `run` cannot be read.
    """
    names = [chains.names[place] for place in places]
    wanted = pa.array(names, pa.string())
    alive = Spans(np.arange(len(places)), axis.seconds(chains.start[places]), axis.seconds(chains.end[places]))
    least = SHORTEST * float(np.median(alive.end - alive.start)) if len(places) else 0.0
    parts: dict[str, list[Spans]] = {}
    for batch in read_batches(run, "calls", COLUMNS):
        rows = pc.index_in(batch.column("chain_id"), wanted)
        mine = rows.is_valid()
        if pc.any(mine).as_py():
            _add(parts, batch.filter(mine), rows.drop_null().to_numpy(), axis, least)
    return Gantt(names, {kind: _joined(some) for kind, some in parts.items()}, alive)


def sample(chains: ChainList, *, most_chains: int = MOST_CHAINS, most_calls: int = MOST_CALLS) -> Array:
    """Indices of as many chains as can be drawn, evenly spaced in the order of their starts."""
    mean_calls = max(1.0, float(chains.calls.mean())) if len(chains.calls) else 1.0
    return evenly(np.arange(len(chains.names)), max(1, min(most_chains, int(most_calls / mean_calls))))


def middle(chains: ChainList, count: int) -> Array:
    """Indices of `count` chains that started one after the other, in the middle of the run."""
    first = max(0, (len(chains.names) - count) // 2)
    return np.arange(first, min(first + count, len(chains.names)))


def _add(parts: dict[str, list[Spans]], batch: pa.RecordBatch, rows: Array, axis: Axis, least: float) -> None:
    submit, end = (axis.seconds(batch.column(name).to_numpy()) for name in ("submit_unix_ns", "end_unix_ns"))
    wait = batch.column("client_wait_s").to_numpy()
    queue = batch.column("queue_time_s").cast("float64").fill_null(0.0).to_numpy(zero_copy_only=False)
    begin = submit + np.clip(queue, 0.0, end - submit)
    failed = batch.column("error_type").is_valid().to_numpy(zero_copy_only=False)
    stages = Names()
    stage = stages.codes(batch.column("stage"))
    _put(parts, WAITING, rows, submit - wait, submit, wait > least)
    _put(parts, QUEUED, rows, submit, begin, begin - submit > least)
    _put(parts, FAILED, rows, begin, end, failed)
    for name, code in stages.items():
        _put(parts, name, rows, begin, end, (stage == code) & ~failed)


def _put(parts: dict[str, list[Spans]], kind: str, rows: Array, start: Array, end: Array, which: Array) -> None:
    if which.any():
        parts.setdefault(kind, []).append(Spans(rows[which], start[which], end[which]))


def _joined(parts: Sequence[Spans]) -> Spans:
    return Spans(*(np.concatenate([getattr(part, name) for part in parts]) for name in Spans.__struct_fields__))


def draw_chains(gantt: Gantt, stages: Sequence[str]) -> go.Figure:
    """Draw every chain from its start to its end, with calls coloured by stage; `stages` gives the order of the colours."""
    rows = max(1, len(gantt.names))
    width = line_width(rows)
    figure = go.Figure(layout=layout(HEIGHT, hovermode="closest", meta={"rows": rows, "room": ROOM}))
    figure.add_trace(_lines("between calls", gantt.alive, "#eef0f3", width))
    palette = colours(stages) | {WAITING: LIGHT, QUEUED: GREY, FAILED: RED}
    for kind in (*(name for name in gantt.spans if name not in palette), *palette):
        if kind in gantt.spans:
            figure.add_trace(_lines(kind, gantt.spans[kind], palette.get(kind, GREY), width))
    aliases = {str(row): drawn(name) for row, name in enumerate(gantt.names)}
    figure.update_xaxes(title="time since start (s)")
    figure.update_yaxes(title="chain, in order of start", range=[rows - 0.5, -0.5], tickformat="d", labelalias=aliases, nticks=20)
    return axes(figure).update_yaxes(showgrid=False)


def line_width(rows: int) -> float:
    """Width of a line in pixels when `rows` rows are visible; `page.js` computes the same after zooming."""
    return float(np.clip(0.8 * ROOM / rows, 1, 16))


def _lines(name: str, spans: Spans, colour: str, width: float) -> go.Scattergl:
    return go.Scattergl(
        x=_gapped(spans.start, spans.end),
        y=np.repeat(spans.row.astype(np.int16), 3),
        name=drawn(name),
        mode="lines",
        line={"color": colour, "width": width},
        hovertemplate="%{y}: " + drawn(name) + " at %{x:.4~f} s<extra></extra>",
    )


def _gapped(start: Array, end: Array) -> Array:
    """Each span as three values, its start, its end and NaN, so that plotly leaves a gap after it."""
    return np.column_stack([start, end, np.full(len(start), np.nan)]).ravel()
