"""The requests of a server that are not answered: they enter as chains of the run, and its rows leave to whoever waits for them.

Decides synchronously and never waits: a request is refused at once where too many wait.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.data.requests import ApiError, AskedChat, ChainReply
from pipeline.export.openai_batch import reply_of
from pipeline.reasoning.chain import chain_id
from pipeline.runtime.admission.feed import Arrivals, Start, Withdrawal
from pipeline.store.rows import CallRow, ChainRow, StepRow

RETRY_S = 5
"""Seconds after which a client that is refused is asked to try again."""


class ServeLimits(Struct, frozen=True, kw_only=True):
    """The bounds of one server."""

    max_queue: int = 1024
    """Most requests that wait for their chains to begin."""
    timeout_s: float = 3600.0
    """Most seconds from a request to its answer."""


class CommittedStep(Struct, frozen=True):
    """A step of one of a request's chains that was committed."""

    index: int
    """Number of the chain, from 0: the index of its choice."""
    text: str
    """The tag that closes the thought is at the end of its last step."""


class Ended(Struct, frozen=True):
    """One of a request's chains is over."""

    index: int
    outcome: ChainReply | ApiError


Event = CommittedStep | Ended
Listener = Callable[[Event], object]
"""Hears what happens to the chains of a request; it must not wait."""


class _OpenChain(Struct):
    """A chain that is not over, and the texts of its steps."""

    index: int
    listener: Listener
    texts: list[str] = []


class Desk:
    """Hands the requests of clients to the run, of whose rows it is a `pipeline.runtime.rows.RowSink`."""

    def __init__(self, arrivals: Arrivals, limits: ServeLimits, mark: str) -> None:
        """`mark`: the tag that closes a thought."""
        self._arrivals, self.limits, self.mark = arrivals, limits, mark
        self._next_row = 1
        self._open: dict[str, _OpenChain] = {}
        """By `chain_id`."""
        self.chains = self.taken = self.refused = 0
        """Chains that were asked for, requests that were taken, and those that were refused because too many waited."""
        self.closed: str | None = None
        """Why no request is taken any more; None while they are."""

    @property
    def waiting(self) -> int:
        """Chains that have not begun."""
        return len(self._arrivals)

    def ask(self, name: str, chat: AskedChat, record: Mapping[str, Any], listener: Listener) -> tuple[Start, ...]:
        """Let the chains of a request wait, which have a row number each and `name` as `problem_id`. Raises `ApiError` where too many
        do, or the server ends."""
        count = chat.settings.samples or 1
        if self.closed is not None:
            raise ApiError(self.closed, code="service_unavailable", status=503)
        if self.waiting + count > self.limits.max_queue:
            self.refused += 1
            what = f"{self.waiting:,} requests wait already; try again later"
            raise ApiError(what, code="rate_limit_exceeded", status=429)
        row = self._next_row
        self._next_row += count
        self.taken += 1
        self.chains += count
        problem = Problem(row, name, chat.problem, None, history=chat.history, settings=chat.settings)
        starts = tuple(Start(problem, index, row - 1 + index, withdrawal=Withdrawal(), record=record) for index in range(count))
        for start in starts:
            self._open[chain_id(name, start.sample_index)] = _OpenChain(start.sample_index, listener)
            self._arrivals.add(start)
        return starts

    def withdraw(self, starts: Sequence[Start], why: str) -> None:
        """End the chains of a request that nobody waits for any more."""
        for start in starts:
            name = chain_id(start.item.problem_id, start.sample_index)
            if self._arrivals.take_back(start):
                del self._open[name]
            elif name in self._open:
                assert start.withdrawal is not None
                start.withdrawal.withdraw(why)

    def close(self, why: str) -> None:
        """Take no more requests, and give up those whose chains have not begun."""
        self.closed = why
        error = ApiError(why, code="service_unavailable", status=503)
        for start in self._arrivals.take_all():
            chain = self._open.pop(chain_id(start.item.problem_id, start.sample_index))
            chain.listener(Ended(chain.index, error))

    def call(self, row: CallRow) -> None:
        """Nobody waits for a call."""

    def step(self, row: StepRow) -> None:
        """Tell whoever waits of a committed step."""
        chain = self._open.get(row.chain_id)
        if chain is not None:
            chain.texts.append(row.step_text)
            chain.listener(CommittedStep(chain.index, row.step_text))

    def chain(self, row: ChainRow) -> None:
        """Tell whoever waits that a chain is over."""
        chain = self._open.pop(row.chain_id, None)
        if chain is not None:
            try:
                outcome: ChainReply | ApiError = reply_of(row, "".join(chain.texts))
            except ApiError as error:
                outcome = error
            chain.listener(Ended(chain.index, outcome))

    async def room(self) -> None:
        """The requests that wait are bounded before they come here."""
