"""From a graph that obeys all rules to its plan. Pure: equal specs give equal plans.

A loop with `speculate: never` or `auto` also gets what the target writes without speculation. The role of its `generate` stage, the
fallback, is the target. The `response` is the request that `target.yaml` makes, by the same name, so that it has the same id and seed; the
`boundary` lets the target finish a step that was cut when its response was interrupted.

Where an `until` asks for the answer before the thought is over, its loop gets the stage `trial`, which asks it. A response with such an
`until` becomes a loop, whose rounds write pieces of it.
"""

import hashlib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import count
from typing import Any

import msgspec
from msgspec import structs

from pipeline.graph.plan import Block, Condition, Direct, LoopNode, Plan, StageNode
from pipeline.graph.rules import BOUNDARY, READINGS, RESPONSE, TRIAL, Stages, early_end, waits_for
from pipeline.graph.spec import EndSpec, GraphSpec, RepeatSpec, Speculate, StageSpec, TrialSpec, UntilSpec


def compile_graph(graph: GraphSpec) -> Plan:
    """The plan of `graph`, in which `rules` find no flaw."""
    engines = graph.engines
    assert isinstance(engines, dict), "the loader binds the roles"
    block, roles = _block(graph.stages, count()), tuple(dict.fromkeys(_roles(graph.stages)))
    if any(isinstance(spec, RepeatSpec) and spec.speculate != "always" for spec in graph.stages.values()):
        block, roles = _switched(graph.stages, block, roles)
    if trial := _trial(graph.stages, sum(1 for _ in block.stages())):
        block = structs.replace(block, levels=tuple(tuple(_tried(node, trial) for node in level) for level in block.levels))
    return Plan(
        name=graph.name,
        prompts=graph.prompts,
        block=block,
        engines={role: engines[role] for role in roles},
        params=graph.params,
        digest=_digest(graph),
        speculate=_speculation(graph.stages),
    )


def _digest(spec: GraphSpec) -> str:
    return hashlib.blake2b(msgspec.json.encode(spec, order="deterministic"), digest_size=16).hexdigest()


def _block(stages: Stages, ranks: Iterator[int]) -> Block:
    """The stages of a graph or of a `repeat`, in levels; each stage takes its rank from `ranks`."""
    sorter, order, levels = TopologicalSorter({name: waits_for(spec) for name, spec in stages.items()}), list(stages), []
    sorter.prepare()
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=order.index)
        levels.append(tuple(_node(name, stages[name], ranks) for name in ready))
        sorter.done(*ready)
    writer = next((s for level in levels for s in level if isinstance(s, StageNode) and s.spec.leading_steps), None)
    return Block(tuple(levels), writer, writer.spec.leading_steps if writer else 0)


def _node(name: str, spec: StageSpec, ranks: Iterator[int]) -> StageNode | LoopNode:
    judge, _, verdict = (spec.when or "").partition(".")
    condition = Condition(judge, verdict in ("accepted", "passed"), verdict in READINGS) if spec.when else None
    if isinstance(spec, RepeatSpec):
        return LoopNode(name, spec.until, _block(spec.stages, ranks), condition)
    if getattr(spec, "until", None) == EndSpec():
        spec = structs.replace(spec, until=None)  # nothing is asked before the end: as if nothing were said
    return StageNode(name, spec, condition, next(ranks))


def _trial(stages: Stages, rank: int) -> StageNode | None:
    """The stage that asks for the answer before the thought is over, as the first that answers would be asked; None where no `until` needs
    it."""
    ends = [until for spec in stages.values() if (until := early_end(spec)) is not None]
    if not ends:
        return None
    answer = next(spec for spec in stages.values() if spec.answers and spec.when is None)
    confidence = any(until.answer_confident is not None for until in ends)
    spec = TrialSpec(engine=str(answer.role), confidence=confidence, prompts=answer.prompts, adapter=answer.adapter)
    return StageNode(TRIAL, spec, None, rank)


def _tried(node: StageNode | LoopNode, trial: StageNode) -> StageNode | LoopNode:
    """`node` with the `trial` where its `until` needs one; a response then is a loop, a piece of it a round."""
    if isinstance(node, LoopNode):
        return structs.replace(node, trial=trial) if node.until.tries else node
    if (end := early_end(node.spec)) is None:
        return node
    limits: dict[str, Any] = {"thought_closed": True, "token_budget": getattr(node.spec, "max_tokens", None)}
    until = UntilSpec(answer_confident=end.answer_confident, answer_stable=end.answer_stable, **limits)
    return LoopNode(node.name, until, Block(((structs.replace(node, condition=None),),)), node.condition, trial=trial)


def _roles(stages: Stages) -> Iterator[str]:
    """The role of each stage, in the order of the file."""
    for spec in stages.values():
        if isinstance(spec, RepeatSpec):
            yield from _roles(spec.stages)
        elif spec.role is not None:
            yield spec.role


def _speculation(stages: Stages) -> Speculate | None:
    """The `speculate` of the loop of a graph; None where no loop of it drafts."""
    loops = [spec for spec in stages.values() if isinstance(spec, RepeatSpec) and any(each.drafts for each in spec.stages.values())]
    return next((loop.speculate for loop in loops if loop.speculate != "always"), "always") if loops else None


def _switched(stages: Stages, block: Block, roles: tuple[str, ...]) -> tuple[Block, tuple[str, ...]]:
    """`block` of a loop with `speculate: never` or `auto`, and those of the `roles` that it needs.

    Never: the response, and the answer where that is cut. Auto: the loop has the response and the boundary too, and the guidance, which is
    for drafts alone.
    """
    ranks = count(sum(1 for _ in block.stages()))
    specs = {RESPONSE: _response(stages), BOUNDARY: _fallback(stages, unit="step")}
    response, boundary = (StageNode(name, spec, None, next(ranks)) for name, spec in specs.items())
    nodes = [node for level in block.levels for node in level]
    if _speculation(stages) == "never":
        answers = [node for node in nodes if isinstance(node, StageNode) and node.spec.answers]
        after = (structs.replace(node, rank=1, spec=structs.replace(node.spec, after=RESPONSE)) for node in answers)
        alone = [structs.replace(response, rank=0), *after]
        return Block(tuple((node,) for node in alone)), tuple(dict.fromkeys(str(node.spec.role) for node in alone))
    guidance = next((node for node in nodes if isinstance(node, StageNode) and node.spec.purpose == "guide"), None)
    direct = Direct(response, boundary, guidance)
    switched = [structs.replace(node, direct=direct) if isinstance(node, LoopNode) else node for node in nodes if node is not guidance]
    return Block(tuple((node,) for node in switched)), roles


def _response(stages: Stages) -> StageSpec:
    answer: Any = next(spec for spec in stages.values() if spec.answers and not spec.when)
    said = answer.max_tokens if getattr(answer, "budget", None) == "thought" else None
    loop = _switchable(stages).until
    return _fallback(stages, unit="response", max_tokens=loop.token_budget, answer_tokens=said, until=_end_of_response(stages, loop))


def _end_of_response(stages: Stages, loop: UntilSpec) -> EndSpec | None:
    """When the target's response ends early: as the loop, in which it writes one step in at most so many tokens."""
    if not loop.tries:
        return None if loop.every == UntilSpec().every else EndSpec(every=loop.every)
    # With `auto` the loop counts pieces as steps; with `never` there is no other loop, and the answer is asked for after each piece.
    pieces = loop.every if _speculation(stages) == "never" else 1
    every = pieces * int(getattr(_fallback(stages), "max_tokens", 1))
    return EndSpec(answer_confident=loop.answer_confident, answer_stable=loop.answer_stable, every=every)


def _fallback(stages: Stages, **fields: Any) -> StageSpec:
    """The `generate` stage of the loop, by itself and with other `fields`."""
    writer = next(spec for spec in _switchable(stages).stages.values() if spec.kind == "generate")
    return structs.replace(writer, after=(), when=None, first_steps=0, **fields)


def _switchable(stages: Stages) -> RepeatSpec:
    return next(spec for spec in stages.values() if isinstance(spec, RepeatSpec) and spec.speculate != "always")
