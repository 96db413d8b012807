"""Which rows of an input a run uses: all, the first `n`, or a random sample; and of these one of several shards.

A sample is the rows with the least hashes of seed and number. So it is the same wherever it is drawn, it does not depend on the seed of the
run, and a smaller one with the same seed is part of a larger one. A shard is the problems whose hash says so, whatever their rows are.
"""

import heapq
import re
from hashlib import blake2b

from msgspec import Struct

from pipeline.errors import UsageError

MAX_ROWS = 1_000_000_000_000
"""Most rows that may be asked for: far more than any file has, and far less than what Python can count in a slice."""


class RowSample(Struct, frozen=True):
    """A number of rows, drawn without replacement."""

    rows: int
    seed: int = 0

    def drawn(self, count: int) -> frozenset[int]:
        """The numbers of the rows, from 1, of an input of `count` rows."""
        return frozenset(heapq.nsmallest(self.rows, range(1, count + 1), key=self._rank))

    def holds(self, other: "RowSample") -> bool:
        """Whether every row of `other` is a row of this one, of the same input."""
        return self.seed == other.seed and other.rows <= self.rows

    def __str__(self) -> str:
        return f"{self.rows}:{self.seed}"

    def _rank(self, row: int) -> bytes:
        return blake2b(f"{self.seed}:{row}".encode(), digest_size=16).digest()


class Shard(Struct, frozen=True):
    """One of `count` parts of the problems, which share none of them and together hold all."""

    index: int
    """From 0."""
    count: int

    def holds(self, problem_id: str) -> bool:
        """Whether the problem of this name is in the shard."""
        digest = blake2b(problem_id.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class RowSet(Struct, frozen=True, kw_only=True):
    """Which rows of an input are asked for; by default all."""

    limit: int | None = None
    """Only the first `limit` rows."""
    sample: RowSample | None = None
    """These, drawn at random; not together with a limit."""
    shard: Shard | None = None
    """Of the rows that the two above leave, those of this shard."""


ALL = RowSet()


def row_sample(text: str) -> RowSample:
    """The sample that `text` asks for; raises `UsageError`."""
    found = re.fullmatch(r"(\d{1,12})(?::(-?\d{1,18}))?", text, re.ASCII)
    if found is None or not 1 <= int(found[1]) <= MAX_ROWS:
        raise UsageError(f"--random {text}: expected N or N:SEED, with N at least 1")
    return RowSample(int(found[1]), int(found[2] or 0))


def shard_of(text: str) -> Shard:
    """The shard that `text` asks for; raises `UsageError`."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if found is None or not int(found[1]) < int(found[2]):
        raise UsageError(f"--shard {text}: expected INDEX/COUNT with an index from 0 to COUNT - 1, such as 0/8")
    return Shard(int(found[1]), int(found[2]))
