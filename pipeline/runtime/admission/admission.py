"""Admission by cache: which live chains run, so that their contexts fit into the key-value cache of every engine.

A chain comes back to its context at every step; where another's has taken its place by then, all of it is computed again. So a chain
begins, or continues after a pause, only if it is expected to fit together with the growth of the others; and if the room runs out after
all, the youngest pauses. At least one chain always runs. A context counts as a whole, also where its engine has not read the last steps,
because a gate let them pass: its next call computes them, and needs the room. Decides synchronously; never waits.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from pipeline.runtime.admission.cache import Cache, CacheLimit


class AdmissionMember:
    """A live chain, as `Admission` knows it."""

    __slots__ = ("number", "running", "starts", "tokens")

    def __init__(self, number: int) -> None:
        self.number = number
        """The number of chains that began before it."""
        self.running = False
        """True while it runs; False: it pauses, from its next level on."""
        self.starts: list[int] = []
        """Tokens of its context in each of the caches before its first level; empty until then."""
        self.tokens: list[int] = []
        """The same before its last level."""


class Admission:
    """Decides which of the live chains run, by the limits of at least one cache; chains report their contexts before each level.

    What holds whenever no method runs: `_members` are the live chains by age, of which the oldest, `_running` of them, run and the others
    pause; a cache counts the contexts of those that run and have reported some.
    """

    def __init__(self, limits: Sequence[CacheLimit]) -> None:
        self.pauses = 0
        """The number of times that a chain was told to pause."""
        self._caches = [Cache(limit) for limit in limits]
        self._roles = [limit.role for limit in limits]
        self._max_sequences = min(limit.sequences for limit in limits)
        self._members: list[AdmissionMember] = []
        self._running = self._numbers = self._unseen = 0
        """The numbers of members that run, that ever began, and that run and have not reported a context yet."""

    @property
    def paused(self) -> int:
        """Live chains that are to pause."""
        return len(self._members) - self._running

    def may_enter(self) -> bool:
        """True if one more chain may begin: none pauses, and it is expected to have room."""
        return self._running == len(self._members) and self._may_begin()

    def enter(self) -> AdmissionMember:
        """One more chain begins to run; its contexts are not known yet."""
        member = AdmissionMember(self._numbers)
        self._numbers += 1
        self._members.append(member)
        self._set(member, running=True)
        return member

    def before_level(self, member: AdmissionMember, contexts: Mapping[str, Sequence[int]]) -> bool:
        """Record the contexts of `member`, and let the youngest pause if they do not fit. Returns True if `member` continues."""
        tokens = [len(contexts[role]) for role in self._roles]
        if tokens != member.tokens:
            if member.starts:
                for cache, start, before, now in zip(self._caches, member.starts, member.tokens, tokens, strict=True):
                    cache.grow(start, before, now, member.running)
                member.tokens = tokens
            else:
                self._begin(member, tokens)
            self._pause_youngest()
        return member.running

    def leave(self, member: AdmissionMember) -> Iterator[AdmissionMember]:
        """`member` has ended; returns those that continue in its place, the oldest first."""
        if member.running:
            self._set(member, running=False)
        for cache, start, tokens in zip(self._caches, member.starts, member.tokens, strict=False):
            cache.end(start, tokens)
        del self._members[bisect_left(self._members, member.number, key=lambda each: each.number)]
        while self._running < len(self._members) and self._may_resume(oldest := self._members[self._running]):
            self._set(oldest, running=True)
            yield oldest

    def _pause_youngest(self) -> None:
        while self._running > 1 and not self._fits():
            self._set(self._members[self._running - 1], running=False)
            self.pauses += 1

    def _begin(self, member: AdmissionMember, tokens: list[int]) -> None:
        """The first report of `member`: its contexts have `tokens` tokens."""
        running = member.running
        if running:
            self._set(member, running=False)
        member.starts = member.tokens = tokens
        for cache, start in zip(self._caches, tokens, strict=True):
            cache.begin(start)
        if running:
            self._set(member, running=True)

    def _set(self, member: AdmissionMember, *, running: bool) -> None:
        """Let `member` run, or no longer."""
        sign = 1 if running else -1
        member.running = running
        self._running += sign
        if not member.starts:
            self._unseen += sign
        for cache, start, tokens in zip(self._caches, member.starts, member.tokens, strict=False):
            cache.go(start, tokens, sign)

    def _fits(self) -> bool:
        return self._running <= self._max_sequences and all(cache.fits(self._running) for cache in self._caches)

    def _may_resume(self, member: AdmissionMember) -> bool:
        if not member.starts:
            return self._may_begin()
        return self._has_room(member.starts, member.tokens)

    def _may_begin(self) -> bool:
        starts = [cache.start for cache in self._caches]
        return self._has_room(starts, starts)

    def _has_room(self, starts: Sequence[float], tokens: Sequence[float]) -> bool:
        """True if one more member with these contexts may run."""
        if not self._running:
            return True
        if self._running >= self._max_sequences:
            return False
        each = zip(self._caches, starts, tokens, strict=True)
        return all(cache.has_room(self._running + 1, start, size, self._unseen) for cache, start, size in each)
