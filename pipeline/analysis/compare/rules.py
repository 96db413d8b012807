"""The rules that a run's chains are held to: a plan enters, its budgets, exits, sampling and prompts leave, and what differs in two.

Two systems are compared fairly where these agree: what differs in them is no difference of the methods.
"""

from collections.abc import Iterator

from msgspec import Struct

from pipeline.graph.plan import LoopNode, Plan, StageNode
from pipeline.graph.prompts import OURS, Prompts
from pipeline.graph.spec import PLAIN_SAMPLING, SamplingSpec

WRITING = ("write", "draft", "guide", "answer")
"""Purposes of calls that sample text."""


ASKED = ("system", "problem", "examples", "delimiter", "thought")
"""Those texts of the prompts that every system of a comparison has."""


class Rules(Struct, frozen=True, kw_only=True):
    """What chains may write, how it is sampled, when a thought ends, and how problems are asked."""

    thought_tokens: int | None
    """Most tokens of a thought; None: nothing bounds it."""
    answer_tokens: int | None
    """Most tokens of an answer beyond the thought's budget; None: it has what the thought leaves."""
    closes: bool
    """Whether a thought that is not finished within its budget is closed and answered."""
    exits: tuple[str, ...]
    """What ends a thought beside its end and its bounds, such as `repeated 2`."""
    sampling: dict[str, str]
    """By purpose of the calls, such as `temperature 0.6, top_p 0.95`."""
    asked: tuple[str, ...]
    """Those of `ASKED` that are not this package's own texts."""
    prompts: Prompts


def rules_of(plan: Plan) -> Rules:
    """The rules of `plan`."""
    nodes = list(plan.stages())
    answers = [node.spec for node in nodes if node.spec.answers]
    own = [getattr(spec, "max_tokens", None) for spec in answers if getattr(spec, "budget", "thought") == "thought"]
    return Rules(
        thought_tokens=_thought_tokens(plan, nodes),
        answer_tokens=max(filter(None, own), default=None),
        closes=bool(own),
        exits=tuple(_exits(plan)),
        sampling={purpose: said for purpose in WRITING if (said := _sampling(nodes, purpose))},
        asked=tuple(name for name in ASKED if getattr(plan.prompts, name) != getattr(OURS, name)),
        prompts=plan.prompts,
    )


def differences(ours: Rules, theirs: Rules) -> Iterator[str]:
    """What of the rules of a run differs from those of its baseline, each as a clause."""
    if ours.thought_tokens != theirs.thought_tokens:
        yield f"its thoughts have {_tokens(ours.thought_tokens)}, the baseline's {_tokens(theirs.thought_tokens)}"
    if ours.closes != theirs.closes:
        which = ("it closes", "the baseline does not") if ours.closes else ("it does not close", "the baseline does")
        yield f"{which[0]} and answer a thought that is not finished within its budget, {which[1]}"
    elif ours.answer_tokens != theirs.answer_tokens:
        yield f"its answers have {_tokens(ours.answer_tokens)}, the baseline's {_tokens(theirs.answer_tokens)}"
    if ours.exits != theirs.exits:
        yield f"its thoughts also end at {_listed(ours.exits)}, the baseline's at {_listed(theirs.exits)}"
    for purpose in WRITING:
        one, other = ours.sampling.get(purpose), theirs.sampling.get(purpose)
        if one and other and one != other:
            yield f"what it samples to {purpose} has {one}, the baseline's {other}"
    for name in dict.fromkeys((*ours.asked, *theirs.asked)):
        if getattr(ours.prompts, name) != getattr(theirs.prompts, name):
            yield f"`prompts.{name}` is another text than the baseline's"


def _thought_tokens(plan: Plan, nodes: list[StageNode]) -> int | None:
    """The greatest budget that a thought may have in `plan`."""
    loops = (node for level in plan.block.levels for node in level if isinstance(node, LoopNode))
    bounds = [loop.until.token_budget for loop in loops]
    bounds += [getattr(node.spec, "max_tokens", None) for node in nodes if getattr(node.spec, "unit", None) in ("thought", "response")]
    return max(filter(None, bounds), default=None)


def _exits(plan: Plan) -> Iterator[str]:
    for level in plan.block.levels:
        for node in level:
            if isinstance(node, LoopNode):
                until = node.until
                yield from ["answer_boxed"] if until.answer_boxed else []
                yield from [f"repeated {until.repeated}"] if until.repeated else []


def _sampling(nodes: list[StageNode], purpose: str) -> str:
    """How the calls of a purpose sample; empty where there are none."""
    said = [node.spec.sampling for node in nodes if isinstance(node.spec, SamplingSpec) and node.spec.purpose == purpose]
    return "; ".join(dict.fromkeys(_worded(each) for each in said))


def _worded(sampling: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in sampling.items() if name == "temperature" or value != PLAIN_SAMPLING[name])


def _tokens(count: int | None) -> str:
    return "no bound" if count is None else f"at most {count:,} tokens"


def _listed(exits: tuple[str, ...]) -> str:
    return ", ".join(exits) or "nothing else"
