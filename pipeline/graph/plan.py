"""The compiled graph: stages in the order they run, conditions resolved. Frozen; it can be printed, hashed and compared.

A block's `levels` are what one chain runs: the stages of a level run concurrently and their outcomes are applied in
the order they stand there, so that timing never changes an answer.
"""

from collections.abc import Iterator

from msgspec import Struct

from pipeline.graph.spec import EngineSpec, StageSpec, UntilSpec


class Condition(Struct, frozen=True):
    """Run only when the verdict of `stage` was `accepted`."""

    stage: str
    accepted: bool


class StageNode(Struct, frozen=True):
    """A node that calls engines."""

    name: str
    spec: StageSpec
    condition: Condition | None
    rank: int
    """Place among all stages of the plan, from 0."""


class LoopNode(Struct, frozen=True):
    """A `repeat`: its body runs until an exit holds."""

    name: str
    until: UntilSpec
    body: "Block"
    condition: Condition | None


class Block(Struct, frozen=True):
    """Stages in topological order, grouped by the longest path that leads to them."""

    levels: tuple[tuple[StageNode | LoopNode, ...], ...]
    first_writer: StageNode | None = None
    """The stage that writes the first steps by itself."""
    first_steps: int = 0


class Plan(Struct, frozen=True):
    """What a run carries out."""

    name: str
    instruction: str | None
    block: Block
    engines: dict[str, EngineSpec]
    """The roles this graph uses, in the order they first appear."""
    params: dict[str, bool | int | float | str]
    digest: str

    def stages(self) -> Iterator[StageNode]:
        """Every stage that calls an engine, in plan order."""
        yield from _stages(self.block)


def _stages(block: Block) -> Iterator[StageNode]:
    for level in block.levels:
        for node in level:
            if isinstance(node, LoopNode):
                yield from _stages(node.body)
            else:
                yield node
