"""One problem of an input."""

from typing import Any, Protocol

from msgspec import Struct

from pipeline.graph.prompts import Message, Prompts
from pipeline.graph.spec import PLAIN_SAMPLING


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
