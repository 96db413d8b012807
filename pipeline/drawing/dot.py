"""A diagram in Graphviz's language, and as SVG made by its program `dot`: a `Diagram` enters, text leaves.

All text is escaped; `dot` gets it on stdin and has a time limit.
"""

import subprocess
from collections.abc import Iterator, Sequence
from html import escape
from shutil import which

from pipeline.drawing.captions import shortened
from pipeline.drawing.diagram import Arrow, Box, Diagram
from pipeline.errors import ExportError, UsageError
from pipeline.text import one_line

LIMIT_S = 60.0
PALETTE = (("#dbe8fb", "#2b62b8"), ("#fdebd3", "#c1690b"), ("#dcf1df", "#2c7d3c"), ("#eee0f7", "#7a3fa3"), ("#f9dede", "#b03030"))
"""Fill and line colours of the roles in their order; they repeat after the last."""
GREY, PALE = "#6b6f76", "#f4f5f6"
FONT = 'fontname="Helvetica" fontcolor="#24292f"'
FRAME = f'labeljust=l fontsize=11 fontcolor="{GREY}" color="{GREY}" style="rounded,dashed" margin=14'
SHAPES = {"stage": "box", "loop": "hexagon", "end": "oval"}
STYLES = {"next": "", "verdict": "", "again": " style=dashed", "exit": " penwidth=1.6"}


def dot(diagram: Diagram) -> str:
    """The diagram as a `digraph` in Graphviz's language."""
    keys = {box.key: f"n{number}" for number, box in enumerate(diagram.boxes)}
    lines = [
        "digraph {",
        f"  graph [rankdir=TB nodesep=0.45 ranksep=0.45 labelloc=t labeljust=l {FONT} label=<{_legend(diagram)}>]",
        f'  node [{FONT} fontsize=11 style="filled,rounded" fillcolor="{PALE}" color="{GREY}" margin="0.16,0.08"]',
        f'  edge [{FONT} fontsize=10 color="{GREY}" arrowsize=0.7]',
        *(f"  {line}" for line in _boxes(diagram, keys)),
        *(f"  {_arrow(arrow, keys)}" for arrow in diagram.arrows),
        "}",
    ]
    return "\n".join(lines) + "\n"


def svg(diagram: Diagram) -> str:
    """The diagram as SVG; raises `UsageError` without Graphviz, `ExportError` where it fails."""
    program = which("dot")
    if program is None:
        raise UsageError("--format svg needs Graphviz, whose `dot` is not installed: apt install graphviz, or use --format mermaid")
    try:
        done = subprocess.run([program, "-Tsvg"], input=dot(diagram).encode(), capture_output=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise ExportError(program, f"took longer than {LIMIT_S:g} s to lay the graph out; use --format mermaid") from error
    if done.returncode or not done.stdout:
        raise ExportError(program, f"failed with code {done.returncode}: {one_line(done.stderr.decode(errors='replace').strip())}")
    return done.stdout.decode()


def _legend(diagram: Diagram) -> str:
    """The title, and each role in its colour with its engine."""
    roles = [
        f'<font point-size="11"><font color="{_colours(diagram, role)[1]}">■ <b>{_text(role)}</b></font>  {_text(shortened(engine))}</font>'
        for role, engine in diagram.engines.items()
    ]
    return '<br align="left"/>'.join([f'<font point-size="15"><b>{_text(diagram.title)}</b></font>', *roles, " "]) + '<br align="left"/>'


def _boxes(diagram: Diagram, keys: dict[str, str]) -> Iterator[str]:
    for box in diagram.boxes:
        if box.loop is None:
            yield _box(box, diagram, keys)
    for number, (loop, title) in enumerate(diagram.loops.items()):
        yield f"subgraph cluster_{number} {{ label=<{_text(title)}> {FRAME}"
        yield from (f"  {_box(box, diagram, keys)}" for box in diagram.boxes if box.loop == loop)
        yield "}"


def _box(box: Box, diagram: Diagram, keys: dict[str, str]) -> str:
    colours = ""
    if box.role is not None:
        fill, line = _colours(diagram, box.role)
        colours = f' fillcolor="{fill}" color="{line}"'
    return f"{keys[box.key]} [shape={SHAPES[box.shape]}{colours} label=<{_label(box)}>]"


def _label(box: Box) -> str:
    kind = f'  <font point-size="10" color="{GREY}">{_text(box.kind)}</font>' if box.kind else ""
    small = [f'<font point-size="9" color="{GREY}">{_text(line)}</font>' for line in box.lines]
    numbers = [f'<font point-size="10">{_text(line)}</font>' for line in box.numbers]
    return "<br/>".join([f"<b>{_text(box.title)}</b>{kind}", *small, *numbers])


def _arrow(arrow: Arrow, keys: dict[str, str]) -> str:
    label = f" label=<{_lines(arrow.lines)}>" if arrow.lines else ""
    return f"{keys[arrow.tail]} -> {keys[arrow.head]} [{(label + STYLES[arrow.way]).strip()}]"


def _lines(lines: Sequence[str]) -> str:
    return "<br/>".join(f" {_text(line)} " for line in lines)


def _text(text: str) -> str:
    """Text as Graphviz's own kind of HTML takes it; a single backslash before an N would become the name of its node."""
    return escape(one_line(text)).replace("\\", "\\\\")


def _colours(diagram: Diagram, role: str) -> tuple[str, str]:
    roles = list(diagram.engines)
    return PALETTE[roles.index(role) % len(PALETTE)] if role in roles else (PALE, GREY)
