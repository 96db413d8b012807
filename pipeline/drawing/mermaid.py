"""A plan as a Mermaid flowchart, which GitHub renders: a plan enters, text leaves. All text is escaped.

The plan is drawn level by level. Invariant: the open arrows are those that lead out of the levels drawn so far and have no head yet, each
with the worlds in which a chain is there: what was decided until then. Each leads to all stages of the next level; a stage under a
condition takes those worlds in which that holds, and the others stay open past it. A loop has a box of its own, its head, where each round
begins and the stop conditions are checked.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, structs

from pipeline.drawing.text import condition_line, engines_of, exit_lines, problem_line, settings_line, shortened
from pipeline.graph.plan import Block, Condition, Direct, LoopNode, Plan, StageNode
from pipeline.graph.spec import StageSpec
from pipeline.text import one_line

START, END = "problem", "end"
STAGE, LOOP, TERMINAL = ("[", "]"), ("{{", "}}"), ("([", "])")
"""What a box of each shape begins and ends with."""
NEXT, AGAIN, EXIT = "-->", "-.->", "==>"
"""Arrows to what follows, back to the head of a loop, and out of a loop."""
BREAK = "<br/>"
PALETTE = (("#dbe8fb", "#2b62b8"), ("#fdebd3", "#c1690b"), ("#dcf1df", "#2c7d3c"), ("#eee0f7", "#7a3fa3"), ("#f9dede", "#b03030"))
"""Fill and line colours of the roles in their order; they repeat after the last."""
SPECIAL = frozenset("#&<>\"'`\\{}")
"""Characters that mean something within a quoted label, to Mermaid or to a browser."""
FORMULA_MARK, BROKEN_MARK = "$$", "$\u200b$"
"""What begins a formula, and the replacement that looks the same and does not."""


class _World(Struct, frozen=True):
    """What was decided on a way through a block."""

    decided: frozenset[Condition] = frozenset()
    """What judges and gates found; those that had no drafts to look at found nothing."""
    pending: bool = False
    """Whether there are drafts of which no step was made yet."""

    def after(self, spec: StageSpec, name: str) -> Iterator["_World"]:
        """The worlds that a stage makes of this one."""
        if not (spec.judges or spec.gates):
            yield structs.replace(self, pending=spec.drafts or (self.pending and not spec.writes))
        elif not self.pending:
            yield self
        else:
            for well in (True, False) if spec.gates or spec.may_reject else (True,):
                commits = well and (spec.judges or spec.commits_passed)
                yield _World(self.decided | {Condition(name, well, spec.gates)}, pending=not commits)


class _Open(Struct, frozen=True):
    """An arrow that leads out of a box and has no head yet."""

    tail: str
    worlds: frozenset[_World] = frozenset({_World()})
    guards: tuple[Condition, ...] = ()
    """On what it is taken, where others lead out of the box too."""
    lines: tuple[str, ...] = ()
    link: str = NEXT


def mermaid(plan: Plan) -> str:
    """The drawing as text for a fenced code block of the language `mermaid`."""
    drawing = _Flowchart(plan)
    lines = ["flowchart TD", *(f"  {line}" for line in (*drawing.boxes(), *drawing.arrows, *drawing.roles(engines_of(plan))))]
    return "\n".join(lines) + "\n"


class _Flowchart:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ids: dict[str, str] = {}
        """What boxes are called in the text, by `_key`."""
        self._boxes: list[tuple[str | None, str]] = []
        """The loop in whose frame each box is drawn, and its line."""
        self._of_role: dict[str, list[str]] = {}
        self.arrows: list[str] = []
        self._draw()

    def boxes(self) -> Iterator[str]:
        """The boxes, those of each loop in a frame."""
        yield from (line for loop, line in self._boxes if loop is None)
        for number, loop in enumerate(self._plan.loops):
            yield f"subgraph l{number}[{_quoted([f'{loop.name}: repeat'])}]"
            yield from (f"  {line}" for name, line in self._boxes if name == loop.name)
            yield "end"

    def roles(self, engines: Mapping[str, str]) -> Iterator[str]:
        """A colour for each role, and a box with its engine."""
        for number, (role, engine) in enumerate(engines.items()):
            fill, line = PALETTE[number % len(PALETTE)]
            yield f"r{number}[{_quoted([role, shortened(engine)])}]"
            yield f"classDef role{number} fill:{fill},stroke:{line},color:#24292f"
            yield f"class {','.join([f'r{number}', *self._of_role.get(role, ())])} role{number}"

    def _draw(self) -> None:
        self._box(START, [START, *filter(None, [problem_line(self._plan)])], TERMINAL)
        self._connect(self._block(self._plan.block, [_Open(START)], None), END)
        self._box(END, [END], TERMINAL)

    def _block(self, block: Block, ways: list[_Open], loop: str | None) -> list[_Open]:
        """Draw `block`, which the open arrows `ways` lead to; returns the open arrows that lead out of it."""
        for level in block.levels:
            out: list[_Open] = []
            idle: list[_Open] = []
            for node in sorted(level, key=lambda node: node.condition is None):
                taken, past = _split(ways, node)
                self._connect(taken, _key(node, loop))
                out += self._node(node, loop, taken)
                if node.condition is None:
                    idle += past
                else:
                    ways = past
            ways = (ways if all(node.condition for node in level) else idle) + out
        return ways

    def _node(self, node: StageNode | LoopNode, loop: str | None, ways: Sequence[_Open]) -> list[_Open]:
        """Draw a node that `ways` lead to; returns the open arrows that lead out of it."""
        worlds = frozenset(world for way in ways for world in way.worlds)
        if isinstance(node, LoopNode):
            return [structs.replace(way, worlds=worlds) for way in self._loop(node)]
        key, spec = _key(node, loop), node.spec
        title = " · ".join(filter(None, (node.name, spec.kind, spec.role)))
        lines = [title, *filter(None, (settings_line(spec), condition_line(node.condition)))]
        self._box(key, lines, STAGE, loop)
        if spec.role is not None:
            self._of_role.setdefault(spec.role, []).append(self._id(key))
        return [_Open(key, frozenset(each for world in worlds for each in world.after(spec, node.name)))]

    def _loop(self, loop: LoopNode) -> list[_Open]:
        """Draw the head and the body of a loop; returns the open arrow out of its head."""
        key, body = _key(loop, None), loop.body
        exits = exit_lines(loop)
        pairs = [", ".join(exits[place : place + 2]) for place in range(0, len(exits), 2)]
        self._box(key, [loop.name, *filter(None, [condition_line(loop.condition)]), "until", *pairs], LOOP, loop.name)
        self._connect(self._block(body, [_Open(key, lines=("next step",))], loop.name), key, AGAIN)
        if (writer := body.first_writer) is not None:  # past the stages before it
            self._arrow(key, NEXT, (f"the first {body.first_steps:,} steps",), _key(writer, loop.name))
        if loop.direct is not None:
            self._direct(key, loop.direct, loop)
        if loop.trial is not None:
            trial = _key(loop.trial, loop.name)
            self._connect([_Open(key, lines=(loop.pace,))], trial)
            self._connect(self._node(loop.trial, loop.name, ()), key, AGAIN)
        return [_Open(key, lines=("until",), link=EXIT)]

    def _direct(self, key: str, direct: Direct, loop: LoopNode) -> None:
        """Draw the stages of a loop that is switched: guidance before the first speculated step, and what the target writes alone."""
        if direct.guidance is not None:
            first = next(node for node in loop.body.levels[0] if isinstance(node, StageNode))
            self._connect([_Open(key, lines=("first step",))], _key(direct.guidance, loop.name))
            self._connect(self._node(direct.guidance, loop.name, ()), _key(first, loop.name))
        response, boundary = _key(direct.response, loop.name), _key(direct.boundary, loop.name)
        self._connect([_Open(key, lines=("direct",))], response)
        self._connect(self._node(direct.response, loop.name, ()), END)
        self._connect([_Open(response, lines=("interrupted",))], boundary)
        self._connect(self._node(direct.boundary, loop.name, ()), key, AGAIN)

    def _connect(self, ways: Sequence[_Open], head: str, link: str | None = None) -> None:
        for open_ in ways:
            self._arrow(open_.tail, link or (NEXT if open_.guards else open_.link), (*open_.lines, *self._verdicts(open_)), head)

    def _verdicts(self, open_: _Open) -> Iterator[str]:
        for guard in open_.guards:
            judge = "" if open_.tail.endswith(f"/{guard.stage}") else f"{guard.stage} "
            yield f"{judge}{guard.word}"

    def _box(self, key: str, lines: Sequence[str], shape: tuple[str, str], loop: str | None = None) -> None:
        self._boxes.append((loop, f"{self._id(key)}{shape[0]}{_quoted(lines)}{shape[1]}"))

    def _arrow(self, tail: str, link: str, lines: Sequence[str], head: str) -> None:
        label = f"|{_quoted(lines)}|" if lines else ""
        self.arrows.append(f"{self._id(tail)} {link}{label} {self._id(head)}")

    def _id(self, key: str) -> str:
        return self._ids.setdefault(key, f"n{len(self._ids)}")


def _key(node: StageNode | LoopNode, loop: str | None) -> str:
    return f"{loop or ''}/{node.name}"


def _split(ways: Sequence[_Open], node: StageNode | LoopNode) -> tuple[list[_Open], list[_Open]]:
    """The open arrows that `node` takes, those in whose worlds its condition is met, and those that lead past it, as they do past a judge
    or a gate where no draft is pending."""
    looks = isinstance(node, StageNode) and (node.spec.judges or node.spec.gates)
    taken: list[_Open] = []
    past: list[_Open] = []
    for way in ways:
        met = frozenset(each for each in way.worlds if node.condition in (None, *each.decided) and (each.pending or not looks))
        missed = way.worlds - met
        ours, theirs = _reasons(met, missed, node.condition)
        taken += [_guarded(way, met, ours)] if met else []
        past += [_guarded(way, missed, theirs)] if missed else []
    return taken, past


def _reasons(met: frozenset[_World], missed: frozenset[_World], first: Condition | None) -> tuple[Condition | None, Condition | None]:
    """Something that was decided one way in all worlds that are `met` and the other way in all that are `missed`, if possible `first`; None
    where it says nothing."""
    if not (met and missed):
        return None, None
    common = frozenset.intersection(*(world.decided for world in met))
    for reason in sorted(common, key=lambda each: (each != first, each.stage)):
        opposite = structs.replace(reason, accepted=not reason.accepted)
        if all(opposite in world.decided for world in missed):
            return reason, opposite
    return first, None


def _guarded(way: _Open, worlds: frozenset[_World], guard: Condition | None) -> _Open:
    """`way` in these `worlds` alone, for which the `guard` is the reason."""
    guards = () if guard is None else (guard,)
    return structs.replace(way, worlds=worlds, guards=(*(each for each in way.guards if not guard or each.stage != guard.stage), *guards))


def _quoted(lines: Sequence[str]) -> str:
    return f'"{BREAK.join(map(_text, lines))}"'


def _text(text: str) -> str:
    """Text with every character of `SPECIAL` written as its number."""
    return "".join(
        f"#{ord(character)};" if character in SPECIAL else character for character in one_line(text).replace(FORMULA_MARK, BROKEN_MARK)
    )
