"""Thoughts in a plan: whether all drafts fit into the context of their judge; of simulated ones, whose lengths are read, whether engines
agree on them, which is refused, and which limits cut many.

A plan enters; a plan or warnings leave.
"""

from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Literal

from msgspec import structs

from pipeline.engines.sim.lengths_file import with_lengths
from pipeline.engines.sim.spec import SimSpec, SimTextSpec
from pipeline.engines.sim.text import SHORTEST_STEP
from pipeline.errors import GraphError
from pipeline.graph.plan import Block, LoopNode, Plan
from pipeline.graph.spec import EngineSpec
from pipeline.stages.choose import ChooseSpec
from pipeline.stages.draft import DraftSpec
from pipeline.stages.generate import GenerateSpec

Unit = Literal["steps", "tokens"]
MANY = 0.1
"""A limit that cuts this share of the thoughts, or more, is named."""
ROOM = {"token_budget": 30720, "max_steps": 1000, "draft_tokens": 30720}
"""Params of the bundled graphs that have room for the thoughts of every preset."""
_PARTS = 1000
"""Number of equally likely parts that a distribution is divided into."""
_NORMALS = tuple(NormalDist().inv_cdf((part + 0.5) / _PARTS) for part in range(_PARTS))


def with_thoughts(plan: Plan) -> Plan:
    """The plan with the lengths in place of the files and runs that hold them. Raises `UsageError` where one cannot be read, or where
    engines would disagree on how many steps a problem takes."""
    engines: dict[str, EngineSpec] = {
        role: with_lengths(role, spec) if isinstance(spec, SimSpec) else spec for role, spec in plan.engines.items()
    }
    found = structs.replace(plan, engines=engines)
    _check_agreement(_simulated(found))
    return found


def room_notices(plan: Plan) -> list[str]:
    """Sentences that name contexts into which not all drafts fit, and the limits that cut many simulated thoughts of measured length."""
    return [*_crowded(plan), *_cut(plan)]


def _crowded(plan: Plan) -> Iterator[str]:
    """A warning for each judge of whole thoughts whose context cannot hold the longest ones that may be drafted."""
    drafts = [node.spec for node in plan.stages() if isinstance(node.spec, DraftSpec) and node.spec.unit == "thought"]
    most = sum(spec.candidates * spec.max_tokens for spec in drafts)
    for node in plan.stages():
        spec = node.spec
        length = getattr(plan.engines.get(str(spec.role)), "max_model_len", None)
        if isinstance(spec, ChooseSpec) and spec.unit == "thought" and isinstance(length, int) and most > length:
            count = sum(each.candidates for each in drafts)
            what = f"{count} drafts may have {most:,} tokens, and the context of engine {spec.role!r} {length:,}"
            then = "are all rejected" if spec.reject else "fail with their chain"
            yield f"warning: {what}: those that do not fit next to the problem {then}; draft less, or set its max_model_len"


def _cut(plan: Plan) -> list[str]:
    texts = [spec.text for spec in _simulated(plan).values() if spec.text.measured]
    if not texts:
        return []
    text = texts[0]
    limits = [*_limits(plan.block), *(("max_model_len", spec.max_model_len, "tokens") for spec in _simulated(plan).values())]
    cut = {(name, limit): share for name, limit, unit in limits if (share := _share_cut(text, limit, unit)) >= MANY}
    if not cut:
        return []
    cuts = " and ".join(f"{name} ({limit:,}) cuts {share:.0%}" for (name, limit), share in cut.items())
    which = f"preset `{text.preset}`" if text.preset is not None else "`text.lengths`"
    return [f"warning: {cuts} of the simulated thoughts, whose lengths are those of {which}; {_remedy(plan, text, cut)}"]


def _remedy(plan: Plan, text: SimTextSpec, cut: Mapping[tuple[str, int], float]) -> str:
    """What would leave room, as a clause."""
    less = (name for name, value in ROOM.items() if isinstance(now := plan.params.get(name), int) and now < value)
    settings = [f"--set {name}={ROOM[name]}" for name in less]
    settings += ["--set 'engines.*.max_model_len=32768'"] if any(name == "max_model_len" for name, _ in cut) else []
    return f"{' '.join(settings)} leaves enough room for every preset" if text.preset is not None and settings else "set it higher"


def _limits(block: Block) -> Iterator[tuple[str, int, Unit]]:
    """What may cut a thought in a block: a name, the most that it lets pass, and of what."""
    for level in block.levels:
        for node in level:
            if isinstance(node, LoopNode):
                exits: list[tuple[str, int | None, Unit]] = [
                    ("max_steps", node.until.max_steps, "steps"),
                    ("token_budget", node.until.token_budget, "tokens"),
                ]
                yield from ((name, limit, unit) for name, limit, unit in exits if limit is not None)
                yield from _limits(node.body)
            elif isinstance(node.spec, GenerateSpec | DraftSpec) and node.spec.unit in ("thought", "response"):
                yield f"max_tokens of {node.name}", node.spec.max_tokens, "tokens"


def _share_cut(text: SimTextSpec, limit: float, unit: Unit) -> float:
    """The share of the thoughts that are longer than `limit`, where every step has the mean number of tokens."""
    steps, tokens = text.distribution("steps"), text.distribution("step_tokens")
    each = 1.0 if unit == "steps" else sum(max(tokens.at(normal), SHORTEST_STEP) for normal in _NORMALS) / _PARTS
    return sum(each * round(steps.at(normal)) > limit for normal in _NORMALS) / _PARTS


def _simulated(plan: Plan) -> dict[str, SimSpec]:
    return {role: spec for role, spec in plan.engines.items() if isinstance(spec, SimSpec)}


def _check_agreement(specs: Mapping[str, SimSpec]) -> None:
    """Raise `GraphError` where lengths are measured ones and two engines have other numbers of steps."""
    first = next((role for role, spec in specs.items() if spec.text.measured), None)
    for role, spec in specs.items():
        if first is not None and spec.text.distribution("steps") != specs[first].text.distribution("steps"):
            what = f"its thoughts differ in numbers of steps from those of {role!r}, which continues them"
            raise GraphError(f"engine {first!r}: text", f"{what}; give both the same `preset`, or `lengths` with the same `steps`")
