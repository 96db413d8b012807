"""What a graph asks of its engines: a plan enters, the largest request of its stages to one role leaves. Pure."""

from collections.abc import Iterator, Sequence

from pipeline.engine import Asks
from pipeline.graph.plan import Block, LoopNode, Plan, StageNode

_PROBLEM_TOKENS = 1024
"""Room for the problem and the words around it: an assumption."""


def asks_of(plan: Plan, role: str) -> Asks:
    """The largest request of the stages of `role`."""
    own = [node for node in plan.stages() if node.spec.role == role]
    return Asks(
        max_tokens=max((_tokens(node) or 1 for node in own), default=1),
        context=_context(plan, own),
        candidates=max((node.spec.drafted for node in own), default=0) or 1,
        options=any("options" in node.spec.needs for node in own),
    )


def _context(plan: Plan, own: Sequence[StageNode]) -> int | None:
    """Tokens of the longest sequence of the stages `own`: the problem, a whole thought, and the longest that is written or shown then."""
    whole = ("thought", "response")
    thoughts = [*_budgets(plan.block), *(_tokens(node) for node in plan.stages() if getattr(node.spec, "unit", None) in whole)]
    last = [0, *(_tokens(node) for node in own if getattr(node.spec, "unit", None) not in whole)]
    if any(node.spec.judges for node in own):
        last.append(sum(node.spec.drafted * (_tokens(node) or 0) for node in plan.stages() if node.spec.drafted))
    if None in (*thoughts, *last) or not thoughts:
        return None
    return _PROBLEM_TOKENS + max(each or 0 for each in thoughts) + max(each or 0 for each in last)


def _tokens(node: StageNode) -> int | None:
    """Most tokens that a stage writes; 0 of one that judges, None where it has no limit."""
    found = 0 if node.spec.judges else getattr(node.spec, "max_tokens", None)
    return found if isinstance(found, int) else None


def _budgets(block: Block) -> Iterator[int | None]:
    """Most tokens of a thought, for each loop."""
    for level in block.levels:
        for node in level:
            if isinstance(node, LoopNode):
                yield node.until.token_budget
                yield from _budgets(node.body)
