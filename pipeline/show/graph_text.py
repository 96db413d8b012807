"""A plan as a tree for a terminal, and the captions of any drawing of it: a plan enters, lines of unescaped text leave. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, structs

from pipeline.files import one_line
from pipeline.graph.plan import READINGS, VERDICTS, Block, Condition, LoopNode, Plan, StageNode
from pipeline.graph.prompts import DEFAULT_PROMPTS
from pipeline.graph.rules import CONDITIONS
from pipeline.graph.spec import PLAIN_SAMPLING, StageSpec

LONGEST = 60
"""How many characters of a foreign text, such as a model's name, are shown."""
ELSEWHERE = {"kind", "after", "when", "engine", "until", "stages", "prompts", "prompt"}
"""Fields of a stage that the drawing shows elsewhere than in its settings line."""
NEUTRAL = (None, 0, 1, ())
"""Defaults that are not shown; true and false equal 1 and 0."""
MARKS = "●○◆◇▲△■□"
"""Marks of the roles in their order; they repeat after the last."""


def engines_of(plan: Plan) -> dict[str, str]:
    """Backend and model of each role; target and draft come first, so that they look the same on every drawing."""
    roles = sorted(plan.engines, key=lambda role: (role != "target", role != "draft"))
    return {role: " ".join(filter(None, (plan.engines[role].backend, getattr(plan.engines[role], "model", None)))) for role in roles}


def shortened(text: str) -> str:
    """A foreign text on one line, cut after `LONGEST` characters."""
    line = one_line(text)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def settings_line(spec: StageSpec) -> str:
    """The settings of a stage as `name=value`, without fields in `ELSEWHERE` and defaults in `NEUTRAL`."""
    return " ".join(
        f"{field.name}={shortened(_value(value))}"
        for field in sorted(structs.fields(spec), key=lambda field: field.name in PLAIN_SAMPLING)
        if field.name not in ELSEWHERE
        and not ((value := getattr(spec, field.name)) == field.default and any(value == each for each in NEUTRAL))
    )


def problem_line(plan: Plan) -> str:
    """How a problem is asked, where the graph has its own words for that; else empty."""
    return f"asked: {shortened(plan.prompts.problem.strip())}" if plan.prompts.problem != DEFAULT_PROMPTS.problem else ""


def condition_line(when: Condition | None) -> str:
    """On which verdict, or which finding of a gate, a stage runs; empty where it always does."""
    return f"when {when.stage} {when.word}" if when else ""


def exit_lines(loop: LoopNode) -> list[str]:
    """Every stop condition of a loop, with its limit if it has one."""
    set_ = {name: getattr(loop.until, name) for name in CONDITIONS if getattr(loop.until, name)}
    return [*(name if value is True else f"{name} {value:,}" for name, value in set_.items()), "context_length"]


class _Line(Struct, frozen=True):
    """A line of the tree, with the lines of its branches."""

    text: str
    below: tuple["_Line", ...] = ()


def text(plan: Plan) -> str:
    """The drawing as lines."""
    engines = engines_of(plan)
    width = max(map(len, engines), default=0)
    head = [f"{plan.name}, digest {plan.digest}"]
    head += [f"  {_mark(engines, role)} {role:{width}}  {shortened(engine)}" for role, engine in engines.items()]
    if (prompts := plan.params.get("prompts", "default")) != "default":
        head.append(f"  prompts {prompts}")
    if asked := problem_line(plan):
        head.append(f"  a problem {asked}")
    return "\n".join([*head, "", *_tree(_Tree(plan, engines).block(plan.block))]) + "\n"


class _Tree:
    def __init__(self, plan: Plan, engines: Mapping[str, str]) -> None:
        self._plan, self._engines = plan, engines

    def block(self, block: Block) -> list[_Line]:
        lines = []
        for level in block.levels:
            nodes = [self._loop(node) if isinstance(node, LoopNode) else self._stage(node, block) for node in level]
            lines += nodes if len(nodes) == 1 else [_Line(_together(level), tuple(nodes))]
        return lines

    def _stage(self, stage: StageNode, block: Block) -> _Line:
        mark = _mark(self._engines, stage.spec.role or "")
        first = f"writes the first {block.first_steps:,} steps by itself" if stage == block.first_writer else ""
        said = [stage.spec.kind, settings_line(stage.spec), condition_line(stage.condition), first]
        return _Line(f"{mark} {stage.name}: {', '.join(filter(None, said))}", tuple(self._verdicts(stage)))

    def _loop(self, loop: LoopNode) -> _Line:
        until = _Line("until", tuple(map(_Line, exit_lines(loop))))
        title = ", ".join(filter(None, ("repeat", condition_line(loop.condition))))
        pace = "every step" if loop.until.every == 1 else f"every {loop.until.every:,} steps"
        tried = () if loop.trial is None else (_Line(pace, (self._stage(loop.trial, loop.body),)),)
        return _Line(f"↻ {loop.name}: {title}", (*self.block(loop.body), *tried, until))

    def _verdicts(self, stage: StageNode) -> Iterator[_Line]:
        spec = stage.spec
        for word in READINGS if spec.gates else VERDICTS if spec.may_reject else VERDICTS[:1] if spec.judges else ():
            due = [each.name for each in self._plan.stages() if each.condition == Condition(stage.name, word)]
            yield _Line(f"{word} → {', '.join(due)}" if due else word)


def _together(level: Sequence[StageNode | LoopNode]) -> str:
    """The title of a level of several stages: `either` where their conditions differ, else `at the same time`."""
    conditions = {node.condition for node in level}
    return "either" if len(conditions) > 1 and None not in conditions else "at the same time"


def _mark(engines: Mapping[str, str], role: str) -> str:
    roles = list(engines)
    return MARKS[roles.index(role) % len(MARKS)] if role in roles else "·"


def _tree(lines: Sequence[_Line], indent: str = "") -> Iterator[str]:
    """Each line with its indentation and branch characters."""
    for line in lines:
        last = line is lines[-1]
        yield f"{indent}{'└─' if last else '├─'} {line.text}"
        yield from _tree(line.below, indent + ("   " if last else "│  "))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)
