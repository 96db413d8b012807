"""A plan as a run carried it out: the plan and the run's `run.json` enter, the plan with the run's own params leaves. Refuses
the run of another graph, and says what was otherwise. Reads nothing else."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from pipeline.errors import InputError, boundary
from pipeline.graph.plan import Block, LoopNode, Plan, StageNode
from pipeline.graph.spec import UntilSpec
from pipeline.trace.read import read_card

Node = Mapping[str, Any]


class Card(Struct, frozen=True, kw_only=True):
    """What of a `run.json` is needed here, and of which type."""

    run_id: str
    graph_file: str
    graph: dict[str, Any]
    graph_digest: str
    params: dict[str, bool | int | float | str]
    engines: dict[str, dict[str, Any]]


class Recorded(Struct, frozen=True, kw_only=True):
    """A plan as it was carried out."""

    run: str
    plan: Plan
    engines: dict[str, str]
    """What played each role."""
    differences: tuple[str, ...]
    """What the run had otherwise than the plan as it is now."""


def recorded(plan: Plan, folder: Path) -> Recorded:
    """`plan` as the run in `folder` carried it out; raises `InputError` where that is no run, or one of another graph."""
    card = read_card(folder, Card)
    with boundary(InputError, str(folder / "run.json"), foreign=(msgspec.ValidationError, KeyError, TypeError)):
        if different := _difference(dict(_outline(plan.block)), dict(_recorded_outline(card.graph))):
            raise InputError(str(folder), f"is a run of {card.graph_file}, which is another graph than `{plan.name}`: {different}")
        block = _block(plan.block, card.graph)
    return Recorded(
        run=card.run_id,
        plan=structs.replace(plan, block=block, params=card.params, digest=card.graph_digest),
        engines=_ordered({role: said(spec.get("backend"), spec.get("model")) for role, spec in card.engines.items()}),
        differences=tuple(_differences(plan, card)),
    )


def engines_of(plan: Plan) -> dict[str, str]:
    """What plays each role of a plan; target and draft come first, so that they look the same on every drawing."""
    return _ordered({role: said(spec.__struct_config__.tag, getattr(spec, "model", None)) for role, spec in plan.engines.items()})


def said(backend: object, model: object) -> str:
    """Backend and model, if it has one."""
    return " ".join(str(part) for part in (backend, model) if part)


def _ordered(engines: Mapping[str, str]) -> dict[str, str]:
    return {role: engines[role] for role in sorted(engines, key=lambda role: (role != "target", role != "draft"))}


def _outline(block: Block, inside: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every stage by its path, with what makes it another one: kind, role, condition."""
    for level in block.levels:
        for node in level:
            path = inside + node.name
            when = f"{node.condition.stage} {node.condition.accepted}" if node.condition else ""
            if isinstance(node, LoopNode):
                yield path, ("repeat", "", when)
                yield from _outline(node.body, f"{path}.")
            else:
                yield path, (str(node.spec.__struct_config__.tag), str(getattr(node.spec, "engine", "")), when)


def _recorded_outline(block: Node, inside: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    for level in block["levels"]:
        for node in level:
            path = inside + node["name"]
            when = f"{node['condition']['stage']} {node['condition']['accepted']}" if node["condition"] else ""
            if "body" in node:
                yield path, ("repeat", "", when)
                yield from _recorded_outline(node["body"], f"{path}.")
            else:
                yield path, (node["spec"]["kind"], str(node["spec"].get("engine", "")), when)


def _difference(ours: Mapping[str, tuple[str, ...]], theirs: Mapping[str, tuple[str, ...]]) -> str | None:
    """The clause that names the first stage in which the two are not the same."""
    if list(ours.items()) == list(theirs.items()):
        return None
    for name in ours:
        if name not in theirs:
            return f"it has no stage `{name}`"
    for name in theirs:
        if name not in ours:
            return f"it has a stage `{name}`"
    for name, (kind, role, _) in ours.items():
        if theirs[name][:2] != (kind, role):
            return f"its stage `{name}` is a `{theirs[name][0]}` by `{theirs[name][1]}`, not a `{kind}` by `{role}`"
    return "its stages stand in another order"


def _block(block: Block, raw: Node) -> Block:
    """The same stages with the recorded specs."""
    pairs = (zip(ours, theirs, strict=True) for ours, theirs in zip(block.levels, raw["levels"], strict=True))
    levels = tuple(tuple(_node(node, each) for node, each in level) for level in pairs)
    writer = raw.get("first_writer")
    stages = {node.name: node for level in levels for node in level if isinstance(node, StageNode)}
    return Block(levels, stages[writer["name"]] if writer else None, raw.get("first_steps", 0))


def _node(node: StageNode | LoopNode, raw: Node) -> StageNode | LoopNode:
    if isinstance(node, LoopNode):
        return structs.replace(node, until=msgspec.convert(raw["until"], UntilSpec), body=_block(node.body, raw["body"]))
    return structs.replace(node, spec=msgspec.convert(raw["spec"], type(node.spec)))


def _differences(plan: Plan, card: Card) -> Iterator[str]:
    for name in sorted(plan.params.keys() | card.params.keys()):
        if plan.params.get(name) != card.params.get(name):
            yield f"{name} {card.params.get(name, 'unset')}"
    for role, engine in engines_of(plan).items():
        if (theirs := card.engines.get(role)) is not None and said(theirs.get("backend"), theirs.get("model")) != engine:
            yield f"{role} {said(theirs.get('backend'), theirs.get('model'))}"
