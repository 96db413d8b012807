"""What chains did when: the calls of a sample of chains enter, streamed; spans of time leave, in seconds of the run, and their picture.

One row a chain, one trace for all spans of one kind: lines with gaps, drawn by WebGL, so that tens of thousands of them are
zoomed at once.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.time.outline import Axis
from pipeline.analysis.time.timeline import Array, Names
from pipeline.report.chain_list import ChainList, evenly
from pipeline.report.figures.style import GREY, LIGHT, RED, axes, colours, drawn, layout
from pipeline.trace.read import read_batches

COLUMNS = ("chain_id", "stage", "submit_unix_ns", "end_unix_ns", "client_wait_s", "queue_time_s", "error_type")
MOST_CHAINS = 4_000
MOST_CALLS = 40_000
"""What a browser without a GPU still draws within seconds, and about 4 MB of the page."""
SHORTEST = 1e-3
"""Waiting of less than this share of a usual chain's time is not drawn: nobody sees it, and every call has some."""
WAITING, QUEUED, FAILED = "waiting in the lane", "queued in the engine", "failed attempt"
HEIGHT = 680
ROOM = HEIGHT - 130
"""Pixels of all rows together."""


class Spans(Struct, frozen=True):
    """Spans of time of one kind; arrays of equal length, seconds."""

    row: Array
    """Which of the drawn chains."""
    start: Array
    end: Array


class Gantt(Struct, frozen=True):
    """Drawn chains, from the first to begin on."""

    names: Sequence[str]
    spans: dict[str, Spans]
    """By stage while a request was at an engine, or one of `WAITING`, `QUEUED`, `FAILED`."""
    alive: Spans
    """From admission to the end."""


def read_gantt(run: Path, chains: ChainList, places: Array, axis: Axis) -> Gantt:
    """The spans of the chains at `places`; of a chain that was taken up again also the earlier calls."""
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
    """Places of as many chains as can be drawn, evenly spaced by their start."""
    mean_calls = max(1.0, float(chains.calls.mean())) if len(chains.calls) else 1.0
    return evenly(np.arange(len(chains.names)), max(1, min(most_chains, int(most_calls / mean_calls))))


def middle(chains: ChainList, count: int) -> Array:
    """Places of `count` chains that began one after the other, in the middle of the run."""
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
    """Every drawn chain from its first to its last moment, coloured by stage; `stages` gives their order and colours."""
    rows = max(1, len(gantt.names))
    width = line_width(rows)
    figure = go.Figure(layout=layout(HEIGHT, hovermode="closest", meta={"rows": rows, "room": ROOM}))
    figure.add_trace(_lines("between its calls", gantt.alive, "#eef0f3", width))
    palette = colours(stages) | {WAITING: LIGHT, QUEUED: GREY, FAILED: RED}
    for kind in (*(name for name in gantt.spans if name not in palette), *palette):
        if kind in gantt.spans:
            figure.add_trace(_lines(kind, gantt.spans[kind], palette.get(kind, GREY), width))
    aliases = {str(row): drawn(name) for row, name in enumerate(gantt.names)}
    figure.update_xaxes(title="seconds since the run began")
    figure.update_yaxes(title="chain, in order of start", range=[rows - 0.5, -0.5], tickformat="d", labelalias=aliases, nticks=20)
    return axes(figure).update_yaxes(showgrid=False)


def line_width(rows: int) -> float:
    """Pixels of a line where so many rows are seen; the page's script says the same when it is zoomed."""
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
    """Start, end and a gap of each."""
    return np.column_stack([start, end, np.full(len(start), np.nan)]).ravel()
