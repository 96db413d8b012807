"""The requests of a server that are not answered: they enter as chains of the run, and its rows leave to whoever waits for them.

Decides synchronously and never waits: a request is refused at once where too many wait.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.data.requests.chat import AskedChat
from pipeline.data.requests.errors import ApiError, error_of
from pipeline.data.requests.reply import ChainReply
from pipeline.reasoning.chain import chain_id
from pipeline.runtime.admission.feed import Arrivals
from pipeline.runtime.admission.order import Start, Withdrawal
from pipeline.serve.limits import ServeLimits
from pipeline.store.events import CallRow, ChainRow, StepRow

RECENT = 64
"""The last chains by whose ends the pace is known."""
LONGEST_WAIT_S = 60
"""The longest wait that a client which is refused is asked for."""


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


class Ticket(Struct, frozen=True, kw_only=True):
    """A request whose chains wait, or are solved."""

    name: str
    """Its id: the `problem_id` of its chains."""
    starts: tuple[Start, ...]


class EarlierChains(Struct, frozen=True, kw_only=True):
    """What earlier sessions of the run left."""

    next_row: int = 1
    """The number after those of all requests."""
    texts: Mapping[str, Sequence[str]] = {}
    """The steps of the chains that had begun and go on, by `chain_id`."""


class _OpenChain:
    """A chain that is not over."""

    __slots__ = ("index", "listener", "texts")

    def __init__(self, index: int, listener: Listener, texts: list[str]) -> None:
        self.index, self.listener = index, listener
        self.texts = texts
        """Its steps."""


class Desk:
    """Hands the requests of clients to the run, of whose rows it is a `pipeline.runtime.rows.RowSink`."""

    def __init__(self, arrivals: Arrivals, limits: ServeLimits, mark: str, earlier: EarlierChains | None = None) -> None:
        """`earlier`: the chains of earlier sessions of the run."""
        self._arrivals, self._limits, self._earlier = arrivals, limits, earlier or EarlierChains()
        self.mark = mark
        """The tag that closes a thought."""
        self._next_row = self._earlier.next_row
        self._open: dict[str, _OpenChain] = {}
        """By `chain_id`."""
        self._ends = deque[float](maxlen=RECENT)
        self.chains = self.taken = self.refused = 0
        """Chains that were asked for in this session, requests that were taken, and those that were refused because too many waited."""
        self.closed: str | None = None
        """Why no request is taken any more; None while they are."""

    @property
    def waiting(self) -> int:
        """Chains of requests that have not begun; those of batches do not count."""
        return self._arrivals.first

    @property
    def waiting_spare(self) -> int:
        """Chains of batches that have not begun."""
        return self._arrivals.spare

    async def on_disk(self) -> bool:
        """Wait until the rows of all chains that are over are on disk; False where they cannot be written."""
        return await self._arrivals.on_disk()

    def keep_free(self, row: int) -> None:
        """Give no request a number below `row`."""
        self._next_row = max(self._next_row, row)

    @property
    def live(self) -> int:
        """Chains that have begun and are not over, or whose rows are on their way."""
        return len(self._open) - len(self._arrivals)

    def reserve(self, rows: int) -> int:
        """Keep so many numbers of rows for one batch; the first of them."""
        first = self._next_row
        self._next_row += rows
        return first

    def ask(self, name: str, chat: AskedChat, body: Mapping[str, Any], listener: Listener) -> Ticket:
        """Let the chains of a request wait; raises `ApiError` where too many do, or the server ends."""
        count = chat.settings.samples or 1
        if self.closed is not None:
            raise ApiError(self.closed, code="service_unavailable", status=503, kind="server_error")
        if self._arrivals.first + count > self._limits.max_queue:
            self.refused += 1
            raise Overloaded(self._arrivals.first, self.wait_s)
        self.taken += 1
        return self.submit(name, self.reserve(count), chat, body, range(count), listener)

    def submit(
        self,
        name: str,
        row: int,
        chat: AskedChat,
        record: Mapping[str, Any],
        indices: Sequence[int],
        listener: Listener,
        *,
        spare: bool = False,
    ) -> Ticket:
        """Let the chains of a request wait that have these `indices`; the number `row` is reserved for it, and the next ones for its other
        chains. One that is `spare` begins only while no other waits."""
        problem = Problem(row, name, chat.problem, None, history=chat.history, settings=chat.settings)
        starts = tuple(Start(problem, index, row - 1 + index, withdrawal=Withdrawal(), record=record) for index in indices)
        self.chains += len(starts)
        for start in starts:
            known = chain_id(name, start.sample_index)
            self._open[known] = _OpenChain(start.sample_index, listener, [*self._earlier.texts.get(known, ())])
            self._arrivals.add(start, spare=spare)
        return Ticket(name=name, starts=starts)

    def withdraw(self, ticket: Ticket, why: str) -> None:
        """End the chains of a request that nobody waits for any more."""
        for start in ticket.starts:
            if self._arrivals.take_back(start):
                del self._open[chain_id(ticket.name, start.sample_index)]
            elif chain_id(ticket.name, start.sample_index) in self._open:
                assert start.withdrawal is not None
                start.withdrawal.withdraw(why)

    def close(self, why: str) -> None:
        """Take no more requests, and give up those whose chains have not begun."""
        self.closed = why
        error = ApiError(why, code="service_unavailable", status=503, kind="server_error")
        for start in self._arrivals.take_all():
            chain = self._open.pop(chain_id(start.item.problem_id, start.sample_index))
            chain.listener(Ended(chain.index, error))

    @property
    def wait_s(self) -> int:
        """Seconds after which there may be room for a request, by the pace of the last chains; 1 where none is known."""
        span = self._ends[-1] - self._ends[0] if len(self._ends) > 1 else 0.0
        if span <= 0:
            return 1
        return min(LONGEST_WAIT_S, max(1, math.ceil(span / (len(self._ends) - 1) * self._arrivals.first / 2)))

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
        self._ends.append(time.monotonic())
        chain = self._open.pop(row.chain_id, None)
        if chain is not None:
            chain.listener(Ended(chain.index, outcome_of(row, "".join(chain.texts))))

    async def room(self) -> None:
        """The requests that wait are bounded before they come here."""


class Overloaded(ApiError):
    """Too many requests wait."""

    def __init__(self, waiting: int, wait_s: int) -> None:
        super().__init__(
            f"{waiting:,} requests wait already; try again later", code="rate_limit_exceeded", status=429, kind="rate_limit_error"
        )
        self.wait_s = wait_s


def outcome_of(row: ChainRow, thought: str) -> ChainReply | ApiError:
    """What a chain that is over wrote, or why it wrote nothing."""
    if row.stop_reason == "cancelled":
        return ApiError("the server was stopped before the answer", code="service_unavailable", status=503, kind="server_error")
    if row.stop_reason == "error":
        return error_of(row.error_type, row.error_message or "")
    return ChainReply(
        thought=thought,
        answer=row.answer_text,
        cut=row.answer_cut,
        thought_tokens=row.thought_tokens,
        input_tokens=dict(zip(row.engines, row.input_tokens, strict=True)),
        output_tokens=dict(zip(row.engines, row.output_tokens, strict=True)),
    )
