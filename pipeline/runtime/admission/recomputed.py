"""Counts the tokens of a chain's context that an engine computed again, because they had been evicted from its cache. Pure."""

from collections.abc import Hashable, Mapping

from pipeline.engine import Fact

BLOCK_TOKENS = 16
"""Tokens in a block of the cache of an engine that does not state its `block_size`: vLLM's own default."""


def block_tokens(facts: Mapping[str, Fact]) -> int:
    """Tokens that the cache of an engine with these `facts` keeps or evicts together."""
    stated = facts.get("block_size")
    return stated if isinstance(stated, int) and stated > 0 else BLOCK_TOKENS


class ComputedContexts:
    """The parts of one chain's context that the engines have computed.

    Every prompt begins with the context of its chain, which only grows, so that what an engine computed for an earlier step is a prefix of
    what it is asked for now. What comes back less than that from its cache, it computes again. The context of the step itself does not
    count, as calls of one step may be in flight together, and a block that is not full is kept by no cache.
    """

    __slots__ = ("_blocks", "_contexts")

    def __init__(self, blocks: Mapping[str, int]) -> None:
        """`blocks`: see `block_tokens`, by role."""
        self._blocks = blocks
        self._contexts: dict[Hashable, tuple[int, int]] = {}
        """By its key, the length of the latest context that it computed, and of the one before that was shorter."""

    def recomputed(self, key: Hashable, role: str, context: int, cached: int) -> int:
        """How many tokens the engine computed again for a call with a context of that many tokens, of which `cached` were in its cache.
        `key` tells apart the contexts of the chain, and the adapters that they are computed with."""
        latest, before = self._contexts.get(key, (0, 0))
        if context > latest:
            before = latest
            self._contexts[key] = (context, before)
        block = self._blocks.get(role, BLOCK_TOKENS)
        return max(0, before // block * block - cached)
