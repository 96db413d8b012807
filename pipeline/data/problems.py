"""One problem of an input, and which rows of an input a run solves."""

import hashlib
import heapq
import re
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from pipeline.errors import UsageError
from pipeline.graph.prompts import Message, Prompts
from pipeline.graph.spec import PLAIN_SAMPLING

Row = TypeVar("Row")
MAX_ROWS = 1_000_000_000_000
"""Maximum of a number of rows: far more than any file has, and far less than Python can count in a slice."""


class Frame(Protocol):
    """A table with the Arrow C stream interface: of Arrow, pandas, polars and others."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table as a capsule."""


class ChainSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a problem says of its own chains; None: what the graph and the run say."""

    max_tokens: int | None = None
    """Maximum number of tokens of thought and answer together."""
    temperature: float | None = None
    """Of every stage that samples text; 0: greedy."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    """In place of the run's seed. The id of the problem is then no part of the seed: equal requests have equal answers."""
    stop: tuple[str, ...] = ()
    """Texts at which the answer ends, themselves left out. A thought does not end at them."""
    samples: int | None = None
    """Number of chains."""

    @property
    def sampling(self) -> dict[str, Any]:
        """The fields of a `Request` that are set here in place of the stage's own."""
        return {name: value for name in PLAIN_SAMPLING if (value := getattr(self, name)) is not None}


DEFAULT = ChainSettings()


class Problem(Struct, frozen=True):
    """One problem to solve, from one input row."""

    row: int
    """The number of its row in the input, from 1; neither blank lines nor the header of a CSV file are rows."""
    problem_id: str
    """Its name in the run, unique in the input; the row number where the input has none, `(row 7)` where this row alone has none."""
    problem: str
    """The text that the models are asked about."""
    answer: str | None
    """The reference answer as text; of a worked solution that ends in `#### ANSWER` (GSM8K) only what follows the marker."""
    options: tuple[str, ...] = ()
    """The options of a multiple-choice problem that `problem` does not show, in the order of their letters; else empty. Then the answer
    is a letter."""
    grader: str | None = None
    """How the answer is to be graded; None where the row does not say, and the caller chooses."""
    history: tuple[Message, ...] = ()
    """The chat before the problem, whose last message of the user it is: a message of the system, turns of user and assistant."""
    settings: ChainSettings = DEFAULT
    """What it says of its own chains."""

    def told(self, prompts: Prompts) -> str:
        """The problem as one text, with its options and what was said before it."""
        text = prompts.with_options(self.problem, self.options)
        if not self.history:
            return text
        return "\n\n".join(f"{message.role}: {message.content}" for message in (*self.history, Message("user", text)))


class RowSample(Struct, frozen=True):
    """A number of rows, drawn without replacement: those with the least hashes of seed and row number. A smaller sample with the same seed
    is part of a larger one."""

    rows: int
    seed: int = 0

    def drawn(self, rows: Iterable[tuple[int, Row]]) -> list[tuple[int, Row]]:
        """The sample of numbered `rows`, in their order; of fewer rows, all."""
        return sorted(heapq.nsmallest(self.rows, rows, key=lambda each: self._rank(each[0])), key=lambda each: each[0])

    def __str__(self) -> str:
        return f"{self.rows}:{self.seed}"

    def _rank(self, row: int) -> bytes:
        return hashlib.blake2b(f"{self.seed}:{row}".encode(), digest_size=16).digest()


class Shard(Struct, frozen=True):
    """One of several parts of an input, of about the same size; a problem is in the same one however the rows are ordered."""

    index: int
    """From 0."""
    count: int

    def holds(self, name: str) -> bool:
        """Whether the problem with this name is in this shard."""
        return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()) % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class RowSet(Struct, frozen=True):
    """Which rows of an input a run solves."""

    limit: int | None = None
    """Only rows up to this number. They are the only ones solved; a run keeps the others, so that its limit can grow."""
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
