"""The cache of one engine: the contexts of chains that share it, by how far they have grown, and what they are expected to come to.

Pure: contexts enter as numbers of tokens, and whether they fit leaves.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.engine import Fact
from pipeline.graph.plan import Plan

FILLED = 0.95
"""Share of a cache that is filled. A context that does not fit after all takes the place of another, which takes that of a third: near
to its limit a cache makes every call compute its context again."""
CLASSES = 32
"""Number of classes into which chains are divided by how far their contexts have grown; the classes double their width as they are
outgrown."""
_CLASS = np.arange(CLASSES)
_LATER = _CLASS[:, None] + _CLASS[None, :]
"""To which class a chain of class i belongs once its context has grown through j more."""


class CacheLimit(Struct, frozen=True, kw_only=True):
    """The size of one engine's cache, and the part of it that a step takes beyond the contexts."""

    role: str
    tokens: float = inf
    """Tokens whose keys and values fit into it."""
    sequences: float = inf
    """Sequences that fit into it, where each takes a place of one size."""
    parallel_steps: int = 1
    """How many texts as long as a step a chain has there in addition to its context: the candidates that are drafted or judged."""


def cache_limits(plan: Plan, facts: Mapping[str, Mapping[str, Fact]]) -> dict[str, CacheLimit | None]:
    """The limit of each engine that the loops of `plan` call, by role; None where its `facts` do not state the size of its cache.

    A context is there once for each adapter that it is computed with, so that each has its part of the cache. Empty without a loop: a
    chain that makes one call after another of the same text has no context to come back to (`call_tokens`).
    """
    found: dict[str, CacheLimit | None] = {}
    for role, parallel_steps in _parallel_steps(plan).items():
        copies = len({getattr(node.spec, "adapter", None) for node in plan.repeated if node.spec.role == role})
        tokens, sequences = (_positive(facts[role].get(name), copies) for name in ("kv_cache_tokens", "kv_cache_sequences"))
        stated = tokens or sequences
        limit = CacheLimit(role=role, tokens=tokens or inf, sequences=sequences or inf, parallel_steps=parallel_steps)
        found[role] = limit if stated else None
    return found


def call_tokens(plan: Plan, facts: Mapping[str, Mapping[str, Fact]]) -> dict[str, float]:
    """By role, the tokens that calls in flight may come to in the cache of each engine that states its size. Empty with a loop, whose
    chains are bounded by `cache_limits`: without one a chain keeps nothing in a cache but the text that is being written."""
    if plan.repeated:
        return {}
    sizes = {role: _positive(each.get("kv_cache_tokens"), 1) for role, each in facts.items()}
    return {role: size for role, size in sizes.items() if size is not None}


def _parallel_steps(plan: Plan) -> dict[str, int]:
    """By role, how many texts as long as a step the repeated stages of `plan` have at its engine at once."""
    found: dict[str, int] = {}
    specs = [node.spec for node in plan.repeated if node.spec.role is not None]
    drafted = sum(spec.drafted for spec in specs)
    for spec in specs:
        texts = spec.drafted if spec.drafts else drafted if spec.judges else 1
        found[str(spec.role)] = max(found.get(str(spec.role), 1), texts)
    return found


def _positive(fact: Fact | None, parts: int) -> float | None:
    """One of that many equal parts of a size that an engine states; None if it states none."""
    return fact / parts if isinstance(fact, int | float) and fact > 0 else None


class Cache:
    """The contexts in the cache of one engine, by how far they have grown, and what they are expected to come to."""

    def __init__(self, limit: CacheLimit) -> None:
        self.limit = limit
        self.tokens = 0
        """Tokens in the contexts of the members that run."""
        self.start = 0.0
        """Mean context of a chain that begins."""
        self._begun = self._steps = self._grown = 0
        self._width = 16
        """Tokens of growth in one class."""
        self._going, self._contexts, self._live, self._ended = ([0] * CLASSES for _ in range(4))
        """By class: members that run, tokens of their contexts, live members, and members that have ended."""

    @property
    def beside(self) -> float:
        """Tokens that a chain takes in addition to its context. A step puts as many texts of its length there as are drafted or judged at
        once, and one more for what the engine writes itself and for questions; those of the step before are still there too, as nothing is
        evicted that was used later than a context.
        """
        return 2 * (self.limit.parallel_steps + 1) * self._grown / self._steps if self._steps else 0.0

    def begin(self, start: int) -> None:
        """A member has its first turn with a context of `start` tokens."""
        self._begun += 1
        self.start += (start - self.start) / self._begun
        self._live[0] += 1

    def go(self, start: int, tokens: int, sign: int = 1) -> None:
        """A member whose context was `start` tokens and is `tokens` runs; with the sign -1 it no longer does."""
        place = (tokens - start) // self._width
        self._going[place] += sign
        self._contexts[place] += sign * tokens
        self.tokens += sign * tokens

    def grow(self, start: int, before: int, tokens: int, running: bool) -> None:
        """A step of a round has brought a context that began with `start` tokens from `before` to `tokens`."""
        while tokens - start >= CLASSES * self._width:
            self._widen()
        self._live[(before - start) // self._width] -= 1
        self._live[(tokens - start) // self._width] += 1
        if running:
            self.go(start, before, -1)
            self.go(start, tokens)
        self._steps += 1
        self._grown += tokens - before

    def end(self, start: int, tokens: int) -> None:
        """A member that no longer runs has ended with a context of `tokens`."""
        place = (tokens - start) // self._width
        self._live[place] -= 1
        self._ended[place] += 1

    def fits(self, members: int) -> bool:
        """True if there is room now for the contexts of that many running members, and for a step of each."""
        return self.tokens + members * self.beside <= FILLED * self.limit.tokens

    def has_room(self, members: int, start: float, tokens: float, unseen: int = 0) -> bool:
        """True if that many members are expected to fit from now on, one of which joins them with a context that began
        with `start` tokens and has `tokens`.

        `unseen` of the others have not had their first turn.
        """
        more, room = tokens + unseen * self.start, FILLED * self.limit.tokens - members * self.beside
        if self.tokens + more > room:
            return False
        longest = max((place for place in range(CLASSES) if self._live[place] or self._ended[place]), default=0)
        if self.tokens + more + members * (longest + 1) * self._width <= room:
            return True  # even if all of them became the longest
        running, contexts = np.array(self._going, float), np.array(self._contexts, float)
        running[0], contexts[0] = running[0] + unseen, contexts[0] + unseen * self.start
        place = int(tokens - start) // self._width
        running[place], contexts[place] = running[place] + 1, contexts[place] + tokens
        return self._peak(running, contexts) <= room

    def _peak(self, running: "np.ndarray[Any, Any]", contexts: "np.ndarray[Any, Any]") -> float:
        """The maximum number of tokens that contexts, with these counts by class, are expected to reach at any time, if all grow alike.

        What share of a class lives on until the next is estimated as Kaplan and Meier do, from all chains that came so far: those that
        have not ended count as well, or else the short ones, which end first, would represent all. Beyond the longest none continues.
        """
        ended = np.array(self._ended, float)
        reached = np.cumsum((ended + self._live)[::-1])[::-1]
        lives_on = 1 - np.divide(ended, reached, out=np.ones(CLASSES), where=reached > 0)
        surviving = np.cumprod([1.0, *lives_on[:-1]]) * (reached > 0)
        share = np.append(surviving, np.zeros(CLASSES))[_LATER] / np.where(surviving > 0, surviving, 1.0)[:, None]
        return float((share * (contexts[:, None] + running[:, None] * _CLASS * self._width)).sum(0).max())

    def _widen(self) -> None:
        """Make every class twice as wide."""
        self._width *= 2
        for counts in (self._going, self._contexts, self._live, self._ended):
            counts[:] = [sum(counts[place : place + 2]) for place in range(0, CLASSES, 2)] + [0] * (CLASSES // 2)
