"""A plan as a tree for a terminal: a plan and the counts of a run enter, lines leave, with the counts in columns. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from pipeline.drawing.captions import (
    condition_line,
    ended_by,
    exit_lines,
    mean_time,
    other_endings,
    problem_line,
    rounds_a_chain,
    settings_line,
    shortened,
    verdict_count,
)
from pipeline.drawing.run import RunCounts
from pipeline.graph.plan import Block, Condition, LoopNode, Plan, StageNode
from pipeline.graph.prompt_files import OWN

MARKS = "●○◆◇▲△■□"
"""Marks of the roles in their order; they repeat after the last."""
HEADINGS = ("calls", "failed", "in flight", "waiting")


class _Line(Struct, frozen=True):
    """A line of the tree, with the cells of its columns and the lines of its branches."""

    text: str
    cells: tuple[str, ...] = ()
    below: tuple["_Line", ...] = ()


def text(plan: Plan, engines: Mapping[str, str], counts: RunCounts | None = None) -> str:
    """The drawing as lines; with a run's `counts` the columns are calls, those that failed, and mean seconds of one call."""
    head = [f"{plan.name}, digest {plan.digest}"]
    if counts is not None:
        head.append(f"run {counts.run}: {counts.chains:,} chains")
    width = max(map(len, engines), default=0)
    head += [f"  {_mark(engines, role)} {role:{width}}  {shortened(engine)}" for role, engine in engines.items()]
    if (prompts := plan.params.get("prompts", OWN)) != OWN:
        head.append(f"  prompts {prompts}")
    if asked := problem_line(plan):
        head.append(f"  a problem {asked}")
    rows = list(_tree(_Tree(plan, engines, counts).block(plan.block)))
    ends = other_endings(counts, plan)
    return "\n".join([*head, "", *_columns(rows, bool(counts)), *([f"ended by {', '.join(ends)}"] if ends else [])]) + "\n"


class _Tree:
    def __init__(self, plan: Plan, engines: Mapping[str, str], counts: RunCounts | None) -> None:
        self._plan, self._engines, self._counts = plan, engines, counts

    def block(self, block: Block) -> list[_Line]:
        lines = []
        for level in block.levels:
            nodes = [self._loop(node) if isinstance(node, LoopNode) else self._stage(node, block) for node in level]
            lines += nodes if len(nodes) == 1 else [_Line(_together(level), below=tuple(nodes))]
        return lines

    def _stage(self, stage: StageNode, block: Block) -> _Line:
        mark = _mark(self._engines, stage.spec.role or "")
        first = f"writes the first {block.first_steps:,} steps by itself" if stage == block.first_writer else ""
        said = [stage.spec.kind, settings_line(stage.spec), condition_line(stage.condition), first]
        return _Line(f"{mark} {stage.name}: {', '.join(filter(None, said))}", self._cells(stage.name), tuple(self._verdicts(stage)))

    def _loop(self, loop: LoopNode) -> _Line:
        turns = f"{rounds_a_chain(self._counts, loop):,.2f} rounds a chain" if self._counts else ""
        taken = ended_by(self._counts, loop) if self._counts and loop is self._plan.loops[-1] else {}
        until = _Line("until", below=tuple(_Line(f"{said:24} {taken.get(name, '')}".rstrip()) for name, said in exit_lines(loop).items()))
        title = ", ".join(filter(None, ("repeat", condition_line(loop.condition), turns)))
        tried = () if loop.trial is None else (_Line(loop.pace, below=(self._stage(loop.trial, loop.body),)),)
        if loop.direct is None:
            return _Line(f"↻ {loop.name}: {title}", below=(*self.block(loop.body), *tried, until))
        guidance, direct = loop.direct.guidance, (loop.direct.response, loop.direct.boundary)
        first = () if guidance is None else (self._stage(guidance, loop.body),)
        speculative = _Line("while it speculates", below=(*first, *self.block(loop.body)))
        alone = _Line("while the target writes alone", below=tuple(self._stage(stage, loop.body) for stage in direct))
        return _Line(f"↻ {loop.name}: {title}", below=(speculative, alone, *tried, until))

    def _verdicts(self, stage: StageNode) -> Iterator[_Line]:
        spec = stage.spec
        for accepted in (True, False) if spec.judges or spec.gates else ():
            if accepted or spec.may_reject or spec.gates:
                met = Condition(stage.name, accepted, spec.gates)
                count = f"  {verdict_count(self._counts, met)}" if self._counts else ""
                yield _Line(f"{met.word}{count}{self._then(met)}")

    def _then(self, met: Condition) -> str:
        """The stages that run on a verdict or a finding, with an arrow before them; empty where there are none."""
        due = [stage.name for stage in self._plan.stages() if stage.condition == met]
        return f" → {', '.join(due)}" if due else ""

    def _cells(self, stage: str) -> tuple[str, ...]:
        found = self._counts.stages.get(stage) if self._counts else None
        if found is None:
            return ("0", "", "", "") if self._counts else ()
        means = (mean_time(found.in_flight_s, found.calls), mean_time(found.waiting_s, found.calls))
        return (f"{found.calls:,}", f"{found.failed:,}" if found.failed else "", *means)


def _together(level: Sequence[StageNode | LoopNode]) -> str:
    """The title of a level of several stages: `either` where their conditions differ, else `at the same time`."""
    conditions = {node.condition for node in level}
    return "either" if len(conditions) > 1 and None not in conditions else "at the same time"


def _mark(engines: Mapping[str, str], role: str) -> str:
    roles = list(engines)
    return MARKS[roles.index(role) % len(MARKS)] if role in roles else "·"


def _tree(lines: Sequence[_Line], indent: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each line with its indentation and branch characters, and its cells."""
    for line in lines:
        last = line is lines[-1]
        yield f"{indent}{'└─' if last else '├─'} {line.text}", line.cells
        yield from _tree(line.below, indent + ("   " if last else "│  "))


def _columns(rows: Sequence[tuple[str, tuple[str, ...]]], counted: bool) -> Iterator[str]:
    """The lines with their cells aligned in columns."""
    if not counted:
        yield from (line for line, _ in rows)
        return
    table = [("", HEADINGS), *rows]
    left = max(len(line) for line, cells in table if cells)
    widths = [max(len(cells[place]) for _, cells in table if cells) for place in range(len(HEADINGS))]
    for line, cells in table:
        right = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
        yield f"{line:{left}}  {right}".rstrip()
