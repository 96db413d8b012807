"""A plan as a Mermaid flowchart, which GitHub renders: a plan enters, text leaves. All text is escaped.

A box is a stage, a frame a loop, and an arrow leads from what a stage waits for, with the condition on which it runs. The boxes of a role,
and one with its engine, have the same colour.
"""

from collections.abc import Iterator, Sequence

from pipeline.files import one_line
from pipeline.graph.plan import Block, Condition, LoopNode, Plan, StageNode
from pipeline.graph.spec import waits_for
from pipeline.show.graph_text import engines_of, exit_lines, problem_line, settings_line, shortened

START = "problem"
BREAK = "<br/>"
PALETTE = (("#dbe8fb", "#2b62b8"), ("#fdebd3", "#c1690b"), ("#dcf1df", "#2c7d3c"), ("#eee0f7", "#7a3fa3"), ("#f9dede", "#b03030"))
"""Fill and line colours of the roles in their order; they repeat after the last."""
SPECIAL = frozenset("#&<>\"'`\\{}")
"""Characters that mean something within a quoted label, to Mermaid or to a browser."""
FORMULA_MARK, BROKEN_MARK = "$$", "$\u200b$"
"""What begins a formula, and the replacement that looks the same and does not."""


def mermaid(plan: Plan) -> str:
    """The drawing as text for a fenced code block of the language `mermaid`."""
    ids = {stage.name: f"n{number}" for number, stage in enumerate(plan.stages(), 1)} | {START: "n0"}
    ids |= {loop.name: f"l{number}" for number, loop in enumerate(plan.loops)}
    lines = [f"n0([{_quoted([START, problem_line(plan)])}])"]
    arrows: list[str] = []
    before: tuple[str, ...] = (START,)
    for level in plan.block.levels:
        for node in level:
            boxes = [_box(ids[stage.name], stage) for stage in Block(((node,),)).stages()]
            if isinstance(node, LoopNode):
                frame = _quoted([f"{node.name}: repeat", f"until {', '.join(exit_lines(node))}"])
                boxes = [f"subgraph {ids[node.name]}[{frame}]", *(f"  {box}" for box in boxes), "end"]
                arrows += _arrows(ids, before, node.name, node.condition)
                for stage in node.body.stages():
                    arrows += _arrows(ids, waits_for(stage.spec), stage.name, stage.condition)
            else:
                arrows += _arrows(ids, waits_for(node.spec) or (START,), node.name, node.condition)
            lines += boxes
        before = tuple(node.name for node in level)
    return "\n".join(["flowchart TD", *(f"  {line}" for line in (*lines, *arrows, *_roles(plan, ids)))]) + "\n"


def _box(key: str, stage: StageNode) -> str:
    title = " · ".join(filter(None, (stage.name, stage.spec.kind, stage.spec.role)))
    return f"{key}[{_quoted([title, settings_line(stage.spec)])}]"


def _arrows(ids: dict[str, str], tails: Sequence[str], head: str, when: Condition | None) -> Iterator[str]:
    label = f"|{_quoted([f'{when.stage}.{when.word}'])}|" if when else ""
    yield from (f"{ids[tail]} -->{label} {ids[head]}" for tail in tails)


def _roles(plan: Plan, ids: dict[str, str]) -> Iterator[str]:
    """A colour for each role, and a box with its engine."""
    for number, (role, engine) in enumerate(engines_of(plan).items()):
        fill, line = PALETTE[number % len(PALETTE)]
        own = [ids[stage.name] for stage in plan.stages() if stage.spec.role == role]
        yield f"r{number}[{_quoted([role, shortened(engine)])}]"
        yield f"classDef role{number} fill:{fill},stroke:{line},color:#24292f"
        yield f"class {','.join([f'r{number}', *own])} role{number}"


def _quoted(lines: Sequence[str]) -> str:
    return f'"{BREAK.join(map(_text, filter(None, lines)))}"'


def _text(text: str) -> str:
    """Text with every character of `SPECIAL` written as its number."""
    plain = one_line(text).replace(FORMULA_MARK, BROKEN_MARK)
    return "".join(f"#{ord(character)};" if character in SPECIAL else character for character in plain)
