"""The compiled graph: stages in the order they run, conditions resolved. Frozen; it can be printed, hashed and compared.

A block's `levels` are what one chain runs: the stages of a level run concurrently and their outcomes are applied in the order listed, so
that timing never changes an answer.

`encode_plan` turns a plan into what `run.json` keeps, `decode_plan` reads it back, also where a stage or an engine belongs to
a package that is not installed.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from pipeline.bundled import BUNDLED, model_name
from pipeline.graph.prompts import Prompts
from pipeline.graph.rules import early_end, waits_for
from pipeline.graph.spec import EngineSpec, Param, Purpose, Speculate, StageSpec, TrialSpec, UntilSpec

S = TypeVar("S", bound=Struct)


class Condition(Struct, frozen=True):
    """When a node runs: only if `stage` gave a verdict, and that was to accept (`accepted`) or to reject (not `accepted`). Of a `gate`:
    only if it looked at a draft, and let it pass (`accepted`) or flagged it."""

    stage: str
    accepted: bool
    gate: bool = False

    @property
    def word(self) -> str:
        """What a graph file writes after the stage: `accepted` or `rejected`, of a gate `passed` or `flagged`."""
        return ("passed" if self.accepted else "flagged") if self.gate else ("accepted" if self.accepted else "rejected")


class StageNode(Struct, frozen=True, tag="stage", tag_field="node"):
    """A stage in a plan, which calls one engine."""

    name: str
    spec: StageSpec
    condition: Condition | None
    """When it runs; None: always."""
    rank: int
    """Place among all stages of the plan, from 0."""


class LoopNode(Struct, frozen=True, tag="loop", tag_field="node"):
    """A `repeat` in a plan: its body runs again and again until one of the stop conditions in `until` holds."""

    name: str
    until: UntilSpec
    body: "Block"
    condition: Condition | None
    trial: StageNode | None = None
    """What asks for the answer before the thought is over; None where `until` needs no such answer."""

    @property
    def pace(self) -> str:
        """How often that is asked, in words: of a response that is written in pieces by its tokens, else by steps."""
        pieces = [end.every for node in self.body.stages() if (end := early_end(node.spec)) is not None]
        every, unit = (pieces[0], "token") if pieces else (self.until.every, "step")
        return f"every {unit}" if every == 1 else f"every {every:,} {unit}s"


class Block(Struct, frozen=True):
    """Stages in topological order, grouped by the longest path that leads to them."""

    levels: tuple[tuple[StageNode | LoopNode, ...], ...]
    first_writer: StageNode | None = None
    """In a loop: the stage that writes the first steps alone, while the other stages do not run; None: there is none."""
    first_steps: int = 0
    """How many steps those are."""

    def stages(self) -> Iterator[StageNode]:
        """Every stage of the block that calls an engine, those of its loops included, in their order."""
        for level in self.levels:
            for node in level:
                if isinstance(node, StageNode):
                    yield node
                    continue
                yield from node.body.stages()
                yield from () if node.trial is None else (node.trial,)


class Plan(Struct, frozen=True):
    """A compiled graph: what each chain of a run carries out."""

    name: str
    prompts: Prompts
    """What is said to the models, by stages that have nothing of their own to say."""
    block: Block
    engines: dict[str, EngineSpec]
    """The roles this graph uses, in the order they first appear."""
    params: dict[str, Param]
    digest: str
    """Fingerprint of the graph with all its params filled in, 32 hexadecimal digits; equal graphs have equal ones."""
    speculate: Speculate | None = None
    """Whether its loop speculates; None where no loop of it drafts."""

    def stages(self) -> Iterator[StageNode]:
        """Every stage that calls an engine, in plan order."""
        yield from self.block.stages()

    @property
    def loops(self) -> tuple[LoopNode, ...]:
        """The loops, in plan order."""
        return tuple(node for level in self.block.levels for node in level if isinstance(node, LoopNode))

    @property
    def repeated(self) -> tuple[StageNode, ...]:
        """The stages inside loops, each of which a chain runs again and again."""
        return tuple(stage for loop in self.loops for stage in loop.body.stages())

    @property
    def drafters(self) -> tuple[str, ...]:
        """The role that drafts each candidate of a step, in the candidates' order."""
        drafts = [stage.spec for stage in self.stages() if stage.spec.purpose == "draft"]
        return tuple(str(spec.role) for spec in drafts for _ in range(spec.drafted))

    @property
    def gated(self) -> bool:
        """True if a gate decides whether a draft is verified."""
        return any(stage.spec.gates for stage in self.stages())

    @property
    def reward_roles(self) -> tuple[str, ...]:
        """The roles of reward models."""
        return tuple(dict.fromkeys(str(node.spec.role) for node in self.stages() if node.spec.rewards))

    @property
    def measured(self) -> dict[str, str]:
        """The stages that draft whose log probabilities are read, each with the first gate that does."""
        nodes = {node.name: node.spec for node in self.stages()}
        found: dict[str, str] = {}
        for name, spec in nodes.items():
            before = list(waits_for(spec)) if spec.reads_logprobs else []
            while before:
                other = before.pop()
                if nodes[other].drafts:
                    found.setdefault(other, name)
                before += [] if nodes[other].drafts else waits_for(nodes[other])
        return found

    @property
    def finishing(self) -> frozenset[str]:
        """The stages with which a chain ends: those that answer, and those that write thought and answer in one response."""
        return frozenset(node.name for node in self.stages() if node.spec.finishes)

    @property
    def models(self) -> dict[str, str]:
        """The model of each role, without its folder; of an engine without one its backend."""
        return {role: model_name(str(getattr(spec, "model", "") or spec.backend)) for role, spec in self.engines.items()}

    @property
    def has_toy_models(self) -> bool:
        """Whether all its models are the bundled ones, which show how it works and not how fast."""
        return bool(self.engines) and all(str(getattr(spec, "model", "")).startswith(BUNDLED) for spec in self.engines.values())


class UnknownStage(StageSpec, frozen=True, kw_only=True):
    """A stage of a recorded plan that cannot be decoded here, with what the record says of its capabilities."""

    recorded_kind: str
    recorded_purpose: Purpose = "write"
    recorded_drafted: int = 0
    recorded_may_reject: bool = False
    recorded_finishes: bool = False
    engine: str | None = None
    settings: dict[str, Any]
    """All its fields as they were recorded."""
    flaw: str
    """Why it cannot be decoded, in one clause."""

    kind = property(lambda self: self.recorded_kind)
    purpose = property(lambda self: self.recorded_purpose)
    drafts = property(lambda self: self.recorded_purpose == "draft")
    judges = property(lambda self: self.recorded_purpose == "judge")
    gates = property(lambda self: self.recorded_purpose == "gate")
    writes = property(lambda self: self.recorded_purpose in ("guide", "write"))
    answers = property(lambda self: self.recorded_purpose == "answer")
    drafted = property(lambda self: self.recorded_drafted)
    may_reject = property(lambda self: self.recorded_may_reject)
    finishes = property(lambda self: self.recorded_finishes)


class UnknownEngine(EngineSpec, frozen=True, kw_only=True):
    """An engine of a recorded plan that cannot be decoded here."""

    recorded_backend: str
    model: str = ""
    settings: dict[str, Any]
    """All its fields as they were recorded, `backend` included."""
    flaw: str
    """Why it cannot be decoded, in one clause."""

    @property
    def backend(self) -> str:
        return self.recorded_backend


def settings_of(spec: EngineSpec | StageSpec) -> dict[str, Any]:
    """Every field of a stage or an engine as a file would say it, defaults and `kind` or `backend` included."""
    if isinstance(spec, UnknownEngine | UnknownStage):
        return spec.settings
    settings: dict[str, Any] = msgspec.to_builtins(spec)
    return settings


class RecordedPlan(Struct, frozen=True, kw_only=True):
    """The part of `run.json` that holds a plan, as `encode_plan` writes it."""

    graph: dict[str, Any]
    """The resolved stages, as `_encode_block` writes them: params filled in, settings applied."""
    graph_digest: str
    graph_name: str
    prompts: Prompts
    params: dict[str, Param]
    engines: dict[str, dict[str, Any]]
    speculate: Speculate | None


_CAPABILITIES = ("purpose", "drafted", "may_reject", "finishes")
"""What is recorded of a stage beside its fields, for readers without the package that has its kind."""


def encode_plan(plan: Plan) -> dict[str, Any]:
    """`plan` as the keys of a `RecordedPlan`, ready for JSON."""
    return {
        "graph": _encode_block(plan.block),
        "graph_digest": plan.digest,
        "graph_name": plan.name,
        "prompts": msgspec.to_builtins(plan.prompts),
        "params": plan.params,
        "engines": {role: settings_of(spec) for role, spec in plan.engines.items()},
        "speculate": plan.speculate,
    }


def decode_plan(recorded: RecordedPlan, kinds: Mapping[str, type[StageSpec]], backends: Mapping[str, type[EngineSpec]]) -> Plan:
    """The plan that was recorded. A stage or an engine that is none of `kinds` or `backends`, or has fields that those do not
    know, becomes an `UnknownStage` or `UnknownEngine`. Raises `msgspec.ValidationError` for what is no plan at all."""
    try:
        block = _decode_block(recorded.graph, kinds)
    except (LookupError, TypeError, AttributeError) as error:
        raise msgspec.ValidationError(f"its graph is not one that this program writes: {error!r}") from error
    return Plan(
        name=recorded.graph_name,
        prompts=recorded.prompts,
        block=block,
        engines={role: decode_engine(settings, backends) for role, settings in recorded.engines.items()},
        params=recorded.params,
        digest=recorded.graph_digest,
        speculate=recorded.speculate,
    )


def decode_engine(settings: Mapping[str, Any], backends: Mapping[str, type[EngineSpec]]) -> EngineSpec:
    """The spec of a recorded engine from its recorded `settings`; an `UnknownEngine` where none of `backends` takes them."""
    backend = str(settings.get("backend", ""))
    found = _spec_or_flaw(settings, backend, backends)
    if isinstance(found, EngineSpec):
        return found
    limits = {name: settings[name] for name in EngineSpec.__struct_fields__ if isinstance(settings.get(name), int | float)}
    model = str(settings.get("model") or "")
    return UnknownEngine(recorded_backend=backend, model=model, settings=dict(settings), flaw=found, **limits)


def _encode_block(block: Block) -> dict[str, Any]:
    return {
        "levels": [[_encode_node(node) for node in level] for level in block.levels],
        "first_writer": None if block.first_writer is None else _encode_node(block.first_writer),
        "first_steps": block.first_steps,
    }


def _encode_node(node: StageNode | LoopNode) -> dict[str, Any]:
    condition = msgspec.to_builtins(node.condition)
    if isinstance(node, LoopNode):
        loop = {"name": node.name, "until": msgspec.to_builtins(node.until), "body": _encode_block(node.body), "condition": condition}
        return {**loop, **({} if node.trial is None else {"trial": _encode_node(node.trial)})}
    capabilities = {name: getattr(node.spec, name) for name in _CAPABILITIES}
    return {"name": node.name, "spec": settings_of(node.spec), "condition": condition, "rank": node.rank, **capabilities}


def _decode_block(block: Mapping[str, Any], kinds: Mapping[str, type[StageSpec]]) -> Block:
    levels = tuple(tuple(_decode_node(node, kinds) for node in level) for level in block["levels"])
    stages = {node.name: node for level in levels for node in level if isinstance(node, StageNode)}
    writer = block.get("first_writer")
    return Block(levels, writer and stages.get(writer["name"]), block.get("first_steps", 0))


def _decode_node(node: Mapping[str, Any], kinds: Mapping[str, type[StageSpec]]) -> StageNode | LoopNode:
    if "body" not in node:
        return _decode_stage(node, kinds)
    condition, until = msgspec.convert((node.get("condition"), node["until"]), tuple[Condition | None, UntilSpec])
    trial = _decode_stage(node["trial"], {**kinds, "trial": TrialSpec}) if "trial" in node else None
    return LoopNode(node["name"], until, _decode_block(node["body"], kinds), condition, trial)


def _decode_stage(node: Mapping[str, Any], kinds: Mapping[str, type[StageSpec]]) -> StageNode:
    settings = node["spec"]
    kind = str(settings.get("kind", ""))
    spec = _spec_or_flaw(settings, kind, kinds)
    if isinstance(spec, str):
        spec = UnknownStage(
            recorded_kind=kind,
            **{f"recorded_{name}": node[name] for name in _CAPABILITIES if name in node},
            engine=settings.get("engine"),
            settings=settings,
            flaw=spec,
        )
    return StageNode(node["name"], spec, msgspec.convert(node.get("condition"), Condition | None), node.get("rank", 0))


def _spec_or_flaw(settings: Mapping[str, Any], name: str, known: Mapping[str, type[S]]) -> S | str:
    """The spec that `settings` describe, or the reason, as a clause, why they cannot be decoded."""
    if name not in known:
        return f"`{name}` is not installed here"
    try:
        return msgspec.convert(_restore_infinities(settings, known[name]), known[name])
    except msgspec.ValidationError as error:
        return str(error)


def _restore_infinities(settings: Mapping[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """`settings` with infinity for every null in a number's place: JSON has no infinity, so `run.json` holds null for it."""
    found = dict(settings)
    for field in structs.fields(kind):
        hint = get_args(field.type)[0] if get_origin(field.type) is Annotated else field.type
        value = found.get(field.encode_name, msgspec.UNSET)
        if value is None and hint is float:
            found[field.encode_name] = math.inf
        elif isinstance(value, dict) and isinstance(hint, type) and issubclass(hint, Struct):
            found[field.encode_name] = _restore_infinities(value, hint)
    return found
