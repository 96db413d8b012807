"""One chart a machine: throughput over the target-only baseline by batch size, a line for each system. Kaleido needs Chromium for it."""

from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipeline.report.figures.style import SERIES, axes, layout

Line = Mapping[float, float | None]
"""Ratios by batch size; None at a place between two of them interrupts the line."""


def chart(panels: Mapping[str, Mapping[str, Line]], path: Path, dashed: str) -> None:
    """Draw into `path` a panel for each title, in it a line for each system; those whose names contain `dashed` are dotted."""
    figure = make_subplots(cols=len(panels), subplot_titles=list(panels), shared_yaxes=True, horizontal_spacing=0.03)
    for column, lines in enumerate(panels.values(), 1):
        for place, (name, line) in enumerate(lines.items()):
            look = {"color": SERIES[place // 2], "dash": "dot" if dashed in name else "solid", "width": 2}
            figure.add_trace(
                go.Scatter(
                    x=list(line),
                    y=list(line.values()),
                    name=name,
                    legendgroup=name,
                    showlegend=column == 1,
                    mode="lines+markers",
                    line=look,
                ),
                row=1,
                col=column,
            )
        figure.add_hline(y=1, line={"color": "#222b36", "width": 2}, row=1, col=column)
    sizes = sorted({size for lines in panels.values() for line in lines.values() for size, ratio in line.items() if ratio is not None})
    axes(figure.update_layout(layout(420)))
    figure.update_layout(margin={"t": 110}, legend={"y": 1.2, "orientation": "h"})
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=list(map(str, sizes)), title="batch size")
    figure.update_yaxes(title="times the target alone", col=1, rangemode="tozero")
    path.parent.mkdir(exist_ok=True)
    figure.write_image(path, width=1100, height=480, scale=1.5)
