"""From a graph that obeys all rules to its plan. Pure: equal specs give equal plans.

A loop with `speculate: never` becomes what the target writes without speculation. The role of its `generate` stage, the fallback, is the
target. The `response` is the request that `target.yaml` makes, by the same name, so that it has the same id and seed.

Where the `until` of a loop asks for the answer before the thought is over, the loop gets the stage `trial`, which asks it.
"""

from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import count
from typing import Any

from msgspec import structs

from pipeline.graph.plan import Block, Condition, LoopNode, Plan, StageNode
from pipeline.graph.rules import RESPONSE, TRIAL, Stages, with_keys
from pipeline.graph.spec import GraphSpec, RepeatSpec, Speculate, StageSpec, TrialSpec, waits_for


def compile_graph(graph: GraphSpec) -> Plan:
    """The plan of `graph`, in which `rules` find no flaw."""
    speculate = _speculation(graph.stages)
    block = _alone(graph.stages) if speculate == "never" else _block(graph.stages, count(), _trial(graph.stages))
    specs = [spec for _, spec in with_keys(graph.stages)] if speculate != "never" else [node.spec for node in block.stages()]
    roles = dict.fromkeys(spec.role for spec in specs if spec.role is not None)
    return Plan(graph=graph, block=block, engines={role: graph.engines[role] for role in roles}, speculate=speculate)


def _block(stages: Stages, ranks: Iterator[int], trial: TrialSpec | None = None) -> Block:
    """The stages of a graph or of a `repeat`, in levels; each takes its rank from `ranks`. `trial`: the stage of loops that need one."""
    levels = [tuple(_node(name, stages[name], ranks, trial) for name in names) for names in _levels(stages)]
    nodes = (node for level in levels for node in level if isinstance(node, StageNode))
    first = next(((node, steps) for node in nodes if (steps := getattr(node.spec, "first_steps", 0))), (None, 0))
    return Block(tuple(levels), *first)


def _levels(stages: Stages) -> Iterator[list[str]]:
    """The names of stages that wait for none but those before them, in the order of the file."""
    sorter, order = TopologicalSorter({name: waits_for(spec) for name, spec in stages.items()}), list(stages)
    sorter.prepare()
    while sorter.is_active():
        yield (ready := sorted(sorter.get_ready(), key=order.index))
        sorter.done(*ready)


def _node(name: str, spec: StageSpec, ranks: Iterator[int], trial: TrialSpec | None = None) -> StageNode | LoopNode:
    condition = Condition(*spec.when.split(".")) if spec.when else None
    if isinstance(spec, RepeatSpec):
        body = _block(spec.stages, ranks)
        asks = StageNode(TRIAL, trial, None, next(ranks)) if trial and spec.until.tries else None
        return LoopNode(name, spec.until, body, condition, asks)
    return StageNode(name, spec, condition, next(ranks))


def _trial(stages: Stages) -> TrialSpec | None:
    """The stage that asks for the answer before the thought is over, as the first that answers would be asked; None where none answers."""
    answer: Any = next((spec for spec in stages.values() if spec.answers and spec.when is None), None)
    confidence = any(spec.until.answer_confident is not None for spec in stages.values() if isinstance(spec, RepeatSpec))
    return answer and TrialSpec(engine=answer.engine, confidence=confidence, adapter=answer.adapter)


def _speculation(stages: Stages) -> Speculate | None:
    """The `speculate` of the loop of a graph; None where no loop of it drafts."""
    loops = [spec for spec in stages.values() if isinstance(spec, RepeatSpec) and any(each.drafts for each in spec.stages.values())]
    return next((loop.speculate for loop in loops if loop.speculate != "always"), "always") if loops else None


def _alone(stages: Stages) -> Block:
    """What the target writes of a loop with `speculate: never`: the response, and the answer where that is cut."""
    loop = next(spec for spec in stages.values() if isinstance(spec, RepeatSpec) and spec.speculate == "never")
    name, answer = next((name, spec) for name, spec in stages.items() if spec.answers)
    said = getattr(answer, "max_tokens", None) if getattr(answer, "budget", None) == "thought" else None
    fallback: Any = next(spec for spec in loop.stages.values() if spec.kind == "generate")
    fields = {"after": (), "when": None, "first_steps": 0, "unit": "response", "max_tokens": loop.until.token_budget, "answer_tokens": said}
    response = structs.replace(fallback, **fields)
    return Block(((StageNode(RESPONSE, response, None, 0),), (_node(name, structs.replace(answer, after=RESPONSE), count(1)),)))
