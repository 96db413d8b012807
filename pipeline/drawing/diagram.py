"""A plan as boxes and arrows: a plan and the counts of a run enter, a `Diagram` of the paths that a chain can take leaves. Pure.

The plan is drawn level by level. Invariant: the open arrows are those that lead out of the levels drawn so far and have no head yet.
Each of them leads to all stages of the next level; a stage under a condition takes only those of its verdict, and those of the other
verdict stay open past it. A loop has a box of its own, its head, where each round begins and the stop conditions are checked.
"""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from pipeline.drawing.captions import (
    condition_line,
    ended_by,
    exit_lines,
    mean_time,
    problem_line,
    rounds_a_chain,
    settings_line,
    verdict_count,
    verdict_word,
    with_share,
)
from pipeline.drawing.counts import RunCounts
from pipeline.graph.plan import Block, Condition, Direct, LoopNode, Plan, StageNode

START, END = "problem", "end"
Way = Literal["next", "verdict", "again", "exit"]
"""The kind of an arrow: to what follows, after a verdict, back to the head of a loop, or out of a loop."""


class Box(Struct, frozen=True, kw_only=True):
    """A stage, the head of a loop, or the start or end of a chain."""

    key: str
    """What arrows refer to it by."""
    title: str
    kind: str = ""
    lines: tuple[str, ...] = ()
    """Settings and conditions."""
    numbers: tuple[str, ...] = ()
    """Counts of a run."""
    role: str | None = None
    """Role of the engine that it calls; null where it calls none."""
    loop: str | None = None
    """The loop in whose frame it is drawn."""
    shape: Literal["stage", "loop", "end"] = "stage"


class Arrow(Struct, frozen=True, kw_only=True):
    """An arrow from one box to another."""

    tail: str
    """Key of the box where it begins."""
    head: str
    """Key of the box where it ends."""
    lines: tuple[str, ...] = ()
    way: Way = "next"


class Diagram(Struct, frozen=True, kw_only=True):
    """Everything that a drawing shows, in no format."""

    title: str
    engines: dict[str, str]
    """Backend and model of each role."""
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    loops: dict[str, str]
    """Titles of the frames of loops, by the loop's name."""


class _Open(Struct, frozen=True):
    """An arrow that leads out of a box and has no head yet."""

    tail: str
    guard: Condition | None = None
    """The verdict on which it is taken; null where it always is."""
    lines: tuple[str, ...] = ()
    way: Way = "next"


def diagram(plan: Plan, engines: dict[str, str], counts: RunCounts | None = None) -> Diagram:
    """The diagram of `plan`; with the `counts` of a run their numbers are in the boxes and on the arrows."""
    return _DiagramBuilder(plan, counts).diagram(engines)


class _DiagramBuilder:
    def __init__(self, plan: Plan, counts: RunCounts | None) -> None:
        self._plan, self._counts = plan, counts
        self._boxes: list[Box] = []
        self._arrows: list[Arrow] = []
        self._loops = [node for level in plan.block.levels for node in level if isinstance(node, LoopNode)]

    def diagram(self, engines: dict[str, str]) -> Diagram:
        chains = (f"{self._counts.chains:,} chains",) if self._counts else ()
        self._boxes.append(Box(key=START, title=START, lines=tuple(filter(None, (problem_line(self._plan),))), numbers=chains, shape="end"))
        last = self._block(self._plan.block, [_Open(START)], None)
        self._boxes.append(Box(key=END, title=END, numbers=self._endings(), shape="end"))
        self._connect(last, END)
        run = f", run {self._counts.run}" if self._counts else ""
        return Diagram(
            title=f"{self._plan.name}{run}",
            engines=engines,
            boxes=tuple(self._boxes),
            arrows=tuple(self._arrows),
            loops={loop.name: f"{loop.name}: repeat" for loop in self._loops},
        )

    def _block(self, block: Block, ways: list[_Open], loop: str | None) -> list[_Open]:
        """Draw `block`, which the open arrows `ways` lead to; returns the open arrows that lead out of it."""
        for level in block.levels:
            out: list[_Open] = []
            for node in level:
                if node.condition is not None:
                    taken, ways = _split(ways, node.condition)
                    self._connect(taken, _key(node, loop))
                    out += self._node(node, loop)
            if always := [node for node in level if node.condition is None]:
                for node in always:
                    self._connect(ways, _key(node, loop))
                    out += self._node(node, loop)
                ways = []
            ways = ways + out
        return ways

    def _node(self, node: StageNode | LoopNode, loop: str | None) -> list[_Open]:
        if isinstance(node, LoopNode):
            return self._loop(node)
        spec = node.spec
        box = Box(
            key=_key(node, loop),
            title=node.name,
            kind=spec.kind,
            lines=tuple(filter(None, (settings_line(spec), condition_line(node.condition)))),
            numbers=tuple(self._numbers(node.name)),
            role=spec.role,
            loop=loop,
        )
        self._boxes.append(box)
        return [_Open(_key(node, loop))]

    def _loop(self, loop: LoopNode) -> list[_Open]:
        """Draw the head and the body of a loop; returns the open arrow out of its head."""
        key, body = _key(loop, None), loop.body
        turns = (f"{rounds_a_chain(self._counts, loop):,.2f} rounds a chain",) if self._counts else ()
        said = tuple(filter(None, (condition_line(loop.condition), "until", *_pairs(list(exit_lines(loop).values())))))
        self._boxes.append(Box(key=key, title=loop.name, lines=said, numbers=turns, loop=loop.name, shape="loop"))
        self._connect(self._block(body, [_Open(key, lines=("next step",))], loop.name), key, way="again")
        if body.first_writer is not None:
            self._first_steps(key, body.first_writer, loop)
        if loop.direct is not None:
            self._direct(key, loop.direct, loop)
        taken = ended_by(self._counts, loop) if self._counts and loop is self._loops[-1] else {}
        return [_Open(key, lines=tuple(f"{reason} {count}" for reason, count in taken.items()) or ("until",), way="exit")]

    def _direct(self, key: str, direct: Direct, loop: LoopNode) -> None:
        """Draw the stages of a loop that is switched: guidance before the first speculated step, and what the target writes alone."""
        if direct.guidance is not None:
            first = next(node for node in loop.body.levels[0] if isinstance(node, StageNode))
            self._connect([_Open(key, lines=("first step",))], _key(direct.guidance, loop.name))
            self._connect(self._node(direct.guidance, loop.name), _key(first, loop.name))
        self._connect([_Open(key, lines=("direct",))], _key(direct.response, loop.name))
        self._connect(self._node(direct.response, loop.name), END)
        self._connect([_Open(_key(direct.response, loop.name), lines=("interrupted",))], _key(direct.boundary, loop.name))
        self._connect(self._node(direct.boundary, loop.name), key, way="again")

    def _first_steps(self, key: str, writer: StageNode, loop: LoopNode) -> None:
        """Draw the arrow from the loop's head to the stage that writes the first steps, past the stages before it."""
        taken = with_share(self._counts.first_steps.get(writer.name, 0), self._counts.steps.get(writer.name, 0)) if self._counts else ""
        lines = tuple(filter(None, (f"the first {loop.body.first_steps:,} steps", taken)))
        self._arrows.append(Arrow(tail=key, head=_key(writer, loop.name), lines=lines))

    def _connect(self, ways: list[_Open], head: str, way: Way | None = None) -> None:
        for open_ in ways:
            lines = (*open_.lines, *self._verdict(open_))
            kind: Way = "verdict" if open_.guard and way is None else way or open_.way
            self._arrows.append(Arrow(tail=open_.tail, head=head, lines=lines, way=kind))

    def _verdict(self, open_: _Open) -> Iterator[str]:
        if open_.guard is not None:
            judge = "" if open_.tail.endswith(f"/{open_.guard.stage}") else f"{open_.guard.stage} "
            yield f"{judge}{verdict_word(open_.guard.accepted)}"
            if self._counts:
                yield verdict_count(self._counts, open_.guard.stage, open_.guard.accepted)

    def _numbers(self, stage: str) -> Iterator[str]:
        if self._counts is None:
            return
        if (found := self._counts.stages.get(stage)) is None:
            yield "no calls"
            return
        yield f"{found.calls:,} calls" + (f", {found.failed:,} failed" if found.failed else "")
        yield f"{mean_time(found.in_flight_s, found.calls)} in flight, {mean_time(found.waiting_s, found.calls)} waiting"

    def _endings(self) -> tuple[str, ...]:
        """How often chains ended for a reason that is not a stop condition of the last loop."""
        if self._counts is None:
            return ()
        known = exit_lines(self._loops[-1]) if self._loops else {}
        others = {reason: count for reason, count in self._counts.stop_reasons.items() if reason not in known}
        return tuple(f"{reason} {with_share(count, self._counts.chains)}" for reason, count in others.items())


def _key(node: StageNode | LoopNode, loop: str | None) -> str:
    return f"{loop or ''}/{node.name}"


def _pairs(words: list[str]) -> Iterator[str]:
    """The words joined in pairs, one pair to a line."""
    return (", ".join(words[place : place + 2]) for place in range(0, len(words), 2))


def _split(ways: list[_Open], condition: Condition) -> tuple[list[_Open], list[_Open]]:
    """The open arrows that a stage under `condition` takes, and those that lead past it."""
    other = Condition(condition.stage, not condition.accepted)
    taken: list[_Open] = []
    past: list[_Open] = []
    for open_ in ways:
        if open_.guard is not None and open_.guard.stage == condition.stage:
            (taken if open_.guard == condition else past).append(open_)
        else:
            taken.append(_Open(open_.tail, condition, open_.lines, open_.way))
            past.append(_Open(open_.tail, other, open_.lines, open_.way))
    return taken, past
