"""The compiled graph: stages in the order they run, conditions resolved. Frozen; it can be printed, hashed and compared.

A block's `levels` are what one chain runs: the stages of a level run concurrently and their outcomes are applied in the order listed, so
that timing never changes an answer.
"""

import hashlib
from collections.abc import Iterator
from itertools import chain

import msgspec
from msgspec import Struct

from pipeline.graph.files import BUNDLED, model_name
from pipeline.graph.prompts import Prompts
from pipeline.graph.spec import EngineSpec, GraphSpec, Param, Speculate, StageSpec, UntilSpec, waits_for

VERDICTS, READINGS = ("accepted", "rejected"), ("passed", "flagged")
"""The decisions of a judge, and of a gate."""


class Condition(Struct, frozen=True):
    """When a node runs: only if `stage`, a judge or a gate, decided so in this round."""

    stage: str
    word: str
    """One of `VERDICTS` or `READINGS`."""


class StageNode(Struct, frozen=True):
    """A stage in a plan."""

    name: str
    spec: StageSpec
    condition: Condition | None
    """When it runs; None: always."""
    rank: int
    """Place among all stages of the plan, from 0."""


class LoopNode(Struct, frozen=True):
    """A `repeat` in a plan: its body runs until one of the stop conditions in `until` holds."""

    name: str
    until: UntilSpec
    body: "Block"
    condition: Condition | None
    trial: StageNode | None = None
    """The stage that asks for the answer before the thought is over; None where `until` needs no such answer."""


class Block(Struct, frozen=True):
    """Stages in topological order, grouped by the longest path that leads to them."""

    levels: tuple[tuple[StageNode | LoopNode, ...], ...]
    first_writer: StageNode | None = None
    """In a loop: the stage that writes the first steps alone, while the other stages do not run; None: there is none."""
    first_steps: int = 0
    """How many steps those are."""

    def nodes(self) -> Iterator[StageNode | LoopNode]:
        """The stages and loops of the block in their order."""
        return chain.from_iterable(self.levels)

    def stages(self) -> Iterator[StageNode]:
        """Every stage of the block and of its loops, in order."""
        for node in self.nodes():
            if isinstance(node, StageNode):
                yield node
            else:
                yield from (*node.body.stages(), *([] if node.trial is None else [node.trial]))


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
        return tuple(node for node in self.block.nodes() if isinstance(node, LoopNode))

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
    def measured(self) -> dict[str, str]:
        """The stages that draft whose log probabilities are read, each with the first gate that does."""
        specs = {node.name: node.spec for node in self.stages()}

        def drafts_before(name: str) -> Iterator[str]:
            for other in waits_for(specs[name]):
                yield from (other,) if specs[other].drafts else drafts_before(other)

        gates = [name for name, spec in specs.items() if spec.reads_logprobs]
        return {draft: gate for gate in reversed(gates) for draft in drafts_before(gate)}

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
