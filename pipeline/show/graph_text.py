"""A plan as a tree for a terminal, and the captions of any drawing of it: a plan enters, lines of unescaped text leave. Pure."""

from collections.abc import Mapping, Sequence
from io import StringIO

from msgspec import structs
from rich.console import Console
from rich.tree import Tree

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
    tree = Tree("", hide_root=True)
    _add_block(tree, plan, plan.block)
    drawn = Console(file=StringIO(), width=1 << 16, color_system=None, markup=False, emoji=False)
    with drawn.capture() as lines:
        drawn.print(tree)
    return "\n".join([*head, "", lines.get()])


def _add_block(tree: Tree, plan: Plan, block: Block) -> None:
    for level in block.levels:
        place = tree if len(level) == 1 else tree.add(_together(level))
        for node in level:
            if isinstance(node, StageNode):
                _add_stage(place, plan, node, block)
                continue
            loop = place.add(f"↻ {node.name}: {', '.join(filter(None, ('repeat', condition_line(node.condition))))}")
            _add_block(loop, plan, node.body)
            if node.trial is not None:
                every = node.until.every
                _add_stage(loop.add("every step" if every == 1 else f"every {every:,} steps"), plan, node.trial, node.body)
            until = loop.add("until")
            for line in exit_lines(node):
                until.add(line)


def _add_stage(tree: Tree, plan: Plan, stage: StageNode, block: Block) -> None:
    spec, mark = stage.spec, _mark(engines_of(plan), stage.spec.role or "")
    first = f"writes the first {block.first_steps:,} steps by itself" if stage == block.first_writer else ""
    said = [spec.kind, settings_line(spec), condition_line(stage.condition), first]
    place = tree.add(f"{mark} {stage.name}: {', '.join(filter(None, said))}")
    for word in READINGS if spec.gates else VERDICTS if spec.may_reject else VERDICTS[:1] if spec.judges else ():
        due = [each.name for each in plan.stages() if each.condition == Condition(stage.name, word)]
        place.add(f"{word} → {', '.join(due)}" if due else word)


def _together(level: Sequence[StageNode | LoopNode]) -> str:
    """The title of a level of several stages: `either` where their conditions differ, else `at the same time`."""
    conditions = {node.condition for node in level}
    return "either" if len(conditions) > 1 and None not in conditions else "at the same time"


def _mark(engines: Mapping[str, str], role: str) -> str:
    roles = list(engines)
    return MARKS[roles.index(role) % len(MARKS)] if role in roles else "·"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)
