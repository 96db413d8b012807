"""The compiled graph: stages in the order they run, conditions resolved. Frozen; it can be printed, hashed and compared.

A block's `levels` are what one chain runs: the stages of a level run concurrently and their outcomes are applied in the order listed, so
that timing never changes an answer.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.graph.bundled import BUNDLED, model_name
from pipeline.graph.prompts import Prompts
from pipeline.graph.spec import EngineSpec, GraphSpec, Param, Speculate, StageSpec, UntilSpec, early_end, waits_for


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

    graph: GraphSpec
    """The graph with all its params filled in."""
    block: Block
    engines: dict[str, EngineSpec]
    """The roles this graph uses, in the order they first appear."""
    speculate: Speculate | None = None
    """Whether its loop speculates; None where no loop of it drafts."""

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def prompts(self) -> Prompts:
        """What is said to the models, by stages that have nothing of their own to say."""
        return self.graph.prompts

    @property
    def params(self) -> dict[str, Param]:
        return self.graph.params

    @property
    def digest(self) -> str:
        """Fingerprint of the graph, 32 hexadecimal digits; equal graphs have equal ones."""
        return hashlib.blake2b(msgspec.json.encode(self.graph, order="deterministic"), digest_size=16).hexdigest()

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


def settings_of(spec: EngineSpec | StageSpec) -> dict[str, Any]:
    """Every field of a stage or an engine as a file would say it, defaults and `kind` or `backend` included."""
    settings: dict[str, Any] = msgspec.to_builtins(spec)
    return settings
