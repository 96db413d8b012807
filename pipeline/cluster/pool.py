"""Which chains wait to be handed out, which replica has which, and what is recorded of those. Decides synchronously; never waits.

A chain is in one of three places: it waits here, it is at one replica, or it is over. What a replica has reported of a chain is kept until
the chain is over, so that it can continue elsewhere from its last recorded call; of a chain that is over nothing is kept.
"""

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, structs

from pipeline.cluster.messages import Assignment
from pipeline.engine import Usage
from pipeline.reasoning.chain import chain_id
from pipeline.runtime.admission.order import Start
from pipeline.runtime.resume_state import ResumedCall, ResumedChain, ResumeState
from pipeline.store.events import CallRow, StepRow


class Held(Struct):
    """A chain that is not over, with all that is recorded of it."""

    start: Start
    resumed: ResumedChain
    """What another replica needs to continue it; grows with every reported row."""
    replica: int | None = None
    """The replica that has it; None while it waits."""
    avoid: frozenset[int] = frozenset()
    """Replicas that it should not come to again, as long as there are others."""
    moves: int = 0
    """How often it was taken from a replica that kept running."""


class Pool:
    """The chains of a run that are not over."""

    def __init__(self, resume_state: ResumeState) -> None:
        """`resume_state`: what earlier sessions left, from which each chain takes its own."""
        self._resume_state = resume_state
        self._waiting: deque[str] = deque()
        self._held: dict[str, Held] = {}
        self.counts = Counter[int]()
        """How many chains each replica has."""
        self.exhausted = False
        """Whether the input has no further chains."""

    @property
    def waiting(self) -> int:
        """Chains that wait to be handed out."""
        return len(self._waiting)

    @property
    def over(self) -> bool:
        """Whether no chain is left and none will come."""
        return self.exhausted and not self._held

    @property
    def handed(self) -> int:
        """Chains that are at some replica."""
        return len(self._held) - len(self._waiting)

    def add(self, start: Start) -> None:
        """Add a chain of the input."""
        name = chain_id(start.item.problem_id, start.sample_index)
        self._held[name] = Held(start, self._resume_state.chain(name))
        self._waiting.append(name)

    def take(self, replica: int, most: int, others: Callable[[], frozenset[int]]) -> tuple[Assignment, ...]:
        """Hand out at most `most` chains to `replica`. A chain that should avoid it waits for one of the `others`, if there is any."""
        taken, left = list[Assignment](), list[str]()
        while self._waiting and len(taken) < most:
            name = self._waiting.popleft()
            held = self._held[name]
            if replica in held.avoid and others() - held.avoid:
                left.append(name)
                continue
            self._held[name] = self._held.pop(name)  # the last one that was handed out
            held.replica = replica
            self.counts[replica] += 1
            taken.append(_assignment(held))
        self._waiting.extendleft(reversed(left))
        return tuple(taken)

    def has(self, replica: int, name: str) -> bool:
        """Whether the chain of this name is at `replica`."""
        held = self._held.get(name)
        return held is not None and held.replica == replica

    def names(self, replica: int) -> Iterator[str]:
        """The names of the chains at `replica`, those first that were handed out first."""
        return (name for name, held in self._held.items() if held.replica == replica)

    def held(self, name: str) -> Held:
        """What is kept of a chain that is not over."""
        return self._held[name]

    def call(self, row: CallRow) -> None:
        """Keep a reported call of a chain that is at a replica."""
        resumed = self._held[row.chain_id].resumed
        resumed.attempts += 1
        ready = row.submit_unix_ns - round(row.client_wait_s * 1e9)
        resumed.started_unix_ns = min(resumed.started_unix_ns or ready, ready)
        resumed.ended_unix_ns = max(resumed.ended_unix_ns or 0, row.end_unix_ns)
        if row.error_type is None:
            resumed.calls[row.request_id] = _recorded(row)

    def step(self, row: StepRow) -> None:
        """Keep a reported step of a chain that is at a replica."""
        resumed = self._held[row.chain_id].resumed
        resumed.steps.append(row.step_token_ids)
        resumed.modes.append(row.mode)  # type: ignore[arg-type]  # a column of the trace is any text

    def end(self, name: str) -> Start:
        """A chain is over."""
        held = self._held.pop(name)
        self._leave(held)
        return held.start

    def put_back(self, names: Iterable[str], avoid: frozenset[int] = frozenset()) -> int:
        """Let chains wait again, before all others, because their replica is lost or gave them back; their number."""
        back = []
        for name in names:
            held = self._held[name]
            self._leave(held)
            held.avoid |= avoid
            back.append(name)
        self._waiting.extendleft(reversed(back))
        return len(back)

    def _leave(self, held: Held) -> None:
        if held.replica is not None:
            self.counts[held.replica] -= 1
            held.replica = None


def _assignment(held: Held) -> Assignment:
    start, resumed = held.start, held.resumed
    # A replica takes calls out of what it gets, and one of this process would take them out of ours.
    own = structs.replace(resumed, calls=dict(resumed.calls), steps=list(resumed.steps), modes=list(resumed.modes))
    return Assignment(
        item=start.item,
        sample_index=start.sample_index,
        order=start.order,
        expected_length=start.expected_length,
        resumed=own if resumed.attempts or resumed.steps else None,
    )


def _recorded(row: CallRow) -> ResumedCall:
    """The answer in a row of the calls table; ids as arrays, which take a tenth of the memory."""
    return ResumedCall(
        request_id=row.request_id,
        prompt_digest=row.prompt_digest,
        usage=Usage(input_tokens=row.input_tokens, cached_input_tokens=row.cached_input_tokens, output_tokens=row.output_tokens),
        wait_s=row.client_wait_s,
        submit_unix_ns=row.submit_unix_ns,
        end_unix_ns=row.end_unix_ns,
        output_token_ids=[array("I", ids) for ids in row.output_token_ids],
        finish_reason=row.finish_reason,  # type: ignore[arg-type]  # a column of the trace is any text
        stop_reason=row.stop_reason,
        option_logprobs=row.option_logprobs,
        scored_logprobs=row.scored_logprobs,
    )
