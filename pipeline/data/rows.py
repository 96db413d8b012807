"""What a row of an input is: values by column, or a flaw. Every format of `formats` gives its rows as a `Source`."""

import lzma
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import InputError

MAX_ROW_BYTES = 16 << 20
"""Most bytes of a row; a longer one is a `Flaw`."""
MAX_COLUMNS = 10_000
"""Most columns of a file; one with more is refused."""
DAMAGE = (OSError, EOFError, lzma.LZMAError)
"""The errors that a damaged file raises while it is read."""


class Flaw(Exception):
    """What is wrong with one row; the text is a clause."""


Record = Mapping[str, Any] | Flaw
"""One row: values by column, or what is wrong with it."""


class Source(Protocol):
    """An open file of rows, in one format."""

    @property
    def names(self) -> Mapping[str, None]:
        """The names of the columns, in order; of JSON lines those met so far."""

    @property
    def remark(self) -> str:
        """A clause about what was chosen in reading it, known after its first row; else empty."""

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """Every row with its number, from 1: those of the `wanted` columns that it has, None: all of them, or a `Flaw`."""


def distinct(path: Path, names: Sequence[str]) -> dict[str, None]:
    """`names` as the ordered keys of a dictionary; raises `InputError` where there are too many or two are the same."""
    if len(names) > MAX_COLUMNS:
        raise InputError(str(path), f"has {len(names):,} columns, more than {MAX_COLUMNS:,}")
    twice = [f"`{name}`" for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(str(path), f"has the column {', '.join(twice[:5])} twice")
    return dict.fromkeys(names)
