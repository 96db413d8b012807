"""A random sample of the rows of an input: `N` or `N:SEED` enters, the numbers of its rows leave.

The rows with the least hashes of seed and number are taken. So a sample is the same wherever it is drawn, it does not depend on the seed
of the run, and a smaller one with the same seed is part of a larger one.
"""

import heapq
import re
from hashlib import blake2b
from typing import TypeAlias

from msgspec import Struct

from pipeline.errors import UsageError

MOST_ROWS = 1_000_000_000_000
"""Most rows that may be asked for: far more than any file has, and far less than what Python can count in a slice."""


class RowSample(Struct, frozen=True):
    """So many rows, drawn without replacement."""

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


Part: TypeAlias = int | RowSample | None
"""Which rows of an input: the first so many, a sample, or all."""


def row_sample(text: str) -> RowSample:
    """The sample that `text` asks for; raises `UsageError`."""
    found = re.fullmatch(r"(\d{1,12})(?::(-?\d{1,18}))?", text, re.ASCII)
    if found is None or not 1 <= int(found[1]) <= MOST_ROWS:
        raise UsageError(f"--sample {text}: expected a number of rows, 1 or more, or ROWS:SEED")
    return RowSample(int(found[1]), int(found[2] or 0))
