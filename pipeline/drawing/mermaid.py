"""A diagram as a Mermaid flowchart, which GitHub renders: a `Diagram` enters, text leaves. All text is escaped."""

from collections.abc import Iterator, Sequence

from pipeline.drawing.captions import shortened
from pipeline.drawing.diagram import Arrow, Box, Diagram
from pipeline.text import one_line

SHAPES = {"stage": ("[", "]"), "loop": ("{{", "}}"), "end": ("([", "])")}
LINKS = {"next": "-->", "verdict": "-->", "again": "-.->", "exit": "==>"}
BREAK = "<br/>"
PALETTE = (("#dbe8fb", "#2b62b8"), ("#fdebd3", "#c1690b"), ("#dcf1df", "#2c7d3c"), ("#eee0f7", "#7a3fa3"), ("#f9dede", "#b03030"))
"""Fill and line colours of the roles in their order; they repeat after the last."""
SPECIAL = frozenset("#&<>\"'`\\{}")
"""Characters that mean something within a quoted label, to Mermaid or to a browser."""
FORMULA_MARK, BROKEN_MARK = "$$", "$\u200b$"
"""What begins a formula, and the replacement that looks the same and does not."""


def mermaid(diagram: Diagram) -> str:
    """The diagram as text for a fenced code block of the language `mermaid`."""
    keys = {box.key: f"n{number}" for number, box in enumerate(diagram.boxes)}
    lines = [
        "flowchart TD",
        *(f"  {line}" for line in _boxes(diagram, keys)),
        *(f"  {_arrow(arrow, keys)}" for arrow in diagram.arrows),
        *(f"  {line}" for line in _roles(diagram, keys)),
    ]
    return "\n".join(lines) + "\n"


def _boxes(diagram: Diagram, keys: dict[str, str]) -> Iterator[str]:
    for box in diagram.boxes:
        if box.loop is None:
            yield _box(box, keys)
    for number, (loop, title) in enumerate(diagram.loops.items()):
        yield f"subgraph l{number}[{_quoted([title])}]"
        yield from (f"  {_box(box, keys)}" for box in diagram.boxes if box.loop == loop)
        yield "end"


def _box(box: Box, keys: dict[str, str]) -> str:
    left, right = SHAPES[box.shape]
    title = " · ".join(filter(None, (box.title, box.kind, box.role)))
    return f"{keys[box.key]}{left}{_quoted([title, *box.lines, *box.numbers])}{right}"


def _arrow(arrow: Arrow, keys: dict[str, str]) -> str:
    label = f"|{_quoted(arrow.lines)}|" if arrow.lines else ""
    return f"{keys[arrow.tail]} {LINKS[arrow.way]}{label} {keys[arrow.head]}"


def _roles(diagram: Diagram, keys: dict[str, str]) -> Iterator[str]:
    """A colour for each role, and a box with its engine."""
    for number, (role, engine) in enumerate(diagram.engines.items()):
        fill, line = PALETTE[number % len(PALETTE)]
        own = ",".join(keys[box.key] for box in diagram.boxes if box.role == role)
        yield f"r{number}[{_quoted([role, shortened(engine)])}]"
        yield f"classDef role{number} fill:{fill},stroke:{line},color:#24292f"
        yield f"class {','.join(filter(None, (f'r{number}', own)))} role{number}"


def _quoted(lines: Sequence[str]) -> str:
    return f'"{BREAK.join(map(_text, lines))}"'


def _text(text: str) -> str:
    """Text with every character of `SPECIAL` written as its number."""
    return "".join(
        f"#{ord(character)};" if character in SPECIAL else character for character in one_line(text).replace(FORMULA_MARK, BROKEN_MARK)
    )
